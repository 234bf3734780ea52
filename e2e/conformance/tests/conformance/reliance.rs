//! The API behavior that the runtime relies on, tested on a real API server and on the in-process one. Each test is one rule,
//! and its comment gives the reason.
//!
//! The requests go through the runtime's own connection, in the runtime's own form. Kubernetes does not document some of these
//! rules, so these tests are the only evidence: run them against each version before supporting it.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use kube::{Api, Client, api::PostParams};
use nodewright_api::API_VERSION;
use nodewright_e2e_lab::control_plane::testing::{Cluster, Failure, TestResult, ensure};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    leadership::Leadership,
    plan::FailureClass,
    request::{Call, Connection, RequestError},
};
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";
/// The field manager of the runtime in these tests, and that of another client.
const OURS: &str = "nodewright-test";
const THEIRS: &str = "somebody";
const WRONG_UID: &str = "00000000-0000-0000-0000-000000000000";
/// Only the test removes it.
const FINALIZER: &str = "conformance.nodewright.dev/held";

/// A namespace on an API server, and the runtime's connection to it.
struct Server {
    connection: Connection,
    namespace: String,
    /// `None` for the in-process server.
    cluster: Option<Arc<Cluster>>,
}

/// An API server's answer: the status, and the object or Status.
struct Said {
    code: StatusCode,
    body: Value,
}

impl Said {
    fn text(&self, path: &str) -> &str {
        self.body.pointer(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn version(&self) -> &str {
        self.text("/metadata/resourceVersion")
    }

    fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }
}

impl Server {
    /// A real server, and the in-process one.
    async fn both(name: &str) -> TestResult<[Self; 2]> {
        let cluster = Cluster::shared().await?;
        let real = Self::start(name, cluster.client().await?, Some(cluster)).await?;
        let server = ApiServer::new();
        server.enforce_namespaces();
        Ok([real, Self::start(name, server.client(), None).await?])
    }

    async fn start(name: &str, client: Client, cluster: Option<Arc<Cluster>>) -> TestResult<Self> {
        let suffix: String = std::iter::repeat_with(fastrand::lowercase).take(4).collect();
        let namespace = format!("conformance-{name}-{suffix}");
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let agent = HeaderValue::from_static("conformance");
        let connection = Connection::new(client, agent, Leadership::unlimited(), 4, Arc::new(Metrics::new()));
        Ok(Self { connection, namespace, cluster })
    }

    fn path(&self, kind: Kind, name: &str) -> String {
        let (root, plural) = match kind {
            Kind::ConfigMap => ("/api/v1".to_owned(), "configmaps"),
            Kind::Pod => ("/api/v1".to_owned(), "pods"),
            Kind::Machine => (format!("/apis/{API_VERSION}"), "machines"),
        };
        format!("{root}/namespaces/{}/{plural}/{name}", self.namespace)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: &Value,
    ) -> Result<Said, RequestError> {
        let answer = self.connection.send(Call::with(method, path, content, body)).await?;
        Ok(Said { code: answer.status(), body: serde_json::from_slice(answer.body()).unwrap_or_default() })
    }

    async fn get(&self, path: &str) -> Result<Said, RequestError> {
        let answer = self.connection.send(Call::get(path)).await?;
        Ok(Said { code: answer.status(), body: serde_json::from_slice(answer.body()).unwrap_or_default() })
    }

    /// A forced apply, as the runtime sends it.
    async fn apply(&self, path: &str, body: &Value) -> Result<Said, RequestError> {
        self.send(Method::PATCH, &format!("{path}?fieldManager={OURS}&force=true"), APPLY, body).await
    }

    /// A create, as the runtime sends it.
    async fn create(&self, path: &str, mut body: Value) -> Result<Said, RequestError> {
        body["metadata"]["resourceVersion"] = "1".into();
        self.apply(path, &body).await
    }

    /// A create by another client.
    async fn post(&self, kind: Kind, body: &Value) -> Result<Said, RequestError> {
        let path = format!("{}?fieldManager={THEIRS}", self.path(kind, "").trim_end_matches('/'));
        self.send(Method::POST, &path, JSON, body).await
    }

    async fn delete(&self, path: &str, preconditions: Value) -> Result<Said, RequestError> {
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": preconditions});
        self.send(Method::DELETE, path, JSON, &body).await
    }

    async fn end(self) -> TestResult {
        let Some(cluster) = self.cluster else { return Ok(()) };
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cluster.client().await?);
        namespaces.delete(&self.namespace, &kube::api::DeleteParams::default()).await?;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    ConfigMap,
    Pod,
    Machine,
}

/// One core kind and one custom kind: they are stored and patched by different code.
const KINDS: [Kind; 2] = [Kind::ConfigMap, Kind::Machine];

/// An object with one field of ours: `first`.
fn object(kind: Kind, name: &str) -> Value {
    match kind {
        Kind::ConfigMap => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"first": "1"}}})
        }
        Kind::Pod => json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"first": "1"}},
            // On a Node that does not exist, so no kubelet starts or ends it.
            "spec": {"nodeName": "nowhere", "automountServiceAccountToken": false, "containers": [{"name": "a", "image": "a"}]}}),
        Kind::Machine => json!({"apiVersion": API_VERSION, "kind": "Machine",
            "metadata": {"name": name, "labels": {"first": "1"}}, "spec": {"class": {"kind": "MachineClass", "name": "a"}}}),
    }
}

fn held(kind: Kind, name: &str) -> Value {
    let mut object = object(kind, name);
    object["metadata"]["finalizers"] = json!([FINALIZER]);
    object
}

/// The rejection. It is an error if the request succeeded, or failed with another code.
fn refused(result: Result<Said, RequestError>, code: u16) -> TestResult<RequestError> {
    match result {
        Ok(said) => Err(Failure::new(format!("not refused, but {}: {}", said.code, said.body))),
        Err(error) if error.status.is_some_and(|status| status.as_u16() == code) => Ok(error),
        Err(error) => Err(Failure::new(format!("refused by {:?}, not {code}: {error}", error.status))),
    }
}

/// The ledger claims names: the answer must say whether the name is free or taken, no matter who has it. An apply with version
/// 1, which no object ever has, gives that answer. Kubernetes does not document this.
#[tokio::test]
async fn an_apply_under_version_one_creates_and_never_touches_what_is_there() -> TestResult {
    for server in Server::both("create").await? {
        for kind in KINDS {
            let path = server.path(kind, "ours");
            let born = server.create(&path, object(kind, "ours")).await?;
            assert_eq!(born.code, 201, "{kind:?}");
            let error = refused(server.create(&path, object(kind, "ours")).await, 409)?;
            assert_eq!(error.class, FailureClass::Conflict);
            assert_eq!(server.get(&path).await?.version(), born.version(), "our own is as it was");

            let theirs = server.post(kind, &object(kind, "theirs")).await?;
            let path = server.path(kind, "theirs");
            refused(server.create(&path, held(kind, "theirs")).await, 409)?;
            let after = server.get(&path).await?;
            assert_eq!((after.version(), after.text("/metadata/finalizers/0")), (theirs.version(), ""), "{kind:?}");

            let leaving = server.post(kind, &held(kind, "leaving")).await?;
            let path = server.path(kind, "leaving");
            server.delete(&path, json!({"uid": leaving.uid()})).await?;
            refused(server.create(&path, object(kind, "leaving")).await, 409)?;
            release(&server, &path).await?;
            assert_eq!(server.create(&path, object(kind, "leaving")).await?.code, 201, "free again");
        }
        server.end().await?;
    }
    Ok(())
}

/// Removes the finalizer.
async fn release(server: &Server, path: &str) -> TestResult {
    server.send(Method::PATCH, path, MERGE, &json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

/// The fields of an object created by POST belong to an `Update`, which later applies cannot shrink. The fields of an object
/// created by an apply belong to applies, so omitting a field removes it.
#[tokio::test]
async fn what_an_apply_creates_is_owned_as_apply_from_its_creation() -> TestResult {
    for server in Server::both("owned").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let managers = born.body["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
            let entries: Vec<_> =
                managers.iter().map(|it| (it["manager"].as_str(), it["operation"].as_str())).collect();
            assert_eq!(entries, [(Some(OURS), Some("Apply"))], "{kind:?}");
            let mut bare = object(kind, "a");
            bare["metadata"] = json!({"name": "a", "uid": born.uid()});
            assert_eq!(server.apply(&path, &bare).await?.text("/metadata/labels/first"), "", "left out is removed");
        }
        server.end().await?;
    }
    Ok(())
}

/// A reconciler writes the same state again and again: that must not trigger any watch.
#[tokio::test]
async fn an_apply_that_changes_nothing_keeps_the_version() -> TestResult {
    for server in Server::both("no-op").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let mut same = object(kind, "a");
            same["metadata"]["uid"] = born.uid().into();
            let again = server.apply(&path, &same).await?;
            assert_eq!((again.code.as_u16(), again.version()), (200, born.version()), "{kind:?}");
        }
        server.end().await?;
    }
    Ok(())
}

/// An apply to another object of the same name would give that object the identity of the first.
#[tokio::test]
async fn a_main_apply_with_the_uid_of_another_object_is_refused() -> TestResult {
    for server in Server::both("uid").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let mut wrong = object(kind, "a");
            wrong["metadata"] = json!({"name": "a", "uid": WRONG_UID, "labels": {"first": "2"}});
            let error = server.apply(&path, &wrong).await.err();
            // The code depends on the kind; the runtime treats both as a conflict.
            let codes = error.as_ref().and_then(|error| error.status).map(|status| status.as_u16());
            ensure(matches!(codes, Some(409 | 422)), || format!("{kind:?}: {error:?}"))?;
            assert_eq!(server.get(&path).await?.version(), born.version(), "{kind:?}");
        }
        server.end().await?;
    }
    Ok(())
}

/// An apply is an upsert. With a UID it is not: it does not recreate an object that was deleted meanwhile.
#[tokio::test]
async fn a_main_apply_with_a_uid_resurrects_nothing() -> TestResult {
    for server in Server::both("resurrect").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            server.delete(&path, json!({"uid": born.uid()})).await?;
            let mut late = object(kind, "a");
            late["metadata"]["uid"] = born.uid().into();
            refused(server.apply(&path, &late).await, 409)?;
            refused(server.get(&path).await, 404)?;
        }
        server.end().await?;
    }
    Ok(())
}

/// The reason why a status apply carries the version: the UID alone gives no protection.
#[tokio::test]
async fn a_status_apply_is_refused_by_version_and_not_by_uid() -> TestResult {
    for server in Server::both("status").await? {
        let path = server.path(Kind::Machine, "a");
        let born = server.create(&path, object(Kind::Machine, "a")).await?;
        let status = |phase: &str, metadata: Value| {
            let mut body = json!({"apiVersion": API_VERSION, "kind": "Machine", "metadata": metadata,
            "status": {"currentStatus": {"phase": phase}}});
            body["metadata"]["name"] = "a".into();
            body
        };
        let at = format!("{path}/status");
        let first = server
            .apply(&at, &status("Pending", json!({"uid": born.uid(), "resourceVersion": born.version()})))
            .await?;
        assert_eq!(first.text("/status/currentStatus/phase"), "Pending");
        refused(server.apply(&at, &status("Failed", json!({"resourceVersion": born.version()}))).await, 409)?;
        let written = server.apply(&at, &status("Running", json!({"uid": WRONG_UID}))).await?;
        assert_eq!((written.code.as_u16(), written.text("/status/currentStatus/phase")), (200, "Running"));
        server.end().await?;
    }
    Ok(())
}

/// The API server drops managedFields in some cases, and controllers that write by PUT own what they wrote. An apply that omits
/// a field then does not remove it: the runtime checks the answer, and corrects the object with its version as precondition.
#[tokio::test]
async fn what_an_apply_does_not_remove_a_correction_does() -> TestResult {
    for server in Server::both("correct").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let dropped = json!({"metadata": {"managedFields": [{}]}});
            server.send(Method::PATCH, &format!("{path}?fieldManager={THEIRS}"), MERGE, &dropped).await?;
            let mut bare = object(kind, "a");
            bare["metadata"] = json!({"name": "a", "uid": born.uid()});
            let applied = server.apply(&path, &bare).await?;
            assert_eq!(applied.text("/metadata/labels/first"), "1", "{kind:?}: it should be gone, and is there");

            let correct = |version: &str| json!({"metadata": {"labels": null, "resourceVersion": version}});
            let url = format!("{path}?fieldManager={OURS}");
            refused(server.send(Method::PATCH, &url, MERGE, &correct(born.version())).await, 409)?;
            let corrected = server.send(Method::PATCH, &url, MERGE, &correct(applied.version())).await?;
            assert_eq!(corrected.text("/metadata/labels/first"), "", "{kind:?}");
        }
        server.end().await?;
    }
    Ok(())
}

/// A deletion affects only the observed object: neither a successor of the same name, nor a changed version of it.
#[tokio::test]
async fn a_deletion_of_another_object_or_another_version_is_refused() -> TestResult {
    for server in Server::both("delete").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let error = refused(server.delete(&path, json!({"uid": WRONG_UID})).await, 409)?;
            assert_eq!(error.class, FailureClass::Conflict);
            let changed =
                server.send(Method::PATCH, &path, MERGE, &json!({"metadata": {"labels": {"second": "2"}}})).await?;
            let stale = json!({"uid": born.uid(), "resourceVersion": born.version()});
            refused(server.delete(&path, stale).await, 409)?;
            assert_eq!(server.get(&path).await?.version(), changed.version(), "{kind:?}");
            server.delete(&path, json!({"uid": born.uid(), "resourceVersion": changed.version()})).await?;
            refused(server.get(&path).await, 404)?;
        }
        server.end().await?;
    }
    Ok(())
}

/// The answer to a deletion determines what a cache must show afterwards: a version, or the absence of the object.
#[tokio::test]
async fn a_deletion_answers_with_a_version_only_if_the_object_stays() -> TestResult {
    for server in Server::both("answer").await? {
        for kind in KINDS {
            let born = server.create(&server.path(kind, "a"), object(kind, "a")).await?;
            let gone = server.delete(&server.path(kind, "a"), json!({"uid": born.uid()})).await?;
            assert_eq!((gone.text("/kind"), gone.version()), ("Status", ""), "{kind:?}");
            let path = server.path(kind, "b");
            let born = server.create(&path, held(kind, "b")).await?;
            let stays = server.delete(&path, json!({"uid": born.uid()})).await?;
            assert_eq!(stays.uid(), born.uid(), "{kind:?}");
            assert!(!stays.text("/metadata/deletionTimestamp").is_empty() && stays.version() != born.version());
            release(&server, &path).await?;
        }
        server.end().await?;
    }
    Ok(())
}

/// Shared fields are changed by a patch with a test of the observed value: the faster writer wins and is not overwritten. The
/// message of a failed test differs from that of an invalid object, for which a retry is useless.
#[tokio::test]
async fn a_patch_whose_test_fails_changes_nothing() -> TestResult {
    for server in Server::both("test").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, object(kind, "a")).await?;
            let change = |uid: &str, label: &str| {
                json!([{"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "replace", "path": "/metadata/labels/first", "value": label}])
            };
            let lost = refused(server.send(Method::PATCH, &path, JSON_PATCH, &change(WRONG_UID, "2")).await, 422)?;
            let absent = json!([{"op": "replace", "path": "/metadata/annotations/none", "value": "2"}]);
            let nowhere = refused(server.send(Method::PATCH, &path, JSON_PATCH, &absent).await, 422)?;
            for error in [lost, nowhere] {
                ensure(
                    error.message.starts_with("the server rejected our request due to an error in our request"),
                    || format!("{kind:?}: {error}"),
                )?;
            }
            let invalid =
                refused(server.send(Method::PATCH, &path, JSON_PATCH, &change(born.uid(), "no label!")).await, 422)?;
            ensure(invalid.message.contains("\"a\" is invalid"), || format!("{kind:?}: {invalid}"))?;
            assert_eq!(server.get(&path).await?.version(), born.version(), "{kind:?}");
            let patched = server.send(Method::PATCH, &path, JSON_PATCH, &change(born.uid(), "2")).await?;
            assert_eq!(patched.text("/metadata/labels/first"), "2");
        }
        server.end().await?;
    }
    Ok(())
}

/// The reason why no patch uses `replace` to test whether a key exists: in an existing map, it creates the key.
#[tokio::test]
async fn a_replacement_of_a_key_that_is_not_there_adds_it() -> TestResult {
    for server in Server::both("replace").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            server.create(&path, object(kind, "a")).await?;
            let absent = json!([{"op": "replace", "path": "/metadata/labels/none", "value": "2"}]);
            let patched = server.send(Method::PATCH, &path, JSON_PATCH, &absent).await?;
            assert_eq!(patched.text("/metadata/labels/none"), "2", "{kind:?}");
            // Removing an absent key fails.
            let absent = json!([{"op": "remove", "path": "/metadata/labels/gone"}]);
            refused(server.send(Method::PATCH, &path, JSON_PATCH, &absent).await, 422)?;
        }
        server.end().await?;
    }
    Ok(())
}

/// A client that comes too late cannot block a deletion.
#[tokio::test]
async fn no_finalizer_is_added_to_what_is_being_deleted() -> TestResult {
    for server in Server::both("finalizer").await? {
        for kind in KINDS {
            let path = server.path(kind, "a");
            let born = server.create(&path, held(kind, "a")).await?;
            server.delete(&path, json!({"uid": born.uid()})).await?;
            let add =
                json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "conformance.nodewright.dev/late"}]);
            let error = refused(server.send(Method::PATCH, &path, JSON_PATCH, &add).await, 422)?;
            ensure(error.message.contains("metadata.finalizers"), || format!("{kind:?}: {error}"))?;
            release(&server, &path).await?;
        }
        server.end().await?;
    }
    Ok(())
}

/// A drain evicts the observed pod repeatedly until it is gone. The answer must distinguish a pod in deletion from an absent
/// one, and the eviction must not hit a successor.
#[tokio::test]
async fn a_pod_may_be_evicted_twice_and_only_as_itself() -> TestResult {
    for server in Server::both("evict").await? {
        let mut pod = held(Kind::Pod, "a");
        // The service account of the namespace may not exist yet.
        let begun = tokio::time::Instant::now();
        let born = loop {
            match server.post(Kind::Pod, &pod).await {
                Err(error) if error.class == FailureClass::Forbidden && begun.elapsed().as_secs() < 30 => {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
                result => break result?,
            }
        };
        pod["metadata"]["uid"] = born.uid().into();
        let evict = async |name: &str, uid: &str| {
            let body = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": server.namespace}, "deleteOptions": {"preconditions": {"uid": uid}}});
            let path = format!("{}/eviction", server.path(Kind::Pod, name));
            server.send(Method::POST, &path, JSON, &body).await
        };
        refused(evict("a", WRONG_UID).await, 409)?;
        assert_eq!(server.get(&server.path(Kind::Pod, "a")).await?.text("/metadata/deletionTimestamp"), "");
        assert_eq!(evict("a", born.uid()).await?.code, 201);
        assert_eq!(evict("a", born.uid()).await?.code, 201);
        refused(evict("b", WRONG_UID).await, 404)?;
        release(&server, &server.path(Kind::Pod, "a")).await?;
        server.end().await?;
    }
    Ok(())
}
