use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use nodewright_api::{Machine, MachineClass, RawJson};
use nodewright_driver::{Class, Driver, Instance, ListedVm, MachineRequest, Result as DriverResult};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    controller::Controller,
    effect::{Never, Outcomes},
    object::{ObjectRef, name},
    plan::{Context, Plan, Step},
};
use serde_json::{Value, json};

use super::{
    MachineClassController,
    call::{Outcome, Refused, Validate, Validator},
    register_metrics,
    snapshot::Snapshot,
};
use crate::machine_class_secret::MachineClassSecretController;
use crate::shared::{
    CONTROL,
    class_secrets::SecretMetadata,
    cloud_manager::CloudNodeMode,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, MACHINES_BY_CLASS},
};
use crate::testing::{NOW, Uncalled, answer, machine, secret_store};

const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";
const IDENTITY: &str = "nodewright.dev/identity";
const RECORD: &str = r#"{"provider":"simulated","providerSpec.cluster":null}"#;
const SECRET_FINALIZER: &str = "machine.sapcloud.io/machine-controller";

fn class(name: &str, change: impl Fn(&mut Value)) -> MachineClass {
    let mut class = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "5",
            "generation": 3},
        "providerSpec": {"size": "small"}, "provider": "simulated",
        "secretRef": {"name": "user-data"}, "credentialsSecretRef": {"name": "cloud", "namespace": "default"}
    });
    change(&mut class);
    let metadata = &mut class["metadata"];
    if metadata["annotations"].is_null()
        && metadata["finalizers"].as_array().is_some_and(|all| all.contains(&FINALIZER.into()))
    {
        metadata["annotations"] = json!({IDENTITY: RECORD});
    }
    serde_json::from_value(class).unwrap()
}

fn secret(name: &str, metadata: &Value) -> SecretMetadata {
    let mut secret = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "6"},
        "data": {"password": "c2VjcmV0"}});
    for (key, value) in metadata.as_object().unwrap() {
        secret["metadata"][key] = value.clone();
    }
    serde_json::from_value(secret).unwrap()
}

/// The Secret with this metadata, as a scoped watch shows it.
fn whole(secret: &SecretMetadata) -> Secret {
    let data = [("userData".to_owned(), ByteString::default())].into();
    Secret { metadata: secret.metadata.clone(), data: Some(data), ..Secret::default() }
}

/// A provider that is never called, and whose classes need a size. It is silent about those with a field `unevaluated`.
struct Sized;

impl Driver for Sized {
    fn name(&self) -> &'static str {
        "simulated"
    }
    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        let spec = provider_spec.parse::<Value>().unwrap();
        let has_size = spec.get("size").is_some();
        let faults = if has_size { vec![] } else { vec![("size".to_owned(), "Required value".to_owned())] };
        ready(Some(faults).filter(|_| spec.get("unevaluated").is_none())).boxed()
    }
    fn identity(&self) -> Vec<&str> {
        vec!["cluster"]
    }
    fn deadline(&self) -> Duration {
        Uncalled.deadline()
    }
    fn consistency(&self) -> Duration {
        Uncalled.consistency()
    }
    fn create(&self, request: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        Uncalled.create(request)
    }
    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        Uncalled.initialize(request)
    }
    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, DriverResult<Option<String>>> {
        Uncalled.delete(request)
    }
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        Uncalled.status(request)
    }
    fn list(&self, class: Class) -> BoxFuture<'static, DriverResult<BTreeMap<String, ListedVm>>> {
        Uncalled.list(class)
    }
}

/// The content of the stores.
#[derive(Default)]
struct Held {
    classes: Vec<MachineClass>,
    machines: Vec<Machine>,
    secrets: Vec<SecretMetadata>,
    without_user_data: bool,
    /// Names of a Machine and of a class that cannot be read.
    unreadable_machine: Option<&'static str>,
    unreadable_class: Option<&'static str>,
}

impl Held {
    fn stores(&self) -> Stores {
        let stores = Stores::default();
        let classes = Arc::new(Store::<MachineClass>::new(CONTROL, "default"));
        classes.add_index(CLASSES_BY_SECRET);
        classes.add_index(CLASSES_BY_CREDENTIALS);
        let machines = Arc::new(Store::<Machine>::new(CONTROL, "default"));
        machines.add_index(MACHINES_BY_CLASS);
        let secrets = Arc::new(Store::<SecretMetadata>::new(CONTROL, "default"));
        self.classes.iter().cloned().for_each(|it| drop(classes.apply(it)));
        self.machines.iter().cloned().for_each(|it| drop(machines.apply(it)));
        self.secrets.iter().cloned().for_each(|it| drop(secrets.apply(it)));
        for wanted in ["user-data", "cloud"] {
            let found = self.secrets.iter().find(|secret| name(*secret) == wanted);
            let mut found = found.map(whole);
            found.iter_mut().filter(|_| self.without_user_data).for_each(|secret| secret.data = None);
            answer(&secret_store(&stores, wanted), found);
        }
        let unreadable = |name: &&str| Unreadable::named("default", name, "u");
        self.unreadable_machine.iter().for_each(|it| assert!(machines.add_unreadable(unreadable(it))));
        self.unreadable_class.iter().for_each(|it| assert!(classes.add_unreadable(unreadable(it))));
        stores.add(classes);
        stores.add(machines);
        stores.add(secrets);
        stores
    }

    /// The plan of a class once the driver has answered.
    fn plan_class(&self, name: &str, full_schema: bool) -> Plan<Validate> {
        Self::plan_in(&self.stores(), name, full_schema)
    }

    fn plan_in(stores: &Stores, name: &str, full_schema: bool) -> Plan<Validate> {
        let snapshot = Self::snapshot(stores, name, full_schema);
        let (now, mut outcomes) = (NOW.parse().unwrap(), Outcomes::default());
        if let Some(call) = &snapshot.validate {
            outcomes.begin(call, now);
            outcomes.finish(call, now, perform(call));
        }
        MachineClassController::plan(&Context::new(now, &outcomes), &snapshot)
    }

    fn snapshot(stores: &Stores, name: &str, full_schema: bool) -> Snapshot {
        let key = ObjectRef::new(CONTROL, "default", name);
        Self::class_controller(full_schema).snapshot(stores, &key).unwrap()
    }

    fn class_controller(full_schema: bool) -> MachineClassController {
        MachineClassController {
            namespace: "default".into(),
            full_schema: full_schema.into(),
            driver: Arc::new(Sized),
            mode: CloudNodeMode::Off,
        }
    }

    /// The lines of `machine_class_invalid`.
    fn invalid(&self) -> Vec<String> {
        let metrics = Metrics::new();
        let refused = Refused::default();
        for class in &self.classes {
            let class = Arc::new(class.clone());
            let validator = Validator { driver: Arc::new(Sized), refused: refused.clone() };
            Arc::new(validator).perform(Validate { class, session: 0 }).now_or_never().unwrap();
        }
        register_metrics(&metrics, self.stores(), refused);
        let text = metrics.encode().unwrap();
        text.lines().filter(|line| line.starts_with("machine_class_invalid{")).map(str::to_owned).collect()
    }

    fn plan_secret(&self, name: &str) -> Plan<Never> {
        let controller = MachineClassSecretController { namespace: "default".into() };
        let snapshot = controller.snapshot(&self.stores(), &ObjectRef::new(CONTROL, "default", name)).unwrap();
        let outcomes = Outcomes::default();
        MachineClassSecretController::plan(&Context::new(NOW.parse().unwrap(), &outcomes), &snapshot)
    }
}

fn perform(call: &Validate) -> Outcome {
    let validator = Validator { driver: Arc::new(Sized), refused: Refused::default() };
    Arc::new(validator).perform(call.clone()).now_or_never().unwrap()
}

/// The finalizers after the only step of a plan, which must be an edit.
fn edited<E: std::fmt::Debug>(plan: &Plan<E>, before: &Value) -> Value {
    let mut before = before.clone();
    if before["metadata"]["finalizers"].to_string().contains(FINALIZER) {
        before["metadata"]["annotations"] = json!({IDENTITY: RECORD});
    }
    edited_object(plan, &before)["metadata"]["finalizers"].clone()
}

fn edited_object<E: std::fmt::Debug>(plan: &Plan<E>, before: &Value) -> Value {
    let steps: Vec<_> = plan.steps().map(|planned| &planned.step).collect();
    let [Step::Edit { patch, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    let mut object = before.clone();
    nodewright_testing::json_patch(&mut object, patch).unwrap();
    object
}

fn status(plan: &Plan<Validate>) -> Value {
    let steps: Vec<_> = plan.steps().map(|planned| &planned.step).collect();
    let [Step::Apply(apply)] = steps.as_slice() else { panic!("{steps:?}") };
    apply.fragment()["status"].clone()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    status["conditions"].as_array().unwrap().iter().find(|it| it["type"] == kind).unwrap()
}

fn held() -> Held {
    Held {
        classes: vec![class("class", |_| {})],
        machines: vec![machine("a").build()],
        secrets: ["user-data", "cloud"].map(|name| secret(name, &json!({"finalizers": [SECRET_FINALIZER]}))).into(),
        ..Held::default()
    }
}

#[test]
fn a_class_is_kept_while_a_machine_that_may_name_it_cannot_be_read() {
    let mut held = held();
    held.machines.clear();
    held.classes = vec![class("class", |class| {
        class["metadata"]["finalizers"] = json!([FINALIZER]);
        class["metadata"]["deletionTimestamp"] = NOW.into();
    })];
    held.unreadable_machine = Some("broken");
    let plan = held.plan_class("class", true);
    assert!(plan.steps().all(|planned| !matches!(planned.step, Step::Edit { .. })));
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("MachineUnreadable", "MachineUnreadable"));
    let reported = status(&plan);
    assert_eq!(condition(&reported, "InUse")["status"], "Unknown");
    assert!(condition(&reported, "InUse")["message"].as_str().unwrap().contains("default/broken"));
    held.unreadable_machine = None;
    let carried = json!({"metadata": {"finalizers": [FINALIZER]}});
    assert_eq!(edited(&held.plan_class("class", true), &carried), json!([]));
}

#[test]
fn a_secret_is_kept_while_a_class_that_may_refer_to_it_cannot_be_read() {
    let mut held = held();
    held.classes.clear();
    held.secrets = vec![secret("cloud", &json!({"finalizers": [SECRET_FINALIZER], "deletionTimestamp": NOW}))];
    held.unreadable_class = Some("broken");
    assert!(held.plan_secret("cloud").is_idle());
    assert_eq!(held.plan_secret("cloud").waits[0].reason, "MachineClassUnreadable");
    held.unreadable_class = None;
    assert!(!held.plan_secret("cloud").is_idle());
}

#[test]
fn a_class_is_held_while_machines_name_it() {
    let mut held = held();
    let bare = json!({"metadata": {"resourceVersion": "5"}});
    assert_eq!(edited(&held.plan_class("class", true), &bare), json!([FINALIZER]));
    held.machines[0].spec.class.name = "other".into();
    assert!(held.plan_class("class", false).is_idle());
    held.classes = vec![class("class", |class| class["metadata"]["finalizers"] = json!(["x", FINALIZER]))];
    let carried = json!({"metadata": {"finalizers": ["x", FINALIZER]}});
    assert_eq!(edited(&held.plan_class("class", true), &carried), json!(["x"]));
}

#[test]
fn while_a_class_is_held_it_records_by_what_its_vms_are_found() {
    let recorded = |held: &Held| {
        let before = serde_json::to_value(&held.classes[0]).unwrap();
        let metadata = &edited_object(&held.plan_class("class", true), &before)["metadata"];
        (metadata["finalizers"].clone(), metadata["annotations"][IDENTITY].clone())
    };
    let of = |finalizers: Value, annotations: Value| Held {
        classes: vec![class("class", |class| {
            class["metadata"]["finalizers"] = finalizers.clone();
            class["metadata"]["annotations"] = annotations.clone();
            class["providerSpec"]["cluster"] = "a".into();
        })],
        ..held()
    };
    let (a, b) = (r#"{"provider":"simulated","providerSpec.cluster":"a"}"#, r#"{"providerSpec.cluster":"b"}"#);
    let old = json!({IDENTITY: b, "x": "y"});
    assert_eq!(recorded(&of(json!(null), json!(null))), (json!([FINALIZER]), json!(a)), "both at once");
    assert_eq!(recorded(&of(json!(null), old.clone())), (json!([FINALIZER]), json!(a)), "that was an earlier use");
    let by_mcm = of(json!([FINALIZER]), json!({"x": "y"}));
    assert_eq!(recorded(&by_mcm), (json!([FINALIZER]), json!(a)));
    let mut changed = of(json!([FINALIZER]), old);
    let both = r#"{"provider":"simulated","providerSpec.cluster":"b"}"#;
    assert_eq!(recorded(&changed).1, json!(both), "what is recorded stays");
    changed.classes[0].metadata.annotations.as_mut().unwrap().insert(IDENTITY.to_owned(), both.to_owned());
    let plan = changed.plan_class("class", true);
    assert!(plan.steps().all(|planned| !matches!(planned.step, Step::Edit { .. })), "{plan}");
    changed.machines.clear();
    assert_eq!(recorded(&changed), (json!([]), json!(null)), "both at once");
}

#[test]
fn of_a_class_that_the_driver_cannot_use_nothing_is_recorded() {
    let mut held = held();
    let broken = |finalizers: Value| {
        class("class", move |class| {
            class["metadata"]["finalizers"] = finalizers.clone();
            class["providerSpec"] = json!({"cluster": "a"});
        })
    };
    held.classes = vec![broken(json!([]))];
    let plan = held.plan_class("class", false);
    let edits: Vec<_> = plan.steps().filter_map(|planned| edit_of(&planned.step)).collect();
    let [edit] = edits.as_slice() else { panic!("{edits:?}") };
    assert!(edit.contains(FINALIZER) && !edit.contains(IDENTITY), "{edit}");
    held.classes = vec![broken(json!([FINALIZER]))];
    assert!(held.plan_class("class", false).is_idle(), "it can still be corrected");
}

fn edit_of(step: &Step<Validate>) -> Option<String> {
    match step {
        Step::Edit { patch, .. } => serde_json::to_string(patch).ok(),
        _ => None,
    }
}

#[test]
fn a_class_that_cannot_have_been_used_is_not_held() {
    let mut held = held();
    held.secrets.pop();
    assert!(held.plan_class("class", false).is_idle());
    held.machines.push(machine("b").with("/spec/providerID", json!("p:///1")).build());
    let bare = json!({"metadata": {"resourceVersion": "5"}});
    assert_eq!(edited(&held.plan_class("class", false), &bare), json!([FINALIZER]), "a machine has a VM");
}

#[test]
fn a_class_that_is_being_deleted_waits_for_its_machines_and_says_so() {
    let mut held = held();
    held.classes = vec![class("class", |class| {
        class["metadata"]["finalizers"] = json!([FINALIZER]);
        class["metadata"]["deletionTimestamp"] = NOW.into();
    })];
    let plan = held.plan_class("class", true);
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("MachineClassInUse", "MachineClassInUse"));
    assert!(plan.waits[0].message.starts_with("1 machine names"));
    assert_eq!(condition(&status(&plan), "InUse")["reason"], "KeptForMachines");
    held.machines.clear();
    let carried = json!({"metadata": {"finalizers": [FINALIZER]}});
    assert_eq!(edited(&held.plan_class("class", true), &carried), json!([]));
}

#[test]
fn no_finalizer_is_added_to_a_class_that_is_being_deleted() {
    let mut held = held();
    held.classes = vec![class("class", |class| {
        class["metadata"]["finalizers"] = json!(["somebody/else"]);
        class["metadata"]["deletionTimestamp"] = NOW.into();
    })];
    assert!(held.plan_class("class", false).is_idle());
}

#[test]
fn the_status_says_what_is_wrong() {
    let mut held = held();
    held.classes = vec![class("class", |class| {
        class["metadata"]["finalizers"] = json!([FINALIZER]);
        class["providerSpec"] = json!({});
    })];
    held.secrets.remove(1);
    let reported = status(&held.plan_class("class", true));
    assert_eq!((&reported["observedGeneration"], &reported["machines"]), (&json!(3), &json!(1)));
    let secrets = condition(&reported, "SecretsFound");
    assert_eq!((&secrets["status"], &secrets["reason"]), (&json!("False"), &json!("SecretNotFound")));
    assert!(secrets["message"].as_str().unwrap().contains("default/cloud not found"));
    let spec = condition(&reported, "ProviderSpecValid");
    assert_eq!((&spec["status"], &spec["message"]), (&json!("False"), &json!("providerSpec.size: Required value")));
    assert!(held.plan_class("class", false).is_idle(), "the schema has no status");
}

#[test]
fn a_class_that_cannot_be_read_is_reported_once_and_named_until_it_is_well() {
    let mut held = held();
    let broken = |status: Value| {
        class("class", |class| {
            class["metadata"]["finalizers"] = json!([FINALIZER]);
            class["providerSpec"] = json!({});
            class["status"] = status.clone();
        })
    };
    held.classes = vec![broken(json!({})), class("good", |_| {})];
    let plan = held.plan_class("class", true);
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["InvalidProviderSpec"]);
    assert!(plan.events[0].message.ends_with("providerSpec.size: Required value"));
    assert_eq!(held.invalid(), [r#"machine_class_invalid{namespace="default",name="class"} 1"#]);
    held.classes[0] = broken(status(&plan));
    assert!(held.plan_class("class", true).events.is_empty(), "the status says so already");
    held.classes = vec![class("class", |_| {})];
    assert!(held.plan_class("class", true).events.is_empty() && held.invalid().is_empty());
}

#[test]
fn a_class_of_which_the_driver_has_yet_to_say_is_asked_about_again() {
    let mut held = held();
    let unevaluated = |status: Value| {
        class("class", |class| {
            class["metadata"]["finalizers"] = json!([FINALIZER]);
            class["providerSpec"] = json!({"unevaluated": true});
            class["status"] = status.clone();
        })
    };
    held.classes = vec![unevaluated(json!({}))];
    let plan = held.plan_class("class", true);
    let reported = status(&plan);
    let found = condition(&reported, "ProviderSpecValid");
    assert_eq!((&found["status"], &found["reason"]), (&json!("Unknown"), &json!("ValidationPending")));
    assert_eq!(plan.waits[0].reason, "ValidationPending");
    assert!(plan.events.is_empty() && held.invalid().is_empty(), "nothing is held against it");
    let now: jiff::Timestamp = NOW.parse().unwrap();
    assert!(plan.wake.is_some_and(|at| at > now), "{plan}");

    held.classes = vec![class("class", |class| class["metadata"]["finalizers"] = json!([FINALIZER]))];
    let mut reported = status(&held.plan_class("class", true));
    held.classes = vec![unevaluated(reported.clone())];
    let plan = held.plan_class("class", true);
    assert!(plan.is_idle(), "what was said of this generation stands: {plan}");
    reported["observedGeneration"] = json!(2);
    held.classes = vec![unevaluated(reported)];
    assert_eq!(condition(&status(&held.plan_class("class", true)), "ProviderSpecValid")["status"], "Unknown");
}

#[test]
fn the_driver_is_asked_before_anything_is_written_and_again_when_its_answer_is_out_of_date() {
    let now: Timestamp = NOW.parse().unwrap();
    let seconds = SignedDuration::from_secs;
    let snapshot = Held::snapshot(&held().stores(), "class", true);
    let plan = |outcomes: &Outcomes<Validate>, at: i64, snapshot: &Snapshot| {
        let plan = MachineClassController::plan(&Context::new(now + seconds(at), outcomes), snapshot);
        let asks = plan.steps().any(|planned| matches!(planned.step, Step::Call(_)));
        let writes = plan.steps().any(|planned| planned.step.key().is_some_and(|key| &*key.name == "class"));
        (asks, writes, plan.wake.map(|wake| wake.duration_since(now).as_secs()))
    };
    let call = snapshot.validate.clone().unwrap();
    let asked = || {
        let mut outcomes = Outcomes::default();
        outcomes.begin(&call, now);
        outcomes
    };
    let answered = |outcome: Outcome| {
        let mut outcomes = asked();
        outcomes.finish(&call, now, outcome);
        outcomes
    };
    let mut changed = snapshot.clone();
    let other = class("class", |class| class["providerSpec"] = json!({"size": "large"}));
    changed.validate = Some(Validate { class: other.into(), ..call.clone() });
    let mut restarted = snapshot.clone();
    restarted.validate = Some(Validate { session: 1, ..call.clone() });
    let valid = || answered(Some(Arc::new([])));
    let cases = [
        ("never asked", Outcomes::default(), 0, &snapshot, (true, false, Some(5))),
        ("just asked", asked(), 1, &snapshot, (false, false, Some(5))),
        ("no answer for long", asked(), 5, &snapshot, (false, true, Some(10))),
        ("answered", valid(), 9, &snapshot, (false, true, None)),
        ("in vain", answered(None), 1, &snapshot, (false, true, Some(5))),
        ("in vain for long", answered(None), 5, &snapshot, (true, true, Some(5))),
        ("changed since", valid(), 9, &changed, (true, false, Some(14))),
        ("another session", valid(), 9, &restarted, (true, false, Some(14))),
    ];
    for (what, outcomes, at, snapshot, expected) in cases {
        assert_eq!(plan(&outcomes, at, snapshot), expected, "{what}");
    }
}

#[test]
fn the_record_of_a_class_in_use_waits_for_the_driver() {
    let mut held = held();
    let unevaluated = |finalizers: Value| {
        class("class", move |class| {
            class["metadata"]["finalizers"] = finalizers.clone();
            class["metadata"]["annotations"] = json!({"x": "y"});
            class["providerSpec"] = json!({"cluster": "a", "size": "small", "unevaluated": true});
        })
    };
    held.classes = vec![unevaluated(json!([]))];
    let edits: Vec<_> = held.plan_class("class", false).steps().filter_map(|it| edit_of(&it.step)).collect();
    assert!(edits.len() == 1 && edits[0].contains(FINALIZER) && !edits[0].contains(IDENTITY), "{edits:?}");
    held.classes = vec![unevaluated(json!([FINALIZER]))];
    assert!(held.plan_class("class", false).is_idle(), "nothing is recorded yet");
}

#[test]
fn a_status_that_says_all_is_not_written_again() {
    let mut held = held();
    held.classes = vec![class("class", |class| class["metadata"]["finalizers"] = json!([FINALIZER]))];
    let reported = status(&held.plan_class("class", true));
    assert!(
        ["SecretsFound", "ProviderSpecValid", "InUse"]
            .iter()
            .all(|kind| condition(&reported, kind)["status"] == "True")
    );
    held.classes[0].status = serde_json::from_value(reported).unwrap();
    assert!(held.plan_class("class", true).is_idle());
}

#[test]
fn a_class_whose_secrets_have_no_user_data_says_so() {
    let mut held = Held { without_user_data: true, ..held() };
    held.classes = vec![class("class", |class| class["metadata"]["finalizers"] = json!([FINALIZER]))];
    let reported = status(&held.plan_class("class", true));
    let found = condition(&reported, "SecretsFound");
    assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!("UserDataMissing")));
    assert!(found["message"].as_str().unwrap().contains(r#"the key "userData": add it"#), "{found}");
    let events = held.plan_class("class", false).events;
    assert_eq!(events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["UserDataMissing"], "without a status");
    held.without_user_data = false;
    assert_eq!(condition(&status(&held.plan_class("class", true)), "SecretsFound")["status"], "True");
    assert!(held.plan_class("class", false).events.is_empty());
}

#[test]
fn the_first_of_the_classes_that_refer_to_a_secret_holds_it() {
    let mut held = held();
    held.machines.clear();
    held.secrets = ["user-data", "cloud"].map(|name| secret(name, &json!({}))).into();
    held.classes =
        vec![class("b", |_| {}), class("a", |class| drop(class.as_object_mut().unwrap().remove("secretRef")))];
    let holds = |held: &Held, name: &str| {
        let plan = held.plan_class(name, false);
        plan.steps().map(|planned| planned.step.key().unwrap().name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((holds(&held, "a"), holds(&held, "b")), (vec!["cloud".to_owned()], vec!["user-data".to_owned()]));
    let bare = json!({"metadata": {"resourceVersion": "6"}});
    assert_eq!(edited(&held.plan_class("a", false), &bare), json!([SECRET_FINALIZER]));
    held.classes.pop();
    assert_eq!(holds(&held, "b"), ["user-data", "cloud"], "the other one is gone");
    held.secrets[0] = secret("user-data", &json!({"finalizers": [SECRET_FINALIZER]}));
    held.secrets[1] = secret("cloud", &json!({"finalizers": ["x"], "deletionTimestamp": NOW}));
    assert!(holds(&held, "b").is_empty(), "what is held is held, and what goes is not");
    let reported = status(&held.plan_class("b", true));
    let message = "all 2 secrets exist; default/cloud is being deleted, and kept while a class refers to it";
    assert_eq!(condition(&reported, "SecretsFound")["message"], message);
    assert_eq!(held.plan_class("b", false).scoped_watches.len(), 2);
}

#[test]
fn a_secret_is_let_go_when_no_class_refers_to_it() {
    let mut held = held();
    let held_already = json!({"finalizers": [SECRET_FINALIZER]});
    held.secrets = vec![secret("user-data", &held_already), secret("cloud", &held_already)];
    for name in ["user-data", "cloud"] {
        assert!(held.plan_secret(name).is_idle());
    }
    held.classes = vec![class("second", |class| {
        class.as_object_mut().unwrap().remove("secretRef");
    })];
    assert!(held.plan_secret("cloud").is_idle(), "another class still refers to it");
    let carried = json!({"metadata": {"finalizers": [SECRET_FINALIZER]}});
    assert_eq!(edited(&held.plan_secret("user-data"), &carried), json!([]));
}

#[test]
fn a_secret_is_missing_only_if_the_api_server_says_so() {
    let mut held = held();
    held.classes = vec![class("class", |class| class["metadata"]["finalizers"] = json!([FINALIZER]))];
    let stores = held.stores();
    let plan = |stores: &Stores| Held::plan_in(stores, "class", true);
    let store = secret_store(&stores, "cloud");
    let waiting = plan(&stores);
    assert!(waiting.steps().all(|planned| planned.step.key().unwrap().name.as_ref() == "user-data"));
    assert_eq!(waiting.waits[0].reason, "SecretPending");
    answer(
        &secret_store(&stores, "user-data"),
        Some(whole(&secret("user-data", &json!({"finalizers": [SECRET_FINALIZER]})))),
    );
    let reported = |stores: &Stores| {
        let reported = status(&plan(stores));
        let reported = condition(&reported, "SecretsFound");
        (reported["status"].clone(), reported["reason"].clone())
    };
    store.fail("forbidden");
    assert_eq!(reported(&stores), (json!("Unknown"), json!("SecretNotRead")));
    answer(&store, None);
    assert_eq!(reported(&stores), (json!("False"), json!("SecretNotFound")));
}

#[test]
fn a_secret_of_another_namespace_is_not_looked_at() {
    let mut held = held();
    held.classes = vec![class("class", |class| class["credentialsSecretRef"]["namespace"] = "kube-system".into())];
    let plan = held.plan_class("class", true);
    assert_eq!(
        plan.scoped_watches.iter().map(|watch| watch.selector().split(',').next()).collect::<Vec<_>>(),
        [Some("metadata.name=user-data")]
    );
}

#[test]
fn a_secret_stays_until_the_class_that_is_being_deleted_is_gone() {
    let mut held = held();
    held.classes = vec![class("class", |class| {
        class["metadata"]["finalizers"] = json!([FINALIZER]);
        class["metadata"]["deletionTimestamp"] = NOW.into();
    })];
    held.secrets = vec![secret("cloud", &json!({"finalizers": [SECRET_FINALIZER], "deletionTimestamp": NOW}))];
    let plan = held.plan_secret("cloud");
    assert!(plan.is_idle());
    assert_eq!(plan.waits[0].reason, "SecretInUse");
    held.classes.clear();
    assert!(!held.plan_secret("cloud").is_idle());
}

#[test]
fn what_is_secret_is_not_kept() {
    let text = format!("{:?}", secret("cloud", &json!({})));
    assert!(!text.contains("password") && !text.contains("c2VjcmV0"), "{text}");
}
