use std::{fs, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use nodewright_api::machine_config::{ControllerConfig, MachineConfig, MachineConfigPool};
use nodewright_runtime::{
    apply_configuration::STATUS,
    cache::{Store, Stores, Unreadable},
    controller::Controller,
    effect::Outcomes,
    object::ObjectRef,
    plan::{Failure, FailureClass, Step, StepVerb},
    scoped_watch::ScopedWatch,
};
use nodewright_testing::{ObjectBuilder, object};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    ControllerConfigController,
    call::{Generate, Generator},
    memory::{Context, Plan},
    pull_secret::{self, PullSecret},
};
use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, target_ref},
};
use crate::testing::{NOW, answer};

const ROLE: &str = "machineconfiguration.openshift.io/role";
const NAME: &str = "machine-config-controller";
const A: &str = "path: /etc/a\ncontents: {inline: '{{.clusterDNSIP}}'}\n";

fn cluster_object<K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned>(name: &str) -> ObjectBuilder<K> {
    object(name).with("/metadata/namespace", Value::Null)
}

fn controller_config(dns: &str) -> ControllerConfig {
    cluster_object(NAME).with("/spec/clusterDNSIP", dns).build()
}

/// What is in the cluster, and the folder.
struct Fixture {
    object: ControllerConfig,
    configs: Vec<MachineConfig>,
    pools: Vec<MachineConfigPool>,
    unreadable: Option<Unreadable>,
    lease: Option<Lease>,
    secret: Option<Secret>,
    version: u64,
    now: Timestamp,
    templates: Option<TempDir>,
    generator: Generator,
    outcomes: Outcomes<Generate>,
    /// What the last plan failed with.
    failure: Option<Failure>,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self {
            object: controller_config("10.0.0.10"),
            configs: vec![],
            pools: vec![],
            unreadable: None,
            lease: None,
            secret: None,
            version: 100,
            now: NOW.parse().unwrap(),
            templates: Some(tempfile::tempdir().unwrap()),
            generator: Generator::default(),
            outcomes: Outcomes::default(),
            failure: None,
        };
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.templates.as_ref().unwrap().path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn put(&mut self, mut config: MachineConfig) {
        self.version += 1;
        config.metadata.resource_version = Some(self.version.to_string());
        self.configs.retain(|known| known.metadata.name != config.metadata.name);
        self.configs.push(config);
    }

    fn config(&self, name: &str) -> &MachineConfig {
        self.configs.iter().find(|config| config.metadata.name.as_deref() == Some(name)).unwrap()
    }

    fn stores(&self) -> Stores {
        let stores = Stores::default();
        let objects = Arc::new(Store::<ControllerConfig>::new(TARGET, ""));
        drop(objects.apply(self.object.clone()));
        let pools = Arc::new(Store::<MachineConfigPool>::new(TARGET, ""));
        self.pools.iter().cloned().for_each(|it| drop(pools.apply(it)));
        let configs = Arc::new(Store::<CachedConfig>::new(TARGET, ""));
        self.configs.iter().cloned().for_each(|it| drop(configs.apply(it.into())));
        self.unreadable.iter().for_each(|it| assert!(configs.add_unreadable(it.clone())));
        let leases = Arc::new(Store::<Lease>::new(TARGET, "openshift-machine-config-operator"));
        let lease = ObjectRef::new(TARGET, "openshift-machine-config-operator", NAME);
        stores.add_scoped(&ScopedWatch::named::<Lease>(&lease, ""), leases.clone());
        answer(&leases, self.lease.clone());
        if let Some(watch) = pull_secret::watch(&self.object.spec) {
            let secrets = Arc::new(Store::<Secret>::new(TARGET, "openshift-config"));
            stores.add_scoped(&watch, secrets.clone());
            answer(&secrets, self.secret.clone());
        }
        stores.add(objects);
        stores.add(pools);
        stores.add(configs);
        stores
    }

    fn plan(&self) -> Plan {
        let templates = self.templates.as_ref().map(|folder| Arc::from(folder.path()));
        let controller = ControllerConfigController { templates };
        let name = self.object.metadata.name.as_deref().unwrap();
        let snapshot = controller.snapshot(&self.stores(), &target_ref(name)).unwrap();
        let context = Context { failure: self.failure.as_ref(), ..Context::new(self.now, &self.outcomes) };
        ControllerConfigController::plan(&context, &snapshot)
    }

    /// Plans and acts until nothing is left to do, as an API server would; says what was done.
    fn act(&mut self) -> Vec<String> {
        let mut done = vec![];
        for _ in 0..5 {
            let plan = self.plan();
            let before = done.len();
            for planned in plan.steps() {
                done.extend(self.step(&planned.step));
            }
            if plan.steps().next().is_none() {
                break;
            }
            assert!(before < 10, "it goes on for ever: {done:?}");
        }
        done
    }

    fn step(&mut self, step: &Step<Generate>) -> Option<String> {
        let key = step.key().map(|key| key.name.to_string()).unwrap_or_default();
        match step {
            Step::Call(call) => {
                assert!(self.outcomes.begin(call, self.now));
                self.outcomes.finish(call, self.now, self.generator.generate(call));
                return None;
            }
            Step::Create { body, .. } => {
                let mut object = body.clone();
                object["metadata"]["uid"] = format!("uid-{key}").into();
                self.put(serde_json::from_str(&object.to_string()).unwrap());
                return Some(format!("create {key}"));
            }
            Step::Apply(apply) if apply.subresource == STATUS => {
                self.object.status = Some(serde_json::from_value(apply.fragment()["status"].clone()).unwrap());
                return Some("status".to_owned());
            }
            Step::Edit { patch, .. } if key == NAME => self.object = patched(&self.object, patch),
            Step::Edit { patch, .. } => {
                let changed = patched(self.config(&key), patch);
                self.put(changed);
            }
            Step::Delete(target) => {
                assert!(target.version().is_some(), "by UID and version");
                self.configs.retain(|config| config.metadata.name.as_deref() != Some(&key));
                return Some(format!("delete {key}"));
            }
            step => panic!("{step:?}"),
        }
        Some(format!("edit {key}"))
    }

    /// Looks into the folder again.
    fn later(&mut self) -> Vec<String> {
        self.now = self.now.checked_add(SignedDuration::from_secs(11)).unwrap();
        self.act()
    }

    /// Which condition is true, and its message.
    fn state(&self) -> (String, String) {
        let status = self.object.status.as_ref().unwrap();
        assert_eq!(Some(status.observed_generation), self.object.metadata.generation);
        let holds: Vec<_> = status.conditions.iter().filter(|it| it.status.as_str() == "True").collect();
        assert_eq!((status.conditions.len(), holds.len()), (3, 1), "{:?}", status.conditions);
        (holds[0].condition_type.replace("TemplateController", ""), holds[0].message.clone())
    }

    fn expect_failing(&self, text: &str) {
        let (state, message) = self.state();
        assert!(state == "Failing" && message.contains(text), "{state}: {message}");
    }
}

fn patched<K: serde::Serialize + serde::de::DeserializeOwned>(object: &K, patch: &json_patch::Patch) -> K {
    let mut value = serde_json::to_value(object).unwrap();
    nodewright_testing::json_patch(&mut value, patch).unwrap();
    serde_json::from_str(&value.to_string()).unwrap()
}

fn made() -> Fixture {
    let mut fixture = Fixture::new(&[("worker/00-a/_base/files/a.yaml", A), ("worker/01-b/_base/files/a.yaml", A)]);
    let expected = ["edit machine-config-controller", "create 00-a", "create 01-b", "status"];
    assert_eq!(fixture.act(), expected);
    fixture
}

fn pool() -> MachineConfigPool {
    cluster_object("worker").with("/spec/machineConfigSelector/matchLabels", json!({ROLE: "worker"})).build()
}

#[test]
fn templates_become_machine_configs_that_the_controller_config_owns() {
    let mut fixture = made();
    let config = fixture.config("00-a");
    assert_eq!(config.metadata.labels.as_ref().unwrap()[ROLE], "worker");
    assert_eq!(config.metadata.owner_references.as_ref().unwrap()[0].kind, "ControllerConfig");
    assert!(config.is_generated() && config.spec.config.is_some());
    assert_eq!(fixture.object.metadata.finalizers.as_ref().unwrap(), &["nodewright.dev/generated-machine-configs"]);
    assert_eq!(fixture.state(), ("Completed".to_owned(), String::new()));
    assert_eq!(fixture.later(), Vec::<String>::new());
    assert!(fixture.plan().wake.is_some(), "it looks again");
    // Another process makes nothing again.
    fixture.outcomes = Outcomes::default();
    fixture.generator = Generator::default();
    assert_eq!(fixture.act(), Vec::<String>::new());
}

#[test]
fn other_fields_and_other_templates_change_it_and_an_edit_is_undone() {
    let mut fixture = made();
    let before = fixture.config("00-a").spec.clone();
    let mut edited = fixture.config("00-a").clone();
    edited.spec.fips = true;
    edited.spec.config = Some(nodewright_api::RawJson::from(&json!({"ignition": {"version": "3.5.0"}})));
    edited.metadata.labels = None;
    fixture.put(edited);
    assert_eq!(fixture.act(), ["edit 00-a"]);
    assert_eq!(fixture.config("00-a").spec, before);
    assert_eq!(fixture.config("00-a").metadata.labels.as_ref().unwrap()[ROLE], "worker");
    let mut relabelled = fixture.config("00-a").clone();
    relabelled.metadata.labels.as_mut().unwrap().insert(ROLE.to_owned(), "other".to_owned());
    fixture.put(relabelled);
    assert_eq!(fixture.act(), ["edit 00-a"], "its role alone");
    fixture.configs.retain(|config| config.metadata.name.as_deref() != Some("01-b"));
    assert_eq!(fixture.act(), ["create 01-b"]);
    fixture.write("worker/01-b/_base/files/a.yaml", "path: /etc/b");
    assert_eq!(fixture.act(), Vec::<String>::new(), "the folder is not read each time");
    assert_eq!(fixture.later(), ["edit 01-b"]);
    fixture.object.spec.cluster_dns_ip = "10.0.0.11".to_owned();
    fixture.object.metadata.generation = Some(2);
    assert_eq!(fixture.act(), ["edit 00-a", "edit 01-b", "status"]);
    assert_ne!(fixture.config("00-a").spec, before);
}

/// A pool that took a part of them for all would make its nodes run what nobody has written.
#[test]
fn while_several_are_written_the_status_does_not_say_that_the_work_is_done() {
    let mut fixture = made();
    let change = |fixture: &Fixture, file: &str| {
        fixture.write("worker/00-a/_base/files/a.yaml", &format!("path: /etc/{file}"));
        fixture.write("worker/01-b/_base/files/a.yaml", &format!("path: /etc/{file}"));
    };
    change(&fixture, "c");
    assert_eq!(fixture.later(), ["status", "edit 00-a", "edit 01-b", "status"]);
    assert_eq!(fixture.state(), ("Completed".to_owned(), String::new()));
    // The second one is refused.
    change(&fixture, "d");
    fixture.now = fixture.now.checked_add(SignedDuration::from_secs(11)).unwrap();
    let read = fixture.plan();
    read.steps().for_each(|planned| drop(fixture.step(&planned.step)));
    let stages = fixture.plan().stages;
    assert_eq!(stages.len(), 2, "the status is for another plan: {stages:?}");
    stages.iter().take(1).flatten().for_each(|planned| drop(fixture.step(&planned.step)));
    assert_eq!(fixture.state(), ("Running".to_owned(), String::new()));
    let key = target_ref("01-b");
    let refused = Failure::of::<MachineConfig>(StepVerb::Patch, key, FailureClass::Forbidden, "a policy denies it");
    fixture.failure = Some(refused);
    let plan = fixture.plan();
    drop(fixture.step(&plan.stages[0][0].step));
    fixture.expect_failing("failed to patch MachineConfig 01-b: a policy denies it");
    let passing = Failure { class: FailureClass::Conflict, ..fixture.failure.take().unwrap() };
    fixture.failure = Some(passing);
    assert!(fixture.plan().stages[0][0].why != "the status changed", "another writer was faster");
    fixture.failure = None;
    assert_eq!(fixture.act(), ["edit 00-a", "edit 01-b", "status"]);
    assert_eq!(fixture.state(), ("Completed".to_owned(), String::new()));
}

#[test]
fn while_a_folder_hangs_further_calls_fail_at_once() {
    let fixture = made();
    let folder = Arc::from(fixture.templates.as_ref().unwrap().path());
    let pull_secret = PullSecret { version: String::new(), content: Err(String::new()) };
    let call = Generate { folder, object: Arc::new(fixture.object.clone()), pull_secret };
    let generator = Arc::new(Generator::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let turn = generator.hold();
    let hung = runtime.block_on(generator.clone().perform(call.clone()));
    assert!(hung.result.unwrap_err().contains("neither read nor rendered within 30s"));
    drop(turn);
    assert!(runtime.block_on(generator.perform(call)).result.is_ok());
}

/// Done by this release or by another one, what is generated of the same inputs stays.
#[test]
fn the_same_inputs_keep_what_an_earlier_release_has_generated() {
    let mut fixture = made();
    let mut former = fixture.config("00-a").clone();
    former.spec.kernel_arguments.push("of-an-earlier-release".to_owned());
    let content = nodewright_render::inputs::content(&former.spec);
    former.metadata.annotations.as_mut().unwrap().insert("nodewright.dev/generated-content".to_owned(), content);
    fixture.put(former);
    assert_eq!(fixture.later(), Vec::<String>::new());
}

#[test]
fn what_is_wrong_has_file_and_line_and_leaves_what_there_is() {
    let mut fixture = made();
    let before = fixture.configs.clone();
    fixture.write("worker/00-a/_base/files/a.yaml", "path: /etc/a\nmode: {{.none}}\n");
    assert_eq!(fixture.later(), ["status"]);
    fixture.expect_failing("worker/00-a/_base/files/a.yaml:2: there is no field none");
    let folder = fixture.templates.take().unwrap();
    let path = folder.path().to_owned();
    fixture.templates = Some(folder);
    fs::remove_dir_all(path.join("worker")).unwrap();
    assert_eq!(fixture.later(), ["status"]);
    fixture.expect_failing(&format!("--machine-config-templates={}: there is no template", path.display()));
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(fixture.later(), ["status"]);
    fixture.expect_failing(&format!("--machine-config-templates={}: failed to read", path.display()));
    assert_eq!(fixture.later(), Vec::<String>::new(), "it is said once");
    assert_eq!(fixture.configs, before);
    fixture.write("worker/00-a/_base/files/a.yaml", A);
    assert_eq!(fixture.later(), ["delete 01-b", "status"], "one of several is intended");
    assert_eq!(fixture.state().0, "Completed");
}

/// Where no webhook has reviewed it. Nothing of it counts, whether there are templates or not.
#[test]
fn what_a_webhook_would_refuse_is_reported_in_the_status_and_changes_nothing() {
    let mut fixture = made();
    let before = fixture.configs.clone();
    let bad = [
        (json!({"clusterDNSIP": "10.0.0"}), r#"spec.clusterDNSIP: Invalid value: "10.0.0": must be an IP address"#),
        (json!({"ipFamilies": "IPv5"}), r#"spec.ipFamilies: Unsupported value: "IPv5""#),
        (json!({"rootCAData": "%"}), "spec.rootCAData: Invalid value"),
        (json!({"internalRegistryPullSecret": "the secret"}), "spec.internalRegistryPullSecret: Invalid value"),
        (json!({"imageRegistryBundleData": [{"file": "../a", "data": ""}]}), "spec.imageRegistryBundleData[0].file"),
    ];
    for (generation, (spec, text)) in (2..).zip(bad) {
        fixture.object.spec = serde_json::from_str(&spec.to_string()).unwrap();
        fixture.object.metadata.generation = Some(generation);
        assert_eq!(fixture.later(), ["status"], "{text}");
        fixture.expect_failing(text);
        assert!(!fixture.state().1.contains("the secret"), "a pull secret is shown");
        assert_eq!(fixture.later(), Vec::<String>::new(), "it is said once");
    }
    assert_eq!(fixture.configs, before);
    fixture.templates = None;
    assert_eq!(fixture.act(), Vec::<String>::new(), "it is wrong without templates as well");
    fixture.object.spec = controller_config("10.0.0.10").spec;
    fixture.object.metadata.generation = Some(9);
    assert_eq!(fixture.act(), ["status"]);
    assert_eq!(fixture.state().0, "Completed");
}

#[test]
fn without_templates_nothing_is_made_and_nothing_goes() {
    let mut fixture = made();
    fixture.templates = None;
    assert_eq!(fixture.act(), ["status"]);
    assert_eq!(fixture.configs.len(), 2);
    let (state, message) = fixture.state();
    assert!(state == "Completed" && message.contains("--machine-config-templates is not set"), "{message}");
    fixture.object = cluster_object("another").with("/spec", json!({})).build();
    assert_eq!(fixture.act(), Vec::<String>::new(), "only one counts");
}

#[test]
fn a_machine_config_of_the_name_that_is_another_s_is_left_alone() {
    let mut fixture = Fixture::new(&[("worker/00-a/_base/files/a.yaml", A), ("worker/01-b/_base/files/a.yaml", A)]);
    let theirs: MachineConfig = cluster_object("00-a").with("/spec", json!({"kernelArguments": ["theirs"]})).build();
    fixture.put(theirs.clone());
    assert_eq!(fixture.act(), ["edit machine-config-controller", "status", "create 01-b"], "the other one is made");
    fixture.expect_failing("MachineConfig 00-a exists, and the ControllerConfig does not control it: delete it");
    assert_eq!(fixture.config("00-a").spec, theirs.spec);
    // That of a ControllerConfig that was deleted and created again goes by itself.
    let mut former = fixture.config("01-b").clone();
    former.metadata.owner_references.as_mut().unwrap()[0].uid = "former".to_owned();
    former.metadata.name = Some("00-a".to_owned());
    fixture.put(former);
    assert_eq!(fixture.act(), ["status"]);
    fixture.expect_failing(
        "MachineConfig 00-a was generated for another ControllerConfig, and will be generated again once",
    );
    fixture.configs.clear();
    fixture.unreadable = Some(Unreadable::named("", "00-a", "u"));
    assert_eq!(fixture.act(), ["status", "create 01-b"]);
    fixture.expect_failing("MachineConfig 00-a exists and cannot be read");
    fixture.unreadable = None;
    assert_eq!(fixture.act(), ["create 00-a", "status"]);
}

#[test]
fn it_stays_while_a_pool_selects_what_it_has_made() {
    let mut fixture = made();
    fixture.pools.push(pool());
    fixture.object.metadata.deletion_timestamp = Some(serde_json::from_value(NOW.into()).unwrap());
    fixture.object.metadata.generation = Some(2);
    assert_eq!(fixture.act(), ["status"]);
    fixture
        .expect_failing("it is being deleted, and stays because MachineConfigPool worker selects MachineConfig 00-a");
    // Nothing takes a deletion back.
    fixture.expect_failing(
        "save its spec, remove the finalizer nodewright.dev/generated-machine-configs, and create it again",
    );
    // What would be generated now is not.
    fixture.write("worker/00-a/_base/files/a.yaml", "path: /etc/b");
    assert_eq!(fixture.later(), Vec::<String>::new());
    // Nor does one go that cannot be read, and that the pool may select.
    fixture.configs.clear();
    fixture.unreadable = Some(Unreadable::named("", "00-a", "u"));
    assert_eq!(fixture.later(), ["status"]);
    fixture.expect_failing("MachineConfigPool worker may select what cannot be read: MachineConfig 00-a");
    fixture.unreadable = None;
    fixture.pools.clear();
    let finalizers = |fixture: &Fixture| fixture.object.metadata.finalizers.clone().unwrap_or_default();
    assert_eq!(finalizers(&fixture).len(), 1);
    fixture.step_all();
    assert!(finalizers(&fixture).is_empty());
}

impl Fixture {
    /// Does what one plan says.
    fn step_all(&mut self) {
        let plan = self.plan();
        for planned in plan.steps() {
            self.step(&planned.step);
        }
    }
}

#[test]
fn an_outcome_of_another_generation_counts_for_nothing() {
    let mut fixture = Fixture::new(&[("worker/00-a/_base/files/a.yaml", A)]);
    let call = fixture.plan().steps().find_map(|it| match &it.step {
        Step::Call(call) => Some(call.clone()),
        _ => None,
    });
    let call = call.unwrap();
    assert!(fixture.outcomes.begin(&call, fixture.now));
    assert!(fixture.plan().steps().next().is_none(), "it is asked once");
    fixture.object.metadata.generation = Some(2);
    fixture.outcomes.finish(&call, fixture.now, fixture.generator.generate(&call));
    let plan = fixture.plan();
    let steps: Vec<_> = plan.steps().map(|it| matches!(it.step, Step::Call(_))).collect();
    assert_eq!(steps, [true], "asks again, and writes nothing");
}

/// In base64 `{"auths": {}}`, and `{}`.
fn secret(content: &str) -> Secret {
    let secret = object::<Secret>("pull-secret").with("/metadata/namespace", "openshift-config");
    secret.with("/type", "kubernetes.io/dockerconfigjson").with("/data/.dockerconfigjson", content).build()
}

#[test]
fn a_template_prints_the_pull_secret_and_only_that_one_needs_it() {
    let printing = "path: /etc/b\ncontents:\n  inline: |\n    {{.PullSecret}}\n";
    let mut fixture =
        Fixture::new(&[("worker/00-a/_base/files/a.yaml", A), ("worker/01-b/_base/files/a.yaml", printing)]);
    assert_eq!(fixture.act(), ["status"]);
    fixture.expect_failing("PullSecret: spec.pullSecret names no Secret");
    let reference = json!({"namespace": "openshift-config", "name": "pull-secret"});
    fixture.object.spec.pull_secret = serde_json::from_value(reference).unwrap();
    fixture.object.metadata.generation = Some(2);
    assert_eq!(fixture.act(), ["status"]);
    fixture
        .expect_failing("there is no Secret openshift-config/pull-secret of the type kubernetes.io/dockerconfigjson");
    fixture.secret = Some(secret("aHVzaA=="));
    assert_eq!(fixture.act(), ["status"], "it is read at once");
    fixture.expect_failing(".dockerconfigjson is no JSON");
    assert!(!fixture.state().1.contains("hush"), "the secret is shown");
    let mut other = secret("eyJhdXRocyI6IHt9fQ==");
    other.metadata.resource_version = Some("2".to_owned());
    fixture.secret = Some(other);
    assert_eq!(fixture.act(), ["edit machine-config-controller", "create 00-a", "create 01-b", "status"]);
    let config = fixture.config("01-b").spec.config.clone().unwrap();
    assert!(config.text().contains("data:,%7B%22auths%22%3A%7B%7D%7D%0A"), "{}", config.text());
    let mut other = secret("e30=");
    other.metadata.resource_version = Some("3".to_owned());
    fixture.secret = Some(other);
    assert_eq!(fixture.act(), ["edit 01-b"], "what does not print it stays");
    // It is gone: what there is stays.
    fixture.secret = None;
    assert_eq!(fixture.act(), ["status"]);
    fixture.expect_failing("there is no Secret openshift-config/pull-secret");
    fixture.templates = None;
    assert_eq!(fixture.plan().scoped_watches.len(), 1, "without templates it is not watched");
}

#[test]
fn what_is_doubtful_is_in_the_status() {
    let text = "path: /etc/a\nmode: 0644\nmode: 0644\n";
    let mut fixture =
        Fixture::new(&[("worker/00-a/_base/files/a.yaml", text), ("worker/00-a/OWNERS", "approvers: [a]\n")]);
    assert_eq!(fixture.act(), ["edit machine-config-controller", "create 00-a", "status"]);
    let (state, message) = fixture.state();
    assert_eq!(state, "Completed");
    assert!(message.contains(": skipped, because they are no templates: worker/00-a/OWNERS; "), "{message}");
    assert!(message.contains("worker/00-a/_base/files/a.yaml: renders to an object that has the key mode twice, with"));
}

#[test]
fn what_is_too_large_is_not_sent() {
    let part = |index: usize| {
        let text = "x".repeat(200 << 10);
        (format!("worker/00-a/_base/files/{index}.yaml"), format!("path: /etc/{index}\ncontents: {{inline: {text}}}\n"))
    };
    let files: Vec<_> = (0..8).map(part).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let mut fixture = Fixture::new(&files);
    assert_eq!(fixture.act(), ["edit machine-config-controller", "status"]);
    fixture.expect_failing("and an API server takes at most 1556480");
}

#[test]
fn while_machine_config_operator_runs_nothing_is_done() {
    let mut fixture = Fixture::new(&[("worker/00-a/_base/files/a.yaml", A)]);
    let lease = object::<Lease>(NAME).with("/metadata/namespace", "openshift-machine-config-operator");
    fixture.lease = Some(lease.with("/spec", json!({"holderIdentity": "pod", "leaseDurationSeconds": 137})).build());
    assert_eq!(fixture.act(), Vec::<String>::new());
}
