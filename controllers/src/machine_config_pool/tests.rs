mod claims;
mod garbage;
mod preview;
mod rollouts;
mod tables;
mod traced;

use std::cell::RefCell;

use futures::FutureExt;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::LabelSelector};
use nodewright_api::{
    machine_config::{ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool},
    stored::Disruptions,
};
use nodewright_observability::{metrics::Metrics, trace::SpanRecord};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    controller::Controller,
    effect::Outcomes,
    events::Event,
    object::ObjectRef,
    plan::{Step, Waiting},
    scoped_watch::ScopedWatch,
};
use nodewright_testing::{ObjectBuilder, object};
use serde_json::{Value, json};

use super::{
    MachineConfigPoolController, PoolSettings, Renderer,
    call::{Outcome, Render},
    etcd::Etcd,
    members::Members,
    memory::{Context, Note, Plan},
    register_metrics,
    rollout::Scope,
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    indexes::{NODES_BY_CURRENT_CONFIG, NODES_BY_DESIRED_CONFIG, NODES_BY_ROLES},
    machine_config::{CachedConfig, VERSION, target_ref},
    node::Node,
};
use crate::testing::{NOW, answer};

const ROLE: &str = "machineconfiguration.openshift.io/role";
const INPUTS: &str = "nodewright.dev/render-inputs";

/// A file of a MachineConfig.
fn file(path: &str, text: &str) -> Value {
    json!({"path": path, "contents": {"source": format!("data:,{text}")}})
}

fn files(files: &[Value]) -> Value {
    json!({"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}})
}

/// An object of cluster scope.
fn cluster_object<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(name: &str) -> ObjectBuilder<K> {
    object(name).with("/metadata/namespace", Value::Null)
}

fn config(name: &str, spec: Value) -> MachineConfig {
    cluster_object(name).label(ROLE, "worker").with("/spec", spec).build()
}

fn pool(spec: &Value) -> MachineConfigPool {
    let mut all = json!({"machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    cluster_object("worker").annotation("nodewright.dev/disruptions", "{}").with("/spec", all).build()
}

fn targeting(name: &str, sources: &[&str]) -> Value {
    let source = |name: &&str| json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "name": name});
    json!({"configuration": {"name": name, "source": sources.iter().map(source).collect::<Vec<_>>()}})
}

/// What a rollout of these Nodes to `new` rests on.
fn scope<'a>(nodes: &'a [Node], claims: &'a Disruptions, budget: usize) -> Scope<'a> {
    Scope {
        nodes: nodes.iter().collect(),
        others: vec![],
        unreadable: 0,
        claims,
        target: "new",
        budget,
        own_node: None,
        etcd: &Etcd::Room,
        now: NOW.parse().unwrap(),
    }
}

/// No Nodes, and an empty list of claims.
fn listed() -> Members {
    Members { claims: Some(Disruptions::default()), ..Members::default() }
}

/// A snapshot of a pool whose target exists, with these Nodes and nothing else.
fn snapshot_of(pool: MachineConfigPool, members: Members) -> Snapshot {
    let stores = Stores::default();
    let target = pool.spec.configuration.name.clone().unwrap_or_default();
    let (pools, configs) = (Store::<MachineConfigPool>::new(TARGET, ""), Store::<CachedConfig>::new(TARGET, ""));
    let key = ObjectRef::of(TARGET, &pool);
    pools.apply(pool);
    if !target.is_empty() {
        configs.apply(config(&target, json!({})).into());
    }
    let nodes = Store::<Node>::new(TARGET, "");
    nodes.add_index(NODES_BY_CURRENT_CONFIG);
    nodes.add_index(NODES_BY_DESIRED_CONFIG);
    nodes.add_index(NODES_BY_ROLES);
    stores.add(Arc::new(pools));
    stores.add(Arc::new(configs));
    stores.add(Arc::new(nodes));
    stores.add(Arc::new(Store::<ControllerConfig>::new(TARGET, "")));
    stores.add(Arc::new(Store::<KubeletConfig>::new(TARGET, "")));
    let mut snapshot = Snapshot::take(&stores, &key, &PoolSettings::default()).unwrap();
    snapshot.members = members;
    snapshot
}

/// What is in the cluster, and what the controller remembers.
struct Fixture {
    pool: MachineConfigPool,
    configs: BTreeMap<String, MachineConfig>,
    /// The version of the last change.
    version: u64,
    controller_config: Option<ControllerConfig>,
    kubelet_configs: Vec<KubeletConfig>,
    nodes: Vec<Node>,
    lease: Option<Lease>,
    /// A MachineConfig that cannot be read, with these labels if its metadata can.
    unreadable: Option<Unreadable>,
    unreadable_node: Option<Unreadable>,
    unreadable_kubelet_config: Option<Unreadable>,
    other_pool: Option<MachineConfigPool>,
    /// Whether a watch of a single MachineConfig has no answer.
    unanswered: bool,
    waits: Vec<Waiting>,
    notes: BTreeMap<Note, Timestamp>,
    status_written: Option<Timestamp>,
    /// The events of the plans that were done.
    events: Vec<Event>,
    /// Their spans.
    spans: Vec<SpanRecord>,
    now: Timestamp,
    controller: MachineConfigPoolController,
    renderer: Renderer,
    outcomes: RefCell<Outcomes<Render>>,
}

impl Fixture {
    fn new(configs: impl IntoIterator<Item = MachineConfig>) -> Self {
        let mut fixture = Self {
            pool: pool(&json!({})),
            configs: BTreeMap::new(),
            version: 100,
            controller_config: None,
            kubelet_configs: vec![],
            nodes: vec![],
            lease: None,
            unreadable: None,
            unreadable_node: None,
            unreadable_kubelet_config: None,
            other_pool: None,
            unanswered: false,
            waits: vec![],
            notes: BTreeMap::new(),
            status_written: None,
            events: vec![],
            spans: vec![],
            now: NOW.parse().unwrap(),
            controller: MachineConfigPoolController { settings: PoolSettings::default() },
            renderer: Renderer::default(),
            outcomes: RefCell::default(),
        };
        configs.into_iter().for_each(|config| fixture.put(config));
        fixture
    }

    fn put(&mut self, mut config: MachineConfig) {
        self.version += 1;
        config.metadata.resource_version = Some(self.version.to_string());
        self.configs.insert(config.metadata.name.clone().unwrap(), config);
    }

    fn stores(&self) -> Stores {
        let stores = Stores::default();
        let pools = Arc::new(Store::<MachineConfigPool>::new(TARGET, ""));
        pools.apply(self.pool.clone());
        self.other_pool.iter().for_each(|pool| drop(pools.apply(pool.clone())));
        let configs = Arc::new(Store::<CachedConfig>::new(TARGET, ""));
        let nodes = Arc::new(Store::<Node>::new(TARGET, ""));
        nodes.add_index(NODES_BY_CURRENT_CONFIG);
        nodes.add_index(NODES_BY_DESIRED_CONFIG);
        nodes.add_index(NODES_BY_ROLES);
        self.nodes.iter().cloned().for_each(|node| drop(nodes.apply(node)));
        self.unreadable_node.iter().for_each(|it| assert!(nodes.add_unreadable(it.clone())));
        for (name, config) in &self.configs {
            configs.apply(config.clone().into());
            let whole = Arc::new(Store::<MachineConfig>::new(TARGET, ""));
            stores.add_scoped(&ScopedWatch::named::<MachineConfig>(&target_ref(name), ""), whole.clone());
            if !self.unanswered {
                answer(&whole, Some(config.clone()));
            }
        }
        let targets = [self.target().to_owned(), self.noted().to_owned()];
        for gone in targets.iter().filter(|name| !name.is_empty() && !self.configs.contains_key(*name)) {
            let whole = Arc::new(Store::<MachineConfig>::new(TARGET, ""));
            stores.add_scoped(&ScopedWatch::named::<MachineConfig>(&target_ref(gone), ""), whole.clone());
            answer(&whole, None);
        }
        self.unreadable.iter().for_each(|it| assert!(configs.add_unreadable(it.clone())));
        let controller_configs = Arc::new(Store::<ControllerConfig>::new(TARGET, ""));
        self.controller_config.iter().cloned().for_each(|it| drop(controller_configs.apply(it)));
        let kubelet_configs = Arc::new(Store::<KubeletConfig>::new(TARGET, ""));
        self.kubelet_configs.iter().cloned().for_each(|it| drop(kubelet_configs.apply(it)));
        let unreadable = self.unreadable_kubelet_config.iter();
        unreadable.for_each(|it| assert!(kubelet_configs.add_unreadable(it.clone())));
        stores.add(kubelet_configs);
        let leases = Arc::new(Store::<Lease>::new(TARGET, "openshift-machine-config-operator"));
        let lease = ObjectRef::new(TARGET, "openshift-machine-config-operator", "machine-config-controller");
        stores.add_scoped(&ScopedWatch::named::<Lease>(&lease, ""), leases.clone());
        answer(&leases, self.lease.clone());
        stores.add(pools);
        stores.add(configs);
        stores.add(nodes);
        stores.add(controller_configs);
        stores
    }

    /// The plan once what is to be rendered is.
    fn plan(&self) -> Plan {
        let snapshot = self.controller.snapshot(&self.stores(), &target_ref("worker")).unwrap();
        for _ in 0..4 {
            let plan = self.plan_of(&snapshot);
            let call = plan.steps().find_map(|planned| match &planned.step {
                Step::Call(call) => Some(call.clone()),
                _ => None,
            });
            let Some(call) = call else { return plan };
            // Long enough ago for another rendering.
            let ended = self.now - Duration::from_secs(2);
            let mut outcomes = self.outcomes.borrow_mut();
            assert!(outcomes.begin(&call, ended));
            outcomes.finish(&call, ended, self.renderer.perform(call.clone()).now_or_never().unwrap());
        }
        panic!("it is rendered again and again");
    }

    fn plan_of(&self, snapshot: &Snapshot) -> Plan {
        let outcomes = self.outcomes.borrow();
        let memory = Context { status_written: self.status_written, ..Context::new(self.now, &outcomes) };
        let traces = self.controller.settings.traces;
        let context = Context { waits: &self.waits, notes: &self.notes, traces, ..memory };
        MachineConfigPoolController::plan(&context, snapshot)
    }

    /// Does what a plan says, as an API server would.
    fn act(&mut self) -> Vec<String> {
        let mut plan = self.plan();
        self.note(&plan);
        // What is wanted has to settle first.
        if let Some(due) = plan.waits.iter().find(|wait| wait.reason == "Settling").and_then(|wait| wait.until) {
            self.now = due;
            plan = self.plan();
            self.note(&plan);
        }
        self.events.extend(plan.events.iter().cloned());
        self.spans.extend(plan.spans.iter().cloned());
        let mut done = vec![];
        for planned in plan.steps() {
            let key = planned.step.key().unwrap().name.to_string();
            match &planned.step {
                Step::Create { body, .. } => {
                    done.push(format!("create {key}"));
                    let mut object = body.clone();
                    let added = json!({"uid": format!("uid-{key}"), "resourceVersion": "30", "generation": 1,
                        "creationTimestamp": self.now.to_string()});
                    added.as_object().unwrap().iter().for_each(|(field, value)| {
                        object["metadata"][field] = value.clone();
                    });
                    self.put(serde_json::from_str(&object.to_string()).unwrap());
                }
                Step::Apply(apply) if apply.subresource == nodewright_runtime::apply_configuration::STATUS => {
                    done.push("status".to_owned());
                    self.status_written = Some(self.now);
                    let mut object = serde_json::to_value(&self.pool).unwrap();
                    object["status"] = apply.fragment()["status"].clone();
                    self.pool = serde_json::from_value(object).unwrap();
                }
                Step::Apply(apply) => {
                    let fragment = apply.fragment();
                    let name = fragment["spec"]["configuration"]["name"].as_str().unwrap();
                    done.push(format!("target {name}"));
                    let mut object = serde_json::to_value(&self.pool).unwrap();
                    object["spec"]["configuration"] = apply.fragment()["spec"]["configuration"].clone();
                    if let Some(annotations) = fragment["metadata"]["annotations"].as_object() {
                        let mine = annotations.iter().map(|(key, value)| (key.clone(), value.clone()));
                        object["metadata"]["annotations"].as_object_mut().unwrap().extend(mine);
                    }
                    let generation = object["metadata"]["generation"].as_i64().unwrap();
                    object["metadata"]["generation"] = (generation + 1).into();
                    self.pool = serde_json::from_value(object).unwrap();
                }
                Step::Edit { patch, .. } if key == "worker" => {
                    done.push("edit the pool".to_owned());
                    let mut object = serde_json::to_value(&self.pool).unwrap();
                    nodewright_testing::json_patch(&mut object, patch).unwrap();
                    self.pool = serde_json::from_value(object).unwrap();
                }
                // What becomes of it is the test's.
                Step::Edit { .. } if !self.configs.contains_key(&key) => done.push(format!("edit {key}")),
                Step::Edit { patch, .. } => {
                    done.push(format!("edit {key}"));
                    let mut object = serde_json::to_value(&self.configs[&key]).unwrap();
                    nodewright_testing::json_patch(&mut object, patch).unwrap();
                    self.put(serde_json::from_str(&object.to_string()).unwrap());
                }
                Step::Delete(target) => {
                    assert!(target.version().is_some(), "by UID and version");
                    done.push(format!("delete {key}"));
                    self.configs.remove(&key);
                }
                step => panic!("{step:?}"),
            }
        }
        done
    }

    fn note(&mut self, plan: &Plan) {
        self.notes = plan.notes.clone().after(std::mem::take(&mut self.notes), self.now);
    }

    /// Acts until nothing is left to do, and lets time pass where the plan waits for it.
    fn settle(&mut self) -> Vec<String> {
        let mut done = vec![];
        for _ in 0..20 {
            let acted = self.act();
            if acted.is_empty() {
                match self.plan().wake.filter(|wake| wake.duration_since(self.now).as_secs() <= 60) {
                    Some(wake) => self.now = wake,
                    None => return done,
                }
            }
            done.extend(acted);
        }
        panic!("it does not come to rest: {done:?}");
    }

    fn target(&self) -> &str {
        self.pool.spec.configuration.name.as_deref().unwrap_or_default()
    }

    /// The target that the status has noted.
    fn noted(&self) -> &str {
        let mut conditions = self.pool.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|it| it.condition_type == "Rendered").map_or("", |it| it.message.as_str())
    }

    /// As `kubectl replace` with a file that has no target.
    fn forget_the_target(&mut self) {
        self.pool.spec.configuration = pool(&json!({})).spec.configuration;
    }

    fn condition(&self, kind: &str) -> (String, String, String) {
        let conditions = self.pool.status.iter().flat_map(|status| &status.conditions);
        let found: Vec<_> = conditions.filter(|it| it.condition_type == kind).collect();
        assert_eq!(found.len(), 1, "{kind}");
        (found[0].status.as_str().to_owned(), found[0].reason.clone(), found[0].message.clone())
    }

    /// Expects that the target stays, for this reason and with this in the message.
    fn expect_held(&mut self, reason: &str, text: &str) {
        let target = self.target().to_owned();
        let done = self.settle();
        assert_eq!(self.target(), target, "{done:?}");
        assert!(!done.iter().any(|step| step.starts_with("target") || step.starts_with("delete")), "{done:?}");
        let (status, said, message) = self.condition("RenderDegraded");
        assert_eq!((status.as_str(), said.as_str()), ("True", reason), "{message}");
        assert!(message.contains(text), "{message}");
        assert_eq!(self.condition("Degraded").1, "RenderDegraded");
    }
}

fn two_configs() -> Fixture {
    let first = config("00-a", files(&[file("/a", "1"), file("/b", "1"), file("/c", "1")]));
    Fixture::new([first, config("10-b", json!({"kernelArguments": ["x"]}))])
}

#[test]
fn what_a_pool_selects_is_rendered_and_becomes_its_target_after_five_quiet_seconds() {
    let mut fixture = two_configs();
    fixture.put(cluster_object("99-other").label(ROLE, "infra").with("/spec/fips", true).build());
    let first = fixture.act();
    assert!(first[0].starts_with("create rendered-worker-"), "{first:?}");
    let created = first[0].trim_start_matches("create ").to_owned();
    let object = &fixture.configs[&created];
    assert_eq!(object.metadata.owner_references.as_ref().unwrap()[0].uid, "uid-worker");
    assert_eq!(object.spec.kernel_arguments, ["x"]);
    assert_eq!(
        object.metadata.annotations.as_ref().unwrap()["machineconfiguration.openshift.io/generated-by-controller-version"],
        VERSION
    );
    let rest = fixture.settle();
    assert_eq!(rest, [format!("target {created}"), "status".to_owned()]);
    assert_eq!(fixture.now, NOW.parse::<Timestamp>().unwrap() + Duration::from_secs(5));
    let sources: Vec<_> = fixture.pool.spec.configuration.source.iter().map(|it| it.name.clone().unwrap()).collect();
    assert_eq!(sources, ["00-a", "10-b"]);
    assert_eq!(fixture.condition("RenderDegraded").0, "False");
    assert_eq!(fixture.condition("Degraded").0, "False");
}

/// As `kubectl apply` of a folder does: each MachineConfig makes another rendering.
#[test]
fn many_changes_in_a_row_make_one_rendered_object_once_they_have_ended() {
    let mut fixture = two_configs();
    for number in 0..200 {
        fixture.put(config(&format!("20-{number}"), json!({"kernelArguments": [format!("x={number}")]})));
        let plan = fixture.plan();
        fixture.note(&plan);
        assert!(!plan.steps().any(|planned| matches!(planned.step, Step::Create { .. })), "after {number} changes");
        fixture.now += Duration::from_millis(40);
    }
    let done = fixture.settle();
    assert_eq!(done.iter().filter(|step| step.starts_with("create")).count(), 1, "{done:?}");
}

#[test]
fn a_pool_that_never_settles_says_so() {
    let mut fixture = two_configs();
    fixture.waits = vec![Waiting::new("Settling", fixture.now - jiff::SignedDuration::from_secs(30))];
    let plan = fixture.plan();
    let reported = plan.steps().any(|planned| {
        matches!(&planned.step, Step::Apply(apply)
        if apply.fragment()["status"].to_string().contains("change again and again"))
    });
    assert!(reported, "{plan:?}");
}

#[test]
fn only_what_is_still_wanted_after_the_quiet_period_becomes_the_target() {
    let mut fixture = two_configs();
    let first = fixture.act();
    fixture.now += Duration::from_secs(4);
    fixture.put(config("20-c", json!({"kernelArguments": ["y"]})));
    let done = fixture.settle();
    assert!(done[0].starts_with("create") && done[0] != first[0], "{done:?}");
    assert_eq!(done.iter().filter(|step| step.starts_with("target")).count(), 1, "{done:?}");
    assert_eq!(fixture.target(), done[0].trim_start_matches("create "));
    assert!(fixture.now >= NOW.parse::<Timestamp>().unwrap() + Duration::from_secs(9));
}

/// Its age is that of an earlier change, and tells nothing of what comes next.
#[test]
fn what_was_rendered_long_ago_has_to_be_wanted_for_the_quiet_period_as_well() {
    let argument = |name: &str, value: &str| config(name, json!({"kernelArguments": [value]}));
    let mut fixture = Fixture::new([argument("00-a", "old"), argument("10-b", "old")]);
    fixture.settle();
    let old = fixture.target().to_owned();
    fixture.put(argument("00-a", "new"));
    let between = fixture.act()[0].trim_start_matches("create ").to_owned();
    fixture.put(argument("10-b", "new"));
    fixture.settle();
    fixture.put(argument("10-b", "old"));
    fixture.now += Duration::from_hours(1);
    assert!(!fixture.act().iter().any(|step| step.starts_with("target")), "{between} is between the two");
    fixture.now += Duration::from_secs(4);
    fixture.put(argument("00-a", "old"));
    let since = fixture.now;
    let done = fixture.settle();
    assert_eq!(done.iter().filter(|step| step.starts_with("target")).collect::<Vec<_>>(), [&format!("target {old}")]);
    assert_eq!(fixture.now, since + Duration::from_secs(5));
}

#[test]
fn a_target_that_somebody_has_written_is_written_back_at_once() {
    let mut fixture = two_configs();
    fixture.settle();
    let ours = fixture.target().to_owned();
    fixture.now += Duration::from_hours(1);
    fixture.pool = pool(&targeting("10-b", &[]));
    let since = fixture.now;
    assert_eq!(fixture.settle()[0], format!("target {ours}"));
    assert_eq!((fixture.target(), fixture.now), (ours.as_str(), since));
}

#[test]
fn a_process_that_starts_and_one_whose_clock_is_behind_wait_no_longer_than_the_quiet_period() {
    let mut fixture = two_configs();
    fixture.act();
    let created = fixture.configs.keys().find(|name| name.starts_with("rendered-")).unwrap().clone();
    let future = serde_json::from_value(json!("2026-06-01T14:00:00Z")).unwrap();
    fixture.configs.get_mut(&created).unwrap().metadata.creation_timestamp = Some(future);
    fixture.now += Duration::from_secs(3);
    fixture.notes.clear();
    let since = fixture.now;
    fixture.act();
    assert_eq!(fixture.plan().wake, Some(since + Duration::from_secs(5)));
    fixture.now += Duration::from_secs(5);
    assert!(fixture.act()[0].starts_with("target"));
}

#[test]
fn what_is_wrong_next_is_said_at_once() {
    let wrong = |name: &str| config(name, files(&[json!({"path": name})]));
    let mut fixture = two_configs();
    fixture.settle();
    fixture.put(wrong("20-first"));
    fixture.expect_held("Invalid", "MachineConfig 20-first");
    fixture.configs.remove("20-first");
    fixture.put(wrong("30-second"));
    assert_eq!(fixture.act(), ["status"]);
    assert!(fixture.condition("RenderDegraded").2.contains("MachineConfig 30-second"));
}

#[test]
fn another_target_is_reported_once() {
    let mut fixture = two_configs();
    fixture.settle();
    let first = fixture.target().to_owned();
    fixture.put(config("20-c", json!({"kernelArguments": ["y"]})));
    fixture.settle();
    let second = fixture.target().to_owned();
    // It has other sources, and is the same.
    fixture.put(config("30-d", json!({})));
    fixture.settle();
    assert_eq!((fixture.target(), fixture.pool.spec.configuration.source.len()), (second.as_str(), 4));
    let reported: Vec<_> = fixture.events.iter().map(|event| (event.reason, event.message.clone())).collect();
    let texts = [
        format!("the target is {first}, rendered of 2 MachineConfigs; there was none"),
        format!("the target is {second}, rendered of 3 MachineConfigs; it was {first}"),
    ];
    assert_eq!(reported, texts.map(|text| ("TargetChanged", text)));
    assert!(fixture.events.iter().all(|event| event.is_logged && event.cluster == Some(TARGET)));
}

#[test]
fn a_paused_pool_is_rendered() {
    let mut fixture = two_configs();
    fixture.pool = pool(&json!({"paused": true}));
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
}

#[test]
fn what_has_come_to_rest_is_neither_rendered_nor_written_again() {
    let mut fixture = two_configs();
    fixture.settle();
    let renders = fixture.renderer.count();
    for _ in 0..3 {
        assert_eq!(fixture.act(), Vec::<String>::new());
    }
    // Another process, and so after a restart.
    fixture.outcomes = RefCell::default();
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert_eq!(fixture.renderer.count(), renders);
}

#[test]
fn the_same_inputs_keep_the_target_though_this_release_renders_other_bytes() {
    let mut fixture = two_configs();
    fixture.settle();
    // As if an earlier release had made it: another name, other bytes, the same inputs.
    let ours = fixture.target().to_owned();
    let mut former = fixture.configs.remove(&ours).unwrap();
    let other = "rendered-worker-0123456789abcdef0123456789abcdef";
    former.metadata.name = Some(other.to_owned());
    former.spec.kernel_arguments.push("from-an-earlier-release".to_owned());
    fixture.put(former);
    fixture.pool = pool(&targeting(other, &["00-a", "10-b"]));
    assert_eq!(fixture.settle(), ["status"]);
    assert_eq!(fixture.target(), other);
}

#[test]
fn a_target_of_equal_content_under_another_name_stays() {
    let mut fixture = two_configs();
    fixture.settle();
    let ours = fixture.target().to_owned();
    let mut theirs = fixture.configs.remove(&ours).unwrap();
    let other = "rendered-worker-ffffffffffffffffffffffffffffffff";
    theirs.metadata.name = Some(other.to_owned());
    theirs.metadata.annotations = None;
    fixture.put(theirs);
    fixture.pool = pool(&targeting(other, &["00-a"]));
    let done = fixture.settle();
    assert_eq!(done, [format!("target {other}"), "status".to_owned()], "only the sources are written");
    assert_eq!(fixture.pool.spec.configuration.source.len(), 2);
}

#[test]
fn other_inputs_that_render_to_the_same_are_noted_on_the_target() {
    let mut fixture = two_configs();
    fixture.settle();
    let target = fixture.target().to_owned();
    let digest = |fixture: &Fixture| fixture.configs[&target].metadata.annotations.as_ref().unwrap()[INPUTS].clone();
    let before = digest(&fixture);
    fixture.put(config("10-b", json!({"kernelArguments": ["x"], "kernelType": "default"})));
    assert_eq!(fixture.settle()[0], format!("edit {target}"));
    assert_eq!(fixture.target(), target);
    assert_ne!(digest(&fixture), before);
}

/// What is wrong, how it came about, and what the condition says.
#[test]
fn whatever_is_wrong_the_target_stays_and_the_condition_says_what() {
    let mut fixture = two_configs();
    fixture.settle();
    let at_rest = |change: &dyn Fn(&mut Fixture)| {
        let mut other = two_configs();
        other.settle();
        change(&mut other);
        other
    };
    let mut none = at_rest(&|fixture| fixture.configs.retain(|name, _| name.starts_with("rendered-")));
    none.expect_held("NoMachineConfigs", "spec.machineConfigSelector");
    let mut all = at_rest(&|fixture| fixture.pool.spec.machine_config_selector = Some(LabelSelector::default()));
    all.expect_held("SelectsAll", "spec.machineConfigSelector");
    let mut nil = at_rest(&|fixture| fixture.pool.spec.machine_config_selector = None);
    nil.expect_held("SelectsAll", "spec.machineConfigSelector");
    let mode = json!({"path": "/a", "mode": 2541});
    let mut invalid = at_rest(&|fixture| fixture.put(config("20-mode", files(std::slice::from_ref(&mode)))));
    invalid.expect_held("Invalid", "MachineConfig 20-mode: spec.config.storage.files[0].mode");
    let mut fips = at_rest(&|fixture| fixture.put(config("20-fips", json!({"fips": true}))));
    fips.expect_held("NotReconcilable", "spec.fips");
    assert!(fips.condition("RenderDegraded").2.contains("(set by 20-fips)"));
    let append = json!({"path": "/d", "append": [{"source": "data:,x"}]});
    let mut append = at_rest(&|fixture| fixture.put(config("20-append", files(std::slice::from_ref(&append)))));
    append.expect_held("NotReconcilable", "spec.config.storage.files[3].append");
    assert!(append.condition("RenderDegraded").2.contains("(set by 20-append)"));
    let mut large = at_rest(&|fixture| {
        fixture.put(config("20-large", files(&[file("/large", &"x".repeat(1_600_000))])));
    });
    large.expect_held("TooLarge", "at most 1556480: make files smaller; most bytes are of 20-large (1600");
    let mut unreadable = at_rest(&|fixture| fixture.unreadable = Some(Unreadable::named("", "20-unreadable", "u")));
    unreadable.expect_held("Invalid", "MachineConfig 20-unreadable exists and cannot be read");
    // What is wrong is corrected.
    fips.configs.remove("20-fips");
    fips.settle();
    assert_eq!(fips.condition("RenderDegraded").0, "False");
}

#[test]
fn an_unreadable_machine_config_that_the_pool_does_not_select_is_no_matter() {
    let mut fixture = two_configs();
    let metadata =
        |role: &str| serde_json::from_value(json!({"name": "x", "uid": "u", "labels": {ROLE: role}})).unwrap();
    fixture.unreadable = Some(Unreadable::new(metadata("infra")));
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
    fixture.unreadable = Some(Unreadable::new(metadata("worker")));
    fixture.expect_held("Invalid", "MachineConfig x exists and cannot be read");
}

#[test]
fn a_large_part_of_the_target_is_only_dropped_if_the_pool_accepts_it() {
    let mut fixture = two_configs();
    fixture.settle();
    fixture.put(config("00-a", files(&[file("/a", "1")])));
    fixture.expect_held("TooMuchRemoved", "lacks 2 of the 3 files and units of the target (/b, /c); ");
    let message = fixture.condition("RenderDegraded").2;
    let wanted = message.rsplit('=').next().unwrap().to_owned();
    let accept = |name: &str| Some(BTreeMap::from([("nodewright.dev/accept-render".to_owned(), name.to_owned())]));
    fixture.pool.metadata.annotations = accept("rendered-worker-another");
    fixture.expect_held("TooMuchRemoved", "lacks 2 of the 3");
    fixture.pool.metadata.annotations = accept(&wanted);
    fixture.settle();
    assert_eq!(fixture.target(), wanted);
    assert_eq!(fixture.condition("RenderDegraded").0, "False");
    // A third of them needs no acceptance.
    let mut fixture = two_configs();
    fixture.settle();
    fixture.put(config("00-a", files(&[file("/a", "1"), file("/b", "1")])));
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
}

fn many_files(count: usize) -> Value {
    files(&(0..count).map(|index| file(&format!("/{index}"), "1")).collect::<Vec<_>>())
}

#[test]
fn a_target_that_was_taken_from_the_spec_is_written_back_and_holds() {
    let irreconcilable = json!({"fips": true, "config": many_files(6)["config"].clone()});
    for (spec, reason) in [(irreconcilable, "NotReconcilable"), (many_files(1), "TooMuchRemoved")] {
        let mut fixture = Fixture::new([config("00-a", many_files(6))]);
        fixture.settle();
        let target = fixture.target().to_owned();
        assert_eq!(fixture.noted(), target);
        fixture.put(config("00-a", spec));
        fixture.settle();
        fixture.forget_the_target();
        assert_eq!(fixture.act(), [format!("target {target}")], "{reason}");
        assert!(
            !fixture.configs[&target]
                .metadata
                .annotations
                .as_ref()
                .unwrap()
                .contains_key("nodewright.dev/unused-since")
        );
        fixture.expect_held(reason, "the target stays: ");
        assert_eq!(fixture.target(), target);
    }
}

#[test]
fn the_target_is_noted_though_the_pool_has_begun_to_wait() {
    let mut fixture = two_configs();
    fixture.settle();
    let degraded = fixture.condition("RenderDegraded");
    fixture.pool.status.as_mut().unwrap().conditions.retain(|it| it.condition_type != "Rendered");
    fixture.controller_config = Some(controller_config(0, ""));
    assert_eq!(fixture.act(), ["status"]);
    assert_eq!(fixture.noted(), fixture.target());
    assert_eq!(fixture.condition("RenderDegraded"), degraded, "that it waits is no news yet");
}

#[test]
fn a_target_that_is_still_wanted_is_written_back_with_its_sources() {
    let mut fixture = two_configs();
    fixture.settle();
    let target = fixture.pool.spec.configuration.clone();
    fixture.forget_the_target();
    assert_eq!(fixture.act(), [format!("target {}", target.name.as_deref().unwrap())]);
    assert_eq!(fixture.pool.spec.configuration.source.len(), 2);
    // While nothing can be rendered as well.
    fixture.put(config("10-b", json!({"config": {"ignition": {"version": "2.2.0"}}})));
    fixture.settle();
    fixture.forget_the_target();
    assert_eq!(fixture.act(), [format!("target {}", target.name.as_deref().unwrap())]);
    fixture.expect_held("Invalid", "the target stays: ");
}

#[test]
fn nothing_follows_a_target_that_is_gone_unless_the_pool_accepts_it() {
    let mut fixture = Fixture::new([config("00-a", many_files(6))]);
    fixture.settle();
    let target = fixture.target().to_owned();
    fixture.put(config("00-a", many_files(1)));
    fixture.settle();
    fixture.configs.remove(&target);
    fixture.expect_held("NotReconcilable", &format!("there is no MachineConfig {target} any more"));
    fixture.forget_the_target();
    fixture.expect_held("NotReconcilable", &format!("there is no MachineConfig {target} any more"));
    let (.., message) = fixture.condition("RenderDegraded");
    let accepted = message.split_once("accept-render=").unwrap().1.to_owned();
    fixture.pool.metadata.annotations = Some([("nodewright.dev/accept-render".to_owned(), accepted.clone())].into());
    fixture.settle();
    assert_eq!((fixture.target(), fixture.noted()), (accepted.as_str(), accepted.as_str()));
    // What it was is made again.
    fixture.configs.remove(&accepted);
    fixture.pool.metadata.annotations = None;
    assert_eq!(fixture.act()[0], format!("create {accepted}"));
}

#[test]
fn a_name_that_nothing_has_is_no_way_around_a_comparison() {
    let mut fixture = Fixture::new([config("00-a", many_files(6))]);
    fixture.settle();
    let target = fixture.target().to_owned();
    fixture.pool.spec.configuration.name = Some("rendered-worker-0".to_owned());
    assert_eq!(fixture.settle()[0], format!("target {target}"), "it is what the pool selects");
    fixture.put(config("00-a", many_files(1)));
    fixture.settle();
    fixture.pool.spec.configuration.name = Some("rendered-worker-0".to_owned());
    fixture.expect_held("NotReconcilable", "there is no MachineConfig rendered-worker-0 any more");
    assert_eq!(fixture.noted(), target);
}

#[test]
fn a_pool_that_never_had_a_target_does_not_say_that_it_stays() {
    let mut fixture = Fixture::new([config("00-a", json!({"config": {"ignition": {"version": "2.2.0"}}}))]);
    fixture.expect_held("Invalid", "there is no target yet: ");
}

#[test]
fn a_message_names_the_first_files_that_go_and_is_bounded() {
    let long = "x".repeat(4_000);
    let all: Vec<_> = (0..200).map(|index| file(&format!("/{index:03}/{long}"), "1")).collect();
    let mut fixture = Fixture::new([config("00-a", files(&all))]);
    fixture.settle();
    fixture.put(config("00-a", files(&[file("/new", "1")])));
    fixture.expect_held("TooMuchRemoved", "lacks 200 of the 200 files and units of the target (/000/xxx");
    let message = fixture.condition("RenderDegraded").2;
    assert!(message.contains("/004/xxx") && message.contains(", and 195 more); "), "{message}");
    assert!(!message.contains("/005/") && message.len() < 1_024, "{}", message.len());
}

/// A ControllerConfig of generation 1; what of it was observed, and why its templates fail.
fn controller_config(observed: i64, failing: &str) -> ControllerConfig {
    let status = if failing.is_empty() { "False" } else { "True" };
    let condition = json!({"type": "TemplateControllerFailing", "status": status, "message": failing});
    let object = cluster_object("machine-config-controller").with("/spec/baseOSContainerImage", "image");
    object.with("/status", json!({"observedGeneration": observed, "conditions": [condition]})).build()
}

#[test]
fn a_target_waits_for_what_is_generated_of_the_controller_config() {
    let mut fixture = two_configs();
    fixture.controller_config = Some(controller_config(0, ""));
    assert_eq!(fixture.act(), Vec::<String>::new());
    let waiting = "wait WaitingForInputs: ControllerConfig machine-config-controller or its templates have changed";
    assert!(fixture.plan().to_string().contains(waiting), "{}", fixture.plan());
    fixture.controller_config = Some(controller_config(1, ""));
    fixture.settle();
    let target = fixture.target().to_owned();
    assert_eq!(fixture.configs[&target].spec.os_image_url, "image");
    // The templates have changed: a part is generated again, and others not yet.
    let running = json!({"type": "TemplateControllerRunning", "status": "True"});
    let status = json!({"observedGeneration": 1, "conditions": [running]});
    let object = cluster_object("machine-config-controller").with("/spec/baseOSContainerImage", "image");
    fixture.controller_config = Some(object.with("/status", status).build());
    fixture.put(config("20-c", json!({"kernelArguments": ["torn"]})));
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert!(fixture.plan().to_string().contains(waiting), "{}", fixture.plan());
    fixture.configs.remove("20-c");
    // A part that is missing may be the more important one.
    fixture.controller_config = Some(controller_config(1, "worker/00-worker/_base/files/a.yaml:3: wrong"));
    fixture.put(config("10-b", json!({"kernelArguments": ["y"]})));
    fixture.expect_held("WaitingForInputs", "machine-config-controller: worker/00-worker/_base/files/a.yaml:3: wrong");
    fixture.controller_config = Some(controller_config(1, ""));
    fixture.settle();
    assert_ne!(fixture.target(), target);
}

#[test]
fn a_controller_config_that_is_deleted_takes_no_image_with_it() {
    let mut fixture = two_configs();
    fixture.controller_config = Some(controller_config(1, ""));
    fixture.settle();
    let target = fixture.target().to_owned();
    assert_eq!(fixture.configs[&target].spec.os_image_url, "image");
    fixture.controller_config = None;
    fixture.expect_held("WaitingForInputs", "create the ControllerConfig");
    fixture.controller_config = Some(controller_config(1, ""));
    fixture.settle();
    assert_eq!((fixture.target(), fixture.condition("RenderDegraded").0.as_str()), (target.as_str(), "False"));
}

#[test]
fn the_pool_waits_for_its_target_to_be_read_and_says_so_after_half_a_minute() {
    let mut fixture = two_configs();
    fixture.settle();
    let before = fixture.pool.status.clone();
    fixture.put(config("20-c", json!({"kernelArguments": ["y"]})));
    fixture.unanswered = true;
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert_eq!(fixture.pool.status, before);
    fixture.waits = vec![Waiting::new("WaitingForInputs", fixture.now)];
    fixture.now += Duration::from_secs(30);
    assert_eq!(fixture.act(), ["status"]);
    assert_eq!(fixture.condition("RenderDegraded").1, "WaitingForInputs");
}

#[test]
fn a_rendered_machine_config_that_was_edited_is_no_target() {
    let mut fixture = two_configs();
    fixture.settle();
    let target = fixture.target().to_owned();
    let edited = fixture.configs.get_mut(&target).unwrap();
    edited.spec.os_image_url = "evil".to_owned();
    edited.metadata.generation = Some(2);
    fixture.expect_held("Invalid", "is not what its name says");
    // Deleted, it is made again.
    fixture.configs.remove(&target);
    let done = fixture.settle();
    assert_eq!(done[0], format!("create {target}"));
    assert!(fixture.configs[&target].spec.os_image_url.is_empty());
    assert_eq!(fixture.condition("RenderDegraded").0, "False");
}

#[test]
fn what_a_former_pool_has_left_is_adopted_if_it_is_what_its_name_says() {
    let mut fixture = two_configs();
    fixture.settle();
    let target = fixture.target().to_owned();
    fixture.pool = pool(&json!({}));
    fixture.configs.get_mut(&target).unwrap().metadata.owner_references = None;
    let done = fixture.settle();
    assert_eq!(done[0], format!("edit {target}"));
    assert_eq!(fixture.target(), target);
    assert_eq!(fixture.configs[&target].metadata.owner_references.as_ref().unwrap()[0].uid, "uid-worker");
    // One that belongs to a former pool goes with it.
    fixture.pool = pool(&json!({}));
    fixture.configs.get_mut(&target).unwrap().metadata.owner_references.as_mut().unwrap()[0].uid = "former".to_owned();
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert!(fixture.plan().to_string().contains("belongs to a former pool"), "{}", fixture.plan());
}

#[test]
fn a_pool_waits_until_its_kubelet_configs_have_been_generated() {
    let mut fixture = two_configs();
    let kubelet = |observed: i64, labels: Value| -> KubeletConfig {
        cluster_object("kubelet")
            .with("/spec/machineConfigPoolSelector/matchLabels", labels)
            .with("/status", json!({"observedGeneration": observed}))
            .build()
    };
    fixture.pool.metadata.labels = Some(BTreeMap::from([("pool".to_owned(), "worker".to_owned())]));
    fixture.kubelet_configs = vec![kubelet(0, json!({"pool": "worker"}))];
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert!(fixture.plan().to_string().contains("wait WaitingForInputs: KubeletConfig kubelet has changed"));
    fixture.kubelet_configs = vec![kubelet(0, json!({"pool": "infra"}))];
    assert!(fixture.act()[0].starts_with("create"), "of another pool");
    fixture.kubelet_configs = vec![kubelet(1, json!({"pool": "worker"}))];
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
}

#[test]
fn a_pool_holds_its_target_while_its_kubelet_config_is_refused_or_unreadable() {
    let mut fixture = two_configs();
    fixture.pool.metadata.labels = Some(BTreeMap::from([("pool".to_owned(), "worker".to_owned())]));
    let kubelet = |pool: &str, accepted: &str| -> KubeletConfig {
        let condition =
            json!({"type": "Accepted", "status": accepted, "message": "Error: spec.kubeletConfig.maxPods: wrong"});
        cluster_object("kubelet")
            .with("/spec/machineConfigPoolSelector/matchLabels", json!({"pool": pool}))
            .with("/status", json!({"observedGeneration": 1, "conditions": [condition]}))
            .build()
    };
    // A pool without a target comes up without it.
    fixture.kubelet_configs = vec![kubelet("worker", "False")];
    fixture.settle();
    fixture.put(config("10-b", json!({"kernelArguments": ["y"]})));
    fixture.expect_held("WaitingForInputs", "KubeletConfig kubelet: Error: spec.kubeletConfig.maxPods: wrong");
    let held = fixture.target().to_owned();
    let mut other = fixture.pool.clone();
    (other.metadata.name, other.metadata.uid) = (Some("other".to_owned()), Some("uid-other".to_owned()));
    fixture.other_pool = Some(other);
    fixture.settle();
    assert_ne!(fixture.target(), held, "what is wrong may be the trouble of its other pool");
    fixture.other_pool = None;
    fixture.kubelet_configs = vec![kubelet("infra", "False")];
    let target = fixture.target().to_owned();
    fixture.put(config("10-b", json!({"kernelArguments": ["w"]})));
    fixture.settle();
    assert_ne!(fixture.target(), target, "that of another pool is no matter");
    fixture.kubelet_configs = vec![kubelet("worker", "True")];
    fixture.settle();

    // What was made of it is there, and it cannot be decoded any more.
    let mut generated = config("99-worker-generated-kubelet", json!({"kernelArguments": ["z"]}));
    generated.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({"apiVersion": "v1",
        "kind": "KubeletConfig", "name": "kubelet", "uid": "uid-kubelet", "controller": true}))
        .unwrap(),
    ]);
    fixture.kubelet_configs = vec![];
    fixture.put(generated);
    fixture.settle();
    fixture.unreadable_kubelet_config = Some(Unreadable::named("", "kubelet", "uid-kubelet"));
    fixture.put(config("10-b", json!({"kernelArguments": ["x"]})));
    fixture.expect_held("WaitingForInputs", "KubeletConfig kubelet exists and cannot be read");
    fixture.unreadable_kubelet_config = Some(Unreadable::named("", "other", "uid-other"));
    let target = fixture.target().to_owned();
    fixture.settle();
    assert_ne!(fixture.target(), target);
}

#[test]
fn a_stream_and_an_image_of_a_machine_config_exclude_each_other() {
    let mut fixture = two_configs();
    fixture.settle();
    fixture.pool.spec.os_image_stream.name = "rhel-10".to_owned();
    let before = fixture.target().to_owned();
    fixture.put(config("10-b", json!({"kernelArguments": ["y"]})));
    fixture.settle();
    assert_ne!(fixture.target(), before, "the stream alone is none of our business");
    fixture.put(config("20-c", json!({"osImageURL": "image"})));
    fixture.expect_held("Invalid", "spec.osImageStream: Forbidden: MachineConfig 20-c sets osImageURL");
}

#[test]
fn nothing_is_written_while_machine_config_operator_runs() {
    let mut fixture = two_configs();
    let lease = |holder: &str| {
        let spec =
            json!({"holderIdentity": holder, "leaseDurationSeconds": 137, "renewTime": "2026-06-01T11:59:59.000000Z"});
        Some(
            object::<Lease>("machine-config-controller")
                .with("/metadata/namespace", "openshift-machine-config-operator")
                .with("/spec", spec)
                .build(),
        )
    };
    fixture.lease = lease("pod");
    assert_eq!(fixture.act(), Vec::<String>::new());
    assert!(fixture.plan().to_string().starts_with("wait MachineConfigOperatorRuns"), "{}", fixture.plan());
    let [reported] = &fixture.plan().events[..] else { panic!() };
    let text = "machine-config-operator runs: its Lease is held by pod; it has to be scaled down first";
    assert_eq!(
        (reported.reason, reported.message.as_str(), reported.cluster),
        ("MachineConfigOperatorRuns", text, Some(TARGET))
    );
    fixture.waits = vec![Waiting::new("MachineConfigOperatorRuns", fixture.now)];
    assert!(fixture.plan().events.is_empty(), "it is reported once");
    fixture.waits.clear();
    fixture.lease = lease("");
    assert!(!fixture.act().is_empty());

    // It has ended without a release. Its Lease stands still, and is heard of once.
    let mut fixture = two_configs();
    fixture.lease = lease("pod");
    fixture.act();
    fixture.now += Duration::from_secs(137);
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
    fixture.now += Duration::from_hours(1);
    fixture.put(config("20-c", json!({"kernelArguments": ["y"]})));
    assert!(fixture.settle().iter().any(|step| step.starts_with("target")));
}

#[test]
fn conditions_of_others_are_kept_and_count() {
    let mut fixture = two_configs();
    fixture.pool.status = serde_json::from_value(json!({"machineCount": 3, "conditions": [
        {"type": "ImageBuildDegraded", "status": "True", "reason": "", "message": "image a", "lastTransitionTime": null},
        {"type": "Else", "status": "False", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
    .unwrap();
    fixture.settle();
    let expected = ("True".to_owned(), "ImageBuildDegraded".to_owned(), "image a".to_owned());
    assert_eq!(fixture.condition("Degraded"), expected);
    assert_eq!(fixture.condition("Else").0, "False");
    assert_eq!(fixture.pool.status.as_ref().unwrap().machine_count, 0, "it has no nodes");
}

#[test]
fn degraded_pools_are_in_the_metrics() {
    let mut fixture = two_configs();
    let shown = |fixture: &Fixture| -> Vec<String> {
        let metrics = Metrics::new();
        register_metrics(&metrics, fixture.stores());
        let text = metrics.encode().unwrap();
        text.lines()
            .filter(|line| line.starts_with("machine_config_pool_render_degraded{"))
            .map(str::to_owned)
            .collect()
    };
    fixture.settle();
    assert_eq!(shown(&fixture), Vec::<String>::new());
    fixture.pool.spec.machine_config_selector = None;
    fixture.settle();
    assert_eq!(shown(&fixture), [r#"machine_config_pool_render_degraded{name="worker",reason="SelectsAll"} 1"#]);
}

#[test]
fn a_pool_is_rendered_first_and_again_after_a_second_if_its_inputs_have_changed() {
    let mut fixture = two_configs();
    let snapshot = |fixture: &Fixture| fixture.controller.snapshot(&fixture.stores(), &target_ref("worker")).unwrap();
    let look = |fixture: &Fixture| {
        let plan = fixture.plan_of(&snapshot(fixture));
        let calls = plan.steps().filter(|planned| matches!(planned.step, Step::Call(_))).count();
        let after = plan.wake.map(|wake| wake.duration_since(fixture.now).as_secs());
        let waits: Vec<_> = plan.waits.iter().map(|wait| wait.reason).collect();
        (calls, plan.steps().count() - calls, after, waits)
    };
    assert_eq!(look(&fixture), (1, 0, None, vec![]), "nothing is known yet");
    let call = |fixture: &Fixture| match &fixture.plan_of(&snapshot(fixture)).stages[0][0].step {
        Step::Call(call) => call.clone(),
        step => panic!("{step:?}"),
    };
    let first = call(&fixture);
    fixture.outcomes.get_mut().begin(&first, fixture.now);
    assert_eq!(look(&fixture), (0, 0, None, vec![]), "it is being rendered");
    fixture.outcomes.get_mut().finish(&first, fixture.now, Outcome::Failed);
    assert_eq!(look(&fixture), (0, 0, Some(10), vec![]));
    fixture.now += Duration::from_secs(10);
    assert_eq!(look(&fixture), (1, 0, None, vec![]), "there was no result");
    let outcome = fixture.renderer.perform(first.clone()).now_or_never().unwrap();
    fixture.outcomes.get_mut().begin(&first, fixture.now);
    fixture.outcomes.get_mut().finish(&first, fixture.now, outcome);
    assert_eq!(look(&fixture), (0, 1, Some(2), vec!["Settling"]), "the status, and a wait");
    fixture.waits = vec![Waiting::new("Settling", fixture.now)];
    fixture.put(config("10-b", json!({"kernelArguments": ["changed"]})));
    assert_eq!(look(&fixture), (0, 0, Some(1), vec!["Settling"]), "more may change");
    fixture.now += Duration::from_secs(1);
    assert_eq!(look(&fixture), (1, 0, None, vec!["Settling"]));
}
