//! Named health checks, in the format of Kubernetes' own health endpoints.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use parking_lot::RwLock;

use crate::text::plain;

/// The result of a check: true or false, or a reason for the failure.
pub trait Verdict {
    /// The reason if the check failed.
    fn into_result(self) -> Result<(), String>;
}

impl Verdict for bool {
    fn into_result(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("not yet".to_owned()) }
    }
}

impl Verdict for Result<(), String> {
    fn into_result(self) -> Result<(), String> {
        self
    }
}

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks behind one endpoint. Clones share one set.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Arc<RwLock<Vec<(String, Check)>>>,
}

impl Checks {
    /// An empty set, which passes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, or replaces the one with that name. Each request calls it, so it must not block.
    pub fn add<V: Verdict>(&self, name: impl Into<String>, check: impl Fn() -> V + Send + Sync + 'static) {
        let (name, check): (_, Check) = (name.into(), Arc::new(move || check().into_result()));
        let mut checks = self.checks.write();
        match checks.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = check,
            None => checks.push((name, check)),
        }
    }

    /// The names of the failing checks with their reasons.
    pub fn failures(&self) -> Vec<(String, String)> {
        let results = self.results(|_| true);
        results.into_iter().filter_map(|(name, result)| Some((name, result.err()?))).collect()
    }

    fn results(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, Result<(), String>)> {
        // Call the checks without the lock: a check may add another one.
        let checks = self.checks.read().clone();
        checks.into_iter().filter(|(name, _)| wanted(name)).map(|(name, check)| (name, check())).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.checks.read().iter().any(|(known, _)| known == name)
    }

    /// The answer in Kubernetes' format: `ok`, or one line for each check if one fails or the query has `?verbose`.
    fn answer(&self, endpoint: &str, query: &str, only: Option<&str>) -> Response {
        let parameters = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let excluded = |name: &str| parameters().any(|(key, value)| key == "exclude" && value == name);
        let wanted = |name: &str| !excluded(name) && only.is_none_or(|only| only == name);
        let results = self.results(wanted);
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

impl std::fmt::Debug for Checks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let checks = self.checks.read();
        formatter.debug_set().entries(checks.iter().map(|(name, _)| name)).finish()
    }
}

/// `/readyz` for all checks and `/readyz/<name>` for one.
pub(crate) fn check_routes(endpoint: &'static str, checks: Checks) -> Router {
    let all = move |State(checks): State<Checks>, RawQuery(query): RawQuery| async move {
        checks.answer(endpoint, &query.unwrap_or_default(), None)
    };
    let one = move |State(checks): State<Checks>, Path(name): Path<String>, RawQuery(query): RawQuery| async move {
        if checks.has(&name) {
            checks.answer(endpoint, &query.unwrap_or_default(), Some(&name))
        } else {
            plain(StatusCode::NOT_FOUND, format!("no such check: {name}"))
        }
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(all))
        .route(&format!("/{endpoint}/{{name}}"), get(one))
        .with_state(checks)
}
