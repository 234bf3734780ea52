//! Certificates over years, on a simulated clock, against an API server in process.

use http::HeaderValue;
use jiff::SignedDuration;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::leadership::Leadership;
use nodewright_runtime::request::Connection;
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::configurations::{ClientConfig, DEFAULT_NAMESPACE, configurations, machine_config_configuration};
use crate::registration::Registration;

const SECRETS: &str = "/api/v1/namespaces/nodewright-system/secrets";
const SECRET: &str = "/api/v1/namespaces/nodewright-system/secrets/webhook";
const REGISTRATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
const AGENT: &str = "webhooks-test/1";
const DAY: SignedDuration = SignedDuration::from_hours(24);

struct FakeClock(Mutex<Timestamp>);

impl Clock for FakeClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Timestamp {
        *self.0.lock()
    }
}

struct Fixture {
    server: ApiServer,
    clock: Arc<FakeClock>,
}

impl Fixture {
    fn new() -> Self {
        let start = "2026-11-20T10:00:00Z".parse().unwrap();
        Self { server: ApiServer::new(), clock: Arc::new(FakeClock(Mutex::new(start))) }
    }

    fn installed() -> Self {
        let fixture = Self::new();
        let all = configurations(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
        let seed = |resource: &str, object: Value| fixture.server.seed(&format!("{REGISTRATIONS}/{resource}"), object);
        seed("mutatingwebhookconfigurations", serde_json::to_value(&all.mutating).unwrap());
        seed("validatingwebhookconfigurations", serde_json::to_value(&all.validating).unwrap());
        fixture
    }

    fn connection(&self) -> Connection {
        let agent = HeaderValue::from_static(AGENT);
        let metrics = Arc::new(Metrics::new());
        Connection::new(self.server.client(), agent, Leadership::unlimited(), 10, metrics)
    }

    fn replica(&self, registration: Registration) -> CertificateManager {
        let source = Source::Secret(SharedSecret {
            connection: self.connection(),
            namespace: "nodewright-system".to_owned(),
            name: "webhook".to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
        });
        self.manager(source, registration)
    }

    fn manager(&self, source: Source, registration: Registration) -> CertificateManager {
        let namespace = DEFAULT_NAMESPACE.to_owned();
        let registrar = Registrar { connection: self.connection(), registration, namespace, port: 9443 };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        CertificateManager::new(source, registrar, provider, self.clock.clone())
    }

    fn pass(&self, time: SignedDuration) {
        *self.clock.0.lock() += time;
    }

    fn check(&self, manager: &CertificateManager) -> Result<(), String> {
        manager.state().check(self.clock.wall())
    }

    /// The bundle in the Secret, in base64.
    fn shared_bundle(&self) -> Value {
        self.server.object(SECRET).unwrap()["data"]["ca.crt"].clone()
    }

    /// Path and body of each write since the last call.
    fn writes(&self) -> Vec<(String, Value)> {
        let requests = self.server.take_requests();
        assert!(requests.iter().all(|request| request.user_agent == AGENT));
        assert!(requests.iter().all(|request| matches!(request.verb, "get" | "create" | "update" | "patch")));
        let writes = requests.into_iter().filter(|request| request.verb != "get");
        writes.map(|request| (format!("{} {}", request.verb, request.path), request.body.unwrap())).collect()
    }
}

fn served(manager: &CertificateManager) -> Vec<rustls::pki_types::CertificateDer<'static>> {
    manager.state().0.load().served.as_ref().unwrap().key.cert.clone()
}

#[tokio::test]
async fn the_first_replica_makes_the_certificate_and_the_others_take_it() {
    let fixture = Fixture::installed();
    let (mut first, mut second) = (fixture.replica(Registration::Bundle), fixture.replica(Registration::None));
    assert!(fixture.check(&first).unwrap_err().contains("no certificate"));
    first.round().await.unwrap();
    second.round().await.unwrap();
    assert_eq!(served(&first), served(&second));
    assert_eq!((fixture.check(&first), fixture.check(&second)), (Ok(()), Ok(())));
    let writes = fixture.writes();
    let paths: Vec<_> = writes.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            format!("create {SECRETS}"),
            format!("patch {REGISTRATIONS}/mutatingwebhookconfigurations/nodewright-nodewright-system"),
            format!("patch {REGISTRATIONS}/validatingwebhookconfigurations/nodewright-nodewright-system"),
        ]
    );
    let mutating = &writes[1].1;
    assert_eq!(
        mutating["webhooks"][0],
        json!({"name": "mutate.machineclasses.nodewright.dev", "clientConfig": {"caBundle": fixture.shared_bundle()}}),
        "the bundle and nothing else"
    );
    assert!(mutating["metadata"]["uid"].is_string(), "so that nothing is created");
    first.round().await.unwrap();
    assert!(fixture.writes().is_empty(), "all is as it should be");
}

#[tokio::test]
async fn of_two_replicas_at_once_one_wins() {
    let fixture = Fixture::new();
    let (mut first, mut second) = (fixture.replica(Registration::None), fixture.replica(Registration::None));
    let (one, other) = tokio::join!(first.round(), second.round());
    one.unwrap();
    other.unwrap();
    assert_eq!(served(&first), served(&second));
    // At a renewal too.
    let before = served(&first);
    fixture.pass(DAY * 25);
    let (one, other) = tokio::join!(first.round(), second.round());
    one.unwrap();
    other.unwrap();
    assert_eq!(served(&first), served(&second));
    assert_ne!(served(&first), before);
}

#[tokio::test]
async fn through_two_years_the_bundle_always_holds_what_is_served() {
    let fixture = Fixture::new();
    let host = "127.0.0.1".to_owned();
    let mut manager = fixture.replica(Registration::Whole { host });
    for week in 0..104 {
        manager.round().await.unwrap();
        assert_eq!(fixture.check(&manager), Ok(()), "week {week}");
        let live = fixture
            .server
            .object(&format!("{REGISTRATIONS}/validatingwebhookconfigurations/nodewright-nodewright-system"));
        assert_eq!(live.unwrap()["webhooks"][0]["clientConfig"]["caBundle"], fixture.shared_bundle());
        fixture.pass(DAY * 7);
    }
}

#[tokio::test]
async fn an_unreachable_api_server_leaves_what_is_served_until_it_expires() {
    let fixture = Fixture::installed();
    let mut manager = fixture.replica(Registration::Bundle);
    manager.round().await.unwrap();
    fixture.server.fail_always(Match::any(), Fault::Unreachable);
    fixture.pass(DAY * 20);
    assert!(manager.round().await.is_err());
    assert_eq!(fixture.check(&manager), Ok(()), "still valid and registered");
    fixture.pass(DAY * 20);
    assert!(manager.round().await.is_err());
    assert!(fixture.check(&manager).unwrap_err().contains("expired at"), "{:?}", fixture.check(&manager));
    fixture.server.heal();
    manager.round().await.unwrap();
    assert_eq!(fixture.check(&manager), Ok(()));
}

#[tokio::test]
async fn a_clock_that_jumps_back_makes_another_certificate() {
    let fixture = Fixture::installed();
    let mut manager = fixture.replica(Registration::Bundle);
    manager.round().await.unwrap();
    fixture.pass(DAY * -1_000);
    assert!(fixture.check(&manager).unwrap_err().contains("not valid before"));
    manager.round().await.unwrap();
    assert_eq!(fixture.check(&manager), Ok(()));
}

#[tokio::test]
async fn a_missing_configuration_says_what_to_do() {
    let fixture = Fixture::new();
    let mut manager = fixture.replica(Registration::Bundle);
    let error = manager.round().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to find the MutatingWebhookConfiguration nodewright-nodewright-system: apply config/webhook"
    );
    assert!(fixture.check(&manager).unwrap_err().contains("apply config/webhook"));
}

/// That of node configuration may be missing: most clusters do not serve its kinds.
#[tokio::test]
async fn the_configuration_of_node_configuration_gets_the_bundle_where_it_is_installed() {
    let fixture = Fixture::installed();
    let mut manager = fixture.replica(Registration::Bundle);
    manager.round().await.unwrap();
    assert_eq!(fixture.check(&manager), Ok(()));
    fixture.writes();
    let wanted = machine_config_configuration(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
    let collection = format!("{REGISTRATIONS}/validatingwebhookconfigurations");
    fixture.server.seed(&collection, serde_json::to_value(wanted).unwrap());
    manager.round().await.unwrap();
    let path = format!("{collection}/nodewright-machine-config-nodewright-system");
    let live = fixture.server.object(&path).unwrap();
    let webhooks = live["webhooks"].as_array().unwrap();
    assert_eq!(webhooks.len(), 4);
    assert!(webhooks.iter().all(|webhook| webhook["clientConfig"]["caBundle"] == fixture.shared_bundle()));
    assert_eq!(fixture.writes().len(), 1);
}

#[tokio::test]
async fn a_bundle_that_somebody_took_away_comes_back() {
    let fixture = Fixture::installed();
    let mut manager = fixture.replica(Registration::Bundle);
    manager.round().await.unwrap();
    fixture.writes();
    fixture.server.change(
        &format!("{REGISTRATIONS}/validatingwebhookconfigurations/nodewright-nodewright-system"),
        |object| {
            object["webhooks"][0]["clientConfig"]["caBundle"] = json!("");
        },
    );
    manager.round().await.unwrap();
    assert_eq!(fixture.writes().len(), 1);
}

#[tokio::test]
async fn what_else_stands_in_the_secret_stays() {
    let fixture = Fixture::new();
    let found = json!({"metadata": {"name": "webhook", "labels": {"a": "b"}}, "data": {"other": "eA=="}});
    fixture.server.seed(SECRETS, found);
    fixture.replica(Registration::None).round().await.unwrap();
    let secret = fixture.server.object(SECRET).unwrap();
    assert_eq!((&secret["metadata"]["labels"]["a"], &secret["data"]["other"]), (&json!("b"), &json!("eA==")));
    assert!(secret["data"]["tls.crt"].is_string());
}

#[tokio::test]
async fn files_are_read_again_when_they_change() {
    let fixture = Fixture::installed();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    let make =
        || super::super::rotation::Material::create(&["localhost".to_owned()], fixture.clock.wall()).unwrap().texts();
    let mut manager = fixture.manager(Source::Directory(Directory::new(directory.path().into())), Registration::Bundle);
    assert!(manager.round().await.unwrap_err().to_string().contains("tls.crt"));

    let (first, second) = (make(), make());
    write("tls.crt", &first.certificate);
    write("tls.key", &first.key);
    assert!(manager.round().await.unwrap_err().to_string().contains("ca.crt"), "the bundle is needed to register");
    write("ca.crt", &first.bundle);
    manager.round().await.unwrap();
    assert_eq!(fixture.check(&manager), Ok(()));
    let before = served(&manager);

    // Between two writes of a renewal, the previous pair stays in use.
    write("tls.crt", &second.certificate);
    let error = manager.round().await.unwrap_err().to_string();
    assert!(error.contains("not that of its certificate"), "{error}");
    assert_eq!((served(&manager), fixture.check(&manager)), (before.clone(), Ok(())));
    write("tls.key", &second.key);
    write("ca.crt", &second.bundle);
    manager.round().await.unwrap();
    assert_ne!(served(&manager), before);
}
