//! The endpoints for metrics, health, readiness and log levels.
//!
//! `/healthz` reports whether the process should be restarted. It must not depend on other systems (the API server, a collector):
//! a restart would not help. `/readyz` reports whether the process can do its work.
//!
//! # Guarantees
//!
//! - Probes are answered regardless of the number of other clients: an idle connection is closed for a new one, and other
//!   requests may use only a part of the connections.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, header};
use nodewright_observability::metrics::{Format, Metrics};
use nodewright_observability::telemetry::Levels;
use nodewright_runtime::offload::off_worker;
use tokio::sync::Semaphore;

use crate::authorization::Authorization;
use crate::checks::{Checks, check_routes, plain};
use crate::connection::Peer;

/// How many requests other than probes are answered at once. It is less than the number of connections, so that one is always
/// free for a probe.
pub(crate) const OTHERS: usize = 32;

/// The endpoints of the server.
#[derive(Clone, Default)]
pub struct Endpoints {
    /// Served at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Served at `/healthz` and `/livez`: nothing that depends on other systems.
    pub health: Checks,
    /// Served at `/readyz`.
    pub ready: Checks,
    /// Served at `/debug/log-level`, if set: GET reads and PUT sets the levels. Without [`Self::authorization`] it accepts only
    /// clients on this host, that is, users who may forward a port of the pod.
    pub levels: Option<Levels>,
    /// Authorization for metrics and log levels; without it every client may use them. Probes are always answered.
    pub authorization: Option<Authorization>,
}

impl Endpoints {
    /// The routes, to serve alone or merged with others.
    pub fn router(self) -> Router {
        let probes = self.probes();
        let levels = self.levels.map(level_routes).unwrap_or_default();
        let metrics = Router::new()
            .route("/metrics", get(move |headers: HeaderMap| async move { serve_metrics(&self.metrics, &headers) }));
        let others = match self.authorization {
            Some(authorization) => authorization.protect(metrics.merge(levels)),
            None => metrics.merge(levels.layer(middleware::from_fn(from_this_host))),
        };
        leave_room(others).merge(probes)
    }

    /// Only the health and readiness routes.
    pub fn probes(&self) -> Router {
        Router::new()
            .merge(check_routes("healthz", self.health.clone()))
            .merge(check_routes("livez", self.health.clone()))
            .merge(check_routes("readyz", self.ready.clone()))
    }
}

/// Limits other requests to [`OTHERS`] at once, so that connections remain for probes.
pub(crate) fn leave_room(others: Router) -> Router {
    others.layer(middleware::from_fn_with_state(Arc::new(Semaphore::new(OTHERS)), answer_if_few))
}

async fn answer_if_few(State(permits): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(_permit) = permits.try_acquire() else {
        let response = plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again\n".to_owned());
        return ([(header::RETRY_AFTER, "1")], response).into_response();
    };
    next.run(request).await
}

/// Computes off the worker: with thousands of machines other tasks would wait for it noticeably.
fn serve_metrics(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let accepted: Vec<_> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::preferred(&accepted.join(","));
    match off_worker(|| metrics.encode_as(format)) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to encode metrics: {error}")),
    }
}

fn level_routes(levels: Levels) -> Router {
    let read = |State(levels): State<Levels>| async move { plain(StatusCode::OK, format!("{}\n", levels.current())) };
    let set = |State(levels): State<Levels>, wanted: String| async move {
        match levels.set(wanted.trim()) {
            Ok(()) => plain(StatusCode::OK, format!("{}\n", levels.current())),
            Err(error) => plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    };
    Router::new().route("/debug/log-level", get(read).put(set)).with_state(levels)
}

async fn from_this_host(request: Request, next: Next) -> Response {
    match request.extensions().get::<Peer>() {
        Some(Peer(address)) if address.ip().to_canonical().is_loopback() => next.run(request).await,
        _ => plain(StatusCode::FORBIDDEN, "only from this host: use kubectl port-forward\n".to_owned()),
    }
}
