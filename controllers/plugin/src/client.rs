//! Requests to API servers. Each has a timeout, and lists are read page by page.

use std::{fmt, path::PathBuf, time::Duration};

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, client::Body};
use nodewright_runtime::{clip::clip, error::one_line, request::read_kubeconfig};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::{
    fault::{Fault, Outcome},
    port,
    resources::{NODES, PODS, Resource, SERVICE_ACCOUNTS},
};

/// How many objects are requested at once.
const PAGE: usize = 500;
/// The longest answer that is read, in bytes: a page of objects of the largest size that API servers store is longer.
const LONGEST_ANSWER: usize = 512 << 20;
/// What is escaped in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The writer of the fields that commands change.
pub(crate) const FIELD_MANAGER: &str = "kubectl-nodewright";
/// How API servers begin a refusal of fields that other managers have.
const FIELD_CONFLICT: &str = "Apply failed with ";
const USER_AGENT: &str = concat!("kubectl-nodewright/", env!("CARGO_PKG_VERSION"));

/// The cluster that flags name: that of the machines, or that of their nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) timeout: Duration,
}

/// An API server.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    /// That of the context, or `default`.
    pub(crate) namespace: String,
    pub(crate) timeout: Duration,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    Merge(Value),
    Json(json_patch::Patch),
}

impl Cluster {
    pub(crate) async fn connect(connection: &Connection) -> Outcome<Self> {
        let file = connection.kubeconfig.as_deref();
        let what = file.map_or("kubeconfig".to_owned(), |file| format!("kubeconfig {}", file.display()));
        let failed = |message| Fault::Kubeconfig { what: what.clone(), message };
        let mut config = read_kubeconfig(file, connection.context.clone()).await.map_err(failed)?;
        config.connect_timeout = Some(connection.timeout);
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| failed(one_line(&error)))?;
        Ok(Self { client, namespace, timeout: connection.timeout })
    }

    #[cfg(test)]
    pub(crate) fn of(client: Client, timeout: Duration) -> Self {
        Self { client, namespace: "shoot".to_owned(), timeout }
    }

    /// The objects of a kind, as JSON with kind and version.
    pub(crate) async fn list(&self, of: Resource, namespace: Option<&str>, fields: &str) -> Outcome<Vec<Value>> {
        let select = if fields.is_empty() { String::new() } else { format!("&fieldSelector={}", encoded(fields)) };
        self.pages(of, namespace, &select).await
    }

    /// The objects of a kind with these labels.
    pub(crate) async fn list_labelled(&self, of: Resource, namespace: &str, labels: &str) -> Outcome<Vec<Value>> {
        self.pages(of, Some(namespace), &format!("&labelSelector={}", encoded(labels))).await
    }

    /// A token of a service account that is valid for ten minutes, the shortest time that API servers allow.
    pub(crate) async fn token(&self, namespace: &str, account: &str) -> Outcome<String> {
        let of = Resource { plural: "serviceaccounts/token", ..SERVICE_ACCOUNTS };
        let path = format!("{}/{}/token", SERVICE_ACCOUNTS.path(Some(namespace)), encoded(account));
        let request = serde_json::json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"expirationSeconds": 600}});
        let call = Call { verb: "create", of, namespace: Some(namespace), name: Some(account) };
        let body = request.to_string().into_bytes();
        let answer = self.request(call, path, Some((Method::POST, "application/json", body))).await?;
        let token = answer.pointer("/status/token").and_then(Value::as_str);
        token.map(str::to_owned).ok_or_else(|| Fault::Message(format!("{call}: the answer has no token")))
    }

    /// What a port of a Pod answers to a GET request, by way of the API server and the Pod's kubelet. With a token over TLS: see
    /// [`port::get`].
    pub(crate) async fn get_from_port(
        &self,
        (namespace, pod, number): (&str, &str, u16),
        path: &str,
        token: Option<&str>,
    ) -> Outcome<(StatusCode, String)> {
        let of = Resource { plural: "pods/portforward", ..PODS };
        let call = Call { verb: "create", of, namespace: Some(namespace), name: Some(pod) };
        let answer = async {
            let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
            let forwarded = pods.portforward(pod, &[number]).await;
            port::forwarded(forwarded.map_err(|error| call.forwarding(&error))?, number, path, token).await
        };
        let seconds = self.timeout.as_secs();
        let answer = tokio::time::timeout(self.timeout, answer).await;
        answer.map_err(|_| Fault::Timeout { seconds, request: call.to_string() })?
    }

    async fn pages(&self, of: Resource, namespace: Option<&str>, select: &str) -> Outcome<Vec<Value>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!("{}?limit={PAGE}{select}&continue={}", of.path(namespace), encoded(&next));
            let mut page = self.request(Call { verb: "list", of, namespace, name: None }, path, None).await?;
            let items = page.get_mut("items").map(Value::take).unwrap_or_default();
            if let Value::Array(items) = items {
                all.extend(items.into_iter().map(|item| described(item, of)));
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
                Some(token) => token.clone_into(&mut next),
                None => return Ok(all),
            }
        }
    }

    pub(crate) async fn get(&self, of: Resource, namespace: Option<&str>, name: &str) -> Outcome<Value> {
        let path = format!("{}/{}", of.path(namespace), encoded(name));
        let call = Call { verb: "get", of, namespace, name: Some(name) };
        Ok(described(self.request(call, path, None).await?, of))
    }

    pub(crate) async fn patch(&self, at: (Resource, Option<&str>, &str), change: &Patch, dry: bool) -> Outcome<Value> {
        let (of, namespace, name) = at;
        let dry = if dry { "&dryRun=All" } else { "" };
        let path = format!("{}/{}?fieldManager={FIELD_MANAGER}{dry}", of.path(namespace), encoded(name));
        let (kind, body) = match change {
            Patch::Merge(value) => ("application/merge-patch+json", serde_json::to_vec(value)),
            Patch::Json(all) => ("application/json-patch+json", serde_json::to_vec(all)),
        };
        let body = body.map_err(|error| Fault::Message(format!("failed to write a patch: {error}")))?;
        let call = Call { verb: "patch", of, namespace, name: Some(name) };
        self.request(call, path, Some((Method::PATCH, kind, body))).await
    }

    /// What an object would be if a client applied this. Nothing is written. Without `force`, fields of other managers are a conflict.
    pub(crate) async fn dry_apply(
        &self,
        at: (Resource, Option<&str>, &str),
        object: &Value,
        by: &str,
        force: bool,
    ) -> Outcome<Value> {
        let (of, namespace, name) = at;
        let flags = format!("fieldManager={}&force={force}&dryRun=All", encoded(by));
        let path = format!("{}/{}?{flags}", of.path(namespace), encoded(name));
        let call = Call { verb: "patch", of, namespace, name: Some(name) };
        let body = object.to_string().into_bytes();
        let applied = self.request(call, path, Some((Method::PATCH, "application/apply-patch+yaml", body))).await;
        applied.map_err(|error| match error {
            Fault::Refused { code: 409, message, .. } if message.starts_with(FIELD_CONFLICT) => Fault::Message(
                format!("{} {name}: {message}; with --force-conflicts these fields are taken over", of.kind),
            ),
            other => other,
        })
    }

    /// Deletes an object, if it has this UID still.
    pub(crate) async fn delete(&self, at: (Resource, Option<&str>, &str), uid: &str, dry: bool) -> Outcome<()> {
        let (of, namespace, name) = at;
        let path = format!("{}/{}", of.path(namespace), encoded(name));
        // API servers pass over parameters of the query where there is a body: with dryRun there the object would be deleted.
        let dry: &[&str] = if dry { &["All"] } else { &[] };
        let options = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, "dryRun": dry,
        });
        let body = options.to_string().into_bytes();
        let call = Call { verb: "delete", of, namespace, name: Some(name) };
        self.request(call, path, Some((Method::DELETE, "application/json", body))).await?;
        Ok(())
    }

    /// The version of the API server.
    pub(crate) async fn version(&self) -> Outcome<Value> {
        let call = Call { verb: "get", of: NODES, namespace: None, name: Some("the version") };
        self.request(call, "/version".to_owned(), None).await
    }

    async fn request(&self, call: Call<'_>, path: String, body: Option<(Method, &str, Vec<u8>)>) -> Outcome<Value> {
        let (method, kind, body) = body.unwrap_or((Method::GET, "application/json", Vec::new()));
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::USER_AGENT, USER_AGENT).header(header::ACCEPT, "application/json");
        let request = request.header(header::CONTENT_TYPE, kind).body(Body::from(body));
        let request = request.map_err(|error| Fault::Message(format!("failed to {call}: {error}")))?;
        let answer = tokio::time::timeout(self.timeout, self.answer(request)).await;
        let seconds = self.timeout.as_secs();
        let (code, value) = answer.map_err(|_| Fault::Timeout { seconds, request: call.to_string() })??;
        if code.is_success() { Ok(value) } else { Err(call.fault(code, &value)) }
    }

    async fn answer(&self, request: Request<Body>) -> Outcome<(StatusCode, Value)> {
        let failed = |message: String| Fault::Unreachable { message: clip(message) };
        let response = self.client.send(request).await.map_err(|error| failed(one_line(&error)))?;
        let code = response.status();
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| failed(one_line(error.as_ref())))?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&body).trim().to_owned());
        Ok((code, serde_json::from_slice(&body).unwrap_or_else(|_| text())))
    }
}

/// A request, for messages.
#[derive(Clone, Copy)]
struct Call<'a> {
    verb: &'static str,
    of: Resource,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.of.plural)?;
        self.name.map_or(Ok(()), |name| write!(f, " {name}"))?;
        f.write_str(&self.place())
    }
}

impl Call<'_> {
    fn place(&self) -> String {
        match self.namespace.filter(|_| self.of.namespaced) {
            Some(namespace) => format!(" in namespace {namespace}"),
            None if self.of.namespaced => " in all namespaces".to_owned(),
            None => String::new(),
        }
    }

    /// Why a port was not forwarded. API servers ask for two verbs: `get`, because it is a WebSocket, and newer ones `create` as well.
    fn forwarding(self, error: &kube::Error) -> Fault {
        let kube::Error::Api(status) = error else {
            let message = clip(one_line(error));
            return Fault::Refused { request: self.to_string(), message, code: 0 };
        };
        let verb = if status.message.contains("cannot get ") { "get" } else { self.verb };
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { verb, ..self }.fault(code, &serde_json::to_value(status).unwrap_or_default())
    }

    fn fault(self, code: StatusCode, answer: &Value) -> Fault {
        let message = answer["message"].as_str().or(answer.as_str()).unwrap_or_default();
        let message = if message.is_empty() { code.to_string() } else { clip(message) };
        let (resource, place) = (Box::new(self.of), self.place());
        match (code, self.name) {
            (StatusCode::UNAUTHORIZED, _) => Fault::Unauthorized,
            (StatusCode::FORBIDDEN, _) if is_right(&message) => {
                Fault::Forbidden { verb: self.verb, resource, place, message }
            }
            // A missing object is named in the details of the answer.
            (StatusCode::NOT_FOUND, Some(name)) if answer.pointer("/details/name").is_some() => {
                Fault::NotFound { resource, name: name.to_owned(), place }
            }
            (StatusCode::NOT_FOUND, _) => Fault::NotServed { resource },
            _ => Fault::Refused { request: self.to_string(), message, code: code.as_u16() },
        }
    }
}

/// Whether a refusal is about the rights of the user. Webhooks, policies and quotas answer with the same code.
fn is_right(message: &str) -> bool {
    message.contains("cannot ") && message.contains("User ")
}

/// An element of a list does not say what it is.
fn described(mut object: Value, of: Resource) -> Value {
    object["apiVersion"] = of.api_version().into();
    object["kind"] = of.kind.into();
    object
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}
