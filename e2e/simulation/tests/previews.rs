//! What a preview says of the rollouts of a fleet is what then happens.

#![allow(clippy::print_stdout, reason = "the error of the estimate is for people")]

use std::sync::Mutex;

use nodewright_e2e_simulation::{Comparison, Orchestration, Run, campaign::in_parallel, schedule::Edit};

/// A fleet that grows, is rolled out and scaled, and goes back.
fn run(seed: u64) -> Run {
    let mut random = fastrand::Rng::with_seed(seed);
    let surge = random.u32(0..4);
    let unavailable = if surge == 0 { random.u32(1..4) } else { random.u32(0..3) };
    let replicas = random.u32(1..9);
    let scaled = random.u32(0..9);
    let phases =
        vec![Edit::Roll("large".to_owned()).into(), Edit::Scale(scaled).into(), Edit::Roll("small".to_owned()).into()];
    Run { replicas, surge, unavailable, phases, ..Run::up_roll_down(seed) }
}

/// The same, where machines are updated in place.
fn in_place(seed: u64) -> Run {
    Run { in_place: Some(Orchestration::Auto), ..run(seed) }
}

/// What was foreseen in these runs. Each has four changes, the creation included.
fn compared(run: impl Fn(u64) -> Run + Sync, seeds: std::ops::Range<u64>) -> Vec<(u64, Comparison)> {
    let (seeds, all) = (Mutex::new(seeds), Mutex::new(vec![]));
    let next = || seeds.lock().expect("nobody panics").next();
    in_parallel(None, || {
        while let Some(seed) = next() {
            let (report, comparisons) = run(seed).foresee();
            assert!(report.violations.is_empty(), "{seed}: {:?}", report.violations);
            all.lock().expect("nobody panics").extend(comparisons.into_iter().map(|it| (seed, it)));
        }
    });
    all.into_inner().expect("nobody panics")
}

#[track_caller]
fn check(run: impl Fn(u64) -> Run, all: &[(u64, Comparison)]) {
    let mut errors = vec![];
    for (seed, comparison) in all {
        let Comparison { change, foreseen, happened, estimate, took } = comparison;
        assert_eq!(foreseen, happened, "seed {seed}, {change}: {:?}", run(*seed));
        if !foreseen.is_empty() {
            errors.push((estimate.as_secs_f64() - took.as_secs_f64()) / took.as_secs_f64());
        }
    }
    assert!(errors.len() > all.len() / 2, "most changes change something");
    errors.sort_by(f64::total_cmp);
    let percent = |of: f64| format!("{:+.0} %", of * 100.0);
    let (first, middle, last) = (errors[0], errors[errors.len() / 2], errors[errors.len() - 1]);
    let (first, middle, last) = (percent(first), percent(middle), percent(last));
    println!("{} rollouts: the estimate is wrong by {first} to {last}, in the median by {middle}", errors.len());
}

#[test]
fn forty_rollouts_are_as_they_were_foreseen() {
    check(run, &compared(run, 0..10));
}

#[test]
fn forty_rollouts_in_place_are_as_they_were_foreseen() {
    let all = compared(in_place, 0..10);
    let updates =
        all.iter().flat_map(|(_, comparison)| &comparison.happened).filter(|line| line.starts_with("update "));
    assert!(updates.count() > 20, "machines are updated in place");
    check(in_place, &all);
}

#[test]
#[ignore = "takes minutes: make test-slow"]
fn five_hundred_rollouts_are_as_they_were_foreseen() {
    check(run, &compared(run, 100..225));
    check(in_place, &compared(in_place, 100..225));
}
