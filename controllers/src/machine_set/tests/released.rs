//! Machines whose labels the selector of their set no longer matches.

use super::*;

fn set_of(replicas: i32) -> MachineSet {
    machine_set("set", replicas, Some(LEDGER))
}

fn strayed(index: usize) -> Machine {
    member(&set_of(3), index).label("name", "another").build()
}

fn is_release(planned: &Planned<Never>) -> bool {
    matches!(&planned.step, Step::Edit { patch, .. }
        if serde_json::to_value(patch).unwrap()[1]["path"] == "/metadata/ownerReferences")
}

#[test]
fn a_machine_that_is_no_longer_selected_is_released_and_then_replaced() {
    let set = set_of(2);
    let first = snapshot(set.clone(), vec![member(&set, 0).build(), strayed(1)]);
    let plan = planned(&first);
    assert_eq!(steps(&plan), [[format!("edit {}", index_name(LEDGER, 1))]]);
    assert!(plan.steps().any(is_release));
    assert!(plan.events.iter().any(|event| event.reason == "Released"));
    // It has no owner any more, and its name is taken: the ordinal fails, and the next one is used.
    let mut free = strayed(1);
    free.metadata.owner_references = None;
    let second = Snapshot { namesakes: vec![Arc::new(free)], ..snapshot(set.clone(), vec![member(&set, 0).build()]) };
    assert_eq!(steps(&planned(&second)), [[ledger_apply("k7f;1")]]);
    let retired = machine_set("set", 2, Some("k7f;1"));
    let third = Snapshot { set: Arc::new(retired), ..second };
    assert_eq!(steps(&planned(&third)), [[format!("create {}", index_name(LEDGER, 2))]]);
}

#[test]
fn nothing_else_is_lost_with_the_owner() {
    let machine = strayed(0);
    let mut live = serde_json::to_value(&machine).unwrap();
    let patch = crate::shared::membership::release(&machine.metadata, "uid-set");
    nodewright_testing::json_patch(&mut live, &patch).unwrap();
    assert_eq!(live["metadata"]["ownerReferences"], json!([]));
    assert_eq!(live["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
    live["metadata"]["resourceVersion"] = "newer".into();
    assert!(nodewright_testing::json_patch(&mut live, &patch).is_err(), "only what was read is released");
}

#[test]
fn machines_that_go_anyway_are_not_released() {
    let deleting = member(&set_of(2), 0).label("name", "another").deleting().build();
    let retired = machine_set("set", 0, Some("k7f;0-1"));
    for (set, machines) in [(retired.clone(), vec![strayed(1)]), (retired, vec![deleting])] {
        assert!(!planned(&snapshot(set, machines)).steps().any(is_release));
    }
}

#[test]
fn a_deleted_set_takes_them_along() {
    let mut set = set_of(2);
    set.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    let plan = planned(&snapshot(set, vec![strayed(0)]));
    assert_eq!(steps(&plan)[1], [format!("delete {}", index_name(LEDGER, 0))]);
}

#[test]
fn a_set_that_would_not_select_its_own_machines_creates_and_releases_none() {
    let mut set = set_of(3);
    set.spec.template.metadata.labels = Some([("name".to_owned(), "another".to_owned())].into());
    let plan = planned(&snapshot(set, vec![strayed(0)]));
    assert_eq!(steps(&plan), Vec::<Vec<String>>::new());
    assert_eq!(plan.waits[0].reason, "InvalidSpec");
}
