//! When which process is killed.

use std::collections::BTreeSet;

use fastrand::Rng;

/// How often each process is killed.
pub(crate) const KILLS: usize = 10;

/// A process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Manager,
    Driver,
    Proxy,
}

/// A process is killed as soon as so many VMs have been made or have ended, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) changes: usize,
    pub(crate) victim: Victim,
}

/// Ten moments for each process, spread over these changes by a seed.
pub(crate) fn moments(seed: u64, changes: std::ops::Range<usize>) -> Vec<Moment> {
    let mut random = Rng::with_seed(seed);
    let mut victims = [[Victim::Manager; KILLS], [Victim::Driver; KILLS], [Victim::Proxy; KILLS]].concat();
    random.shuffle(&mut victims);
    let at: BTreeSet<_> = random.choose_multiple(changes, victims.len()).into_iter().collect();
    at.into_iter().zip(victims).map(|(changes, victim)| Moment { changes, victim }).collect()
}

#[test]
fn each_process_is_killed_ten_times_at_different_moments() {
    let drawn = moments(7, 3..105);
    for victim in [Victim::Manager, Victim::Driver, Victim::Proxy] {
        assert_eq!(drawn.iter().filter(|moment| moment.victim == victim).count(), KILLS);
    }
    assert!(drawn.windows(2).all(|pair| pair[0].changes < pair[1].changes));
    assert_eq!(drawn, moments(7, 3..105));
    assert_ne!(drawn, moments(8, 3..105));
}
