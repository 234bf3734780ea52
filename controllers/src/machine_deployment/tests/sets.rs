//! Which sets exist, and their fields.

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::Unreadable,
    object::{Kind, ObjectRef},
    plan::{Failure, FailureClass, Step, StepVerb},
};
use serde_json::{Value, json};

use super::{
    super::snapshot::may_adopt,
    cluster::{Cluster, failed_creation, kinds},
};
use crate::{
    shared::CONTROL,
    shared::template,
    testing::{machine_deployment, rolling},
};

#[test]
fn a_new_deployment_gets_one_set_and_comes_to_rest() {
    let mut cluster = Cluster::of(machine_deployment(3, &rolling(1, 0)));
    let first = cluster.plan();
    let name = format!("create {}", template::set_name(&cluster.snapshot().deployment));
    assert_eq!(kinds(&first), [name.as_str(), "apply MachineDeployment/status"]);
    assert_eq!(first.traceparent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok());
    cluster.act();
    assert_eq!(cluster.reason("Progressing"), "NewMachineSetCreated");
    assert_eq!(cluster.reason("Available"), "MinimumReplicasUnavailable");
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready(), cluster.machines().len()), (vec![3], 3, 3));
    let status = cluster.status();
    let conditions = status["conditions"].as_array().unwrap();
    let found: Vec<_> = conditions
        .iter()
        .map(|it| [&it["type"], &it["status"], &it["reason"]].map(|it| it.as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [["Available", "True", "MinimumReplicasAvailable"], ["Progressing", "True", "NewMachineSetAvailable"]]
    );
    assert!(kinds(&cluster.plan()).is_empty() && cluster.plan().events.is_empty() && cluster.plan().wake.is_none());
}

#[test]
fn a_set_is_born_with_all_that_it_needs() {
    let mut cluster = Cluster::of(machine_deployment(2, &rolling(1, 0)));
    cluster.annotate("nodewright.dev/ledger", "not to be copied");
    cluster.annotate("node.machine.sapcloud.io/trigger-deletion-by-mcm", "");
    let plan = cluster.plan();
    let create = plan.steps().find_map(|planned| match &planned.step {
        Step::Create { body, .. } => Some(body.clone()),
        _ => None,
    });
    // The plan first clears the empty list of machines to be removed.
    assert_eq!((kinds(&plan), create), (vec!["edit MachineDeployment".to_owned()], None));
    cluster.act();
    cluster.act();
    let (_, set) = cluster.only_set();
    let noted = &set["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"];
    assert_eq!((&set["spec"]["replicas"], noted), (&json!(0), &json!(null)), "that it has no machine is not its goal");
    let uid = cluster.live()["metadata"]["uid"].as_str().unwrap().to_owned();
    let hash = template::hash_label(&cluster.snapshot().deployment);
    let labels = json!({"name": "pool", "machine-template-hash": hash});
    assert_eq!(set["apiVersion"], "machine.sapcloud.io/v1alpha1");
    assert_eq!(set["metadata"]["labels"], labels);
    assert_eq!(set["spec"]["selector"], json!({"matchLabels": labels}));
    assert_eq!(set["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(set["spec"]["template"]["spec"], json!({"class": {"kind": "MachineClass", "name": "v1"}}));
    assert_eq!(set["spec"]["minReadySeconds"], 500);
    assert_eq!(set["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
    assert_eq!(
        set["metadata"]["ownerReferences"],
        json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "name": "pool",
            "uid": uid, "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(
        set["metadata"]["annotations"],
        json!({"team": "blue", "deployment.kubernetes.io/revision": "1", "nodewright.dev/sized-for": format!("{uid}/1"),
            "nodewright.dev/traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
    );
    cluster.act();
    let (_, set) = cluster.only_set();
    let noted = ["desired", "max"]
        .map(|of| set["metadata"]["annotations"][format!("deployment.kubernetes.io/{of}-replicas")].clone());
    assert_eq!(
        (&set["spec"]["replicas"], noted),
        (&json!(2), [json!("2"), json!("3")]),
        "the goal comes with the size"
    );
}

#[test]
fn what_is_no_trace_context_goes_nowhere() {
    let mut cluster = Cluster::of(machine_deployment(2, &rolling(1, 0)));
    for text in ["x\n", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n"] {
        cluster.annotate("nodewright.dev/traceparent", text);
        let plan = cluster.plan();
        let body = plan.steps().find_map(|planned| match &planned.step {
            Step::Create { body, .. } => Some(body.clone()),
            _ => None,
        });
        assert_eq!(plan.traceparent, None, "{text:?} is no header");
        assert_eq!(body.unwrap()["metadata"]["annotations"]["nodewright.dev/traceparent"], Value::Null, "{text:?}");
    }
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![2], 2));
}

#[test]
fn nothing_is_owned_before_the_finalizer_stands() {
    let mut raw = machine_deployment(3, &rolling(1, 0));
    raw["metadata"].as_object_mut().unwrap().remove("finalizers");
    let mut cluster = Cluster::of(raw);
    assert_eq!(kinds(&cluster.plan()), ["edit MachineDeployment"]);
    cluster.act();
    assert_eq!(cluster.live()["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
}

#[test]
fn what_needs_no_new_machine_reaches_the_present_set_without_a_rollout() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    // MCM's hash differs from ours, and stays.
    cluster.edit_sets(|set| {
        for pointer in ["/metadata/labels", "/spec/template/metadata/labels", "/spec/selector/matchLabels"] {
            set.pointer_mut(pointer).unwrap()["machine-template-hash"] = "12345".into();
        }
        set["metadata"]["annotations"]["nodewright.dev/ledger"] = "k7f;0".into();
    });
    cluster.change(
        "/spec/template/spec",
        json!({"class": {"kind": "AWSMachineClass", "name": "v1"}, "drainTimeout": "10m",
            "nodeTemplate": {"metadata": {"labels": {"a": "b"}}}}),
    );
    cluster.annotate("team", "red");
    cluster.settle();
    let (_, set) = cluster.only_set();
    assert_eq!(set["spec"]["template"]["spec"]["drainTimeout"], "10m0s");
    assert_eq!(set["spec"]["template"]["spec"]["class"]["kind"], "AWSMachineClass");
    assert_eq!(
        set["spec"]["template"]["metadata"]["labels"],
        json!({"name": "pool", "machine-template-hash": "12345"})
    );
    assert_eq!(set["metadata"]["annotations"]["team"], "red");
    assert_eq!(set["metadata"]["annotations"]["nodewright.dev/ledger"], "k7f;0");
    assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
}

#[test]
fn the_ledger_and_the_freeze_are_never_part_of_a_write() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    cluster.edit_sets(|set| {
        set["metadata"]["annotations"]["nodewright.dev/ledger"] = "k7f;0".into();
        freeze(set);
    });
    cluster.edit(freeze);
    cluster.change("/spec/replicas", json!(5));
    let plan = cluster.plan();
    let applied = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) if apply.subresource.is_empty() => Some(apply.fragment().clone()),
        _ => None,
    });
    let applied = applied.unwrap();
    assert!(applied["metadata"]["annotations"].get("nodewright.dev/ledger").is_none());
    assert!(applied["metadata"]["labels"].get("freeze").is_none());
    assert_eq!(applied["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
    assert_eq!(applied["spec"]["replicas"], 5);
}

#[test]
fn a_deployment_is_frozen_while_one_of_its_sets_is() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    cluster.edit_sets(freeze);
    cluster.settle();
    assert_eq!(cluster.live()["metadata"]["labels"]["freeze"], "True");
    let condition = cluster.condition("Frozen").unwrap();
    assert_eq!(condition["reason"], "OverShootingReplicaCount", "{condition}");
    cluster.edit_sets(unfreeze);
    cluster.settle();
    assert!(cluster.live()["metadata"]["labels"].get("freeze").is_none());
    assert_eq!(cluster.condition("Frozen"), None);
}

#[test]
fn one_annotation_ends_the_freeze_of_all_sets_of_a_deployment_once() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let asks = |object: &Value| object["metadata"]["annotations"].get(UNFREEZE).is_some();
    cluster.edit_sets(freeze);
    cluster.settle();
    cluster.edit(|deployment| deployment["metadata"]["annotations"][UNFREEZE] = "now".into());
    cluster.settle();
    let live = cluster.live();
    assert!(!asks(&live) && live["metadata"]["labels"].get("freeze").is_none(), "{live}");
    cluster.edit_sets(|set| {
        assert!(asks(set), "its own controller ends its freeze: {set}");
        set["metadata"]["annotations"].as_object_mut().unwrap().remove(UNFREEZE);
    });
    cluster.settle();
    assert_eq!(cluster.live()["metadata"]["labels"]["freeze"], "True", "the set has been frozen again");
}

const UNFREEZE: &str = "safety.machine.sapcloud.io/unfreeze";

fn freeze(object: &mut Value) {
    object["metadata"]["labels"]["freeze"] = "True".into();
}

fn unfreeze(object: &mut Value) {
    object["metadata"]["labels"].as_object_mut().unwrap().remove("freeze");
}

#[test]
fn deletion_takes_the_sets_first() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    cluster.delete("machinedeployments", "pool");
    let (set, _) = cluster.only_set();
    assert_eq!(kinds(&cluster.plan()), [format!("delete {set}"), "apply MachineDeployment/status".to_owned()]);
    cluster.settle();
    assert!(cluster.deployment().is_none() && cluster.sets().is_empty() && cluster.machines().is_empty());
}

#[test]
fn a_deployment_whose_finalizer_is_gone_is_left_alone_once_its_sets_are() {
    let mut raw = machine_deployment(2, &rolling(1, 0));
    raw["metadata"]["finalizers"] = json!(["somebody/else"]);
    let cluster = Cluster::of(raw);
    cluster.delete("machinedeployments", "pool");
    assert!(kinds(&cluster.plan()).is_empty());
}

#[test]
fn orphans_are_adopted_before_anything_else() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    cluster.edit_sets(|set| {
        let metadata = set["metadata"].as_object_mut().unwrap();
        metadata.remove("ownerReferences");
        metadata.remove("finalizers");
    });
    // The plan first confirms that the deployment is not being deleted.
    assert_eq!(kinds(&cluster.plan()), ["confirm MachineDeployment", "apply MachineSet"]);
    cluster.settle();
    assert_eq!(cluster.replicas(), [2]);
    let (_, set) = cluster.only_set();
    assert_eq!(set["metadata"]["ownerReferences"][0]["uid"], cluster.live()["metadata"]["uid"]);
    assert_eq!(set["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
}

#[test]
fn a_set_that_merely_matches_is_not_adopted() {
    let cluster = Cluster::of(machine_deployment(2, &rolling(1, 0)));
    let snapshot = cluster.snapshot();
    let set = |labels: Value, class: &str| -> MachineSet {
        serde_json::from_value(json!({"metadata": {"name": "x", "labels": labels},
            "spec": {"template": {"metadata": {"labels": {"name": "pool"}}, "spec": {"class": {"name": class}}}}}))
        .unwrap()
    };
    assert!(!may_adopt(&snapshot.deployment, &set(json!({"name": "pool"}), "other")));
    assert!(may_adopt(&snapshot.deployment, &set(json!({"name": "pool"}), "v1")));
    assert!(may_adopt(&snapshot.deployment, &set(json!({"name": "pool", "machine-template-hash": "1"}), "other")));
    assert!(!may_adopt(&snapshot.deployment, &set(json!({"name": "other", "machine-template-hash": "1"}), "v1")));
}

#[test]
fn a_name_that_was_just_left_is_asked_for_again() {
    // Its deployment was deleted without it, then the set without its machines: the cache may not show that it is gone.
    let mut cluster = Cluster::of(machine_deployment(1, &rolling(1, 0)));
    let name = template::set_name(&cluster.snapshot().deployment);
    cluster.add::<MachineSet>(json!({"metadata": {"name": name, "finalizers": ["somebody/else"]},
        "spec": {"replicas": 1, "template": {"spec": {"class": {"name": "v1"}}}}}));
    cluster.delete("machinesets", &name);
    assert_eq!(kinds(&cluster.plan())[0], format!("create {name}"));
    // It still exists: the machines that it still has delay nothing.
    cluster.failure = Some(failed_creation(&name, FailureClass::AlreadyExists, "already exists"));
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"]);
    cluster.act();
    assert_eq!(cluster.status()["collisionCount"], 1);
}

#[test]
fn a_name_that_somebody_else_holds_is_passed_over() {
    let mut cluster = Cluster::of(machine_deployment(1, &rolling(1, 0)));
    let taken = template::set_name(&cluster.snapshot().deployment);
    let owner = json!({"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "y", "controller": true});
    cluster.add::<MachineSet>(json!({"metadata": {"name": taken, "ownerReferences": [owner]},
        "spec": {"replicas": 0, "template": {"spec": {"class": {"name": "z"}}}}}));
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"]);
    cluster.act();
    assert_eq!(cluster.status()["collisionCount"], 1);
    let next = template::set_name(&cluster.snapshot().deployment);
    assert_ne!(next, taken);
    assert_eq!(kinds(&cluster.plan())[0], format!("create {next}"));
}

#[test]
fn a_set_of_ours_that_is_being_deleted_is_waited_for() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    cluster.delete("machinesets", &cluster.only_set().0);
    let plan = cluster.plan();
    assert_eq!(plan.waits[0].reason, "MachineSetLeaving");
    assert!(!kinds(&plan).iter().any(|step| step.starts_with("create")));
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![2], 2));
}

#[test]
fn empty_sets_beyond_the_history_limit_are_deleted_oldest_first() {
    let mut cluster = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
    cluster.edit(|live| live["spec"]["revisionHistoryLimit"] = 1.into());
    for class in ["v2", "v3", "v4"] {
        cluster.change("/spec/template/spec/class/name", json!(class));
        cluster.settle();
    }
    let sets = cluster.sets();
    let classes: std::collections::BTreeSet<_> =
        sets.values().map(|set| set["spec"]["template"]["spec"]["class"]["name"].as_str().unwrap()).collect();
    assert_eq!(classes, ["v3", "v4"].into());
    // One revision less: the plan deletes the set only if it has not changed, so not one that is in use again.
    cluster.edit(|live| live["spec"]["revisionHistoryLimit"] = 0.into());
    let plan = cluster.plan();
    let versions = plan.steps().filter_map(|planned| match &planned.step {
        Step::Delete(target) => Some(target.version().is_some()),
        _ => None,
    });
    assert_eq!(versions.collect::<Vec<_>>(), [true]);
    let mut keeps_all = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
    keeps_all.change("/spec/template/spec/class/name", json!("v2"));
    keeps_all.settle();
    assert_eq!(keeps_all.sets().len(), 2);
}

fn unreadable_set() -> Arc<Unreadable> {
    let owner = json!({"apiVersion": "v1", "kind": "MachineDeployment", "name": "pool", "uid": "uid-pool",
        "controller": true});
    let metadata = json!({"name": "pool-x", "namespace": "default", "uid": "u", "ownerReferences": [owner]});
    Arc::new(Unreadable::new(serde_json::from_value(metadata).unwrap()))
}

/// After a restart the cache has nothing of a set that cannot be read, and the set may have three machines.
#[test]
fn no_set_is_made_in_the_place_of_one_that_cannot_be_read() {
    let mut cluster = Cluster::of(machine_deployment(3, &rolling(1, 0)));
    cluster.unreadable_sets = vec![unreadable_set()];
    let plan = cluster.plan();
    assert_eq!(kinds(&plan), ["apply MachineDeployment/status"]);
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("MachineSetUnreadable", "MachineSetUnreadable"));
    assert!(plan.events[0].message.starts_with("MachineSet default/pool-x exists and cannot be read"));
    cluster.act();
    assert_eq!(cluster.reason("Stalled"), "MachineSetUnreadable");
    assert!(cluster.plan().events.is_empty(), "said once");
    cluster.unreadable_sets.clear();
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.condition("Stalled")), (vec![3], None));
}

#[test]
fn a_set_that_cannot_be_read_keeps_its_deployment_from_going() {
    let mut cluster = Cluster::of(machine_deployment(3, &rolling(1, 0)));
    cluster.delete("machinedeployments", "pool");
    cluster.unreadable_sets = vec![unreadable_set()];
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"], "the finalizer stays");
    cluster.unreadable_sets.clear();
    assert_eq!(kinds(&cluster.plan()), ["edit MachineDeployment"]);
}

#[test]
fn machines_that_cannot_be_read_count_in_a_rollout() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.unreadable_machines = 1;
    let sizes: Vec<i64> = cluster.snapshot().sets.iter().map(|view| view.size().live).collect();
    assert_eq!(sizes, [4]);
}

#[test]
fn a_ledger_that_cannot_be_read_says_so_on_the_deployment_that_waits_for_it() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.delete("machinedeployments", "pool");
    cluster.edit_sets(|set| set["metadata"]["annotations"]["nodewright.dev/ledger"] = "nonsense".into());
    let plan = cluster.plan();
    let event = plan.events.iter().find(|event| event.reason == "InvalidLedger").unwrap();
    let (set, _) = cluster.only_set();
    assert!(event.message.contains(&set) && event.message.contains("nodewright.dev/ledger"), "{}", event.message);
    cluster.act();
    assert_eq!(cluster.reason("Stalled"), "InvalidLedger");
}

/// A deployment of two machines whose selector does not match its set any more, and that set.
fn other_selector() -> (Cluster, String) {
    let cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let (former, _) = cluster.only_set();
    cluster.edit(|live| {
        let labels = json!({"name": "pool", "tier": "b"});
        live["spec"]["selector"]["matchLabels"] = labels.clone();
        live["spec"]["template"]["metadata"]["labels"] = labels;
    });
    (cluster, former)
}

/// What is planned after the API server has refused to change an object.
fn planned_after_refusal<K: Kind>(cluster: &mut Cluster, verb: StepVerb, name: &str) -> Vec<String> {
    planned_after::<K>(cluster, verb, name, FailureClass::Forbidden)
}

fn planned_after<K: Kind>(cluster: &mut Cluster, verb: StepVerb, name: &str, class: FailureClass) -> Vec<String> {
    let key = ObjectRef::new(CONTROL, "default", name);
    cluster.failure = Some(Failure::of::<K>(verb, key, class, "no"));
    kinds(&cluster.plan())
}

#[test]
fn a_set_that_may_not_be_released_does_not_block_the_rollout_and_keeps_its_machines() {
    let (mut cluster, former) = other_selector();
    assert_eq!(kinds(&cluster.plan()), ["edit MachineSet"]);
    let after = planned_after_refusal::<MachineSet>(&mut cluster, StepVerb::Patch, &former);
    assert!(after.iter().any(|step| step.starts_with("create ")), "{after:?}");
    assert_eq!(after.iter().filter(|step| step.ends_with("MachineSet")).collect::<Vec<_>>(), ["edit MachineSet"]);
    assert_eq!(after.last().map(String::as_str), Some("edit MachineSet"), "it is tried again after the others");
}

#[test]
fn a_set_that_may_not_be_released_is_not_sized_although_it_has_the_template() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let (strayed, _) = cluster.only_set();
    cluster.edit_sets(|set| set["metadata"]["labels"] = json!({"name": "another"}));
    cluster.edit(|live| live["spec"]["replicas"] = 5.into());
    let after = planned_after_refusal::<MachineSet>(&mut cluster, StepVerb::Patch, &strayed);
    assert!(!after.contains(&"apply MachineSet".to_owned()), "it is no longer the deployment's: {after:?}");
    assert_eq!(after.last().map(String::as_str), Some("edit MachineSet"));
}

#[test]
fn a_set_that_may_not_be_adopted_blocks_only_the_creation_of_one_beside_it() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let (own, _) = cluster.only_set();
    cluster.add::<MachineSet>(
        json!({"metadata": {"name": "stray", "labels": {"name": "pool", "machine-template-hash": "1"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"machine-template-hash": "1"}},
            "template": {"metadata": {"labels": {"name": "pool", "machine-template-hash": "1"}},
                "spec": {"class": {"name": "v0"}}}}}),
    );
    cluster.edit(|live| live["spec"]["replicas"] = 5.into());
    let first = ["confirm MachineDeployment", "apply MachineSet"];
    assert_eq!(kinds(&cluster.plan()), first);
    let passing =
        [FailureClass::Unknown, FailureClass::Unreachable, FailureClass::Unauthorized, FailureClass::TooManyRequests];
    for class in passing {
        let after = planned_after::<MachineSet>(&mut cluster, StepVerb::Apply, "stray", class);
        assert_eq!(after, first, "{class:?}: its machines count as soon as the API server answers again");
    }
    let after = planned_after_refusal::<MachineSet>(&mut cluster, StepVerb::Apply, "stray");
    assert_eq!(after[0], "apply MachineSet", "the other one is sized: {after:?}");
    assert_eq!(after[after.len() - 2..], ["confirm MachineDeployment", "apply MachineSet"]);
    // Without it, a second fleet would be made beside that of a set which may merely not be adopted yet.
    cluster.delete("machinesets", &own);
    let after = planned_after_refusal::<MachineSet>(&mut cluster, StepVerb::Apply, "stray");
    assert_eq!(after, ["confirm MachineDeployment", "apply MachineSet"]);
}

#[test]
fn a_machine_that_may_not_be_marked_does_not_block_a_scale_out() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let machine = cluster.machines().keys().next().unwrap().clone();
    cluster.edit(|live| {
        live["metadata"]["annotations"]["node.machine.sapcloud.io/trigger-deletion-by-mcm"] = machine.clone().into();
        live["spec"]["replicas"] = 5.into();
    });
    assert!(!kinds(&cluster.plan()).contains(&"apply MachineSet".to_owned()), "the mark comes first");
    let after = planned_after_refusal::<Machine>(&mut cluster, StepVerb::Patch, &machine);
    assert_eq!(after[0], "apply MachineSet", "{after:?}");
    assert!(after.contains(&"edit Machine".to_owned()), "{after:?}");
    cluster.edit(|live| live["spec"]["replicas"] = 1.into());
    let after = planned_after_refusal::<Machine>(&mut cluster, StepVerb::Patch, &machine);
    assert!(!after.contains(&"apply MachineSet".to_owned()), "another machine would go: {after:?}");
}

#[test]
fn a_set_that_the_selector_no_longer_matches_is_released_with_its_machines() {
    let (mut cluster, former) = other_selector();
    cluster.settle();
    let sets = cluster.sets();
    assert_eq!(sets.len(), 2);
    assert!(sets[&former]["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty));
    assert_eq!(sets[&former]["spec"]["replicas"], 2, "it keeps its machines");
    assert_eq!(cluster.machines().len(), 4);
    assert!(cluster.events.iter().any(|event| event.starts_with(&format!("Released machine set {former}"))));
    assert_eq!(
        (cluster.status()["replicas"].clone(), cluster.status()["availableReplicas"].clone()),
        (json!(2), json!(2))
    );
}
