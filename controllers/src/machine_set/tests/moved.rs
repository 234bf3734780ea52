//! Machines that were updated in place, and have moved from one set to another.

use super::*;

const MOVING: (&str, &str) = ("node.machine.sapcloud.io/update-result", "successful");

fn moving(set: &MachineSet, name: &str, phase: &str) -> Machine {
    machine(name).owned_by(set).label("name", "set").label(MOVING.0, MOVING.1).phase(phase).build()
}

#[test]
fn one_that_is_not_counted_yet_is_not_deleted() {
    let set = machine_set("set", 1, Some(LEDGER));
    for phase in ["Running", "Failed", "Unknown"] {
        let all = vec![member(&set, 0).build(), moving(&set, "other-x", phase)];
        assert!(steps(&planned(&snapshot(set.clone(), all))).is_empty(), "{phase}");
    }
    let all = vec![member(&set, 0).build(), member(&set, 1).build(), moving(&set, "other-x", "Running")];
    let steps = steps(&planned(&snapshot(set, all)));
    assert_eq!(steps[1].len(), 1, "a surplus besides goes: {steps:?}");
    assert!(!steps[1][0].contains("other-x"), "{steps:?}");
}

#[test]
fn one_that_is_counted_is_not_created_again() {
    let set = machine_set("set", 2, Some(LEDGER));
    let all = vec![member(&set, 0).build(), moving(&set, "other-x", "Running")];
    assert!(steps(&planned(&snapshot(set, all))).is_empty());
}

#[test]
fn a_set_that_machines_leave_creates_none_and_uses_their_names_up() {
    let mut set = machine_set("set", 2, Some(LEDGER));
    set.metadata
        .labels
        .get_or_insert_default()
        .insert("node.machine.sapcloud.io/scale-up-disabled".into(), "true".into());
    let other = machine_set("other", 1, Some(LEDGER));
    let left = machine(&index_name(LEDGER, 1)).owned_by(&other).label("name", "set").phase("Running").build();
    let mut leaves = snapshot(set.clone(), vec![member(&set, 0).build()]);
    leaves.namesakes = vec![Arc::new(left)];
    assert_eq!(steps(&planned(&leaves)), [[ledger_apply("k7f;1")]]);
    let after = MachineSet { metadata: machine_set("set", 2, Some("k7f;1")).metadata, ..set };
    let mut after = snapshot(after, leaves.machines.iter().map(|machine| Machine::clone(machine)).collect());
    after.namesakes.clone_from(&leaves.namesakes);
    let created = steps(&planned(&after)).concat();
    assert!(created.iter().all(|step| !step.contains(&index_name(LEDGER, 1))), "{created:?}");
}

#[test]
fn one_that_returns_stays() {
    let set = machine_set("set", 1, Some("k7f;1"));
    let returned = machine(&index_name(LEDGER, 1)).owned_by(&set).label("name", "set").phase("Running").build();
    assert!(steps(&planned(&snapshot(set, vec![returned]))).is_empty());
}
