//! Which Machines are in a pool, from caches.

use nodewright_api::MachineClass;
use serde_json::{Value, json};

use super::*;
use crate::{
    machine::budget::{HEALTHY_BY_CLASS, UNHEALTHY_BY_CLASS},
    testing::{MachineBuilder, MachineExt, NOW, machine, machine_set},
};

fn stores(sets: Vec<MachineSet>, machines: Vec<MachineBuilder>, nodes: &[Value]) -> Stores {
    let store = Store::<Machine>::new(CONTROL, "default");
    for index in
        [PLACES_BY_SET, WAITING_BY_SET, MACHINE_BY_INSTANCE, MACHINE_BY_NODE, HEALTHY_BY_CLASS, UNHEALTHY_BY_CLASS]
    {
        store.add_index(index);
    }
    for machine in machines {
        store.apply(machine.build());
    }
    let stores = Stores::default();
    stores.add(Arc::new(store));
    let store = Store::<MachineSet>::new(CONTROL, "default");
    for set in sets {
        store.apply(set);
    }
    stores.add(Arc::new(store));
    let store = Store::<Node>::new(TARGET, "");
    store.add_index(DELETING_NODES);
    for node in nodes {
        store.apply(serde_json::from_value(node.clone()).unwrap());
    }
    stores.add(Arc::new(store));
    stores.with::<MachineClass>(CONTROL, nodewright_testing::object("class").build())
}

fn set(name: &str, limit: Option<&str>) -> MachineSet {
    let mut set = machine_set(name, 5, None);
    let limit = limit.map(|limit| (annotations::REMEDIATION_MAX_IN_FLIGHT.to_owned(), limit.to_owned()));
    set.metadata.annotations = Some(limit.into_iter().collect());
    set
}

/// Machines of a set in these phases.
fn members(set: &MachineSet, phases: &[&str]) -> Vec<MachineBuilder> {
    let member = |(number, phase): (usize, &&str)| {
        let member = machine(&format!("{}-{number}", name(set))).owned_by(set).phase(phase);
        member.with("/status/currentStatus/lastUpdateTime", NOW)
    };
    phases.iter().enumerate().map(member).collect()
}

fn names(pool: &BudgetGroup) -> (Vec<&str>, Vec<&str>) {
    let mut candidates: Vec<_> = pool.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    let mut places: Vec<_> = pool.places.iter().map(|place| place.name.as_str()).collect();
    candidates.sort_unstable();
    places.sort_unstable();
    (candidates, places)
}

#[test]
fn a_limit_becomes_one_while_the_brake_holds_unless_it_is_none() {
    let (none, one) = (Limit::Count(0), Limit::Count(1));
    for (limit, expected) in
        [(none, none), (Limit::Percent(0), none), (one, one), (Limit::Count(5), one), (Limit::Percent(20), one)]
    {
        assert_eq!(limit.at_most_one(), expected, "{limit:?}");
    }
}

#[test]
fn while_the_brake_holds_a_pool_has_the_namespace_except_machines_that_may_not_go() {
    let (own, other, none) = (set("own", Some("3")), set("other", None), set("none", Some("0")));
    let machines = [
        members(&own, &["Unknown", "Unknown", "Running", "Running"]),
        members(&other, &["Unknown", "Unknown", "Pending", "Running", "Running"]),
        members(&none, &["Unknown", "Pending", "Running"]),
    ];
    let stores = stores(vec![own.clone(), other.clone(), none.clone()], machines.concat(), &[]);
    let take = |set: &MachineSet| BudgetGroup::take(&stores, &Arc::new(set.clone()), &MachineSettings::default());
    for (set, limit) in [(&own, 1), (&other, 1), (&none, 0)] {
        let pool = take(set);
        assert_eq!((pool.brake.level, pool.limit), (Level::Trickle, Limit::Count(limit)), "{}", name(set));
        assert_eq!(names(&pool), (vec!["other-0", "other-1", "own-0", "own-1"], vec!["none-1", "other-2"]));
    }
}

#[test]
fn a_machine_without_a_node_is_found_by_its_vm_or_by_the_name_that_the_driver_gave() {
    let set = set("set", None);
    let with = |name: &str, vm: &str, node: &str| {
        let noted = json!([
            {"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": vm},
            {"type": "NodeJoined", "status": "True", "reason": "Joined", "message": node}]);
        machine(name).owned_by(&set).phase("Running").with("/status/conditions", noted)
    };
    let machines = || vec![with("a", "p:///1", "n-a"), with("b", "p:///2", "n-b"), with("c", "p:///3", "n-c")];
    let lost = |name: &str, id: Option<&str>, is_deleting: bool| {
        let at = is_deleting.then_some(NOW);
        let node = json!({"metadata": {"name": name, "uid": "u", "deletionTimestamp": at}, "spec": {"providerID": id}});
        let stores = stores(vec![set.clone()], machines(), &[node]);
        let pool = BudgetGroup::take(&stores, &Arc::new(set.clone()), &MachineSettings::default());
        assert!(pool.candidates.iter().all(|lost| lost.has_lost_node && lost.due == NOW.parse().unwrap()));
        names(&pool).0.join(" ")
    };
    assert_eq!(lost("n-a", None, true), "a");
    assert_eq!(lost("n-b", Some("p:///2"), true), "b");
    assert_eq!(lost("n-a", None, false), "", "it stays");
    assert_eq!(lost("n-x", None, true), "", "nobody has it");
    assert_eq!(lost("n-a", Some("p:///2"), true), "", "the driver gave that VM's Node another name");
    assert_eq!(lost("n-a", Some("p:///9"), true), "", "a namesake");
}

#[test]
fn a_machine_is_stuck_while_its_status_says_why_nothing_is_decided_about_it() {
    let refuted = |kind: &str| json!({"type": kind, "status": "False", "reason": "X", "message": ""});
    let noted = json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "p:///1"});
    let table = [
        (vec![], false),
        (vec![refuted("ConfigurationValid")], true),
        (vec![refuted("InstanceProvisioned")], true),
        (vec![noted.clone()], false),
        (vec![noted.clone(), refuted("ConfigurationValid")], false),
        (vec![noted, refuted("NodeReadable")], true),
    ];
    for (conditions, expected) in table {
        let machine = machine("m").phase("Unknown").with("/status/conditions", json!(conditions)).build();
        assert_eq!(is_stuck(&machine), expected, "{conditions:?}");
    }
}
