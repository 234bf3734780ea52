//! Caches in, snapshots out: what decisions about a Machine may see.

use crate::shared::driver::DriverProperties;
use k8s_openapi::api::core::v1::Secret;
use nodewright_api::MachineClass;
use nodewright_runtime::{
    cache::{Change, Index, Store, Stores},
    object::{Kind, ObjectRef, name},
    scoped_watch::ScopedWatch,
};

use super::super::budget::{
    DELETING_NODES, HEALTHY_BY_CLASS, HELD_BY_SET, PLACES_BY_SET, UNHEALTHY_BY_CLASS, WAITING_BY_SET,
};
use super::{super::budget, super::snapshot::node_named, *};
use crate::shared::{
    CONTROL, TARGET,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, NODE_BY_INSTANCE, SET_BY_UID},
};
use crate::testing::{answer, secret_store};

/// Stores with these objects of the control cluster.
#[derive(Default)]
struct Cache(Stores);

impl Cache {
    fn with<K: Kind>(self, objects: impl IntoIterator<Item = K>) -> Self {
        self.indexed(CONTROL, &[], objects)
    }

    fn indexed<K: Kind>(self, at: Cluster, indexes: &[Index<K>], objects: impl IntoIterator<Item = K>) -> Self {
        let store = Store::new(at, if at == CONTROL { "default" } else { "" });
        for index in indexes {
            store.add_index(*index);
        }
        for object in objects {
            store.apply(object);
        }
        self.0.add(Arc::new(store));
        self
    }

    /// Looks at the Secrets of these names, of which these are there.
    fn looking(self, names: &[&str], secrets: &[Secret]) -> Self {
        for wanted in names {
            let found = secrets.iter().find(|secret| name(*secret) == *wanted);
            answer(&secret_store(&self.0, wanted), found.cloned());
        }
        self
    }

    fn see(&self, name: &str) -> Snapshot {
        Snapshot::take(
            &self.0,
            &ObjectRef::new(CONTROL, "default", name),
            ("simulated", DriverProperties::of(&Uncalled)),
            Arc::default(),
        )
        .unwrap()
    }
}

fn parse<K: Kind>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn class_of(generation: i64, secrets: &[&str]) -> MachineClass {
    let reference = |place: usize| secrets.get(place).map(|name| json!({"name": name, "namespace": "default"}));
    parse(json!({
        "metadata": {"name": "class", "namespace": "default", "uid": "uid-class", "resourceVersion": "5",
            "generation": generation, "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
        "provider": "simulated", "providerSpec": {},
        "secretRef": reference(0), "credentialsSecretRef": reference(1),
    }))
}

fn secret(name: &str, finalizers: &[&str]) -> Secret {
    parse(json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "6",
        "finalizers": finalizers}}))
}

const HELD: &[&str] = &["machine.sapcloud.io/machine-controller"];

#[test]
fn a_class_is_held_only_with_all_its_secrets() {
    let is_held = |class: MachineClass, secrets: Vec<Secret>| {
        let cache = Cache::default().with([machine("m").build()]).with([class]);
        cache.looking(&["a", "b"], &secrets).see("m").class_held
    };
    assert!(is_held(class_of(1, &[]), vec![]));
    assert!(is_held(class_of(1, &["a", "b"]), vec![secret("a", HELD), secret("b", HELD)]));
    assert!(!is_held(class_of(1, &["a", "b"]), vec![secret("a", HELD), secret("b", &[])]));
    assert!(!is_held(class_of(1, &["a", "b"]), vec![secret("a", HELD)]));
    let mut loose = class_of(1, &[]);
    loose.metadata.finalizers = None;
    assert!(!is_held(loose, vec![]));
}

#[test]
fn a_machine_that_may_fail_looks_for_its_node() {
    for (phase, looks) in [("Unknown", true), ("InPlaceUpdateFailed", true), ("Running", false)] {
        let cache = Cache::default().with([linked(phase).build()]).with([class_of(1, &[])]);
        let nodes = Arc::new(Store::<Node>::new(TARGET, ""));
        cache.0.add_scoped(&ScopedWatch::at::<Node>(TARGET, node_named("n")), nodes.clone());
        answer(&nodes, None);
        assert_eq!(matches!(cache.see("m").unseen_node, Lookup::Missing), looks, "{phase}");
    }
}

#[test]
fn an_unseen_node_without_an_id_is_the_machines_if_the_driver_gave_its_name() {
    let named = json!([{"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "p:///1"},
        {"type": "NodeJoined", "status": "False", "reason": "NodeAwaited", "message": "n"}]);
    let named =
        || linked("Terminating").with("/metadata/deletionTimestamp", NOW).with("/status/conditions", named.clone());
    let labelled = || linked("Terminating").with("/metadata/deletionTimestamp", NOW);
    let of = |id: Value, label: Value| {
        let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "labels": {}}, "spec": {}});
        // A merge leaves out what is null.
        let own =
            json!({"metadata": {"labels": {"node.gardener.cloud/machine-name": label}}, "spec": {"providerID": id}});
        json_patch::merge(&mut node, &own);
        parse::<Node>(node)
    };
    let (none, other) = (|| Value::Null, || machine("other").label("node", "n"));
    let table = [
        (named(), None, of(json!("p:///1"), none()), true, "it has the id of the VM"),
        (named(), None, of(none(), none()), true, "it has the name that the driver gave"),
        (named(), None, of(none(), json!("m")), true, "and the label of the machine"),
        (named(), None, of(none(), json!("other")), false, "it has the label of another machine"),
        (named(), Some(other()), of(none(), none()), false, "another machine has a node of that name"),
        (named(), Some(other()), of(json!("p:///1"), none()), true, "the other one has only its name"),
        (named(), None, of(json!("p:///2"), none()), false, "another VM has the name"),
        (labelled(), None, of(json!("p:///1"), none()), true, "the id is enough"),
        (labelled(), None, of(none(), none()), false, "only a label of the machine names it, which any client can set"),
    ];
    for (machine, other, node, is_found, case) in table {
        let machines = other.into_iter().chain([machine]).map(MachineBuilder::build);
        let cache = Cache::default().indexed(CONTROL, &[MACHINE_BY_NODE], machines).with([class_of(1, &[])]);
        let nodes = Arc::new(Store::<Node>::new(TARGET, ""));
        cache.0.add_scoped(&ScopedWatch::at::<Node>(TARGET, node_named("n")), nodes.clone());
        answer(&nodes, Some(node));
        assert_eq!(matches!(cache.see("m").unseen_node, Lookup::Found(_)), is_found, "{case}");
    }
}

#[test]
fn a_class_that_differs_from_its_record_makes_no_vm() {
    let seen = |record: Option<&str>| {
        let mut class = class_of(2, &[]);
        class.provider_spec = (&json!({"cluster": "b"})).into();
        class.metadata.annotations =
            record.map(|text| [("nodewright.dev/identity".to_owned(), text.to_owned())].into());
        Cache::default().with([machine("m").build()]).with([class]).see("m").changed_identity
    };
    let problem = seen(Some(r#"{"providerSpec.cluster":"a"}"#)).unwrap();
    assert!(problem.message.starts_with("providerSpec.cluster of MachineClass \"class\" was changed"), "{problem:?}");
    for sound in [None, Some(r#"{"providerSpec.cluster":"b","provider":"simulated"}"#)] {
        assert_eq!(seen(sound), None);
    }
}

#[test]
fn a_class_was_never_used_if_it_always_named_a_secret_that_is_missing_or_never_got_our_finalizer() {
    let problem = |class: MachineClass| {
        let cache = Cache::default().with([machine("m").build()]).with([class]).looking(&["missing"], &[]);
        let problem = cache.see("m").class.unwrap_err();
        (problem.reason, problem.never_used)
    };
    assert_eq!(problem(class_of(1, &["missing"])), ("SecretNotFound", true));
    assert_eq!(problem(class_of(2, &["missing"])), ("SecretNotFound", false));
    let mut edited = class_of(2, &["missing"]);
    edited.metadata.finalizers = None;
    assert_eq!(problem(edited), ("SecretNotFound", true));
    let of_another = MachineClass { provider: "another".to_owned(), ..class_of(1, &[]) };
    assert_eq!(problem(of_another), ("ProviderMismatch", false));
}

/// No answer yet, no answer possible, and no such Secret are three different things. Only
/// from the last does anything follow.
#[test]
fn a_secret_that_was_not_asked_for_is_not_missing() {
    let cache = Cache::default().with([machine("m").build()]).with([class_of(1, &["a"])]);
    let problem = || {
        let snapshot = cache.see("m");
        let pending = snapshot.secret_pending().is_some();
        let problem = snapshot.class.unwrap_err();
        (problem.reason, problem.never_used, pending)
    };
    assert_eq!(problem(), ("SecretPending", false, true), "it is not watched");
    let store = secret_store(&cache.0, "a");
    assert_eq!(problem(), ("SecretPending", false, true), "there is no answer yet");
    store.fail("forbidden");
    assert_eq!(problem(), ("SecretNotRead", false, false));
    assert!(cache.see("m").class.unwrap_err().message.contains("forbidden; the manager needs get, list and watch"));
    answer(&store, None);
    assert_eq!(problem(), ("SecretNotFound", true, false));
    answer(&store, Some(secret("a", HELD)));
    assert!(cache.see("m").class.is_ok());
}

#[test]
fn while_a_secret_is_pending_a_machine_waits_and_selectors() {
    for machine in [machine("m"), machine("m").phase("Terminating").deleting(), linked("CrashLoopBackOff")] {
        let cache = Cache::default().with([machine.clone().build()]).with([class_of(1, &["a"])]);
        let mut waiting = fixture(machine);
        waiting.snapshot = cache.see("m");
        let plan = waiting.plan();
        assert!(plan.is_idle(), "{:?}", waiting.steps());
        assert_eq!((plan.waits[0].reason, plan.scoped_watches.len()), ("SecretPending", 1));
    }
}

#[test]
fn a_machine_that_runs_looks_at_no_secret() {
    let selectors = |machine: MachineBuilder| {
        let cache = Cache::default().with([machine.build()]).with([class_of(1, &["a", "b"])]);
        cache.see("m").scoped_watches.iter().map(|watch| watch.selector().to_owned()).collect::<Vec<_>>()
    };
    let proven = |phase: &str| {
        let proof =
            json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "p:///m"});
        machine("m").phase(phase).with("/spec/providerID", json!("p:///m")).with("/status/conditions", json!([proof]))
    };
    assert!(selectors(proven("Running")).is_empty());
    let unwell = [proven("Pending"), proven("Unknown"), proven("InPlaceUpdateFailed")];
    for needing in unwell.into_iter().chain([proven("Running").deleting(), machine("m"), linked("Running")]) {
        assert_eq!(selectors(needing).len(), 2);
    }
    let selector = selectors(machine("m")).remove(0);
    assert!(selector.starts_with("metadata.name=a,metadata.namespace=default,type!=kubernetes.io/tls"), "{selector}");
}

#[test]
fn what_cannot_be_the_name_of_a_secret_is_not_asked_for() {
    for name in ["", "a,metadata.name!=a", "a=b", "A", "a/b"] {
        let snapshot = Cache::default().with([machine("m").build()]).with([class_of(2, &[name])]).see("m");
        assert_eq!(
            (snapshot.scoped_watches.len(), snapshot.class.unwrap_err().reason),
            (0, "SecretNotFound"),
            "{name}"
        );
    }
}

/// A deployment of two sets with these Machines, and the Nodes of some.
fn fleet(budget: &str, machines: Vec<Machine>, nodes: Vec<Node>) -> Cache {
    let by_set = [PLACES_BY_SET, WAITING_BY_SET, HELD_BY_SET, MACHINE_BY_INSTANCE];
    indexed_fleet(budget, &by_set, machines, nodes)
}

fn indexed_fleet(budget: &str, indexes: &[Index<Machine>], machines: Vec<Machine>, nodes: Vec<Node>) -> Cache {
    let owner = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "name": "pool",
        "uid": "uid-pool", "controller": true}]);
    let set = |name: &str| {
        let mut set = serde_json::to_value(machine_set(name, 1, Some("k7f;"))).unwrap();
        set["metadata"]["ownerReferences"] = owner.clone();
        set["metadata"]["annotations"]["nodewright.dev/remediation-max-in-flight"] = budget.into();
        parse::<MachineSet>(set)
    };
    Cache::default()
        .indexed(CONTROL, &[SET_BY_UID], [set("old"), set("new")])
        .indexed(CONTROL, indexes, machines)
        .indexed(TARGET, &[NODE_BY_INSTANCE, DELETING_NODES], nodes)
}

fn member(set: &str, name: &str, phase: &str) -> MachineBuilder {
    machine(name)
        .owned_by(&machine_set(set, 1, None))
        .phase(phase)
        .with("/spec/providerID", json!(format!("p:///{name}")))
        .with("/status/conditions", json!([provisioned(name)]))
}

/// The proof of a VM.
fn provisioned(name: &str) -> Value {
    json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": format!("p:///{name}")})
}

/// One that waits for a place since so many minutes past ten.
fn held(set: &str, name: &str, minute: usize) -> Machine {
    let held = json!({"type": "RemediationAllowed", "status": "False", "reason": "ReplacementBlocked"});
    member(set, name, "Unknown")
        .with("/status/conditions", json!([provisioned(name), held]))
        .with("/status/currentStatus/lastUpdateTime", json!(format!("2026-06-01T10:{minute:02}:00Z")))
        .build()
}

/// Whom a change of a Machine wakes.
fn woken(cache: &Cache, old: &MachineBuilder, new: Option<MachineBuilder>) -> Vec<String> {
    let mut woken = vec![];
    let change = Change { old: Some(Arc::new(old.clone().build())), new: new.map(|new| Arc::new(new.build())) };
    budget::wake_next(&change, &cache.0, &MachineSettings::default(), &mut |key| woken.push(key.name.to_string()));
    woken
}

#[test]
fn a_change_wakes_as_many_of_those_that_wait_as_there_are_free_places() {
    let waiting =
        || (0..500).map(|index| held(if index % 2 == 0 { "old" } else { "new" }, &format!("h{index:03}"), index % 50));
    let running = || member("new", "a", "Running");
    let deleting = || member("old", "a", "Terminating").deleting();
    let cache = |budget: &str, places: Vec<Machine>| fleet(budget, waiting().chain(places).collect(), vec![]);
    let one = cache("1", vec![]);
    for (old, new) in [
        (deleting(), None),
        (member("new", "a", "Pending"), Some(running())),
        (member("old", "a", "Failed"), Some(running())),
        (member("old", "a", "Unknown"), Some(running())),
        (member("new", "a", ""), None),
    ] {
        assert_eq!(woken(&one, &old, new), ["h000"], "the one that waits for the longest time");
    }
    for (old, new) in [
        (running(), running().label("x", "y")),
        (running(), member("new", "a", "Unknown")),
        (member("new", "a", "Unknown"), member("new", "a", "Failed")),
        (member("new", "a", ""), member("new", "a", "Pending")),
        (deleting(), deleting().label("x", "y")),
    ] {
        assert!(woken(&one, &old, Some(new)).is_empty(), "no place is free now that was not before");
    }
    let three = cache("3", vec![deleting().build()]);
    assert_eq!(woken(&three, &deleting(), None), ["h000", "h050"]);
    assert_eq!(woken(&cache("1%", vec![]), &deleting(), None).len(), 5);
    let stuck = cache("1", vec![deleting().build()]);
    assert_eq!(woken(&stuck, &deleting(), None), ["h000"], "a place may be held by a deletion that is stuck");
}

fn node(name: &str, deleted: &Value) -> Node {
    parse(json!({"metadata": {"name": name, "uid": name, "resourceVersion": "9", "deletionTimestamp": deleted},
        "spec": {"providerID": format!("p:///{name}")}, "status": {}}))
}

#[test]
fn of_machines_without_a_set_whose_nodes_were_deleted_one_goes_at_a_time() {
    let loose = |name: &str| {
        let running = machine(name).phase("Running").with("/spec/providerID", json!(format!("p:///{name}")));
        running.with("/status/conditions", json!([provisioned(name)]))
    };
    let gone = |name: &str| member("gone", name, "Running");
    let names = ["a", "b", "c", "x", "y"];
    let all = vec![loose("a"), loose("b"), loose("c"), gone("x"), gone("y")];
    let nodes = names.map(|name| node(name, &json!(NOW))).into();
    let cache = fleet("1", all.into_iter().map(MachineBuilder::build).collect(), nodes);
    let later = at(NOW) + SignedDuration::from_secs(10);
    let goes = |name: &str| cache.see(name).pool.decide(later).of(&format!("uid-{name}")).is_ok();
    assert_eq!(
        names.map(goes),
        [true, false, false, true, false],
        "one of each set that is gone, and one of those without"
    );
    let held = |name: &str| {
        let held = json!({"type": "RemediationAllowed", "status": "False", "reason": "ReplacementBlocked"});
        loose(name).with("/status/conditions", json!([provisioned(name), held])).build()
    };
    let leaving = loose("a").deleting();
    let cache = fleet("1", vec![leaving.clone().build(), held("b"), held("c")], vec![]);
    assert_eq!(woken(&cache, &leaving, None), ["b"], "it wakes the next one");
}

#[test]
fn at_the_second_level_of_the_brake_only_machines_without_a_vm_go() {
    let sick = |name: &str, lost: bool| {
        let deadline = json!({"type": "HealthTimeout", "status": "True", "message": "2026-06-01T11:00:00Z",
            "reason": if lost { "VMNotFound" } else { "Unhealthy" }});
        let machine = member("old", name, "Unknown").with("/status/conditions", json!([provisioned(name), deadline]));
        machine.with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T09:00:00Z")).build()
    };
    let well = |name: &str| member("old", name, "Running").build();
    // Of ten, so many are sick, the last without a VM; who goes.
    let goes = |sick_count: usize| {
        let names: Vec<_> = (0..10).map(|number| format!("m{number}")).collect();
        let machines = names.iter().enumerate().map(|(number, name)| match number {
            number if number < sick_count => sick(name, number + 1 == sick_count),
            _ => well(name),
        });
        let class = json!({"metadata": {"name": "class", "namespace": "default", "uid": "uid-class"},
            "provider": "simulated", "providerSpec": {}});
        let by_class = [PLACES_BY_SET, WAITING_BY_SET, HEALTHY_BY_CLASS, UNHEALTHY_BY_CLASS, MACHINE_BY_INSTANCE];
        let cache = indexed_fleet("10", &by_class, machines.collect(), vec![]).with([parse::<MachineClass>(class)]);
        let goes = |name: &&String| cache.see(name).pool.decide(at(NOW)).of(&format!("uid-{name}")).is_ok();
        names[..sick_count].iter().filter(goes).cloned().collect::<Vec<_>>()
    };
    assert_eq!(goes(2), ["m0", "m1"], "no brake");
    assert_eq!(goes(4), ["m0"], "the first level: one at a time");
    assert_eq!(goes(8), ["m7"], "the second level: the one without a VM");
}

#[test]
fn one_about_which_nothing_is_decided_keeps_no_other_waiting() {
    let preserved = member("old", "a", "Failed").with("/status/currentStatus/preserveExpiryTime", json!(NOW));
    let dispute = json!({"type": "ConfigurationValid", "status": "False", "reason": "ProviderIDNotUnique"});
    let disputed = member("old", "b", "Running").with("/status/conditions", json!([provisioned("b"), dispute]));
    let foreign = json!({"type": "InstanceProvisioned", "status": "False", "reason": "ProviderIDMismatch"});
    let unread = json!({"type": "NodeReadable", "status": "False", "reason": "Unreadable"});
    let unknown = |name: &str, conditions: Value| {
        let machine = member("new", name, "Unknown").with("/status/conditions", conditions);
        machine.with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T09:00:00Z"))
    };
    let all = [
        preserved,
        disputed,
        member("old", "c", "Running"),
        unknown("d", json!([foreign])),
        unknown("e", json!([provisioned("e"), unread])),
        unknown("f", json!([provisioned("f")])),
    ];
    let all: Vec<_> = all.into_iter().map(MachineBuilder::build).collect();
    let cache = fleet("2", all, ["a", "b", "c"].map(|name| node(name, &json!(NOW))).into());
    let (pool, later) = (cache.see("c").pool, at(NOW) + SignedDuration::from_secs(10));
    let goes: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .into_iter()
        .map(|name| pool.decide(later).of(&format!("uid-{name}")).is_ok())
        .collect();
    assert_eq!(goes, [false, false, true, false, false, true]);
    let (well, stuck) = (unknown("x", json!([provisioned("x")])), unknown("x", json!([provisioned("x"), unread])));
    let cache = fleet("1", vec![stuck.clone().build(), held("old", "h", 1)], vec![]);
    assert_eq!(woken(&cache, &well, Some(stuck)), ["h"], "it no longer comes before the others");
}

#[test]
fn a_machine_sees_of_a_large_deployment_only_those_that_count_for_the_budget() {
    let running = (0..1_000).map(|index| member("old", &format!("r{index:04}"), "Running").build());
    let mut all: Vec<_> = running.collect();
    all.extend([held("old", "h1", 1), held("new", "h2", 2), member("new", "p", "Pending").build()]);
    let nodes = vec![node("r0000", &json!(NOW)), node("r0001", &json!(NOW)), node("r0002", &Value::Null)];
    let cache = fleet("1%", all, nodes);
    let sees = |name: &str| {
        let pool = cache.see(name).pool;
        let without_node = pool.candidates.iter().filter(|candidate| candidate.has_lost_node).count();
        (pool.places.len(), pool.candidates.len() - without_node, without_node, pool.total)
    };
    assert_eq!(sees("h1"), (1, 2, 2, 1_003));
    assert_eq!(sees("r0000"), (1, 2, 2, 1_003), "all see the same");
    assert_eq!(sees("r0002"), (0, 0, 0, 0), "one that is well asks for nothing");
    assert_eq!(sees("p"), (0, 0, 0, 0));
}
