//! Requests of agents in, writes to the Node out.

mod traced;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use k8s_openapi::api::coordination::v1::Lease;
use nodewright_api::machine_config::MachineConfigPool;
use nodewright_observability::{metrics::Metrics, trace::SpanRecord};
use nodewright_runtime::{
    cache::{Change, Store, Stores, Unreadable},
    controller::Controller,
    effect::Outcomes,
    leadership::Clock,
    object::ObjectRef,
    plan::{FailureClass, Refusal, Step},
    scoped_watch::ScopedWatch,
};
use nodewright_testing::{json_patch, object};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    NodeDrainController, concerns_drain,
    memory::{Context, Note, Plan},
    register_metrics,
    snapshot::ASKING_NODES,
};
use crate::{
    shared::{TARGET, drain::PodView, node::Node},
    testing::{NOW, answer},
};

const DESIRED: &str = "machineconfiguration.openshift.io/desiredDrain";
const LAST_APPLIED: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
const RECORD: &str = "nodewright.dev/config-drain";

const CONTROLLER: NodeDrainController = NodeDrainController { traces: true };

/// A Node of pool `worker`, the Pods on it, and what its agent asks for.
struct Fixture {
    node: Value,
    pods: Vec<Value>,
    pool: Value,
    lease: Option<Lease>,
    has_unreadable_pool: bool,
    /// The Pods whose evictions a disruption budget refuses.
    refused: BTreeSet<&'static str>,
    refusals: Vec<Refusal>,
    notes: BTreeMap<Note, Timestamp>,
    now: Timestamp,
    traces: bool,
    /// The spans of all plans.
    spans: Vec<SpanRecord>,
    /// The reasons of all events.
    events: Vec<&'static str>,
    /// The messages of all events.
    texts: Vec<String>,
}

fn noon() -> Timestamp {
    NOW.parse().unwrap()
}

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

/// A Node whose agent asks for this.
fn asking(asked: &str) -> Fixture {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "5", "labels": {"pool": "worker"},
            "annotations": {DESIRED: asked}},
        "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let pool = json!({"metadata": {"name": "worker", "uid": "uid-worker", "annotations": {}},
        "spec": {"nodeSelector": {"matchLabels": {"pool": "worker"}}}});
    Fixture {
        node,
        pods: vec![],
        pool,
        lease: None,
        has_unreadable_pool: false,
        refused: BTreeSet::new(),
        refusals: vec![],
        notes: BTreeMap::new(),
        now: noon(),
        traces: false,
        spans: vec![],
        events: vec![],
        texts: vec![],
    }
}

impl Fixture {
    fn with_pods(mut self, names: &[&str]) -> Self {
        let pod =
            |name: &&str| json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")}});
        self.pods = names.iter().map(pod).collect();
        self
    }

    fn refusing(mut self, pod: &'static str) -> Self {
        self.refused.insert(pod);
        self
    }

    fn closed(mut self) -> Self {
        self.node["spec"]["unschedulable"] = true.into();
        self
    }

    fn annotated(mut self, key: &str, value: &str) -> Self {
        self.node["metadata"]["annotations"][key] = value.into();
        self
    }

    fn forced_after(mut self, policy: &str, timeout: &str) -> Self {
        self.pool["metadata"]["annotations"] =
            json!({"nodewright.dev/drain-policy": policy, "nodewright.dev/drain-timeout": timeout});
        self
    }

    fn ask(&mut self, asked: &str) {
        self.node["metadata"]["annotations"][DESIRED] = asked.into();
    }

    fn cordon(&mut self, unschedulable: bool) {
        self.node["spec"]["unschedulable"] = unschedulable.into();
    }

    /// Another process leads: it knows what the objects say, and nothing else.
    fn restart(&mut self) {
        self.notes.clear();
        self.refusals.clear();
    }

    fn stores(&self) -> Stores {
        let stores = Stores::default();
        let nodes = Store::<Node>::new(TARGET, "");
        nodes.add_index(ASKING_NODES);
        nodes.apply(serde_json::from_value(self.node.clone()).unwrap());
        let pools = Store::<MachineConfigPool>::new(TARGET, "");
        pools.apply(serde_json::from_value(self.pool.clone()).unwrap());
        assert!(!self.has_unreadable_pool || pools.add_unreadable(Unreadable::named("", "infra", "uid-infra")));
        let leases = Arc::new(Store::<Lease>::new(TARGET, "openshift-machine-config-operator"));
        let lease = ObjectRef::new(TARGET, "openshift-machine-config-operator", "machine-config-controller");
        stores.add_scoped(&ScopedWatch::named::<Lease>(&lease, ""), leases.clone());
        answer(&leases, self.lease.clone());
        let pods = Arc::new(Store::<PodView>::new(TARGET, ""));
        pods.begin_list();
        self.pods.iter().for_each(|pod| drop(pods.apply(serde_json::from_value(pod.clone()).unwrap())));
        pods.end_list(1, Instant::now());
        stores.add_scoped(&ScopedWatch::at::<PodView>(TARGET, "spec.nodeName=n"), pods);
        stores.add(Arc::new(nodes));
        stores.add(Arc::new(pools));
        stores
    }

    fn plan(&self) -> Plan {
        self.plan_of(&self.stores())
    }

    fn plan_of(&self, stores: &Stores) -> Plan {
        let snapshot = CONTROLLER.snapshot(stores, &ObjectRef::new(TARGET, "", "n")).unwrap();
        let outcomes = Outcomes::default();
        let memory = Context::new(self.now, &outcomes);
        let context = Context { refusals: &self.refusals, notes: &self.notes, traces: self.traces, ..memory };
        NodeDrainController::plan(&context, &snapshot)
    }

    /// Carries out a plan. Returns its writes.
    fn act(&mut self) -> Vec<String> {
        let plan = self.plan();
        let mut writes = vec![];
        for planned in plan.steps() {
            match &planned.step {
                Step::Edit { patch, .. } => writes.push(self.edit(patch).unwrap()),
                Step::Evict(pod) => writes.push(self.evict(&pod.key().name)),
                Step::DeleteNow(pod) => {
                    let name = pod.key().name.to_string();
                    self.pods.retain(|pod| pod["metadata"]["name"] != *name);
                    writes.push(format!("delete {name}"));
                }
                step => panic!("{step:?}"),
            }
        }
        self.spans.extend(plan.spans.iter().cloned());
        self.events.extend(plan.events.iter().map(|event| event.reason));
        self.texts.extend(plan.events.iter().map(|event| event.message.clone()));
        assert!(plan.events.iter().all(|event| event.is_warning && event.cluster == Some(TARGET)));
        self.notes = plan.notes.after(std::mem::take(&mut self.notes), self.now);
        writes
    }

    fn evict(&mut self, name: &str) -> String {
        let uid: Arc<str> = format!("uid-{name}").into();
        let former = self.refusals.extract_if(.., |refusal| refusal.uid == uid).next();
        if !self.refused.contains(name) {
            self.pods.retain(|pod| pod["metadata"]["name"] != name);
            return format!("evict {name}");
        }
        let (since, class) = (former.map_or(self.now, |it| it.since), FailureClass::TooManyRequests);
        let message = "Cannot evict pod as it would violate the pod's disruption budget.".to_owned();
        self.refusals.push(Refusal { uid, since, at: self.now, class, message, retry_after: None });
        format!("evict {name}: refused")
    }

    /// Applies a patch as an API server does. Returns what it changes, or that it fails.
    fn edit(&mut self, patch: &Patch) -> Result<String, String> {
        let old = self.node.clone();
        json_patch(&mut self.node, patch).map_err(|error| error.to_string())?;
        let new = &self.node;
        let annotation =
            |node: &Value, key: &str| node["metadata"]["annotations"][key].as_str().unwrap_or("-").to_owned();
        let closed = |node: &Value| (node["spec"]["unschedulable"] == true).to_string();
        let fields = [
            ("unschedulable", closed(&old), closed(new)),
            ("lastAppliedDrain", annotation(&old, LAST_APPLIED), annotation(new, LAST_APPLIED)),
            ("config-drain", annotation(&old, RECORD), annotation(new, RECORD)),
        ];
        let changed = fields.into_iter().filter(|(_, old, new)| old != new);
        Ok(changed.map(|(field, _, new)| format!("{field} {new}")).collect::<Vec<_>>().join(", "))
    }

    /// Carries out plans until there is nothing to do. Returns all writes.
    fn settle(&mut self) -> Vec<String> {
        let mut all = vec![];
        for _ in 0..20 {
            let writes = self.act();
            if writes.is_empty() {
                return all;
            }
            all.extend(writes);
        }
        panic!("it does not end: {all:?}");
    }

    /// What it waits for, as text.
    fn waits(&self) -> String {
        let plan = self.plan();
        plan.waits.iter().map(|wait| format!("{}: {}", wait.reason, wait.message)).collect::<Vec<_>>().join("\n")
    }

    fn wakes_after(&self) -> Option<SignedDuration> {
        self.plan().wake.map(|wake| wake.duration_since(self.now))
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.node["metadata"]["annotations"][key].as_str()
    }

    fn is_closed(&self) -> bool {
        self.node["spec"]["unschedulable"] == true
    }
}

const CORDON_R1: &str = "unschedulable true, config-drain cordoned;drain-r1;2026-06-01T12:00:00Z";
const DONE_R1: &str = "lastAppliedDrain drain-r1";

#[derive(Deserialize)]
struct Row {
    name: String,
    node: RowNode,
    #[serde(default)]
    uncordoned_meanwhile: bool,
    writes: Vec<String>,
}

#[derive(Deserialize)]
struct RowNode {
    unschedulable: bool,
    asked: String,
}

/// One write of ours may be two of machine-config-operator's, and has our record.
#[test]
fn test_sync_node() {
    let rows: Vec<Row> = serde_saphyr::from_str(include_str!("drain-handshake.yaml")).unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let mut fixture = asking(&row.node.asked);
        fixture.cordon(row.node.unschedulable);
        let writes = if row.uncordoned_meanwhile {
            let writes = fixture.act();
            let [acknowledgement] = &fixture.plan().stages[..] else { panic!() };
            let Step::Edit { patch, .. } = &acknowledgement[0].step else { panic!() };
            fixture.cordon(false);
            assert!(fixture.edit(patch).is_err(), "{}: it is never acknowledged", row.name);
            writes
        } else {
            fixture.settle()
        };
        let fields =
            writes.iter().flat_map(|write| write.split(", ")).filter(|field| !field.starts_with("config-drain"));
        assert_eq!(fields.collect::<Vec<_>>(), row.writes, "{}", row.name);
    }
}

#[test]
fn a_node_is_drained_and_uncordoned_as_its_agent_asks() {
    let mut fixture = asking("drain-r1").with_pods(&["a", "b"]);
    assert_eq!(fixture.settle(), [CORDON_R1, "evict a", "evict b", DONE_R1]);
    assert_eq!(fixture.settle(), Vec::<String>::new());
    fixture.ask("uncordon-r1");
    assert_eq!(fixture.settle(), ["unschedulable false, lastAppliedDrain uncordon-r1, config-drain -"]);
    assert_eq!(fixture.settle(), Vec::<String>::new());
    assert!(fixture.events.is_empty(), "progress needs none: {:?}", fixture.events);
}

#[test]
fn an_agent_that_drops_a_drain_gets_its_uncordon_though_it_was_the_last_thing_done() {
    let drained = || asking("drain-r2").annotated(LAST_APPLIED, "uncordon-r1").with_pods(&["a"]).refusing("a");
    let mut dropped = drained();
    dropped.settle();
    assert!(dropped.is_closed());
    dropped.ask("uncordon-r1");
    assert_eq!(dropped.settle(), ["unschedulable false, config-drain -"]);
    assert_eq!(dropped.settle(), Vec::<String>::new());

    let mut closed = drained().closed();
    closed.settle();
    closed.ask("uncordon-r1");
    assert_eq!(closed.settle(), ["config-drain -"]);
    assert!(closed.is_closed(), "a user had cordoned it");

    let given = asking("uncordon-r1").annotated(LAST_APPLIED, "uncordon-r1").annotated(RECORD, "open");
    assert!(given.plan().is_idle(), "no drain has begun");
}

#[test]
fn a_node_whose_agent_asks_for_nothing_costs_nothing() {
    let done = || asking("drain-r1").annotated(LAST_APPLIED, "drain-r1").with_pods(&["a"]);
    let mut without = done();
    without.node["metadata"]["annotations"] = json!({});
    for quiet in [done(), done().closed(), without, asking("")] {
        let plan = quiet.plan();
        assert!(plan.is_idle() && plan.waits.is_empty() && plan.scoped_watches.is_empty() && plan.wake.is_none());
    }
    let drained = asking("drain-r1").with_pods(&["a"]);
    assert_eq!(drained.plan().scoped_watches.len(), 1, "before the cordon, the Lease alone");
}

#[test]
fn changes_of_nodes_whose_agents_ask_for_nothing_wake_nothing() {
    let node = |asked: &str, heartbeat: &str| {
        let mut node = asking(asked).annotated(LAST_APPLIED, "drain-r1").node;
        node["status"]["conditions"][0]["lastHeartbeatTime"] = heartbeat.into();
        Some(Arc::new(serde_json::from_value::<Node>(node).unwrap()))
    };
    let wakes = |old, new| concerns_drain(&Change { old, new });
    let (first, second) = ("2026-06-01T11:00:00Z", "2026-06-01T11:05:00Z");
    assert!(!wakes(None, node("drain-r1", first)), "it is done");
    assert!(!wakes(node("drain-r1", first), node("drain-r1", second)));
    assert!(wakes(None, node("drain-r2", first)), "as at the start of a process");
    assert!(!wakes(node("drain-r2", first), node("drain-r2", second)), "a heartbeat");
    assert!(wakes(node("drain-r1", first), node("drain-r2", first)));
    assert!(wakes(node("drain-r2", first), node("drain-r1", first)), "its watches end");
    assert!(wakes(node("drain-r2", first), None), "its watches end");
}

#[test]
fn a_node_that_a_user_has_cordoned_stays_so() {
    let mut before = asking("drain-r1").closed();
    assert_eq!(before.settle(), ["config-drain closed;drain-r1;2026-06-01T12:00:00Z", DONE_R1]);
    before.ask("uncordon-r1");
    assert_eq!(before.settle(), ["lastAppliedDrain uncordon-r1, config-drain -"]);
    assert!(before.is_closed());

    let mut between = asking("drain-r1").closed().annotated(RECORD, "open");
    assert_eq!(between.act(), ["config-drain closed;drain-r1;2026-06-01T12:00:00Z"], "after it was given its target");

    let mut during = asking("drain-r1").with_pods(&["a"]).refusing("a");
    during.settle();
    during.cordon(false);
    during.cordon(true);
    assert_eq!(during.settle(), Vec::<String>::new(), "the cordons cannot be distinguished");
    during.refused.clear();
    during.now += minutes(1);
    assert_eq!(during.settle(), ["evict a", &done_at("cordoned", "2026-06-01T12:01:00Z")]);
    during.ask("uncordon-r1");
    during.settle();
    assert!(!during.is_closed());

    let mut undrained = asking("uncordon-r1").closed().annotated(RECORD, "open");
    assert_eq!(undrained.settle(), ["lastAppliedDrain uncordon-r1, config-drain -"]);
    assert!(undrained.is_closed());

    // The record was lost, and nothing was drained since the last uncordon.
    let mut unrecorded = asking("uncordon-r1").closed().annotated(LAST_APPLIED, "uncordon-r0");
    unrecorded.settle();
    assert!(unrecorded.is_closed());
}

/// The end of a drain that took a while: the record has its time.
fn done_at(word: &str, time: &str) -> String {
    format!("{DONE_R1}, config-drain {word};drain-r1;{time}")
}

#[test]
fn a_node_that_was_open_is_cordoned_for_its_agent() {
    let mut targeted = asking("drain-r1").annotated(RECORD, "open");
    assert_eq!(targeted.settle(), [CORDON_R1, DONE_R1]);
    // By machine-config-operator, before it was scaled down.
    let mut taken_over = asking("drain-r1").closed().annotated(LAST_APPLIED, "drain-r0");
    assert_eq!(taken_over.settle(), ["config-drain cordoned;drain-r1;2026-06-01T12:00:00Z", DONE_R1]);
    let mut updated = asking("drain-r1").closed().annotated(LAST_APPLIED, "uncordon-r0");
    assert_eq!(updated.act(), ["config-drain closed;drain-r1;2026-06-01T12:00:00Z"], "by a user, after an update");
}

#[test]
fn which_nodes_an_uncordon_opens() {
    let drain = |word: &str| format!("{word};drain-r1;2026-06-01T11:00:00Z");
    for (record, opens) in [
        (Some(drain("cordoned")), true),
        (Some(drain("closed")), false),
        (Some("open".to_owned()), false),
        (Some("spoilt".to_owned()), true),
        (None, true),
    ] {
        let of = |closed: bool| {
            let mut fixture = asking("uncordon-r1").annotated(LAST_APPLIED, "drain-r1");
            fixture.cordon(closed);
            if let Some(record) = &record {
                fixture.node["metadata"]["annotations"][RECORD] = record.as_str().into();
            }
            assert_eq!(fixture.settle().len(), 1, "one write");
            assert_eq!((fixture.annotation(LAST_APPLIED), fixture.annotation(RECORD)), (Some("uncordon-r1"), None));
            fixture.is_closed()
        };
        assert_eq!((of(true), of(false)), (!opens, false), "{record:?}");
    }
}

#[test]
fn a_node_that_somebody_uncordons_during_its_drain_is_cordoned_again() {
    for closed in [false, true] {
        let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
        fixture.cordon(closed);
        fixture.act();
        fixture.act();
        fixture.now += minutes(5);
        fixture.cordon(false);
        // The user who had cordoned it has uncordoned it.
        let record = if closed { ", config-drain cordoned;drain-r1;2026-06-01T12:00:00Z" } else { "" };
        assert_eq!(fixture.act(), [format!("unschedulable true{record}")], "the time stays");
        fixture.refused.clear();
        assert_eq!(fixture.settle(), ["evict a", &done_at("cordoned", "2026-06-01T12:05:00Z")]);
        fixture.ask("uncordon-r1");
        fixture.settle();
        assert!(!fixture.is_closed());
    }
}

#[test]
fn another_request_begins_another_drain_of_the_same_cordon() {
    let cordoned = |asked: &str, at: i64| format!("config-drain cordoned;{asked};{}", noon() + minutes(at));
    let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
    fixture.act();
    fixture.now += minutes(3);
    fixture.ask("drain-r2");
    assert_eq!(fixture.act(), [cordoned("drain-r2", 3)]);
    fixture.now += minutes(3);
    fixture.ask("drain-r1");
    assert_eq!(fixture.act(), [cordoned("drain-r1", 6)]);
    fixture.refused.clear();
    assert_eq!(fixture.settle(), ["evict a", DONE_R1]);
    fixture.ask("drain-r2");
    assert_eq!(fixture.settle(), [cordoned("drain-r2", 6), "lastAppliedDrain drain-r2".to_owned()]);
    fixture.ask("uncordon-r2");
    fixture.settle();
    assert!(!fixture.is_closed());

    let mut closed = asking("drain-r1").closed();
    closed.settle();
    closed.ask("drain-r2");
    assert_eq!(closed.act(), ["config-drain closed;drain-r2;2026-06-01T12:00:00Z"]);
}

#[test]
fn an_agent_may_change_its_mind_and_ask_again() {
    let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
    fixture.settle();
    fixture.ask("uncordon-r1");
    assert_eq!(fixture.settle(), ["unschedulable false, lastAppliedDrain uncordon-r1, config-drain -"]);
    assert!(fixture.plan().scoped_watches.is_empty(), "its pods are watched no more");
    fixture.ask("drain-r1");
    fixture.refused.clear();
    fixture.now += minutes(1);
    let again = "unschedulable true, config-drain cordoned;drain-r1;2026-06-01T12:01:00Z";
    assert_eq!(fixture.settle(), [again, "evict a", DONE_R1]);
}

/// A node that runs r1, and is given r2 and then r1 again before it is drained: its agent has asked for this uncordon before.
#[test]
fn a_drain_that_is_cancelled_is_undone_by_the_uncordon_before_it() {
    for closed in [false, true] {
        let mut fixture = asking("drain-r2").with_pods(&["a"]).refusing("a").annotated(LAST_APPLIED, "uncordon-r1");
        fixture.cordon(closed);
        fixture.settle();
        assert!(fixture.is_closed() && fixture.annotation(RECORD).is_some());
        fixture.ask("uncordon-r1");
        let opened = if closed { "config-drain -" } else { "unschedulable false, config-drain -" };
        assert_eq!(fixture.settle(), [opened]);
        assert_eq!((fixture.is_closed(), fixture.annotation(LAST_APPLIED)), (closed, Some("uncordon-r1")));
        assert!(fixture.plan().scoped_watches.is_empty(), "its pods are watched no more");
    }
}

#[test]
fn a_process_goes_on_where_another_has_stopped() {
    let mut fixture = asking("drain-r1").with_pods(&["a", "b"]).refusing("b");
    assert_eq!(fixture.act(), [CORDON_R1]);
    fixture.restart();
    assert_eq!(fixture.act(), ["evict a", "evict b: refused"]);
    fixture.restart();
    fixture.refused.clear();
    assert_eq!(fixture.act(), ["evict b"]);
    fixture.restart();
    assert_eq!(fixture.settle(), [DONE_R1]);
    fixture.ask("uncordon-r1");
    fixture.restart();
    fixture.settle();
    assert!(!fixture.is_closed());
}

#[test]
fn a_disruption_budget_is_respected_for_ever() {
    let mut fixture = asking("drain-r1").with_pods(&["a", "b"]).refusing("b");
    assert_eq!(fixture.settle(), [CORDON_R1, "evict a", "evict b: refused"]);
    let refused = "EvictionRefused: pod default/b is not evicted: Cannot evict pod as it would violate the pod's disruption budget";
    assert_eq!(fixture.waits(), refused);
    assert_eq!(fixture.wakes_after(), Some(SignedDuration::from_secs(5)));
    for _ in 0..1_000 {
        fixture.now += minutes(90);
        assert_eq!(fixture.act(), ["evict b: refused"]);
    }
    assert_eq!(fixture.annotation(LAST_APPLIED), None);
    fixture.refused.clear();
    fixture.now += minutes(1);
    let done = fixture.settle();
    assert!(done.len() == 2 && done[0] == "evict b" && done[1].starts_with(DONE_R1), "{done:?}");
}

#[test]
fn a_pool_may_have_drains_forced_after_a_while() {
    let drained = |policy: &str, timeout: &str| {
        let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a").forced_after(policy, timeout);
        fixture.settle();
        fixture
    };
    let mut fixture = drained("Force", "30m");
    assert_eq!(fixture.wakes_after(), Some(SignedDuration::from_secs(5)));
    fixture.restart();
    fixture.now += minutes(29);
    assert_eq!(fixture.act(), ["evict a: refused"]);
    fixture.now += minutes(1);
    assert_eq!(fixture.settle(), ["delete a", &done_at("cordoned", "2026-06-01T12:30:00Z")]);
    assert_eq!(fixture.events.last(), Some(&"DrainForced"));
    let text =
        "the drain timeout of the pool is over: deleting without grace, ignoring disruption budgets, 1 pod: default/a";
    assert_eq!(fixture.texts.last().unwrap(), text);
    for (policy, timeout) in
        [("Force", ""), ("Force", "soon"), ("Force", "0s"), ("Force", "-1m"), ("Wait", "30m"), ("", "30m")]
    {
        let mut fixture = drained(policy, timeout);
        fixture.now += minutes(600);
        assert_eq!(fixture.act(), ["evict a: refused"], "{policy:?} {timeout:?}");
    }
    let mut doubtful = drained("Force", "30m");
    doubtful.has_unreadable_pool = true;
    doubtful.now += minutes(600);
    assert_eq!(doubtful.act(), ["evict a: refused"], "the node may be of the other pool");
    let mut other = drained("Force", "30m");
    other.node["metadata"]["labels"]["pool"] = "infra".into();
    other.now += minutes(600);
    assert_eq!(other.act(), ["evict a: refused"], "it is not of the pool");
}

#[test]
fn a_node_that_goes_is_left_alone() {
    for (pointer, value) in [
        ("deletionTimestamp", json!("2026-06-01T11:59:00Z")),
        ("terminating", json!({"type": "Terminating", "status": "True"})),
    ] {
        let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
        fixture.settle();
        if pointer == "terminating" {
            fixture.node["status"]["conditions"].as_array_mut().unwrap().push(value);
        } else {
            fixture.node["metadata"][pointer] = value;
        }
        for asked in ["drain-r1", "drain-r2", "uncordon-r1", "reboot"] {
            fixture.ask(asked);
            let plan = fixture.plan();
            assert!(plan.is_idle() && plan.waits.is_empty() && plan.scoped_watches.is_empty(), "{asked}: {plan}");
        }
    }
}

#[test]
fn what_is_no_request_is_reported_once() {
    let mut fixture = asking("reboot-r1").with_pods(&["a"]);
    assert_eq!(fixture.settle(), Vec::<String>::new());
    fixture.act();
    let text = "machineconfiguration.openshift.io/desiredDrain is \"reboot-r1\": it may be drain-<configuration> or uncordon-<configuration>";
    assert_eq!(
        (fixture.waits(), fixture.texts.as_slice()),
        (format!("InvalidDrainRequest: {text}"), &[text.to_owned()][..])
    );
    fixture.ask("drain");
    fixture.act();
    assert_eq!(fixture.events, ["InvalidDrainRequest"; 2]);
    fixture.ask("drain-r1");
    assert_eq!(fixture.act(), [CORDON_R1]);
}

#[test]
fn a_drain_that_takes_too_long_is_reported_once_for_each_limit() {
    let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
    fixture.settle();
    // The drain goes on: how the events come about does not depend on the writes.
    let at = |fixture: &mut Fixture, minute: i64| {
        fixture.now = noon() + minutes(minute);
        fixture.act();
        fixture.act();
        fixture.events.clone()
    };
    let (late, failed) = ("DrainThresholdExceeded", "DrainFailed");
    assert!(at(&mut fixture, 9).is_empty());
    assert_eq!(at(&mut fixture, 10), [late]);
    assert!(
        fixture.texts[0]
            .starts_with("drain-r1 takes longer than ten minutes; it continues: pod default/a is not evicted")
    );
    fixture.cordon(false);
    assert_eq!(at(&mut fixture, 20), [late], "it is cordoned again in between");
    assert_eq!(at(&mut fixture, 60), [late, failed]);
    assert_eq!(at(&mut fixture, 600), [late, failed]);
    fixture.ask("drain-r2");
    assert_eq!(at(&mut fixture, 601), [late, failed], "another drain, which has just begun");
    assert_eq!(at(&mut fixture, 700), [late, failed, failed], "the worst alone");
    fixture.restart();
    assert_eq!(at(&mut fixture, 701), [late, failed, failed, failed], "the record outlives a process");
}

#[test]
fn limits_are_reached_though_nothing_else_happens() {
    let mut fixture = asking("drain-r1").with_pods(&["a"]);
    fixture.act();
    fixture.pods[0]["metadata"]["deletionTimestamp"] = json!(noon() + minutes(500));
    assert_eq!(
        (fixture.waits().as_str(), fixture.wakes_after()),
        ("PodsLeft: pod default/a is ending", Some(minutes(10)))
    );
    fixture.now += minutes(10);
    assert_eq!(fixture.wakes_after(), Some(minutes(50)));
    let forced = fixture.forced_after("Force", "40m");
    assert_eq!(forced.wakes_after(), Some(minutes(30)));
}

#[test]
fn a_drain_that_began_in_the_future_begins_now() {
    for word in ["cordoned", "closed"] {
        let record = format!("{word};drain-r1;2027-06-01T12:00:00Z");
        let fixture = asking("drain-r1").closed().annotated(RECORD, &record).with_pods(&["a"]).refusing("a");
        let mut fixture = fixture.forced_after("Force", "1h");
        let recorded = format!("config-drain {word};drain-r1;2026-06-01T12:00:00Z");
        assert_eq!(fixture.settle(), [recorded.as_str(), "evict a: refused"], "the clock was set back");
        fixture.now += minutes(10);
        assert_eq!(fixture.act(), ["evict a: refused"]);
        assert_eq!(fixture.events, ["DrainThresholdExceeded"]);
        fixture.now += minutes(50);
        assert_eq!(fixture.settle(), ["delete a", &done_at(word, "2026-06-01T13:00:00Z")]);
    }
}

#[test]
fn a_write_that_rests_on_what_has_changed_fails() {
    type Edit = fn(&mut Fixture);
    let asks: Edit = |it| it.ask("drain-r9");
    let (opens, closes): (Edit, Edit) = (|it| it.cordon(false), |it| it.cordon(true));
    let records: Edit = |it| it.node["metadata"]["annotations"][RECORD] = "open".into();
    let answers: Edit = |it| it.node["metadata"]["annotations"][LAST_APPLIED] = "uncordon-r9".into();
    let ours = || asking("uncordon-r1").closed().annotated(RECORD, "cordoned;drain-r1;2026-06-01T12:00:00Z");
    let drained = || {
        let mut it = asking("drain-r1");
        it.act();
        it
    };
    for (name, fixture, changes) in [
        ("cordon", asking("drain-r1"), &[asks, closes, records, answers][..]),
        ("record of a closed node", asking("drain-r1").closed(), &[asks, opens, records, answers]),
        ("acknowledgement", drained(), &[asks, opens, answers]),
        ("uncordon", ours(), &[asks, opens, records, answers]),
    ] {
        let plan = fixture.plan();
        let Step::Edit { patch, .. } = &plan.stages[0][0].step else { panic!("{plan}") };
        for (number, change) in changes.iter().enumerate() {
            let mut changed = asking("");
            changed.node = fixture.node.clone();
            change(&mut changed);
            assert!(changed.edit(patch).is_err(), "{name} after change {number}");
        }
        // Kubelets change their Nodes frequently.
        let mut changed = asking("");
        changed.node = fixture.node.clone();
        changed.node["metadata"]["resourceVersion"] = "6".into();
        assert!(changed.edit(patch).is_ok(), "{name}");
    }
}

#[test]
fn volumes_that_are_attached_are_not_waited_for_once_all_pods_are_gone() {
    let mut fixture = asking("drain-r1");
    fixture.node["status"]["volumesAttached"] = json!([{"name": "v"}]);
    assert_eq!(fixture.settle(), [CORDON_R1, DONE_R1]);
}

#[test]
fn nothing_is_written_while_machine_config_operator_runs() {
    let spec =
        json!({"holderIdentity": "pod", "leaseDurationSeconds": 137, "renewTime": "2026-06-01T11:59:59.000000Z"});
    let lease = object::<Lease>("machine-config-controller")
        .with("/metadata/namespace", "openshift-machine-config-operator")
        .with("/spec", spec)
        .build();
    for asked in ["drain-r1", "uncordon-r1", "reboot"] {
        let mut fixture = asking(asked);
        fixture.lease = Some(lease.clone());
        assert_eq!(fixture.act(), Vec::<String>::new());
        assert!(fixture.waits().starts_with("MachineConfigOperatorRuns: "), "{}", fixture.waits());
        assert!(fixture.events.is_empty());
    }
    let mut fixture = asking("drain-r1");
    fixture.lease = Some(lease);
    fixture.act();
    fixture.now += SignedDuration::from_secs(137);
    assert_eq!(fixture.settle().len(), 2, "it has ended without a release");
}

#[derive(Debug)]
struct At(Timestamp);

impl Clock for At {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Timestamp {
        self.0
    }
}

#[test]
fn drains_that_have_failed_are_in_the_metrics() {
    let shown = |fixture: &Fixture| -> Vec<String> {
        let metrics = Metrics::new();
        register_metrics(&metrics, fixture.stores(), Arc::new(At(fixture.now)));
        let text = metrics.encode().unwrap();
        text.lines().filter(|line| line.starts_with("mcc_drain_err{")).map(str::to_owned).collect()
    };
    let mut fixture = asking("drain-r1").with_pods(&["a"]).refusing("a");
    fixture.settle();
    fixture.now += minutes(59);
    assert_eq!(shown(&fixture), Vec::<String>::new());
    fixture.now += minutes(1);
    assert_eq!(shown(&fixture), [r#"mcc_drain_err{node="n"} 1"#]);
    fixture.refused.clear();
    fixture.settle();
    assert_eq!((shown(&fixture), fixture.annotation(LAST_APPLIED)), (vec![], Some("drain-r1")));
}
