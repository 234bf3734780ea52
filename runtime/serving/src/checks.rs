//! Named health checks, in the format of Kubernetes' own health endpoints.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderName, StatusCode, header};
use parking_lot::RwLock;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks behind one endpoint. Clones share one set.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Arc<RwLock<Vec<(&'static str, Check)>>>,
}

impl Checks {
    /// Adds a check, or replaces the one with that name. Each request calls it, so it must not block.
    pub fn add(&self, name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let mut checks = self.checks.write();
        checks.retain(|(known, _)| *known != name);
        checks.push((name, Arc::new(check)));
    }

    /// The answer in Kubernetes' format: `ok`, or one line for each check if one fails or the query has `?verbose`.
    fn answer(&self, endpoint: &str, query: &str, only: Option<&str>) -> Response {
        // Call the checks without the lock: a check may add another one.
        let mut checks = self.checks.read().clone();
        if let Some(only) = only {
            checks.retain(|(name, _)| *name == only);
            if checks.is_empty() {
                return plain(StatusCode::NOT_FOUND, format!("no such check: {only}"));
            }
        }
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        checks.retain(|(name, _)| !parameters().any(|(key, value)| key == "exclude" && value == *name));
        let results: Vec<_> = checks.into_iter().map(|(name, check)| (name, check())).collect();
        let failed = results.iter().any(|(_, result)| result.is_err());
        if !failed && !parameters().any(|(key, _)| key == "verbose") {
            return plain(StatusCode::OK, "ok".to_owned());
        }
        let mut text = String::new();
        for (name, result) in &results {
            // Writing to a string does not fail.
            let _ = match result {
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(reason) => writeln!(text, "[-]{name} failed: {reason}"),
            };
        }
        let (status, end) =
            if failed { (StatusCode::INTERNAL_SERVER_ERROR, "failed") } else { (StatusCode::OK, "passed") };
        let _ = writeln!(text, "{endpoint} check {end}");
        plain(status, text)
    }
}

/// `/readyz` for all checks and `/readyz/<name>` for one.
pub(crate) fn check_routes(endpoint: &'static str, checks: Checks) -> Router {
    let answer = move |State(checks): State<Checks>, name: Option<Path<String>>, RawQuery(query): RawQuery| async move {
        checks.answer(endpoint, &query.unwrap_or_default(), name.as_ref().map(|Path(name)| name.as_str()))
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(answer))
        .route(&format!("/{endpoint}/{{name}}"), get(answer))
        .with_state(checks)
}

pub(crate) fn plain(status: StatusCode, text: String) -> Response {
    const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (NO_SNIFF, "nosniff")];
    (status, headers, text).into_response()
}
