//! The HTTP API of the cloud.

use std::{
    fmt, io,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State, rejection::BytesRejection},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, StatusCode, header, request::Parts};
use nodewright_testing::stand_in;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::sync::oneshot;
use tower::{Service, ServiceExt};

use super::{
    api::{
        AddressOrder, Code, CreateVm, DEFAULT_PAGE, Failure, FaultOrder, HardwareOrder, KubeletOrder, ListVms,
        OBSERVER_HEADER, Quota,
    },
    calls::{Call, Caller},
    clocked::Clocked,
    state::Reply,
};

/// The maximum size of a body.
const BODY_LIMIT: usize = 256 << 10;

type Cloud = State<Arc<Clocked>>;
type Payload = Result<Bytes, BytesRejection>;

fn router(shared: Arc<Clocked>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/vms", get(list).post(create))
        .route("/vms/{id}", get(get_one).delete(delete_one))
        .route("/vms/{id}/kill", post(kill))
        .route("/vms/{id}/start", post(start))
        .route("/vms/{id}/kubelet", post(order_kubelet))
        .route("/vms/{id}/hardware", post(order_hardware))
        .route("/vms/{id}/addresses", post(order_addresses))
        .route("/faults", get(faults).post(add_fault).delete(end_faults))
        .route("/faults/{id}", delete(end_fault))
        .route("/quota", get(quota).put(set_quota))
        .route("/stats", get(stats))
        .route("/stats/reset", post(reset_stats))
        .route("/events", get(events))
        .fallback(|| async { Failure::new(Code::NotFound, "there is no such path") })
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(shared)
}

async fn create(State(shared): Cloud, caller: Caller, body: Payload) -> Result<Response, Failure> {
    let order: CreateVm = decode(body)?;
    deliver(&shared, Call::Create(Box::new(order)), caller).await
}

async fn get_one(State(shared): Cloud, caller: Caller, Path(id): Path<String>) -> Result<Response, Failure> {
    deliver(&shared, Call::Get(id), caller).await
}

async fn delete_one(State(shared): Cloud, caller: Caller, Path(id): Path<String>) -> Result<Response, Failure> {
    deliver(&shared, Call::Delete(id), caller).await
}

async fn list(
    State(shared): Cloud,
    caller: Caller,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Failure> {
    deliver(&shared, Call::List(list_filter(query)?), caller).await
}

fn list_filter(query: Vec<(String, String)>) -> Result<ListVms, Failure> {
    let mut filter = ListVms::default();
    for (key, value) in query {
        match (key.as_str(), key.strip_prefix("tag.")) {
            (_, Some(tag)) => drop(filter.tags.insert(tag.to_owned(), value)),
            ("name", _) => filter.name = Some(value),
            ("after", _) => filter.after = Some(value),
            ("limit", _) => filter.limit = Some(number("limit", &value)?),
            _ => return Err(Failure::invalid(format!("the parameter {key:?} is unknown"))),
        }
    }
    Ok(filter)
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|_| Failure::invalid(format!("{name} must be a number, not {value:?}")))
}

/// Executes a call, and answers when and how the cloud says.
async fn deliver(shared: &Clocked, call: Call, caller: Caller) -> Result<Response, Failure> {
    let answer = shared.with(|cloud, now| cloud.call(now, &call, caller))?;
    tokio::time::sleep(answer.after).await;
    match answer.reply {
        Reply::Vm { status, vm } => Ok(reply(StatusCode::from_u16(status).unwrap_or_default(), &vm)),
        Reply::Page(page) => Ok(reply(StatusCode::OK, &page)),
        Reply::Failed(failure) => Err(failure),
        Reply::Never => std::future::pending().await,
        Reply::Cut => Ok((StatusCode::OK, axum::Extension(Cut)).into_response()),
        Reply::Garbage => {
            let html = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>";
            Ok((StatusCode::BAD_GATEWAY, [(header::CONTENT_TYPE, "text/html")], html).into_response())
        }
    }
}

async fn kill(State(shared): Cloud, Path(id): Path<String>) -> Result<Response, Failure> {
    shared.with(|cloud, now| cloud.kill(now, &id))?.map(|vm| reply(StatusCode::OK, &vm))
}

async fn start(State(shared): Cloud, Path(id): Path<String>) -> Result<Response, Failure> {
    shared.with(|cloud, now| cloud.start(now, &id))?.map(|vm| reply(StatusCode::OK, &vm))
}

async fn order_kubelet(State(shared): Cloud, Path(id): Path<String>, body: Payload) -> Result<Response, Failure> {
    let order: KubeletOrder = decode(body)?;
    let is_for_all = matches!(order, KubeletOrder::Silence | KubeletOrder::Revive | KubeletOrder::Restart);
    if shared.has_real_nodes() && !is_for_all {
        let message = "the kubelets of this cloud are real: they can be silenced, revived and restarted";
        return Err(Failure::new(Code::FailedPrecondition, message));
    }
    shared.with(|cloud, now| cloud.order_kubelet(now, &id, order))?.map(|vm| reply(StatusCode::OK, &vm))
}

async fn order_hardware(State(shared): Cloud, Path(id): Path<String>, body: Payload) -> Result<Response, Failure> {
    let order: HardwareOrder = decode(body)?;
    shared.with(|cloud, now| cloud.order_hardware(now, &id, order))?.map(|vm| reply(StatusCode::OK, &vm))
}

async fn order_addresses(State(shared): Cloud, Path(id): Path<String>, body: Payload) -> Result<Response, Failure> {
    let order: AddressOrder = decode(body)?;
    shared.with(|cloud, now| cloud.order_addresses(now, &id, order))?.map(|vm| reply(StatusCode::OK, &vm))
}

async fn faults(State(shared): Cloud) -> Result<Response, Failure> {
    let faults = shared.with(super::state::Cloud::faults)?;
    Ok(reply(StatusCode::OK, &json!({ "items": faults })))
}

async fn add_fault(State(shared): Cloud, body: Payload) -> Result<Response, Failure> {
    let order: FaultOrder = decode(body)?;
    shared.with(|cloud, now| cloud.add_fault(now, order))?.map(|fault| reply(StatusCode::CREATED, &fault))
}

async fn end_faults(State(shared): Cloud) -> Result<Response, Failure> {
    let ended = shared.with(|cloud, _| cloud.end_faults(None))?;
    Ok(reply(StatusCode::OK, &json!({ "ended": ended })))
}

async fn end_fault(State(shared): Cloud, Path(id): Path<String>) -> Result<Response, Failure> {
    let id = number("the fault's id", &id)?;
    match shared.with(|cloud, _| cloud.end_faults(Some(id)))? {
        0 => Err(Failure::new(Code::NotFound, format!("there is no fault {id}"))),
        ended => Ok(reply(StatusCode::OK, &json!({ "ended": ended }))),
    }
}

async fn quota(State(shared): Cloud) -> Result<Response, Failure> {
    Ok(reply(StatusCode::OK, &shared.with(|cloud, _| cloud.quota())?))
}

async fn set_quota(State(shared): Cloud, body: Payload) -> Result<Response, Failure> {
    let quota: Quota = decode(body)?;
    shared.with(|cloud, _| cloud.set_quota(quota))?;
    Ok(reply(StatusCode::OK, &quota))
}

async fn stats(State(shared): Cloud) -> Result<Response, Failure> {
    let stats = shared.with(|cloud, now| {
        cloud.advance(now);
        cloud.stats()
    })?;
    Ok(reply(StatusCode::OK, &stats))
}

async fn reset_stats(State(shared): Cloud) -> Result<Response, Failure> {
    shared.with(|cloud, _| cloud.reset_stats())?;
    stats(State(shared)).await
}

async fn events(State(shared): Cloud, Query(query): Query<Vec<(String, String)>>) -> Result<Response, Failure> {
    let (mut after, mut limit) = (0, DEFAULT_PAGE);
    for (key, value) in query {
        match key.as_str() {
            "after" => after = number("after", &value)?,
            "limit" => limit = number("limit", &value)?,
            _ => return Err(Failure::invalid(format!("the parameter {key:?} is unknown"))),
        }
    }
    let page = shared.with(|cloud, now| {
        cloud.advance(now);
        cloud.events(after, limit)
    })?;
    Ok(reply(StatusCode::OK, &page))
}

fn decode<T: DeserializeOwned>(body: Payload) -> Result<T, Failure> {
    let body = body.map_err(|rejection| Failure::invalid(format!("the body cannot be read: {rejection}")))?;
    serde_json::from_slice(&body).map_err(|error| Failure::invalid(format!("the body cannot be understood: {error}")))
}

fn reply(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(json) => (status, [(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => Failure::new(Code::Internal, error.to_string()).into_response(),
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = if self.throttled { 429 } else { self.code.status() };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Not by `reply`, which would call this function again if it failed.
        let bare = || json!({ "code": self.code, "message": self.message }).to_string();
        let body = serde_json::to_string(&self).unwrap_or_else(|_| bare());
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(if parts.headers.contains_key(OBSERVER_HEADER) { Self::Observer } else { Self::Customer })
    }
}

/// Marks a response that must not be sent.
#[derive(Clone, Copy, Debug)]
struct Cut;

/// The cloud as a service: over HTTP, or without a port for a client in this process.
///
/// # Guarantees
/// * A caller that disconnects changes nothing: each call is executed in a task of its own before its answer is
///   delayed.
/// * A cut call fails with [`io::ErrorKind::ConnectionReset`]; over a network, hyper closes the connection. If the
///   cloud is down, calls fail with [`io::ErrorKind::ConnectionRefused`] and are not executed.
#[derive(Clone)]
pub struct CloudService {
    router: Router,
    cloud: Arc<Clocked>,
}

impl CloudService {
    pub(super) fn new(cloud: Arc<Clocked>) -> Self {
        Self { router: router(Arc::clone(&cloud)), cloud }
    }

    async fn answer(self, mut request: Request<Body>) -> io::Result<Response> {
        if let Some(name) = take_caller(&mut request) {
            // Counting is not stored, so it cannot fail.
            drop(self.cloud.with(|cloud, _| cloud.count_caller(name)));
        }
        let response = match self.router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if response.extensions().get::<Cut>().is_some() {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(response)
        }
    }

    /// Sends the answer, unless the caller disconnects or the cloud goes down first.
    async fn serve(self, request: Request<Body>, mut caller: oneshot::Sender<io::Result<Response>>) {
        let mut down = self.cloud.down.subscribe();
        if *down.borrow_and_update() {
            drop(caller.send(Err(io::ErrorKind::ConnectionRefused.into())));
            return;
        }
        let answer = tokio::select! {
            // In this order: a call is executed at once, even if the caller has disconnected.
            biased;
            answer = self.answer(request) => answer,
            () = caller.closed() => return,
            _ = down.wait_for(|down| *down) => Err(io::ErrorKind::ConnectionReset.into()),
        };
        // The caller may have disconnected.
        drop(caller.send(answer));
    }
}

/// Removes the name of the caller from the path: `/as/NAME/vms` becomes `/vms`.
fn take_caller<B>(request: &mut Request<B>) -> Option<String> {
    let (name, path) = request.uri().path_and_query()?.as_str().strip_prefix("/as/")?.split_once('/')?;
    let (name, path) = (name.to_owned(), format!("/{path}").parse().ok()?);
    *request.uri_mut() = path;
    Some(name)
}

impl<B> Service<Request<B>> for CloudService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        stand_in::within(|| {
            let (caller, answer) = oneshot::channel();
            tokio::spawn(stand_in::polled(self.clone().serve(request.map(Body::new), caller)));
            // There is no answer only when the runtime ends.
            async move { answer.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into())) }.boxed()
        })
    }
}

impl fmt::Debug for CloudService {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CloudService").finish_non_exhaustive()
    }
}
