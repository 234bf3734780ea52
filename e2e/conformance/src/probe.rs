//! A namespace on a server, and the transcript of its answers.

use std::{fmt, time::Duration};

use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt, stream::BoxStream};
use http::{Method, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::{
    normal::Normal,
    objects::Kind,
    transcript::{Answer, Transcript},
};
use nodewright_e2e_lab::control_plane::testing::{Failure, TestResult, ensure};

/// The timeout for an expected answer or event.
const TIMEOUT: Duration = Duration::from_mins(2);
/// The polling interval.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The field manager of most writes.
pub(super) const OURS: &str = "conformance";
/// The field manager of another client.
pub(super) const THEIRS: &str = "somebody";

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const APPLY: &str = "application/apply-patch+yaml";

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    method: Method,
    /// The path with the query.
    path: String,
    content: &'static str,
    body: String,
    accept: &'static str,
}

impl Request {
    fn with(method: Method, path: impl Into<String>, content: &'static str, body: &Value) -> Self {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Self { method, path: path.into(), content, body, accept: JSON }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::with(Method::GET, path, JSON, &Value::Null)
    }

    pub(super) fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::with(Method::POST, path, JSON, body)
    }

    pub(super) fn put(path: impl Into<String>, body: &Value) -> Self {
        Self::with(Method::PUT, path, JSON, body)
    }

    pub(super) fn merge(path: impl Into<String>, body: &Value) -> Self {
        Self::with(Method::PATCH, path, MERGE, body)
    }

    pub(super) fn strategic(path: impl Into<String>, body: &Value) -> Self {
        Self::with(Method::PATCH, path, STRATEGIC, body)
    }

    pub(super) fn json_patch(path: impl Into<String>, body: &Value) -> Self {
        Self::with(Method::PATCH, path, JSON_PATCH, body)
    }

    /// An apply without force.
    pub(super) fn apply(path: impl fmt::Display, manager: &str, body: &Value) -> Self {
        Self::with(Method::PATCH, format!("{path}?fieldManager={manager}"), APPLY, body)
    }

    /// An apply with force.
    pub(super) fn force(path: impl fmt::Display, manager: &str, body: &Value) -> Self {
        Self::with(Method::PATCH, format!("{path}?fieldManager={manager}&force=true"), APPLY, body)
    }

    /// A deletion; its options are `null` or fields of `DeleteOptions`.
    pub(super) fn delete(path: impl Into<String>, options: &Value) -> Self {
        let mut body = options.clone();
        if let Some(fields) = body.as_object_mut() {
            fields.insert("apiVersion".into(), "v1".into());
            fields.insert("kind".into(), "DeleteOptions".into());
        }
        Self::with(Method::DELETE, path, JSON, &body)
    }

    /// The same request with one more parameter.
    #[must_use]
    pub(super) fn query(mut self, parameter: &str) -> Self {
        let sign = if self.path.contains('?') { '&' } else { '?' };
        self.path = format!("{}{sign}{parameter}", self.path);
        self
    }

    /// The same request with another body, unchanged.
    #[must_use]
    pub(super) fn raw(self, content: &'static str, body: impl Into<String>) -> Self {
        Self { content, body: body.into(), ..self }
    }

    /// The same list, with metadata only.
    #[must_use]
    pub(super) fn metadata(self) -> Self {
        Self { accept: METADATA_LIST, ..self }
    }

    /// The same write, answered by metadata only.
    #[must_use]
    pub(super) fn for_metadata(self) -> Self {
        Self { accept: METADATA, ..self }
    }

    fn to_http(&self) -> TestResult<http::Request<Body>> {
        let request = http::Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::CONTENT_TYPE, self.content)
            .header(header::ACCEPT, self.accept);
        Ok(request.body(Body::from(self.body.clone().into_bytes()))?)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = if self.body.len() > 2_000 { "…" } else { &self.body };
        write!(formatter, "{} {} {} {body}", self.method, self.path, self.content)
    }
}

/// A server's answer: the status, and the object or Status.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl Said {
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn version(&self) -> &str {
        self.text("/metadata/resourceVersion")
    }

    pub(super) fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }
}

/// A namespace on a server. It keeps the requests and answers.
pub struct Probe {
    client: Client,
    user_agent: Option<&'static str>,
    namespace: String,
    normal: Normal,
    transcript: Transcript,
}

impl Probe {
    /// Creates the namespace. `user_agent`: the client's name, for a client that does not send one.
    pub async fn start(client: Client, user_agent: Option<&'static str>, namespace: &str) -> TestResult<Self> {
        let (normal, transcript) = (Normal::new(namespace), Transcript::default());
        let mut probe = Self { client, user_agent, namespace: namespace.to_owned(), normal, transcript };
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        probe.quietly(&Request::post("/api/v1/namespaces", &body)).await?;
        Ok(probe)
    }

    /// The transcript of all requests and answers.
    pub fn finish(self) -> Transcript {
        self.transcript
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of a collection.
    pub(super) fn all(&self, kind: Kind) -> String {
        kind.collection(&self.namespace)
    }

    /// The path of an object. The names of cluster-scoped objects contain our namespace: see [`Probe::name`].
    pub(super) fn path(&self, kind: Kind, name: &str) -> String {
        format!("{}/{}", self.all(kind), self.name(kind, name))
    }

    /// The name of an object. A cluster-scoped one contains our namespace.
    pub(super) fn name(&self, kind: Kind, name: &str) -> String {
        if kind.is_namespaced() { name.to_owned() } else { format!("{}-{name}", self.namespace) }
    }

    /// The typical object of a kind.
    pub(super) fn object(&self, kind: Kind, name: &str) -> Value {
        kind.object(&self.name(kind, name))
    }

    /// Sends a request, and keeps the answer under a name.
    pub(super) async fn ask(&mut self, what: &str, request: Request) -> TestResult<Said> {
        let (said, retry_after) = self.send(&request).await?;
        let body = self.normal.value(&said.body);
        let answer = Answer { code: said.code, retry_after, body };
        self.transcript.add(what, &self.normal.text(&request.to_string()), answer);
        Ok(said)
    }

    /// Sends a request that must succeed, because later ones depend on it.
    pub(super) async fn quietly(&mut self, request: &Request) -> TestResult<Said> {
        let (said, _) = self.send(request).await?;
        ensure(said.code < 300, || format!("{request}: {} {}", said.code, said.body))?;
        // Versions and UIDs are numbered by their first appearance, also here.
        self.normal.value(&said.body);
        Ok(said)
    }

    /// Repeats a request until `is` accepts the answer, and keeps nothing.
    pub(super) async fn wait_for(&mut self, request: &Request, is: impl Fn(&Said) -> bool) -> TestResult {
        let awaited = async {
            loop {
                let (said, _) = self.send(request).await?;
                if is(&said) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let result: Result<TestResult, _> = tokio::time::timeout(TIMEOUT, awaited).await;
        result.unwrap_or_else(|_| Err(Failure::new(format!("{request}: it does not come to that"))))
    }

    /// Waits until a server's clock, which it writes in seconds, shows another time.
    pub(super) async fn next_second(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// Sends a request, and keeps nothing.
    pub(super) async fn silently(&mut self, request: &Request) -> TestResult<Said> {
        Ok(self.send(request).await?.0)
    }

    /// Keeps a finding from another source.
    pub(super) fn note(&mut self, what: &str, found: &Value) {
        let body = self.normal.value(found);
        self.transcript.add(what, "", Answer { code: 0, retry_after: None, body });
    }

    async fn send(&self, request: &Request) -> TestResult<(Said, Option<String>)> {
        let mut asked = request.to_http()?;
        if let Some(user_agent) = self.user_agent {
            asked.headers_mut().insert(header::USER_AGENT, header::HeaderValue::from_static(user_agent));
        }
        let answer = tokio::time::timeout(TIMEOUT, self.client.send(asked)).await??;
        let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let (retry_after, code) = (retry_after.map(str::to_owned), answer.status().as_u16());
        let body = tokio::time::timeout(TIMEOUT, answer.into_body().collect()).await??.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| text());
        Ok((Said { code, body }, retry_after))
    }

    /// Opens a watch.
    pub(super) async fn watch(&mut self, path: &str, query: &str) -> TestResult<Watch> {
        self.open(&Request::get(path).query(query)).await
    }

    /// Opens a watch of metadata only.
    pub(super) async fn watch_metadata(&mut self, path: &str, query: &str) -> TestResult<Watch> {
        self.open(&Request { accept: METADATA, ..Request::get(path).query(query) }).await
    }

    async fn open(&mut self, list: &Request) -> TestResult<Watch> {
        let watch = list.clone().query("watch=true");
        let request = http::Request::get(&watch.path).header(header::ACCEPT, watch.accept).body(vec![])?;
        Ok(Watch { lines: self.client.request_stream(request).await?.lines_boxed() })
    }

    /// Keeps the next `count` events of a watch, each under a name.
    pub(super) async fn events(&mut self, what: &str, watch: &mut Watch, count: usize) -> TestResult<Vec<Value>> {
        let mut events = vec![];
        for number in 1..=count {
            let next = tokio::time::timeout(TIMEOUT, watch.next()).await;
            let next = next.map_err(|_| Failure::new(format!("{what}: no event {number} came: {events:?}")))??;
            let event = next.ok_or_else(|| Failure::new(format!("{what}: over before event {number}: {events:?}")))?;
            self.note(&format!("{what}, event {number}"), &event);
            events.push(event);
        }
        Ok(events)
    }

    /// Keeps the fact that a watch ends without another event.
    pub(super) async fn end_of(&mut self, what: &str, watch: &mut Watch) -> TestResult {
        let next = tokio::time::timeout(TIMEOUT, watch.next()).await;
        let next = next.map_err(|_| Failure::new(format!("{what}: it goes on")))??;
        self.note(what, &next.unwrap_or_else(|| "the end".into()));
        Ok(())
    }
}

/// An open watch.
pub(super) struct Watch {
    lines: BoxStream<'static, std::io::Result<String>>,
}

impl Watch {
    pub(super) async fn next(&mut self) -> TestResult<Option<Value>> {
        match self.lines.next().await {
            Some(line) => Ok(Some(serde_json::from_str(&line?)?)),
            None => Ok(None),
        }
    }
}

trait LinesBoxed {
    fn lines_boxed(self) -> BoxStream<'static, std::io::Result<String>>;
}

impl<R: AsyncBufRead + Send + 'static> LinesBoxed for R {
    fn lines_boxed(self) -> BoxStream<'static, std::io::Result<String>> {
        Box::pin(self).lines().boxed()
    }
}
