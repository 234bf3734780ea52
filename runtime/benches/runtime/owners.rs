//! The time to find the machines of a set in a full cache. The sets are looked up in random order, so that no memory is warm
//! by accident, and the UIDs are not the strings that the cache holds.

use std::{hint::black_box, time::Instant};

use crate::{
    contender::{Cache, Contender},
    fixture::{MACHINES, SET, SETS, set_uid},
    report::{Numbers, float, quantile},
    server::Server,
};

/// The number of sets of one machine.
const SINGLES: usize = MACHINES - SETS * SET;

pub(crate) async fn measure(who: Contender) -> Numbers {
    let server = Server::new(MACHINES);
    let cache = who.cache(&server);
    server.watched(1).await;
    crate::memory::at_rest().await;
    // A scan takes milliseconds: a few suffice.
    let (rounds, batch) = if who == Contender::Ours { (200, 1_000) } else { (15, 10) };
    let one = look_up(&cache, SETS..SETS + SINGLES, 1, rounds, batch);
    let hundred = look_up(&cache, 0..SETS, SET, rounds, batch);
    [("one", one), ("hundred, each", hundred / float(SET)), ("hundred", hundred)]
        .map(|(name, nanos)| (name.to_owned(), nanos))
        .into()
}

/// Nanoseconds of a lookup: the median of the rounds' means.
fn look_up(cache: &Cache, sets: std::ops::Range<usize>, size: usize, rounds: usize, batch: usize) -> f64 {
    let mut chance = fastrand::Rng::with_seed(1);
    let uids: Vec<String> = sets.map(set_uid).collect();
    let mut round = || {
        let wanted: Vec<&str> = (0..batch).map(|_| uids[chance.usize(..uids.len())].as_str()).collect();
        let begun = Instant::now();
        for uid in wanted {
            assert_eq!(black_box(cache.owned_by(black_box(uid))).len(), size, "what {uid} owns");
        }
        begun.elapsed().as_secs_f64() * 1e9 / float(batch)
    };
    quantile((0..rounds).map(|_| round()).collect(), 0.5)
}
