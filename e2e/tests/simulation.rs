//! The manager in a simulated cluster: see `nodewright_e2e::simulation`.

use nodewright_e2e::simulation::{Act, Report, Run, Schedule};

fn run(schedule: Schedule) -> Run {
    Run {
        seed: 1,
        replicas: 3,
        surge: 1,
        unavailable: 0,
        elects: false,
        heartbeats: false,
        phases: vec![Act::Roll("large".into()), Act::Scale(5), Act::DeletePool],
        schedule,
    }
}

#[track_caller]
fn expect_good(report: &Report) {
    assert!(report.violations.is_empty(), "{:#?}\n{}", report.violations, report.trace.join("\n"));
}

#[test]
fn undisturbed_it_goes_up_rolls_and_goes_down() {
    let report = run(Schedule::default()).run(true);
    expect_good(&report);
    eprintln!("{:?} steps {} simulated {:?}", report.counts, report.steps, report.simulated);
}
