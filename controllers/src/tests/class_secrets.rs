//! The Secrets of classes in the real runtime, against the API server in process: the controllers of classes and of
//! Machines together, in a namespace with a thousand other Secrets.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::{
    cache::{Lookup, Stores},
    leadership::{checked_clock, tokio_clock},
    manager::{Manager, Options},
    object::ObjectRef,
};
use nodewright_testing::api_server::{ApiServer, Fault, RequestRecord};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    machine::{Call, MachineController, MachineMetrics, MachineSettings, Outcome, Verb},
    machine_class::{MachineClassController, Refused, Validator},
    machine_class_secret::MachineClassSecretController,
    shared::{
        CONTROL,
        class_secrets::{self, SecretMetadata},
        cloud_manager::CloudNodeMode,
    },
    testing::{NOW, Uncalled},
};

const API: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const HELD: &str = "machine.sapcloud.io/machine-controller";

/// A provider that records the user data of its creations.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<Vec<Vec<u8>>>>);

impl Provider {
    fn perform(&self, call: &Call) -> Outcome {
        let machine = &call.request.machine;
        match call.verb {
            Verb::Create => {
                self.0.lock().push(machine.class.secret.get("userData").unwrap_or_default().to_owned());
                Outcome::Instance(Instance {
                    provider_id: format!("p:///{}", machine.name),
                    owner_uid: Some(machine.uid.clone()),
                    ..Instance::default()
                })
            }
            Verb::Status if machine.provider_id.is_none() => Outcome::Failed(DriverError::new(Code::NotFound, "none")),
            Verb::Delete => Outcome::Done,
            _ => Outcome::Failed(DriverError::new(Code::Unimplemented, "not here")),
        }
    }
}

pub(super) struct Plane {
    server: ApiServer,
    stores: Stores,
    provider: Provider,
    _stop: DropGuard,
}

impl Plane {
    pub(super) fn start(server: ApiServer) -> Self {
        let clock = checked_clock(tokio_clock(NOW.parse().unwrap()));
        let options = Options { seed: 1, clock, ..Options::new("nodewright", "test", CONTROL, server.client()) };
        let mut manager = Manager::new(options);
        let (provider, namespace) = (Provider::default(), || "default".to_owned());
        let settings = Arc::new(MachineSettings { has_target: false, ..MachineSettings::default() });
        let machines = MachineController {
            namespace: namespace(),
            settings,
            driver: Arc::new(Uncalled),
            metrics: MachineMetrics::default(),
        };
        let performer = provider.clone();
        manager.add_with(machines, move |call| std::future::ready(performer.perform(&call)));
        let (full_schema, driver) = (true.into(), Arc::new(Uncalled) as Arc<dyn nodewright_driver::Driver>);
        let validator = Arc::new(Validator { driver: driver.clone(), refused: Refused::default() });
        let classes = MachineClassController { namespace: namespace(), full_schema, driver, mode: CloudNodeMode::Off };
        manager.add_with(classes, move |call| validator.clone().perform(call));
        manager.add(MachineClassSecretController { namespace: namespace() });
        let (stores, stop) = (manager.stores(), CancellationToken::new());
        tokio::spawn(manager.run(vec![], stop.clone()));
        Self { server, stores, provider, _stop: stop.drop_guard() }
    }

    /// The time until `reached`.
    pub(super) async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !reached(self) {
            sleep(Duration::from_millis(10)).await;
            let now = || {
                (self.server.objects(&format!("{API}/machines")), self.server.objects(&format!("{API}/machineclasses")))
            };
            assert!(begun.elapsed() < Duration::from_mins(5), "{what}: {:#?}", now());
        }
        begun.elapsed()
    }

    fn is_held(&self, secret: &str) -> bool {
        let live = self.server.object(&format!("{SECRETS}/{secret}"));
        live.is_some_and(|live| {
            live["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|it| it == HELD))
        })
    }

    /// Whether the process has read the values of a Secret.
    fn is_known(&self, secret: &str) -> bool {
        !matches!(class_secrets::find(&self.stores, &ObjectRef::new(CONTROL, "default", secret)), Lookup::Pending)
    }

    /// Status and reason of a condition.
    fn reported(&self, kind: &str, condition: &str) -> (String, String) {
        let all = self.server.objects(&format!("{API}/{kind}"));
        let conditions = all[0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|it| it["type"] == condition).unwrap_or_default();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    fn refer(&self, class: &str, secret: &str) {
        self.server.change(&format!("{API}/machineclasses/{class}"), |class| {
            class["secretRef"]["name"] = secret.into();
            let generation = class["metadata"]["generation"].as_i64().unwrap_or(1);
            class["metadata"]["generation"] = (generation + 1).into();
        });
    }
}

pub(super) fn server() -> ApiServer {
    let clock = tokio_clock(NOW.parse().unwrap());
    ApiServer::with_time(move || clock.wall())
}

pub(super) fn secret(server: &ApiServer, name: &str, finalizers: &[&str]) {
    server.seed(
        SECRETS,
        json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "finalizers": finalizers}, "data": {"userData": "aHVzaA=="}}),
    );
}

pub(super) fn class(server: &ApiServer, name: &str, secret: &str) {
    let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name},
        "provider": "simulated", "providerSpec": {}, "secretRef": {"name": secret, "namespace": "default"}});
    server.seed(&format!("{API}/machineclasses"), class);
}

pub(super) fn machine(server: &ApiServer, name: &str) {
    let spec = json!({"class": {"kind": "MachineClass", "name": "class"}});
    let kind = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": name}, "spec": spec});
    server.seed(&format!("{API}/machines"), kind);
}

/// Whether a read of Secrets returns only the values of Secrets with these names.
fn is_bounded(request: &RequestRecord, names: &[&str]) -> bool {
    let is_named = |name: &&str| request.query.contains(&format!("fieldSelector=metadata.name%3D{name}%2C"));
    request.accept.contains("as=PartialObjectMetadata") || names.iter().any(is_named)
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_secrets_those_that_a_class_names_are_read_and_no_other() {
    let server = server();
    for index in 0..1_000 {
        secret(&server, &format!("other-{index}"), &[]);
    }
    class(&server, "class", "cloud");
    machine(&server, "m");
    let plane = Plane::start(server.clone());
    plane
        .until("the class to miss its secret", |it| it.reported("machineclasses", "SecretsFound").1 == "SecretNotFound")
        .await;
    plane
        .until("the machine to miss it", |it| it.reported("machines", "ConfigurationValid").1 == "SecretNotFound")
        .await;
    secret(&server, "cloud", &[]);
    let late = plane.until("a VM", |it| !it.provider.0.lock().is_empty()).await;
    assert!(late < Duration::from_secs(2), "a corrected Secret is noticed at once, not after {late:?}");
    assert!(plane.is_held("cloud") && plane.is_known("cloud"));
    // It has the finalizer, so it is watched; its deletion waits for the class.
    assert_eq!(plane.stores.of::<SecretMetadata>(CONTROL).len(), 1, "of the others not even metadata is kept");
    assert!(plane.stores.of::<Secret>(CONTROL).is_empty());
    assert!((0..1_000).all(|index| !plane.is_known(&format!("other-{index}"))));

    plane.refer("class", "next");
    secret(&server, "next", &[]);
    plane.until("the next one to be held", |it| it.is_held("next") && !it.is_held("cloud")).await;
    plane.until("the former one to be let go", |it| !it.is_known("cloud")).await;
    server.remove(&format!("{API}/machines/m"));
    server.remove(&format!("{API}/machineclasses/class"));
    plane.until("both to be let go", |it| !it.is_held("next") && !it.is_known("next")).await;
    assert!(plane.stores.of::<SecretMetadata>(CONTROL).is_empty());
    let open = server.open_watches().into_iter().filter(|watch| watch.path == SECRETS);
    assert_eq!(open.count(), 1, "the one of finalizers alone");
    let reads = server.requests().into_iter().filter(|it| it.path == SECRETS && matches!(it.verb, "list" | "watch"));
    for read in reads {
        assert!(is_bounded(&read, &["cloud", "next"]), "{read:?}");
    }
}

/// The class was edited, or deleted, while no manager ran.
#[tokio::test(start_paused = true)]
async fn a_secret_that_was_left_with_the_finalizer_is_let_go_by_the_next_manager() {
    let server = server();
    secret(&server, "left", &["somebody.else/x", HELD]);
    let plane = Plane::start(server.clone());
    plane.until("the secret to be let go", |it| !it.is_held("left")).await;
    assert_eq!(
        server.object(&format!("{SECRETS}/left")).unwrap()["metadata"]["finalizers"],
        json!(["somebody.else/x"])
    );
    assert!(!plane.is_known("left"), "without a watch of what is in it");
}

#[tokio::test(start_paused = true)]
async fn mcm_defect_1_nothing_follows_from_a_secret_that_cannot_be_read() {
    let server = server();
    class(&server, "class", "cloud");
    secret(&server, "cloud", &[]);
    machine(&server, "m");
    let named = |request: &RequestRecord| request.path == SECRETS && request.query.contains("metadata.name");
    server.decide(move |request| named(request).then_some(Fault::Status(403)));
    let plane = Plane::start(server.clone());
    plane.until("the machine to say so", |it| it.reported("machines", "ConfigurationValid").1 == "SecretNotRead").await;
    plane.until("the class to say so", |it| it.reported("machineclasses", "SecretsFound").0 == "Unknown").await;
    server.delete(&format!("{API}/machines/m"));
    sleep(Duration::from_mins(10)).await;
    let live = server.object(&format!("{API}/machines/m")).expect("it has not ended without its Secret");
    assert_eq!(live["status"]["currentStatus"]["phase"], "Terminating");
    server.decide_no_more();
    plane.until("its end", |it| it.server.object(&format!("{API}/machines/m")).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_classes_cost_two_requests_a_second_at_rest() {
    let server = server();
    for index in 0..100 {
        class(&server, &format!("c{index}"), &format!("s{index}"));
        secret(&server, &format!("s{index}"), &[]);
    }
    let plane = Plane::start(server.clone());
    plane.until("all to be held", |it| (0..100).all(|index| it.is_held(&format!("s{index}")))).await;
    let begun: Vec<RequestRecord> =
        server.take_requests().into_iter().filter(|it| it.path.starts_with(SECRETS)).collect();
    let count = |verb: &str| begun.iter().filter(|request| request.verb == verb).count();
    assert_eq!((count("list"), count("watch"), count("patch")), (101, 101, 100));
    sleep(Duration::from_mins(10)).await;
    let idle = server.take_requests().into_iter().filter(|it| it.path.starts_with(SECRETS)).count();
    assert!(idle <= 600, "{idle} requests in ten minutes");
}
