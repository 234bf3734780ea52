//! Failed machines that users want to keep.

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::machine_set::memory::Plan;

/// A failed machine that asks to be kept, since this many hours.
fn failed_for(hours: i64, asks: &str) -> MachineBuilder {
    let set = machine_set("set", 1, Some(LEDGER));
    let failed = NOW.parse::<Timestamp>().unwrap() - SignedDuration::from_hours(hours);
    member(&set, 0)
        .phase("Failed")
        .annotation("node.machine.sapcloud.io/preserve", asks)
        .with("/status/currentStatus/lastUpdateTime", failed.to_string())
}

fn plan_of(machine: MachineBuilder) -> Plan {
    planned(&snapshot(machine_set("set", 1, Some(LEDGER)), vec![machine.build()]))
}

#[test]
fn a_machine_that_users_keep_goes_when_mcm_would_let_it_go() {
    for asks in ["now", "when-failed", "auto-preserved"] {
        let kept = plan_of(failed_for(95, asks));
        assert_eq!(steps(&kept), Vec::<Vec<String>>::new(), "{asks}");
        assert_eq!(kept.wake, Some("2026-06-01T13:00:00Z".parse().unwrap()), "it is looked at when its time is over");
        assert_eq!(steps(&plan_of(failed_for(96, asks))).len(), 2, "{asks}: its time is over");
    }
    for asks in ["false", "yes"] {
        assert_eq!(steps(&plan_of(failed_for(0, asks))).len(), 2, "{asks}");
    }
}

#[test]
fn the_time_of_the_machine_and_an_expiry_in_its_status_come_first() {
    let own = |hours: i64| failed_for(hours, "now").with("/spec/machinePreserveTimeout", "2h");
    let goes = |machine| plan_of(machine).steps().any(|planned| matches!(planned.step, Step::Delete(_)));
    assert!(!goes(own(1)) && goes(own(2)));
    let expiry = |at: &str| failed_for(500, "now").with("/status/currentStatus/preserveExpiryTime", at);
    assert!(!goes(expiry("2026-06-01T12:00:01Z")) && goes(expiry("2026-06-01T11:59:59Z")));
}

#[test]
fn a_scale_down_takes_a_machine_that_runs_before_a_failed_one_that_users_keep() {
    let set = machine_set("set", 1, Some(LEDGER));
    let deleted = |asks: &str| {
        let machines = vec![failed_for(1, asks).build(), member(&set, 1).phase("Running").build()];
        let mut deleted = planned(&snapshot(set.clone(), machines)).steps().cloned().collect::<Vec<_>>();
        deleted.retain(|planned| matches!(planned.step, Step::Delete(_)));
        deleted.iter().map(|planned| planned.step.to_string()).collect::<Vec<_>>()
    };
    let (failed, running) = (member(&set, 0).build(), member(&set, 1).build());
    let is_of = |deleted: &[String], machine: &Machine| deleted.len() == 1 && deleted[0].contains(name(machine));
    for asks in ["now", "when-failed", "auto-preserved"] {
        assert!(is_of(&deleted(asks), &running), "{asks}: {:?}", deleted(asks));
    }
    assert!(is_of(&deleted("false"), &failed), "{:?}", deleted("false"));
}
