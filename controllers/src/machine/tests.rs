//! Worlds in, plans out: a Machine's life and death, step by step.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeSpec};
use nodewright_api::{Code, Machine, MachineSet, RawJson};
use nodewright_runtime::{
    controller::Controller,
    effect::Outcomes,
    object::Cluster,
    plan::{Moment, Plan, Refusal, Step},
};
use serde_json::{Value, json};

use super::{Call, ClassProblem, MachineController, Outcome, Owner, Settings, Verb, World, life};
use crate::{
    drain::PodView,
    driver::{Class, Driver, DriverError, Instance, MachineRequest, Result as DriverResult, SecretData},
    ledger::Ledger,
    testing::{MachineBuilder, NOW, machine, machine_set},
};

/// A provider that is never called: plans only name calls.
struct Uncalled;

impl Driver for Uncalled {
    fn name(&self) -> &'static str {
        "uncalled"
    }
    fn validate(&self, _: &RawJson) -> Vec<(String, String)> {
        vec![]
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn consistency(&self) -> Duration {
        Duration::from_secs(10)
    }
    fn create(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn initialize(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn delete(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<()>> {
        unreachable!()
    }
    fn status(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn list(&self, _: Class) -> BoxFuture<'static, DriverResult<BTreeMap<String, String>>> {
        unreachable!()
    }
    fn volume_ids(&self, _: Vec<PersistentVolumeSpec>) -> BoxFuture<'static, DriverResult<Vec<String>>> {
        unreachable!()
    }
}

/// A world, what is known of calls, and the time.
struct Scene {
    world: World,
    outcomes: Outcomes<Call>,
    refusals: Vec<Refusal>,
    now: Timestamp,
    since: Timestamp,
    status_written: Option<Timestamp>,
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn scene(machine: MachineBuilder) -> Scene {
    let class = Class {
        name: "class".into(),
        revision: String::new(),
        provider_spec: RawJson::from_text("{}").unwrap(),
        secret: SecretData::default(),
    };
    let world = World {
        machine: Arc::new(machine.build()),
        class: Ok(class),
        class_held: true,
        node: None,
        stranger: None,
        owner: Owner::None,
        peers: vec![],
        pods: None,
    };
    Scene {
        world,
        outcomes: Outcomes::default(),
        refusals: vec![],
        now: at(NOW),
        since: at("2026-06-01T09:00:00Z"),
        status_written: None,
    }
}

impl Scene {
    #[allow(clippy::needless_pass_by_value)] // a test's world is given away
    fn node(mut self, node: Value) -> Self {
        let mut base = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
        json_patch::merge(&mut base, &node);
        self.world.node = Some(Arc::new(serde_json::from_value(base).unwrap()));
        self
    }

    fn pods(mut self, pods: &[Value]) -> Self {
        let parse = |pod: &Value| Arc::new(serde_json::from_value::<PodView>(pod.clone()).unwrap());
        self.world.pods = Some(pods.iter().map(parse).collect());
        self
    }

    fn set(mut self, set: MachineSet) -> Self {
        self.world.owner = Owner::Set(Arc::new(set));
        self
    }

    fn call(&self, verb: Verb) -> Call {
        let settings = Settings::default();
        life::call(
            verb,
            &self.world,
            self.world.class.as_ref().unwrap(),
            super::Context { settings: &settings, driver: &Uncalled },
        )
    }

    /// A call has ended so many seconds ago.
    fn answered(mut self, verb: Verb, seconds_ago: i64, outcome: Outcome) -> Self {
        let (call, when) = (self.call(verb), self.now - SignedDuration::from_secs(seconds_ago));
        self.outcomes.begin(&call, when);
        self.outcomes.finish(&call, when, outcome);
        self
    }

    fn running(mut self, verb: Verb) -> Self {
        let call = self.call(verb);
        self.outcomes.begin(&call, self.now);
        self
    }

    fn plan(&self) -> Plan<Call> {
        let moment = Moment {
            now: self.now,
            since: self.since,
            attempt: 0,
            failure: None,
            outcomes: &self.outcomes,
            refusals: &self.refusals,
            status_written: self.status_written,
        };
        let controller = MachineController {
            namespace: "default".into(),
            settings: Settings::default(),
            driver: Arc::new(Uncalled),
        };
        controller.plan(&moment, &self.world)
    }

    fn steps(&self) -> Vec<String> {
        self.plan().steps().map(|planned| tell(&planned.step)).collect()
    }
}

fn tell(step: &Step<Call>) -> String {
    match step {
        Step::Apply(apply) => match apply.fragment().pointer("/status/currentStatus/phase") {
            Some(phase) => format!("status {}", phase.as_str().unwrap_or_default()),
            None if apply.fragment().get("status").is_some() => format!("status of {}", apply.at()),
            None => format!("apply {}", apply.fragment()),
        },
        Step::Edit(edit) => format!("edit {}", edit.at()),
        Step::Delete(at) => format!("delete {at}"),
        Step::DeleteNow(at) => format!("delete now {at}"),
        Step::Evict(at) => format!("evict {at}"),
        Step::Call(call) => format!("call {:?}", call.verb),
        Step::Create(create) => format!("create {}", create.key()),
    }
}

fn status_of(plan: &Plan<Call>) -> Value {
    let mut found = plan.steps().filter_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    });
    found.next().expect("a status is written")
}

fn failed(code: Code) -> Outcome {
    Outcome::Failed(DriverError::new(code, "no"))
}

fn vm() -> Outcome {
    Outcome::Instance(Instance { provider_id: "p:///1".into(), node_name: "n".into(), ..Instance::default() })
}

fn linked(phase: &str) -> MachineBuilder {
    machine("m").phase(phase).label("node", "n").with("/spec/providerID", json!("p:///1"))
}

const READY: &str = "True";

fn conditions(ready: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Kubelet",
        "lastTransitionTime": "2026-06-01T11:59:00Z"}]}})
}

fn synced(ready: &str) -> Value {
    let mut node = conditions(ready);
    json_patch::merge(
        &mut node,
        &json!({"metadata": {"finalizers": ["node.machine.sapcloud.io/machine-controller"],
        "labels": {"node.gardener.cloud/machine-name": "m"}}}),
    );
    node
}

// ---------------------------------------------------------------- birth

#[test]
fn the_provider_is_asked_before_a_vm_is_made() {
    assert_eq!(scene(machine("m")).steps(), ["call Status"]);
    let none = scene(machine("m")).answered(Verb::Status, 0, failed(Code::NotFound));
    assert_eq!(none.steps(), ["call Create"]);
    assert!(none.running(Verb::Create).steps().is_empty(), "one call at a time");
}

#[test]
fn a_vm_that_is_there_is_adopted() {
    let found = scene(machine("m")).answered(Verb::Status, 0, vm());
    let steps = found.steps();
    assert_eq!(steps.len(), 1);
    assert!(steps[0].contains(r#""providerID":"p:///1""#) && steps[0].contains(r#""node":"n""#), "{steps:?}");
}

#[test]
fn the_link_is_written_first_then_the_vm_is_set_up_then_the_phase_moves() {
    let made = scene(machine("m")).answered(Verb::Status, 2, failed(Code::NotFound)).answered(Verb::Create, 1, vm());
    assert!(made.steps()[0].starts_with("apply "));
    let stored = scene(linked("")).answered(Verb::Status, 2, failed(Code::NotFound)).answered(Verb::Create, 1, vm());
    assert_eq!(stored.steps(), ["call Initialize"]);
    let ready = stored.answered(Verb::Initialize, 0, failed(Code::Unimplemented));
    assert_eq!(ready.steps(), ["status Pending"]);
}

#[test]
fn after_a_restart_the_provider_says_whether_the_vm_is_set_up() {
    let lost = scene(linked(""));
    assert_eq!(lost.steps(), ["call Status"]);
    assert_eq!(lost.answered(Verb::Status, 0, vm()).steps(), ["status Pending"]);
    let bare = Outcome::Instance(Instance { uninitialized: true, provider_id: "p:///1".into(), ..Instance::default() });
    assert_eq!(scene(linked("")).answered(Verb::Status, 0, bare).steps(), ["call Initialize"]);
}

#[test]
fn a_refusal_shows_in_the_status_and_is_tried_again_after_the_pause() {
    let refused = scene(machine("m").created("2026-06-01T11:55:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::ResourceExhausted));
    let plan = refused.plan();
    let status = status_of(&plan);
    assert_eq!(status["currentStatus"]["phase"], "CrashLoopBackOff");
    assert_eq!(status["lastOperation"]["errorCode"], "ResourceExhausted");
    assert_eq!(status["lastOperation"]["state"], "Failed");
    assert_eq!(status["lastOperation"]["type"], "Create");
    assert_eq!(plan.wake, Some(refused.now + SignedDuration::from_secs(598)));
    let later = scene(machine("m").created("2026-06-01T11:59:00Z"))
        .answered(Verb::Status, 700, failed(Code::NotFound))
        .answered(Verb::Create, 601, failed(Code::ResourceExhausted));
    assert_eq!(later.steps(), ["call Status"], "the provider is asked again before the next attempt");
    assert_eq!(later.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Create"]);
}

#[test]
fn after_the_creation_timeout_a_refusal_is_final() {
    let old = scene(machine("m").created("2026-06-01T11:30:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::Internal));
    assert_eq!(old.steps(), ["status Failed"]);
}

#[test]
fn a_class_that_is_missing_says_what_to_do() {
    let mut missing = scene(machine("m"));
    missing.world.class = Err(ClassProblem { reason: "ClassNotFound", message: "create it".into() });
    let plan = missing.plan();
    let condition = &status_of(&plan)["conditions"][0];
    assert_eq!((condition["type"].as_str(), condition["status"].as_str()), (Some("ConfigurationValid"), Some("False")));
    assert_eq!(condition["reason"], "ClassNotFound");
    assert_eq!(plan.waits[0].reason, "ClassNotFound");
}

#[test]
fn a_class_that_could_vanish_gets_no_vm() {
    let mut loose = scene(machine("m"));
    loose.world.class_held = false;
    assert!(loose.steps().is_empty());
    assert_eq!(loose.plan().waits[0].reason, "ClassNotHeld");
}

#[test]
fn a_retired_name_gets_no_vm() {
    let ledger: Ledger = "k7f;0".parse().unwrap();
    let set = machine_set("set", 1, Some("k7f;0"));
    let first = Ledger::lowest_free(&"k7f;".parse().unwrap(), &std::collections::BTreeSet::new(), 1)[0];
    let name = ledger.name("set", first);
    let retired = scene(machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0")).set(set);
    assert!(retired.steps().is_empty());
    assert_eq!(retired.plan().waits[0].reason, "Retired");
    let set = machine_set("set", 1, Some("k7f;"));
    let live = scene(machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0")).set(set);
    assert_eq!(live.steps(), ["call Status"]);
}

// ---------------------------------------------------------------- life

#[test]
fn a_node_that_joins_gets_its_share_and_makes_the_machine_running_in_one_go() {
    let creating =
        json!({"type": "Create", "state": "Processing", "description": "Creating machine on cloud provider"});
    let joined = scene(linked("Pending").with("/status/lastOperation", creating)).node(conditions(READY));
    assert_eq!(joined.steps(), ["edit Node n", "status Running"]);
    let plan = joined.plan();
    assert_eq!(plan.stages.len(), 1, "side by side");
    assert_eq!(plan.spans.iter().map(|span| span.name).collect::<Vec<_>>(), ["boot and join", "machine birth"]);
}

#[test]
fn a_running_machine_with_a_healthy_node_needs_nothing() {
    let mut running = scene(linked("Running")).node(synced(READY));
    let status = status_of(&scene(linked("Pending")).node(synced(READY)).plan());
    let mut machine: Value = serde_json::to_value(running.world.machine.as_ref()).unwrap();
    machine["status"] = status;
    running.world.machine = Arc::new(serde_json::from_value(machine).unwrap());
    assert!(running.plan().is_idle(), "{:?}", running.steps());
}

#[test]
fn a_critical_component_that_is_missing_keeps_the_machine_pending() {
    let mut node = synced(READY);
    node["spec"]["taints"] =
        json!([{"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"}]);
    let waiting =
        scene(linked("Pending").with("/spec/providerID", json!("p:///1")).created("2026-06-01T11:59:00Z")).node(node);
    assert_eq!(waiting.steps(), ["status Pending"], "only the conditions are copied");
    assert_eq!(waiting.plan().waits[0].reason, "CriticalComponentsNotReady");
}

#[test]
fn a_sick_node_makes_the_machine_unknown_and_in_time_failed() {
    assert_eq!(scene(linked("Running")).node(synced("Unknown")).steps(), ["status Unknown"]);
    assert_eq!(scene(linked("Running")).steps(), ["status Unknown"], "a missing node is a sick one");
    let since = |time: &str| linked("Unknown").with("/status/currentStatus/lastUpdateTime", json!(time));
    let young = scene(since("2026-06-01T11:55:00Z"));
    assert!(young.steps().is_empty());
    assert_eq!(young.plan().wake, Some(at("2026-06-01T12:05:00Z")));
    assert_eq!(scene(since("2026-06-01T11:50:00Z")).steps(), ["status Failed"]);
    let off = scene(since("2026-06-01T01:00:00Z").with("/spec/disableHealthTimeout", json!(true)));
    assert!(off.steps().is_empty());
    assert_eq!(scene(since("2026-06-01T01:00:00Z")).node(synced(READY)).steps(), ["status Running"]);
}

#[test]
fn a_listed_condition_that_is_not_false_is_a_sickness() {
    let mut node = synced(READY);
    node["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "DiskPressure", "status": "Unknown"}));
    assert_eq!(scene(linked("Running")).node(node.clone()).steps(), ["status Unknown"]);
    let own = linked("Pending").with("/spec/nodeConditions", json!("Other"));
    assert_eq!(scene(own).node(node).steps(), ["status Running"]);
}

#[test]
fn one_machine_of_a_deployment_is_given_up_at_a_time_whoever_plans_first() {
    let sick = |name: &str, since: &str| {
        machine(name)
            .phase("Unknown")
            .with("/spec/providerID", json!(format!("p:///{name}")))
            .with("/status/currentStatus/lastUpdateTime", json!(since))
    };
    let set = machine_set("set", 2, Some("k7f;"));
    let scene_of = |own: MachineBuilder, peers: Vec<Machine>| {
        let mut scene = scene(own).set(set.clone());
        scene.world.peers = peers.into_iter().map(Arc::new).collect();
        scene
    };
    let (a, b) = (|| sick("a", "2026-06-01T11:00:00Z"), || sick("b", "2026-06-01T11:01:00Z"));
    assert_eq!(scene_of(a(), vec![b().build()]).steps(), ["status Failed"]);
    let held = scene_of(b(), vec![a().build()]);
    assert_eq!(held.steps(), ["status Unknown"], "only the reason of the wait");
    assert_eq!(held.plan().waits[0].reason, "ReplacementHeld");
    let in_progress = [
        a().phase("Failed"),
        a().phase("Running").deleting(),
        machine("new").phase("Pending"),
        machine("new").phase(""),
    ];
    for peer in in_progress {
        assert_eq!(scene_of(b(), vec![peer.build()]).plan().waits[0].reason, "ReplacementHeld");
    }
    assert_eq!(scene_of(b(), vec![machine("new").phase("Running").build()]).steps(), ["status Failed"]);
    let mut wide = scene_of(b(), vec![a().build()]);
    let mut set = set.clone();
    set.metadata
        .annotations
        .get_or_insert_default()
        .insert("nodewright.dev/remediation-max-in-flight".into(), "100%".into());
    wide.world.owner = Owner::Set(Arc::new(set));
    assert_eq!(wide.steps(), ["status Failed"]);
}

#[test]
fn a_machine_that_does_not_join_in_time_is_failed() {
    let late = scene(linked("Pending").created("2026-06-01T11:30:00Z"));
    assert_eq!(late.steps(), ["status Failed"]);
    let waiting = scene(linked("Pending").created("2026-06-01T11:50:00Z"));
    assert!(waiting.steps().is_empty());
    assert_eq!(waiting.plan().wake, Some(at("2026-06-01T12:10:00Z")));
}

#[test]
fn a_node_of_another_vm_is_not_taken_for_the_machines() {
    let mut stale = scene(linked("Pending").created("2026-06-01T11:59:00Z"));
    let stranger: Node =
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"providerID": "p:///old"}, "status": {}}))
            .unwrap();
    stale.world.stranger = Some(Arc::new(stranger));
    assert!(stale.steps().is_empty());
    assert!(stale.plan().waits[0].message.contains("belongs to another VM"));
}

#[test]
fn whoever_deletes_a_node_deletes_its_machine() {
    let mut node = synced(READY);
    node["metadata"]["deletionTimestamp"] = "2026-06-01T11:59:59Z".into();
    assert_eq!(scene(linked("Running")).node(node).steps(), ["delete Machine default/m"]);
}

// ---------------------------------------------------------------- death

fn dying() -> MachineBuilder {
    let joined = json!([{"type": "NodeJoined", "status": "True", "lastTransitionTime": "2026-06-01T11:30:00Z"}]);
    unseen().with("/status/conditions", joined)
}

/// A linked Machine that is being deleted and whose Node has never been there.
fn unseen() -> MachineBuilder {
    linked("Terminating").deleting().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:58Z"))
}

fn cordoned() -> Value {
    let mut node = synced(READY);
    node["spec"]["unschedulable"] = true.into();
    node["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Terminating", "status": "True", "reason": "ScaleDown"}));
    node
}

#[test]
fn a_death_begins_with_the_phase_and_the_cordon() {
    assert_eq!(scene(linked("Running").deleting()).steps(), ["status Terminating"]);
    let begun = scene(dying()).node(synced(READY));
    assert_eq!(begun.steps(), ["edit Node n", "edit Node n"]);
    let listing = scene(dying()).node(cordoned());
    assert!(listing.steps().is_empty());
    assert_eq!(listing.plan().looks[0].selector(), "spec.nodeName=n");
}

#[test]
fn pods_are_evicted_and_waited_for_before_the_vm_goes() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let daemon = json!({"metadata": {"name": "d", "namespace": "default", "uid": "uid-d", "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "x", "controller": true}]}});
    let full = scene(dying()).node(cordoned()).pods(&[pod.clone(), daemon.clone()]);
    assert_eq!(full.steps(), ["evict Pod default/p"]);
    let mut leaving = pod;
    leaving["metadata"]["deletionTimestamp"] = NOW.into();
    let waiting = scene(dying()).node(cordoned()).pods(&[leaving, daemon.clone()]);
    assert!(waiting.steps().is_empty());
    assert_eq!(waiting.plan().waits[0].reason, "Draining");
    assert_eq!(scene(dying()).node(cordoned()).pods(&[daemon]).steps(), ["call Delete"]);
}

#[test]
fn a_pod_that_its_budget_holds_back_is_asked_again_later_and_the_machine_says_so() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let mut held = scene(dying().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z")))
        .node(cordoned())
        .pods(&[pod]);
    held.refusals =
        vec![Refusal { uid: "uid-p".into(), at: held.now, times: 1, message: "needs 2".into(), retry_after: None }];
    let plan = held.plan();
    assert_eq!(held.steps(), ["status Terminating"]);
    assert_eq!(plan.wake, Some(held.now + SignedDuration::from_secs(20)));
    let drained = status_of(&plan)["conditions"][1].clone();
    assert_eq!((drained["type"].as_str(), drained["status"].as_str()), (Some("Drained"), Some("False")));
    assert!(drained["message"].as_str().unwrap().contains("needs 2"));
}

#[test]
fn a_drain_that_is_forced_asks_nobody() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let forced = scene(dying().label("force-deletion", "true")).node(cordoned()).pods(std::slice::from_ref(&pod));
    assert_eq!(forced.steps(), ["delete now Pod default/p"]);
    let timeout = scene(dying().with("/spec/drainTimeout", json!("30s"))).node(cordoned()).pods(&[pod]);
    assert_eq!(timeout.steps(), ["delete now Pod default/p"]);
}

#[test]
fn a_node_without_a_vm_is_not_drained_and_one_that_a_user_deleted_is() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let mut dead = cordoned();
    dead["status"]["conditions"][0]["status"] = "Unknown".into();
    let asked = scene(dying()).node(dead.clone()).pods(std::slice::from_ref(&pod));
    assert_eq!(asked.steps(), ["call Status"]);
    assert_eq!(asked.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Delete"]);
    let stale = scene(dying()).node(dead.clone()).pods(std::slice::from_ref(&pod)).answered(
        Verb::Status,
        60,
        failed(Code::NotFound),
    );
    assert_eq!(stale.steps(), ["call Status"], "an answer from before the VM was made says nothing");
    let there = scene(dying()).node(dead).pods(std::slice::from_ref(&pod)).answered(Verb::Status, 0, vm());
    assert_eq!(there.steps(), ["evict Pod default/p"]);
    let mut deleted = cordoned();
    deleted["metadata"]["deletionTimestamp"] = NOW.into();
    assert_eq!(scene(dying()).node(deleted).pods(&[pod]).steps(), ["evict Pod default/p"]);
}

#[test]
fn volumes_are_waited_for_but_not_for_ever() {
    let mut node = cordoned();
    node["status"]["volumesAttached"] = json!([{"name": "v", "devicePath": ""}]);
    let attached = scene(dying()).node(node.clone()).pods(&[]);
    assert_eq!(attached.steps(), ["status Terminating"]);
    let noted = dying().with(
        "/status/conditions",
        json!([{"type": "VolumesDetached", "status": "False", "lastTransitionTime": "2026-06-01T11:57:00Z"}]),
    );
    assert_eq!(scene(noted).node(node).pods(&[]).steps(), ["call Delete"]);
}

#[test]
fn the_machine_ends_only_after_the_provider_has_confirmed_that_the_vm_is_gone() {
    let asked = || scene(dying()).answered(Verb::Delete, 2, Outcome::Done);
    assert_eq!(asked().steps(), ["call Status"]);
    let there = asked().answered(Verb::Status, 1, vm());
    assert!(there.steps().is_empty());
    assert_eq!(there.plan().waits[0].reason, "RemovingVM");
    let gone = asked().answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(gone.steps(), ["edit Machine default/m"]);
    assert_eq!(
        asked().node(synced(READY)).answered(Verb::Status, 1, failed(Code::NotFound)).steps(),
        ["delete Node n"]
    );
    let stale =
        scene(dying()).answered(Verb::Status, 5, failed(Code::NotFound)).answered(Verb::Delete, 2, Outcome::Done);
    assert_eq!(stale.steps(), ["call Status"], "an answer from before the deletion does not count");
}

#[test]
fn the_nodes_finalizer_goes_once_the_node_is_being_deleted() {
    let mut node = synced(READY);
    node["metadata"]["deletionTimestamp"] = NOW.into();
    let scene = scene(dying()).node(node).pods(&[]).answered(Verb::Delete, 2, Outcome::Done).answered(
        Verb::Status,
        1,
        failed(Code::NotFound),
    );
    assert_eq!(scene.steps(), ["edit Node n"]);
}

#[test]
fn a_refused_deletion_is_tried_again_and_shows() {
    let refused = scene(dying()).answered(Verb::Delete, 2, failed(Code::Internal));
    let status = status_of(&refused.plan());
    assert_eq!(
        (status["lastOperation"]["state"].as_str(), status["lastOperation"]["errorCode"].as_str()),
        (Some("Failed"), Some("Internal"))
    );
    assert_eq!(scene(dying()).answered(Verb::Delete, 6, failed(Code::Internal)).steps(), ["call Delete"]);
}

#[test]
fn a_machine_without_a_known_vm_waits_for_a_vm_that_may_still_come() {
    let unlinked = || machine("m").phase("Terminating").deleting();
    let done =
        |scene: Scene| scene.answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    // An earlier process may have asked for a VM just before it died.
    let mut fresh = done(scene(unlinked()));
    fresh.since = fresh.now - SignedDuration::from_secs(20);
    assert_eq!(fresh.plan().waits[0].reason, "Confirming");
    assert_eq!(fresh.plan().wake, Some(fresh.now + SignedDuration::from_secs(20)));
    assert_eq!(done(scene(unlinked())).steps(), ["edit Machine default/m"], "long ago");
    // This process has asked for one, and never got an answer.
    let asked = done(scene(unlinked()).answered(Verb::Create, 10, failed(Code::DeadlineExceeded)));
    assert_eq!(asked.plan().waits[0].reason, "Confirming");
    // A machine that this process has seen being made, and never asked for.
    let mut young = done(scene(unlinked().created("2026-06-01T11:59:30Z")));
    young.since = at("2026-06-01T11:58:00Z");
    assert_eq!(young.steps(), ["edit Machine default/m"]);
}

#[test]
fn a_vm_that_the_provider_does_not_show_yet_is_waited_for() {
    let gone = |machine: MachineBuilder| {
        scene(machine).answered(Verb::Delete, 1, Outcome::Done).answered(Verb::Status, 0, failed(Code::NotFound))
    };
    let made = |at: &str| {
        let provisioned = json!([{"type": "InstanceProvisioned", "status": "True", "lastTransitionTime": at}]);
        unseen().with("/status/conditions", provisioned)
    };
    let young = gone(made("2026-06-01T11:59:55Z"));
    assert_eq!(young.plan().waits[0].reason, "Confirming");
    assert!(young.plan().wake.is_some_and(|wake| wake <= at("2026-06-01T12:00:05Z")));
    assert_eq!(gone(made("2026-06-01T11:59:45Z")).steps(), ["edit Machine default/m"], "it has had time to show");
    assert_eq!(gone(dying()).steps(), ["edit Machine default/m"], "it joined long ago");
}

#[test]
fn a_vm_of_which_only_the_provider_knew_is_linked_before_it_is_deleted() {
    let unlinked = || scene(machine("m").phase("Terminating").deleting());
    assert_eq!(unlinked().steps(), ["call Status"]);
    let steps = unlinked().answered(Verb::Status, 0, vm()).steps();
    assert!(steps[0].starts_with("apply ") && steps[0].contains("p:///1"), "{steps:?}");
    let made = unlinked().answered(Verb::Create, 1, vm());
    assert!(made.steps()[0].starts_with("apply "));
    // It shows only after a first deletion that had nothing to delete.
    let late = unlinked().answered(Verb::Delete, 9, Outcome::Done).answered(Verb::Status, 0, vm());
    assert!(late.steps()[0].starts_with("apply "));
    let mut linked_later = scene(machine("m").phase("Terminating").deleting())
        .answered(Verb::Delete, 9, Outcome::Done)
        .answered(Verb::Status, 0, vm());
    linked_later.world.machine = Arc::new(unseen().build());
    assert_eq!(linked_later.steps(), ["call Delete"], "the deletion of a VM that was not known does not count");
}

#[test]
fn a_corrected_class_is_tried_at_once() {
    let mut refused = scene(machine("m").created("2026-06-01T11:55:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::InvalidArgument));
    assert_eq!(refused.steps(), ["status CrashLoopBackOff"]);
    if let Ok(class) = &mut refused.world.class {
        class.revision = "another".into();
    }
    assert_eq!(refused.steps(), ["call Status"]);
    assert_eq!(refused.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Create"]);
}

#[test]
fn a_machine_ends_only_once_its_name_is_retired() {
    let name = "k7f;"
        .parse::<Ledger>()
        .unwrap()
        .name("set", Ledger::lowest_free(&"k7f;".parse().unwrap(), &std::collections::BTreeSet::new(), 1)[0]);
    let dead = |ledger: &str| {
        let set = machine_set("set", 1, Some(ledger));
        let machine =
            machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0").phase("Terminating").deleting();
        scene(machine).set(set).answered(Verb::Delete, 2, Outcome::Done).answered(
            Verb::Status,
            1,
            failed(Code::NotFound),
        )
    };
    assert!(dead("k7f;").steps().is_empty());
    assert_eq!(dead("k7f;").plan().waits[0].reason, "Retiring");
    assert_eq!(dead("k7f;0").steps(), [format!("edit Machine default/{name}")]);
}

#[test]
fn a_death_is_told_as_one_trace_that_links_to_the_birth() {
    let gone =
        scene(dying()).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    let spans = gone.plan().spans;
    let names: Vec<_> = spans.iter().map(|span| span.name).collect();
    assert_eq!(names, ["drain", "node deletion", "VM deletion", "machine death"]);
    assert!(spans.iter().all(|span| span.context.trace_id == spans[0].context.trace_id));
    assert_eq!(spans[3].links.len(), 1);
    assert_ne!(spans[3].links[0].trace_id, spans[3].context.trace_id);
    assert_eq!(spans[0].context.span_id, spans[3].id, "stages are children of the death");
}

#[test]
fn names_the_cluster_of_its_nodes() {
    let plan = scene(linked("Pending")).node(conditions(READY)).plan();
    let Step::Edit(edit) = &plan.stages[0][0].step else { panic!() };
    assert_eq!(edit.at().key().cluster, Cluster::TARGET);
}
