//! Scoped watches of single objects: each is one watch of one name, and no other object is visible.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    cache::{Lookup, Stores},
    controller::{Controller, Watches},
    effect::Never,
    finalizers,
    manager::{Manager, Options},
    object::{Cluster, ObjectRef, annotation, has_finalizer},
    plan::{Context, Plan, Step},
    scoped_watch::ScopedWatch,
};
use nodewright_testing::api_server::{ApiServer, Fault, Match, Pace};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

const HOME: Cluster = Cluster::new("home");

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const HELD: &str = "test.dev/held";
const FIELDS: &str = "type!=foreign";

/// Writes into an annotation of a ConfigMap what is known of the Secrets that another annotation names, and adds a finalizer
/// to them.
struct Finder;

struct Snapshot {
    map: Arc<ConfigMap>,
    secrets: Vec<(ObjectRef, Lookup<Secret>)>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Note {
    metadata: NoteMeta,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct NoteMeta {
    annotations: BTreeMap<String, String>,
}

impl ApplyConfiguration for Note {
    type Of = ConfigMap;
    fn extract(live: &ConfigMap) -> Self {
        let all = live.metadata.annotations.clone().unwrap_or_default();
        Self { metadata: NoteMeta { annotations: all.into_iter().filter(|(key, _)| key == "found").collect() } }
    }
}

impl Controller for Finder {
    const NAME: &'static str = "finder";
    type Primary = ConfigMap;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<ConfigMap>(HOME, "default");
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let map = stores.of::<ConfigMap>(HOME).get(key)?;
        let names = annotation(map.as_ref(), "names").unwrap_or_default();
        let keys = names.split_whitespace().map(|name| ObjectRef::new(HOME, "default", name));
        let secrets = keys.map(|key| (key.clone(), stores.named::<Secret>(&key, FIELDS))).collect();
        Some(Snapshot { map, secrets })
    }

    fn plan(_: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        let (mut plan, mut found) = (Plan::idle(), vec![]);
        for (key, secret) in &snapshot.secrets {
            plan.scoped_watch(ScopedWatch::named::<Secret>(key, FIELDS));
            found.push(match secret {
                Lookup::Pending => "pending".to_owned(),
                Lookup::Failed(why) => format!("failed: {why}"),
                Lookup::Missing => "missing".to_owned(),
                Lookup::Unreadable(_) => "unreadable".to_owned(),
                Lookup::Found(secret) => format!("{:?}", secret.type_.as_deref().unwrap_or_default()),
            });
            if let Some(secret) = secret.found().filter(|secret| !has_finalizer(secret.as_ref(), HELD)) {
                let add = finalizers::add(&secret.metadata, HELD);
                plan.beside("it is named", Step::edit(HOME, secret.as_ref(), add));
            }
        }
        let annotations = BTreeMap::from([("found".to_owned(), found.join(" "))]);
        let note = Note { metadata: NoteMeta { annotations } };
        plan.then("something else is found", Step::apply(HOME, snapshot.map.as_ref(), note));
        plan
    }
}

struct Running {
    server: ApiServer,
    stores: Stores,
    _stop: DropGuard,
}

impl Running {
    /// With a ConfigMap `m` that names these Secrets.
    fn naming(server: ApiServer, names: &str) -> Self {
        let metadata = json!({"name": "m", "annotations": {"names": names}});
        server.seed(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}));
        let mut manager = Manager::new(Options { seed: 1, ..Options::new("test", "1", HOME, server.client()) });
        manager.add(Finder);
        let (stores, stop) = (manager.stores(), CancellationToken::new());
        tokio::spawn(manager.run(vec![], stop.clone()));
        Self { server, stores, _stop: stop.drop_guard() }
    }

    fn name(&self, names: &str) {
        self.server.change(&format!("{MAPS}/m"), |map| map["metadata"]["annotations"]["names"] = names.into());
    }

    fn found(&self) -> String {
        let map = self.server.object(&format!("{MAPS}/m")).unwrap();
        map["metadata"]["annotations"]["found"].as_str().unwrap_or_default().to_owned()
    }

    /// The time until the annotation has this value.
    async fn until_found(&self, wanted: &str) -> Duration {
        let begun = tokio::time::Instant::now();
        for _ in 0..20_000 {
            if self.found() == wanted {
                return begun.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{wanted:?} was not found, but {:?}", self.found());
    }

    fn lookup(&self, name: &str) -> Lookup<Secret> {
        self.stores.named(&ObjectRef::new(HOME, "default", name), FIELDS)
    }

    fn watches(&self) -> usize {
        self.server.open_watches().iter().filter(|watch| watch.path == SECRETS).count()
    }
}

fn secret(server: &ApiServer, name: &str) {
    server.seed(SECRETS, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque"}));
}

async fn passes(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_named_is_followed_and_nothing_else_is_seen() {
    let server = ApiServer::new();
    for index in 0..1_000 {
        secret(&server, &format!("other-{index}"));
    }
    let running = Running::naming(server.clone(), "a b");
    running.until_found("missing missing").await;
    secret(&server, "a");
    assert!(running.until_found(r#""Opaque" missing"#).await < Duration::from_secs(1));
    server.change(&format!("{SECRETS}/a"), |secret| secret["type"] = "x".into());
    assert!(running.until_found(r#""x" missing"#).await < Duration::from_secs(1));
    server.change(&format!("{SECRETS}/a"), |secret| secret["metadata"]["finalizers"] = json!([]));
    server.remove(&format!("{SECRETS}/a"));
    assert!(running.until_found("missing missing").await < Duration::from_secs(1));
    let asked = server.requests().into_iter().filter(|request| request.path == SECRETS);
    for request in asked {
        let named =
            ["a", "b"].map(|name| format!("fieldSelector=metadata.name%3D{name}%2Cmetadata.namespace%3Ddefault"));
        assert!(named.iter().any(|named| request.query.contains(named)), "{}", request.query);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_named_no_more_is_let_go() {
    let server = ApiServer::new();
    secret(&server, "a");
    let running = Running::naming(server.clone(), "a");
    running.until_found(r#""Opaque""#).await;
    assert!(running.lookup("a").found().is_some());
    running.name("");
    running.until_found("").await;
    passes(1).await;
    assert!(matches!(running.lookup("a"), Lookup::Pending), "an object without a scoped watch is not known");
    assert_eq!(running.watches(), 0);
    running.name("a");
    assert!(running.until_found(r#""Opaque""#).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_refused_list_is_distinguished_from_a_missing_object() {
    let server = ApiServer::new();
    server.fail_always(Match::verb("list").path_end("/secrets"), Fault::Status(403));
    let running = Running::naming(server.clone(), "a");
    running.until_found("pending").await;
    passes(10).await;
    assert!(running.found().starts_with("failed: "), "{}", running.found());
    server.heal();
    running.until_found("missing").await;
}

#[tokio::test(start_paused = true)]
async fn an_own_write_is_waited_for_although_the_watch_is_late() {
    let server = ApiServer::new();
    secret(&server, "a");
    server.pace_watches(Match::any().path_end("/secrets"), Pace::Late(Duration::from_secs(3)));
    let running = Running::naming(server.clone(), "a");
    running.until_found(r#""Opaque""#).await;
    // Something else changes meanwhile.
    for round in 0..5 {
        server.change(&format!("{MAPS}/m"), |map| map["metadata"]["labels"] = json!({"round": round.to_string()}));
        passes(1).await;
    }
    passes(10).await;
    let patches = server.requests().into_iter().filter(|request| request.verb == "patch");
    let patches: Vec<_> = patches.filter(|request| request.path.starts_with(SECRETS)).map(|it| it.status).collect();
    assert_eq!(patches, [200]);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_bound_objects_are_listed_each_minute_until_there_is_a_place() {
    let server = ApiServer::new();
    let all: Vec<String> = (0..130).map(|index| format!("s{index:03}")).collect();
    for name in &all {
        secret(&server, name);
    }
    let running = Running::naming(server.clone(), &all.join(" "));
    running.until_found(&[r#""Opaque""#; 130].join(" ")).await;
    passes(5).await;
    assert_eq!(running.watches(), 128);
    let change = |kind: &str| {
        for name in &all {
            server.change(&format!("{SECRETS}/{name}"), |secret| secret["type"] = kind.into());
        }
    };
    change("x");
    let late = running.until_found(&[r#""x""#; 130].join(" ")).await;
    assert!(late > Duration::from_secs(1) && late < Duration::from_secs(61), "{late:?}");
    server.take_requests();
    passes(600).await;
    let lists = server.take_requests().into_iter().filter(|it| it.path == SECRETS && it.verb == "list");
    // Two beyond the limit, and the idle watches' checks whether the server was restored.
    assert!(lists.count() < 2 * 10 + 128 * 4, "a bounded load");
    running.name(&all[20..].join(" "));
    passes(62).await;
    assert_eq!(running.watches(), 110, "all have a place now");
    change("y");
    assert!(running.until_found(&[r#""y""#; 110].join(" ")).await < Duration::from_secs(2));
}
