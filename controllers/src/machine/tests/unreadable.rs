//! Objects that exist and cannot be read: nothing is concluded from their absence.

use crate::shared::driver::DriverProperties;
use nodewright_api::{MachineClass, labels};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    object::ObjectRef,
};

use super::*;
use crate::shared::{
    CONTROL, TARGET,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE, SET_BY_UID},
};
use crate::testing::{answer, secret_store};

const TEXT: &str = "Node n exists and cannot be read: correct it or delete it";

fn unreadable_node(machine: MachineBuilder) -> Fixture {
    let mut fixture = fixture(machine);
    fixture.snapshot.unreadable_node = Some(TEXT.to_owned());
    fixture
}

fn reason(fixture: &Fixture) -> &'static str {
    fixture.plan().waits[0].reason
}

#[test]
fn a_node_that_cannot_be_read_says_nothing_of_its_health() {
    for phase in ["Pending", "Running", "Unknown"] {
        let old = linked(phase)
            .created("2026-01-01T00:00:00Z")
            .with("/status/currentStatus/lastUpdateTime", json!("2026-01-01T00:00:00Z"));
        let held = unreadable_node(old);
        assert_eq!(held.steps(), [format!("status {phase}")], "it stays what it was");
        let plan = held.plan();
        assert_eq!((reason(&held), plan.events[0].reason), ("NodeUnreadable", "NodeUnreadable"));
        let reported = status_of(&plan)["conditions"][0].clone();
        assert_eq!((&reported["type"], &reported["status"]), (&json!("NodeReadable"), &json!("False")));
        assert_eq!(reported["message"], TEXT);
    }
}

#[test]
fn once_it_can_be_read_nothing_of_that_is_left() {
    let condition = json!([{"type": "NodeReadable", "status": "False", "reason": "NodeUnreadable"}]);
    let well = fixture(linked("Running").with("/status/conditions", condition.clone())).node(synced(READY));
    let reported = status_of(&well.plan())["conditions"].clone();
    assert!(reported.as_array().unwrap().iter().all(|it| it["type"] != "NodeReadable"), "{reported}");
    let reported = unreadable_node(linked("Running").with("/status/conditions", condition));
    assert!(reported.plan().events.len() <= 1);
}

#[test]
fn a_termination_waits_for_a_node_that_cannot_be_read_unless_it_is_forced() {
    let dying = || linked("Terminating").deleting();
    let held = unreadable_node(dying().with("/spec/drainTimeout", json!("1s")));
    assert_eq!(held.steps(), ["status Terminating"], "the stage shows, and no call is made");
    assert_eq!((reason(&held), held.plan().events[0].message.as_str()), ("NodeUnreadable", TEXT));
    let forced = unreadable_node(dying().label(labels::FORCE_DELETION, "True"));
    assert_eq!(forced.steps(), ["call Delete"]);
}

#[test]
fn a_drain_waits_for_a_pod_that_cannot_be_read_until_it_is_forced() {
    let mut cordoned = synced(READY);
    cordoned["spec"]["unschedulable"] = true.into();
    cordoned["metadata"]["labels"][nodewright_api::labels::EXCLUDE_FROM_LOAD_BALANCERS] = "".into();
    let terminating = json!({"type": "Terminating", "status": "True", "reason": "ScaleDown"});
    cordoned["status"]["conditions"].as_array_mut().unwrap().push(terminating);
    let drain = |machine: MachineBuilder| {
        let mut fixture = fixture(machine).node(cordoned.clone()).pods(&[]);
        fixture.snapshot.drain.unreadable =
            Some("Pod a/p exists and cannot be read: correct it or delete it".to_owned());
        fixture
    };
    let held = drain(linked("Terminating").deleting().with("/spec/drainTimeout", json!("2h")));
    assert_eq!(held.steps(), ["status Terminating"], "the stage shows, and no call is made");
    assert_eq!(reason(&held), "PodUnreadable");
    assert!(held.plan().wake.is_some(), "the drain timeout counts");
    assert_eq!(
        drain(linked("Terminating").deleting().with("/spec/drainTimeout", json!("1s"))).steps(),
        ["call Delete"]
    );
}

#[test]
fn a_set_that_cannot_be_read_is_not_gone() {
    let with_owner = |machine: MachineBuilder| {
        let mut fixture = fixture(machine);
        fixture.snapshot.owner = Owner::Unreadable("MachineSet default/set exists and cannot be read".to_owned());
        fixture
    };
    let unborn = with_owner(machine("m"));
    assert_eq!(reason(&unborn), "MachineSetUnreadable");
    assert!(unborn.steps().iter().all(|step| !step.starts_with("call")), "{:?}", unborn.steps());
    let given_up =
        with_owner(linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!("2026-01-01T00:00:00Z")));
    assert_eq!(reason(&given_up), "ReplacementBlocked");
    let gone = || Outcome::Failed(DriverError::new(Code::NotFound, "none"));
    let mut dead = with_owner(linked("Terminating").deleting());
    dead.snapshot.unseen_node = Lookup::Missing;
    let dead = dead.answered(Verb::Delete, 40, Outcome::Done).answered(Verb::Status, 30, gone());
    assert_eq!(reason(&dead), "MachineSetUnreadable");
    assert!(dead.steps().iter().all(|step| !step.starts_with("edit")), "the finalizer stays: {:?}", dead.steps());
}

#[test]
fn a_ledger_that_cannot_be_read_has_retired_no_name_and_none_is_free() {
    let fixture = |machine: MachineBuilder| {
        let set = machine_set("set", 1, Some("k7f;0-"));
        fixture(machine.owned_by(&set).annotation("nodewright.dev/index", "0")).set(set)
    };
    let unborn = fixture(machine("m")).answered(Verb::Status, 1, Outcome::Failed(DriverError::new(Code::NotFound, "")));
    let dead = || fixture(machine("m").phase("Terminating").deleting()).answered(Verb::Delete, 40, Outcome::Done);
    let dead = dead().answered(Verb::Status, 30, Outcome::Failed(DriverError::new(Code::NotFound, "none")));
    for held in [unborn, dead] {
        let plan = held.plan();
        assert_eq!(plan.waits.last().unwrap().reason, "InvalidLedger");
        assert!(
            plan.waits.last().unwrap().message.contains("MachineSet set, annotation nodewright.dev/ledger: `k7f;0-`")
        );
        let steps = held.steps();
        assert!(steps.iter().all(|step| step.starts_with("status")), "neither a VM nor an end: {steps:?}");
        assert_eq!(status_of(&plan)["conditions"][0]["reason"], "InvalidLedger");
    }
}

#[test]
fn all_machines_of_a_set_look_again_once_its_ledger_can_be_read() {
    let unborn = || machine("m").owned_by(&machine_set("set", 1, None));
    let woken = |old: &str, new: &str| {
        let all = stores(unborn());
        let set = |ledger| Some(Arc::new(machine_set("set", 1, Some(ledger))));
        let mut woken = vec![];
        let change = nodewright_runtime::cache::Change { old: set(old), new: set(new) };
        super::super::machines_of_set(&change, &all, &mut |key| woken.push(key.name.to_string()));
        woken
    };
    assert_eq!(woken("k7f;0-", "k7f;0"), ["m"]);
    assert!(
        woken("k7f;", "k7f;0").is_empty(),
        "what changes with each termination wakes only Machines that are being deleted"
    );
}

/// The stores of a cluster with one Machine.
fn stores(machine: MachineBuilder) -> Stores {
    let stores = Stores::default();
    let machines = Store::<Machine>::new(CONTROL, "default");
    machines.add_index(MACHINE_BY_NODE);
    machines.add_index(MACHINE_BY_INSTANCE);
    machines.apply(machine.build());
    let sets = Store::<MachineSet>::new(CONTROL, "default");
    sets.add_index(SET_BY_UID);
    let nodes = Store::<Node>::new(TARGET, "");
    nodes.add_index(NODE_BY_INSTANCE);
    stores.add(Arc::new(machines));
    stores.add(Arc::new(sets));
    stores.add(Arc::new(nodes));
    stores.add(Arc::new(Store::<MachineClass>::new(CONTROL, "default")));
    stores
}

fn observed(stores: &Stores) -> Snapshot {
    Snapshot::take(
        stores,
        &ObjectRef::new(CONTROL, "default", "m"),
        ("simulated", DriverProperties::of(&Uncalled)),
        Arc::default(),
    )
    .unwrap()
}

#[test]
fn which_unreadable_node_may_be_the_machines() {
    let node = |name: &str, bears: Option<&str>| {
        let labels = bears.map(|bears| json!({labels::MACHINE_NAME: bears}));
        let metadata = json!({"name": name, "uid": "u", "labels": labels});
        Unreadable::new(serde_json::from_value(metadata).unwrap())
    };
    let unnamed = || machine("m").with("/spec/providerID", json!("p:///1"));
    for (machine, node, expected) in [
        (linked("Running"), node("n", None), true),
        (linked("Running"), Unreadable::named("", "n", "u"), true),
        (linked("Running"), node("other", None), false),
        (linked("Running"), node("other", Some("m")), true),
        (linked("Running"), node("other", Some("another")), false),
        (unnamed(), node("other", None), true),
        (unnamed(), node("other", Some("another")), false),
        (machine("m"), node("other", None), false),
    ] {
        let stores = stores(machine);
        stores.of::<Node>(TARGET).add_unreadable(node.clone());
        assert_eq!(observed(&stores).unreadable_node.is_some(), expected, "{node:?}");
    }
}

#[test]
fn classes_secrets_and_sets_that_cannot_be_read_are_there() {
    let owned = machine("m").owned_by(&machine_set("set", 1, None));
    let all = stores(owned);
    let problem = |stores: &Stores| observed(stores).class.unwrap_err().reason;
    assert_eq!(problem(&all), "ClassNotFound");
    assert!(matches!(observed(&all).owner, Owner::Gone));
    all.of::<MachineSet>(CONTROL).add_unreadable(Unreadable::named("default", "set", "uid-set"));
    assert!(matches!(observed(&all).owner, Owner::Unreadable(_)));
    let classes = all.of::<MachineClass>(CONTROL);
    classes.add_unreadable(Unreadable::named("default", "class", "u"));
    assert_eq!(problem(&all), "MachineClassUnreadable");
    let class = json!({"metadata": {"name": "class", "namespace": "default", "uid": "u"}, "provider": "simulated",
        "secretRef": {"name": "s"}});
    classes.apply(serde_json::from_value(class).unwrap());
    let secrets = secret_store(&all, "s");
    answer(&secrets, None);
    assert_eq!(problem(&all), "SecretNotFound");
    secrets.add_unreadable(Unreadable::named("default", "s", "u"));
    assert_eq!(problem(&all), "SecretUnreadable");
}

/// A Machine whose class was once said not to exist is not let go while the class cannot be read.
#[test]
fn a_termination_waits_for_a_class_that_cannot_be_read() {
    let reported = json!([{"type": "ConfigurationValid", "status": "False", "reason": "ClassNotFound"}]);
    let mut dying = fixture(machine("m").phase("Terminating").deleting().with("/status/conditions", reported));
    let message = "MachineClass default/class exists and cannot be read: correct it or delete it".to_owned();
    dying.snapshot.class = Err(ClassError { reason: "MachineClassUnreadable", message, never_used: false });
    assert_eq!(reason(&dying), "MachineClassUnreadable");
    assert!(dying.steps().iter().all(|step| !step.starts_with("edit")), "the finalizer stays: {:?}", dying.steps());
}
