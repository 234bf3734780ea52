//! Metrics of requests to API servers, by verb and resource.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::registry::Registry;

use super::{Counters, DurationHistogram, Durations, Metrics, add, add_histograms, observe};
use crate::trace;

/// The labels of client-go's `rest_client_requests_total` without the host, plus the verb and the resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: Code,
    method: MethodName,
    verb: &'static str,
    resource: Arc<str>,
}

/// The status of an answer; 0 if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Code(u16);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MethodName(Method);

impl EncodeLabelValue for MethodName {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.0.as_str())
    }
}

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        if self.0 == 0 { encoder.write_str("<error>") } else { self.0.encode(encoder) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    resource: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Requests {
    count: Counters<RequestLabels>,
    durations: Durations<DurationLabels>,
}

impl Requests {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let (name, help) =
            ("rest_client_request_duration_seconds", "Time until a request to an API server was answered");
        Self {
            count: add(registry, "rest_client_requests", "Requests to API servers by answer"),
            durations: add_histograms(registry, name, help, request_buckets),
        }
    }
}

/// From the duration of a local answer to the API server's own limit of a minute.
fn request_buckets() -> DurationHistogram {
    let bounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
    DurationHistogram::new(bounds.into_iter())
}

impl Metrics {
    /// Records a request to an API server that ended after `took` with this status code; 0 means no answer. The trace is
    /// that of the current span.
    ///
    /// `path` is the request's path and query. It yields the resource, but not the name of the object.
    pub fn requested(&self, method: &Method, path: &str, code: u16, took: Duration) {
        let (verb, resource) = classify(method, path);
        let resource: Arc<str> = resource.into();
        let labels = DurationLabels { verb, resource: resource.clone() };
        observe(&self.requests.durations.get_or_create(&labels), took.as_secs_f64(), trace::current());
        let labels = RequestLabels { code: Code(code), method: MethodName(method.clone()), verb, resource };
        self.requests.count.get_or_create(&labels).inc();
    }
}

/// The verb of Kubernetes authorization, and the resource with its subresource and group.
fn classify(method: &Method, path_and_query: &str) -> (&'static str, String) {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let group = match segments.next() {
        Some("api") => "",
        Some("apis") => segments.next().unwrap_or(""),
        _ => return (verb(method, false, false), String::new()),
    };
    let mut rest = segments.skip(1);
    let mut resource = rest.next().unwrap_or("");
    let mut name = rest.next();
    let mut subresource = rest.next();
    let below_namespace = subresource.filter(|below| !matches!(*below, "status" | "finalize"));
    if let ("namespaces", Some(plural)) = (resource, below_namespace) {
        resource = plural;
        name = rest.next();
        subresource = rest.next();
    }
    let watch = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
    let mut label = resource.to_owned();
    if !group.is_empty() {
        label.push('.');
        label.push_str(group);
    }
    if let Some(subresource) = subresource {
        label.push('/');
        label.push_str(subresource);
    }
    (verb(method, name.is_some(), watch), label)
}

fn verb(method: &Method, named: bool, watch: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET" | "HEAD", _) if watch => "watch",
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_resources_are_read_from_the_path() {
        let machine = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines";
        let cases = [
            (Method::GET, format!("{machine}/a"), ("get", "machines.machine.sapcloud.io")),
            (Method::GET, format!("{machine}?limit=500"), ("list", "machines.machine.sapcloud.io")),
            (Method::GET, format!("{machine}?watch=true"), ("watch", "machines.machine.sapcloud.io")),
            (Method::PATCH, format!("{machine}/a/status?force=true"), ("patch", "machines.machine.sapcloud.io/status")),
            (Method::DELETE, format!("{machine}/a"), ("delete", "machines.machine.sapcloud.io")),
            (Method::GET, "/api/v1/nodes/n1".to_owned(), ("get", "nodes")),
            (Method::GET, "/api/v1/namespaces/kube-system".to_owned(), ("get", "namespaces")),
            (Method::PUT, "/api/v1/namespaces/kube-system/status".to_owned(), ("update", "namespaces/status")),
            (Method::POST, "/api/v1/namespaces/a/pods/p/eviction".to_owned(), ("create", "pods/eviction")),
            (Method::GET, "/version".to_owned(), ("list", "")),
        ];
        for (method, path, (verb, resource)) in cases {
            assert_eq!(classify(&method, &path), (verb, resource.to_owned()), "{method} {path}");
        }
    }

    #[test]
    fn a_request_without_an_answer_counts_as_client_go_counts_it() {
        let metrics = Metrics::new();
        metrics.requested(&Method::PUT, "/api/v1/nodes/n1", 0, Duration::ZERO);
        let line = r#"rest_client_requests_total{code="<error>",method="PUT",verb="update",resource="nodes"} 1"#;
        assert!(metrics.encode().unwrap().lines().any(|candidate| candidate == line));
    }
}
