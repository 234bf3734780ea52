use std::cell::{Cell, RefCell};

use futures::FutureExt;
use jiff::SignedDuration;
use std::sync::Arc;

use base64::Engine as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use nodewright_api::machine_config::{KubeletConfig, MachineConfig, MachineConfigPool};
use nodewright_runtime::{
    apply_configuration::STATUS,
    cache::{Store, Stores, Unreadable},
    controller::Controller,
    effect::Outcomes,
    object::ObjectRef,
    plan::Step,
    scoped_watch::ScopedWatch,
};
use nodewright_testing::{ObjectBuilder, object};
use serde_json::{Value, json};

use super::{
    KubeletConfigController,
    call::{Generate, Outcome, perform},
    memory::{Context, Plan},
};
use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, target_ref},
    pool_traces::change,
};
use crate::testing::{NOW, answer};

const ROLE: &str = "machineconfiguration.openshift.io/role";
const GENERATED: &str = "99-worker-generated-kubelet";

fn cluster_object<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(name: &str) -> ObjectBuilder<K> {
    object(name).with("/metadata/namespace", Value::Null)
}

fn base(max_pods: i32) -> MachineConfig {
    let source = format!("data:,%7b%22maxPods%22:{max_pods},%22systemCgroups%22:%22/system.slice%22%7d");
    let files = json!([{"path": "/etc/kubernetes/kubelet.conf", "contents": {"source": source}}]);
    let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": files}});
    cluster_object("01-worker-kubelet").label(ROLE, "worker").with("/spec", json!({"config": config})).build()
}

#[allow(clippy::needless_pass_by_value)] // a test gives its values away
fn kubelet_config(name: &str, kubelet: Value) -> ObjectBuilder<KubeletConfig> {
    let selector = json!({"matchLabels": {"kubelet": "tuned"}});
    cluster_object(name).with("/spec", json!({"machineConfigPoolSelector": selector, "kubeletConfig": kubelet}))
}

/// What is in the cluster.
struct Fixture {
    objects: Vec<KubeletConfig>,
    pools: Vec<MachineConfigPool>,
    configs: Vec<MachineConfig>,
    unreadable: Option<Unreadable>,
    lease: Option<Lease>,
    version: u64,
    traces: bool,
    outcomes: RefCell<Outcomes<Generate>>,
    /// How often a base was rendered.
    renders: Cell<u32>,
}

impl Fixture {
    fn new(object: KubeletConfig) -> Self {
        let pool = cluster_object("worker").label("kubelet", "tuned");
        let pool = pool.with("/spec/machineConfigSelector/matchLabels", json!({ROLE: "worker"})).build();
        let (objects, pools, configs) = (vec![object], vec![pool], vec![base(110)]);
        Self {
            objects,
            pools,
            configs,
            unreadable: None,
            lease: None,
            version: 100,
            traces: false,
            outcomes: RefCell::default(),
            renders: Cell::default(),
        }
    }

    fn put(&mut self, mut config: MachineConfig) {
        self.version += 1;
        config.metadata.resource_version = Some(self.version.to_string());
        self.configs.retain(|known| known.metadata.name != config.metadata.name);
        self.configs.push(config);
    }

    fn stores(&self) -> Stores {
        let stores = Stores::default();
        let objects = Arc::new(Store::<KubeletConfig>::new(TARGET, ""));
        self.objects.iter().cloned().for_each(|it| drop(objects.apply(it)));
        let pools = Arc::new(Store::<MachineConfigPool>::new(TARGET, ""));
        self.pools.iter().cloned().for_each(|it| drop(pools.apply(it)));
        let configs = Arc::new(Store::<CachedConfig>::new(TARGET, ""));
        self.configs.iter().cloned().for_each(|it| drop(configs.apply(it.into())));
        self.unreadable.iter().for_each(|it| assert!(configs.add_unreadable(it.clone())));
        let leases = Arc::new(Store::<Lease>::new(TARGET, "openshift-machine-config-operator"));
        let lease = ObjectRef::new(TARGET, "openshift-machine-config-operator", "machine-config-controller");
        stores.add_scoped(&ScopedWatch::named::<Lease>(&lease, ""), leases.clone());
        answer(&leases, self.lease.clone());
        stores.add(objects);
        stores.add(pools);
        stores.add(configs);
        stores
    }

    /// The plan of an object once the contents that it needs are made.
    fn plan(&self, name: &str) -> Plan {
        let controller = KubeletConfigController { extensions: None };
        let snapshot = controller.snapshot(&self.stores(), &target_ref(name)).unwrap();
        let now: Timestamp = NOW.parse().unwrap();
        for _ in 0..4 {
            let outcomes = self.outcomes.borrow();
            let context = Context { traces: self.traces, ..Context::new(now, &outcomes) };
            let plan = KubeletConfigController::plan(&context, &snapshot);
            drop(outcomes);
            let calls: Vec<_> = plan
                .steps()
                .filter_map(|planned| match &planned.step {
                    Step::Call(call) => Some(call.clone()),
                    _ => None,
                })
                .collect();
            if calls.is_empty() {
                return plan;
            }
            // Long enough ago for another one.
            let ended = now - SignedDuration::from_secs(2);
            for call in calls {
                let mut outcomes = self.outcomes.borrow_mut();
                assert!(outcomes.begin(&call, ended));
                let outcome = perform(call.clone()).now_or_never().unwrap();
                self.renders.set(self.renders.get() + u32::from(!matches!(outcome, Outcome::Present(_))));
                outcomes.finish(&call, ended, outcome);
            }
        }
        panic!("it is made again and again");
    }

    /// Does what the plan of an object says, as an API server would.
    fn act(&mut self, of: &str) -> Vec<String> {
        let plan = self.plan(of);
        let mut done = vec![];
        for planned in plan.steps() {
            let key = planned.step.key().unwrap().name.to_string();
            match &planned.step {
                Step::Create { body, .. } => {
                    done.push(format!("create {key}"));
                    let mut object = body.clone();
                    object["metadata"]["uid"] = format!("uid-{key}").into();
                    self.put(serde_json::from_str(&object.to_string()).unwrap());
                }
                Step::Apply(apply) if apply.subresource == STATUS => {
                    done.push("status".to_owned());
                    let object = self.objects.iter_mut().find(|it| it.metadata.name.as_deref() == Some(of)).unwrap();
                    object.status = Some(serde_json::from_value(apply.fragment()["status"].clone()).unwrap());
                }
                Step::Edit { patch, .. } if self.configs.iter().any(|it| it.metadata.name.as_ref() == Some(&key)) => {
                    done.push(format!("edit {key}"));
                    let mut object = serde_json::to_value(self.config(&key)).unwrap();
                    nodewright_testing::json_patch(&mut object, patch).unwrap();
                    self.put(serde_json::from_str(&object.to_string()).unwrap());
                }
                Step::Edit { patch, .. } => {
                    done.push(format!("edit {key}"));
                    let object = self.objects.iter_mut().find(|it| it.metadata.name.as_deref() == Some(of)).unwrap();
                    let mut value = serde_json::to_value(&*object).unwrap();
                    nodewright_testing::json_patch(&mut value, patch).unwrap();
                    *object = serde_json::from_str(&value.to_string()).unwrap();
                }
                Step::Delete(target) => {
                    assert!(target.version().is_some(), "by UID and version");
                    done.push(format!("delete {key}"));
                    self.configs.retain(|config| config.metadata.name.as_deref() != Some(&key));
                }
                step => panic!("{step:?}"),
            }
        }
        done
    }

    fn config(&self, name: &str) -> &MachineConfig {
        self.configs.iter().find(|config| config.metadata.name.as_deref() == Some(name)).unwrap()
    }

    /// The generated file.
    fn kubelet(&self) -> String {
        let config = self.config(GENERATED).spec.config.as_ref().unwrap().text().to_owned();
        let digits = config.split("base64,").nth(1).unwrap().split('"').next().unwrap();
        String::from_utf8(base64::prelude::BASE64_STANDARD.decode(digits).unwrap()).unwrap()
    }

    /// Whether it is accepted, and the message.
    fn accepted(&self, of: &str) -> (bool, String) {
        let object = self.objects.iter().find(|it| it.metadata.name.as_deref() == Some(of)).unwrap();
        let status = object.status.as_ref().unwrap();
        assert_eq!(Some(status.observed_generation), object.metadata.generation);
        let of = |kind: &str| status.conditions.iter().find(|it| it.condition_type == kind).unwrap();
        assert_eq!(of("Success").status, of("Accepted").status);
        assert_ne!(of("Failure").status, of("Accepted").status);
        (of("Accepted").status.as_str() == "True", of("Accepted").message.clone())
    }

    fn expect_refused(&mut self, of: &str, text: &str) {
        let done = self.act(of);
        assert_eq!(done, ["status"]);
        let (is_accepted, message) = self.accepted(of);
        assert!(!is_accepted && message.starts_with("Error: ") && message.contains(text), "{message}");
        assert_eq!(self.act(of), Vec::<String>::new(), "it is said once");
    }
}

fn tuned() -> Fixture {
    Fixture::new(kubelet_config("tuned", json!({"maxPods": 250})).build())
}

#[test]
fn a_kubelet_config_makes_a_machine_config_for_each_pool_and_says_so() {
    let mut fixture = tuned();
    assert_eq!(fixture.act("tuned"), [format!("create {GENERATED}"), "status".to_owned()]);
    let made = fixture.config(GENERATED);
    assert_eq!(made.metadata.labels.as_ref().unwrap()[ROLE], "worker");
    assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].uid, "uid-tuned");
    assert!(made.is_generated());
    assert!(fixture.kubelet().contains("maxPods: 250") && fixture.kubelet().contains("/system.slice"));
    assert_eq!(fixture.accepted("tuned"), (true, "Success".to_owned()));
    assert_eq!(fixture.act("tuned"), Vec::<String>::new());
    let renders = fixture.renders.get();
    fixture.outcomes = RefCell::default();
    assert_eq!(fixture.act("tuned"), Vec::<String>::new());
    assert_eq!(fixture.renders.get(), renders, "another process does not even render");
}

#[test]
fn another_base_and_other_fields_change_it_and_an_edit_is_undone() {
    let mut fixture = tuned();
    fixture.act("tuned");
    let before = fixture.config(GENERATED).spec.clone();
    fixture.put(base(110));
    assert_eq!(fixture.act("tuned"), Vec::<String>::new(), "the base is the same");
    let mut edited = fixture.config(GENERATED).clone();
    edited.spec.kernel_arguments.push("by-hand".to_owned());
    edited.spec.fips = true;
    edited.metadata.labels.as_mut().unwrap().insert(ROLE.to_owned(), "other".to_owned());
    fixture.put(edited);
    assert_eq!(fixture.act("tuned"), [format!("edit {GENERATED}")]);
    assert_eq!(fixture.config(GENERATED).spec, before);
    assert_eq!(fixture.config(GENERATED).metadata.labels.as_ref().unwrap()[ROLE], "worker");
    fixture.objects[0].spec.kubelet_config = Some(nodewright_api::RawJson::from_text(r#"{"maxPods": 300}"#).unwrap());
    fixture.objects[0].metadata.generation = Some(2);
    assert_eq!(fixture.act("tuned"), [format!("edit {GENERATED}"), "status".to_owned()]);
    assert!(fixture.kubelet().contains("maxPods: 300"));
}

/// Done by this release or by another one, what is generated of the same inputs stays.
#[test]
fn the_same_inputs_keep_what_an_earlier_release_has_generated() {
    let mut fixture = tuned();
    fixture.act("tuned");
    let mut former = fixture.config(GENERATED).clone();
    former.spec.kernel_arguments.push("of-an-earlier-release".to_owned());
    let content = nodewright_render::inputs::content(&former.spec);
    former.metadata.annotations.as_mut().unwrap().insert("nodewright.dev/generated-content".to_owned(), content);
    fixture.put(former);
    assert_eq!(fixture.act("tuned"), Vec::<String>::new());
}

#[test]
fn the_oldest_has_the_pool_and_the_other_names_it() {
    let mut fixture = tuned();
    fixture.objects.push(kubelet_config("later", json!({"maxPods": 10})).created("2026-06-01T11:30:00Z").build());
    fixture.act("tuned");
    fixture.expect_refused("later", "pool worker: KubeletConfig tuned has the pool");
    // Once that is gone, with what it made, it is the other one's.
    fixture.objects.remove(0);
    fixture.expect_refused(
        "later",
        "was generated for another KubeletConfig, and will be generated again once it has gone",
    );
    fixture.configs.retain(|config| config.metadata.name.as_deref() != Some(GENERATED));
    assert_eq!(fixture.act("later"), [format!("create {GENERATED}"), "status".to_owned()]);
    assert!(fixture.accepted("later").0 && fixture.kubelet().contains("maxPods: 10"));
}

#[test]
fn a_machine_config_that_would_replace_the_file_is_named() {
    let mut fixture = tuned();
    fixture.pools[0] = cluster_object("gpu")
        .label("kubelet", "tuned")
        .with("/spec/machineConfigSelector/matchExpressions", json!([{"key": ROLE, "operator": "Exists"}]))
        .build();
    let of = |role: &str, name: &str| {
        let mut config = base(77);
        config.metadata.name = Some(name.to_owned());
        config.metadata.labels = Some([(ROLE.to_owned(), role.to_owned())].into());
        config
    };
    fixture.put(of("infra", "99-infra-generated-kubelet"));
    fixture.expect_refused(
        "tuned",
        "MachineConfig 99-infra-generated-kubelet sets it, and comes after 99-gpu-generated-kubelet",
    );
    fixture.put(of("worker", "99-infra-generated-kubelet"));
    assert_eq!(fixture.act("tuned")[0], "create 99-gpu-generated-kubelet", "those of role worker come first");
    fixture.configs.retain(|config| config.metadata.name.as_deref() != Some("99-gpu-generated-kubelet"));
    fixture.put(of("infra", "98-infra"));
    assert_eq!(fixture.act("tuned")[0], "create 99-gpu-generated-kubelet");
}

#[test]
fn a_pool_that_would_not_select_what_is_generated_is_named() {
    let mut fixture = Fixture::new(kubelet_config("tuned", json!({"maxPods": 250})).build());
    let gpu = cluster_object("gpu").label("kubelet", "tuned");
    fixture.pools = vec![gpu.with("/spec/machineConfigSelector/matchLabels", json!({ROLE: "worker"})).build()];
    fixture.expect_refused("tuned", "pool gpu: spec.machineConfigSelector: Invalid value: must include the role gpu");
}

#[test]
fn what_cannot_be_generated_is_said_and_leaves_what_there_is() {
    let mut fixture = tuned();
    fixture.act("tuned");
    let before = fixture.config(GENERATED).spec.clone();
    fixture.objects[0].spec.log_level = Some(11);
    fixture.expect_refused("tuned", "pool worker: spec.logLevel: Invalid value: 11");
    fixture.objects[0].spec.log_level = None;
    fixture.act("tuned");
    fixture.configs.retain(|config| config.metadata.name.as_deref() == Some(GENERATED));
    fixture.expect_refused("tuned", "[/etc/kubernetes/kubelet.conf]: Required value");
    fixture.unreadable = Some(Unreadable::named("", "01-worker-kubelet", "u"));
    fixture.expect_refused("tuned", "MachineConfig 01-worker-kubelet exists and cannot be read");
    assert_eq!(fixture.config(GENERATED).spec, before);
    fixture.unreadable = None;
    fixture.put(base(110));
    assert_eq!(fixture.act("tuned"), ["status"]);
    assert!(fixture.accepted("tuned").0);
}

#[test]
fn a_selector_that_matches_no_pool_or_is_empty_is_said() {
    let mut fixture = tuned();
    fixture.pools[0].metadata.labels = None;
    fixture.expect_refused(
        "tuned",
        "spec.machineConfigPoolSelector: Invalid value: no MachineConfigPool has these labels",
    );
    fixture.objects[0].spec.machine_config_pool_selector = None;
    fixture.expect_refused("tuned", "spec.machineConfigPoolSelector: Required value");
}

#[test]
fn what_was_made_for_a_pool_that_is_no_longer_selected_goes() {
    let mut fixture = tuned();
    fixture.act("tuned");
    fixture.pools[0].metadata.labels = None;
    assert_eq!(fixture.act("tuned"), [format!("delete {GENERATED}"), "status".to_owned()]);
}

#[test]
fn a_machine_config_of_the_name_that_is_another_s_is_left_alone() {
    let mut fixture = tuned();
    fixture.put(cluster_object(GENERATED).with("/spec", json!({"kernelArguments": ["theirs"]})).build());
    fixture.expect_refused("tuned", "exists, and the KubeletConfig does not control it: delete it");
    assert_eq!(fixture.config(GENERATED).spec.kernel_arguments, ["theirs"]);
}

#[test]
fn what_machine_config_operator_has_left_is_taken_over() {
    let tuned = kubelet_config("tuned", json!({"maxPods": 250})).finalizer(GENERATED).finalizer("example.com/kept");
    let mut fixture = Fixture::new(tuned.build());
    let theirs = cluster_object(GENERATED).owned_by(&fixture.objects[0]).label(ROLE, "worker");
    fixture.put(theirs.with("/spec", json!({"kernelArguments": ["theirs"]})).build());
    assert_eq!(fixture.act("tuned"), ["edit tuned"]);
    assert_eq!(fixture.objects[0].metadata.finalizers.as_ref().unwrap(), &["example.com/kept"]);
    assert_eq!(fixture.act("tuned"), [format!("edit {GENERATED}"), "status".to_owned()]);
    assert!(fixture.kubelet().contains("maxPods: 250"));
    // While it runs, all of that is its own.
    let spec = json!({"holderIdentity": "pod", "leaseDurationSeconds": 137});
    let lease = object::<Lease>("machine-config-controller");
    let lease = lease.with("/metadata/namespace", "openshift-machine-config-operator");
    fixture.lease = Some(lease.with("/spec", spec).build());
    fixture.put(base(10));
    assert_eq!(fixture.act("tuned"), Vec::<String>::new());
}

#[test]
fn what_has_become_of_a_request_is_in_its_trace() {
    let mut fixture = tuned();
    fixture.traces = true;
    let request = change(&fixture.objects[0]);
    let plan = fixture.plan("tuned");
    assert_eq!((plan.traceparent, plan.extends_trace), (Some(request), true), "the MachineConfig belongs to it");
    let gist = |plan: &Plan| plan.spans.iter().map(|span| (span.context, span.error.clone())).collect::<Vec<_>>();
    assert_eq!(gist(&plan), [(request, None)]);
    fixture.act("tuned");
    let rest = fixture.plan("tuned");
    assert_eq!((rest.extends_trace, rest.spans.len()), (false, 0));
    fixture.objects[0].spec.log_level = Some(11);
    fixture.objects[0].metadata.generation = Some(2);
    let refused = gist(&fixture.plan("tuned"));
    assert_eq!(refused[0].0, change(&fixture.objects[0]));
    assert!(refused[0].1.as_ref().is_some_and(|error| error.contains("spec.logLevel")), "{refused:?}");
    fixture.traces = false;
    assert_eq!((gist(&fixture.plan("tuned")).len(), fixture.plan("tuned").traceparent), (0, None));
}
