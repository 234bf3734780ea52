//! Machines that exist and cannot be read.

use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    object::ObjectRef,
};

use super::*;
use crate::shared::CONTROL;

#[allow(clippy::needless_pass_by_value)] // a test's value is given away
fn unreadable(name: &str, metadata: Value) -> Arc<Unreadable> {
    let mut whole = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}")});
    json_patch::merge(&mut whole, &metadata);
    Arc::new(Unreadable::new(serde_json::from_value(whole).unwrap()))
}

fn controlled_by(owner: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": "v1", "kind": "MachineSet", "name": "s", "uid": owner, "controller": true}]})
}

/// Three replicas, two readable machines, and an unreadable one with an unknown owner.
#[test]
fn an_unreadable_machine_that_may_be_the_sets_counts_and_no_other_does() {
    let third = index_name(LEDGER, 2);
    let create = |index| vec![vec![format!("create {}", index_name(LEDGER, index))]];
    let named = Unreadable::named("default", "x", "u");
    let elsewhere = Unreadable::named("elsewhere", "x", "u");
    for (what, machine, expected) in [
        ("its own", unreadable("adopted", controlled_by("uid-set")), vec![]),
        ("one that it would adopt", unreadable("x", json!({"labels": {"name": "set"}})), vec![]),
        ("anybody's", Arc::new(named), vec![]),
        ("one of another namespace", Arc::new(elsewhere), create(2)),
        ("another set's", unreadable("x", controlled_by("uid-other")), create(2)),
        ("another set's, under a name of the set", unreadable(&third, controlled_by("uid-other")), create(3)),
        ("without an owner, and not selected", unreadable(&third, json!({})), create(3)),
        (
            "its own, and going",
            {
                let mut going = controlled_by("uid-set");
                going["deletionTimestamp"] = NOW.into();
                unreadable(&third, going)
            },
            create(3),
        ),
    ] {
        let set = machine_set("set", 3, Some(LEDGER));
        let mut snapshot = snapshot(set.clone(), vec![member(&set, 0).build(), member(&set, 1).build()]);
        snapshot.unreadable = vec![machine];
        assert_eq!(steps(&planned(&snapshot)), expected, "{what}");
    }
}

#[test]
fn no_machine_is_deleted_for_a_surplus_that_only_an_unreadable_machine_makes() {
    let set = machine_set("set", 2, Some(LEDGER));
    let mut snapshot = snapshot(set.clone(), vec![member(&set, 0).build(), member(&set, 1).build()]);
    snapshot.unreadable = vec![unreadable("adopted", controlled_by("uid-set"))];
    let plan = planned(&snapshot);
    assert!(steps(&plan).is_empty());
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("MachineUnreadable", "MachineUnreadable"));
    assert!(plan.events[0].message.starts_with("Machine default/adopted exists and cannot be read"));
    let reported = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().pointer("/status/machineSetCondition/0").cloned(),
        _ => None,
    });
    assert_eq!(reported.unwrap()["reason"], "MachineUnreadable");
}

#[test]
fn a_failed_machine_is_replaced_beside_an_unreadable_one() {
    let set = machine_set("set", 3, Some("k7f;0"));
    let machines = vec![member(&set, 0).phase("Failed").deleting().build(), member(&set, 1).build()];
    let mut snapshot = snapshot(set, machines);
    snapshot.unreadable = vec![unreadable(&index_name(LEDGER, 2), controlled_by("uid-set"))];
    assert_eq!(steps(&planned(&snapshot)), [[format!("create {}", index_name(LEDGER, 3))]]);
}

#[test]
fn a_deleted_set_waits_for_its_unreadable_machines() {
    let mut set = machine_set("set", 2, Some(LEDGER));
    set.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    let mut snapshot = snapshot(set, vec![]);
    assert_eq!(steps(&planned(&snapshot)), [["edit set"]]);
    snapshot.unreadable = vec![unreadable("adopted", controlled_by("uid-set"))];
    assert!(steps(&planned(&snapshot)).is_empty());
    assert_eq!(planned(&snapshot).waits[0].reason, "MachineUnreadable");
}

/// The last readable version of a Machine in the cache is not enough to delete it.
#[test]
fn an_unreadable_machine_is_the_same_before_and_after_a_restart() {
    let set = machine_set("set", 1, Some(LEDGER));
    let stores = Stores::default();
    let (sets, machines) = (Store::new(CONTROL, "default"), Store::<Machine>::new(CONTROL, "default"));
    sets.apply(set.clone());
    machines.apply(member(&set, 0).phase("Failed").build());
    machines.add_unreadable(Unreadable::clone(&unreadable(&index_name(LEDGER, 0), controlled_by("uid-set"))));
    stores.add(Arc::new(sets));
    stores.add(Arc::new(machines));
    let settings = PlanSettings { fleet: FleetSettings::default(), full_schema: true };
    let snapshot = Snapshot::take(&stores, &ObjectRef::new(CONTROL, "default", "set"), settings).unwrap();
    assert!(snapshot.machines.is_empty() && steps(&planned(&snapshot)).is_empty());
}
