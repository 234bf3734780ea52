//! A set whose deployment has a newer spec than the one that it sized the set for.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::MachineDeployment;
use nodewright_runtime::plan::Notes;

use super::*;
use crate::{
    machine_set::memory::{Context, Note, Plan},
    testing::{machine_deployment, rolling},
};

/// A set of a deployment that is at this generation and has acted on the first.
fn snapshot_at(generation: i64, replicas: i32, machines: &[MachineBuilder]) -> Snapshot {
    let mut deployment: MachineDeployment = serde_json::from_value(machine_deployment(3, &rolling(1, 0))).unwrap();
    deployment.metadata.generation = Some(generation);
    deployment.status.get_or_insert_default().observed_generation = 1;
    let machines = machines.iter().map(|machine| machine.clone().build()).collect();
    let set = machine_set("set", replicas, Some(LEDGER));
    Snapshot { deployment: Some(Arc::new(deployment)), ..snapshot(set, machines) }
}

fn plan_at(snapshot: &Snapshot, now: Timestamp, notes: &[(Note, Timestamp)]) -> Plan {
    let outcomes = Outcomes::default();
    let notes = notes.iter().copied().collect();
    let context = Context { notes: &notes, ..Context::new(now, &outcomes) };
    plan(&context, snapshot)
}

/// The requests of a set of two running machines.
fn requests(generation: i64, replicas: i32) -> Vec<Vec<String>> {
    let set = machine_set("set", replicas, Some(LEDGER));
    let machines = [member(&set, 0), member(&set, 1)];
    steps(&planned(&snapshot_at(generation, replicas, &machines)))
}

#[test]
fn it_neither_creates_nor_deletes_a_surplus_until_its_deployment_has_spoken() {
    assert_eq!(requests(1, 3).len(), 1, "the deployment has acted on its spec: a machine is created");
    assert_eq!(requests(1, 1).len(), 2, "and one is deleted");
    assert_eq!(requests(2, 3), Vec::<Vec<String>>::new());
    assert_eq!(requests(2, 1), Vec::<Vec<String>>::new());
}

#[test]
fn a_failed_machine_goes_all_the_same() {
    let set = machine_set("set", 2, Some(LEDGER));
    let snapshot = snapshot_at(2, 2, &[member(&set, 0), member(&set, 1).phase("Failed")]);
    let requests = steps(&planned(&snapshot));
    assert_eq!(requests[1], [format!("delete {}", index_name(LEDGER, 1))]);
}

#[test]
fn the_status_comes_between_the_writes_of_a_large_removal() {
    let now: Timestamp = NOW.parse().unwrap();
    let set = machine_set("set", 0, Some(LEDGER));
    let snapshot = snapshot_at(1, 0, &[member(&set, 0), member(&set, 1)]);
    let is_status = |plan: &Plan| {
        plan.steps()
            .any(|planned| matches!(&planned.step, Step::Apply(apply) if apply.fragment().get("status").is_some()))
    };
    let first = plan_at(&snapshot, now, &[]);
    assert_eq!((steps(&first).len(), is_status(&first)), (2, false), "the names are retired, and the machines deleted");
    assert_eq!(first.notes, Notes::Replace(vec![Note::StatusDeferred]));
    let notes = |seconds| [(Note::StatusDeferred, now - SignedDuration::from_secs(seconds))];
    assert!(!is_status(&plan_at(&snapshot, now, &notes(4))));
    let due = plan_at(&snapshot, now, &notes(5));
    assert_eq!(
        (steps(&due).len(), is_status(&due), due.notes),
        (0, true, Notes::Clear),
        "it alone, and then the rest again"
    );
}

#[test]
fn it_waits_no_longer_than_ten_seconds_for_each_generation() {
    let now: Timestamp = NOW.parse().unwrap();
    let snapshot = snapshot_at(2, 3, &[]);
    let waiting = plan_at(&snapshot, now, &[]);
    assert_eq!((waiting.waits[0].reason, waiting.wake), ("SizeAwaited", Some(now + SignedDuration::from_secs(10))));
    let notes = [(Note::SizeAwaited(2), now - SignedDuration::from_secs(10))];
    assert_eq!(waiting.notes, Notes::Replace(vec![notes[0].0]));
    assert_eq!(steps(&plan_at(&snapshot, now, &notes))[0].len(), 3, "its deployment may be unable to write its status");
    let newer = snapshot_at(3, 3, &[]);
    assert_eq!(steps(&plan_at(&newer, now, &notes)), Vec::<Vec<String>>::new());
}
