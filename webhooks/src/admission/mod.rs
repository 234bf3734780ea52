//! The decisions about an object, without I/O.

mod decode;
mod immutable;
mod kubelet_config;
mod machine_config;
mod mutate;
mod overlay;
mod refusal;
mod trace;
mod validate;

use std::{cell::Cell, sync::Arc};

use jiff::Timestamp;
use nodewright_api::field::FieldError;
use nodewright_api::machine_config::{ControllerConfig, MachineConfigPool};
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet};
use nodewright_observability::trace::{SpanRecord, Spans, TraceContext};
use nodewright_runtime::{clip::clip, leadership::Clock};

use crate::configurations::{Action, Endpoint, ReviewedKind};
use crate::json_size::JsonSize;
use crate::review::{self, InvalidReview, Request, Response};
use decode::decode;
pub use immutable::IdentityFields;
use refusal::bad_request;
use serde::de::DeserializeOwned;

/// The providers' rules of a `providerSpec`. The errors must not quote confidential values. A class of an unknown provider has
/// none. If the rules cannot be asked for, the class is accepted with a warning, which is the `Err`.
pub type ProviderSpecCheck = Arc<dyn Fn(&MachineClass) -> Result<Vec<FieldError>, String> + Send + Sync>;

/// Maximum number of values of an object. An API server stores at most 1.5 MiB of an object; a large object of ordinary content
/// has a fraction of this number.
pub(crate) const MAX_VALUES: usize = 40_000;
/// Maximum depth of an object, as in an API server.
const MAX_DEPTH: usize = 10_000;
/// Maximum bytes of memory for a value during a review, which decodes the object before and after a change as a type, and once
/// as a tree. The test of memory measures it.
const VALUE_SIZE: usize = 400;

/// Maximum bytes of memory for the review of a body, besides the body. An object with too many values is refused undecoded.
pub(crate) fn memory_for(body: &[u8]) -> usize {
    JsonSize::of(body).values.min(2 * MAX_VALUES) * VALUE_SIZE
}

/// Whether an object is within the limits of a review.
fn is_readable(object: &str) -> bool {
    let size = JsonSize::of(object.as_bytes());
    size.values <= MAX_VALUES && size.depth <= MAX_DEPTH
}

/// Reviews objects.
///
/// # Guarantees
///
/// * The same request gets the same response, except for the trace.
/// * A dry run gets the response of the real request, except that no trace begins.
/// * Unknown fields stay as they are.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) provider_specs: ProviderSpecCheck,
    pub(crate) identity: IdentityFields,
    /// The extensions of the operating system that a MachineConfig may ask for. `None`: any.
    pub(crate) extensions: Option<Arc<[String]>>,
    pub(crate) spans: Spans,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Admission {
    /// Reviews a request, given and returned as JSON. `caller` is the trace of the HTTP request.
    pub(crate) fn answer(
        &self,
        endpoint: Endpoint,
        body: &[u8],
        caller: Option<TraceContext>,
    ) -> Result<Vec<u8>, InvalidReview> {
        let request = review::parse(body)?;
        let response = self.review(endpoint, &request, caller);
        response.to_json(&request.uid).map_err(|error| InvalidReview::Json(error.to_string()))
    }

    fn review(&self, endpoint: Endpoint, request: &Request<'_>, caller: Option<TraceContext>) -> Response {
        if !request.sub_resource.is_empty() || !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
            return Response::default();
        }
        if request.kind.group != endpoint.kind.group() || request.kind.kind != endpoint.kind.kind() {
            return refused(bad_request(&format!(
                "this webhook reviews {}.{}; correct the rules of its configuration",
                endpoint.kind.kind(),
                endpoint.kind.group(),
            )));
        }
        let Some(text) = request.object() else {
            return refused(bad_request("the review has no object"));
        };
        if !is_readable(text) {
            let message = format!(
                "the object has more than {MAX_VALUES} values, or is nested deeper than {MAX_DEPTH} levels; make it smaller"
            );
            return refused(refusal::too_large(endpoint.kind, &request.name, &message));
        }
        match endpoint.action {
            Action::Mutate => self.mutate(endpoint.kind, request, text, caller),
            Action::Validate => self.validate(endpoint.kind, request, text, caller),
        }
    }

    fn mutate(&self, kind: ReviewedKind, request: &Request<'_>, text: &str, caller: Option<TraceContext>) -> Response {
        let result = match kind {
            ReviewedKind::MachineDeployment => {
                let start = self.clock.wall();
                // A trace that nobody exports does not begin, but that of a user or of the API server goes on.
                let begin = |chosen: Option<TraceContext>| {
                    let is_known = chosen.is_some() || caller.is_some_and(|caller| caller.sampled);
                    let is_wanted = is_known || self.spans.are_exported();
                    is_wanted.then(|| self.begin(request, chosen, caller, start))
                };
                mutate::machine_deployment(request, text, begin).map(|mutation| {
                    if let Some(span) = mutation.span {
                        self.spans.record(SpanRecord { end: self.clock.wall(), ..span });
                    }
                    mutation.patch
                })
            }
            ReviewedKind::MachineClass => mutate::machine_class(request, text),
            _ => Ok(json_patch::Patch::default()),
        };
        match result {
            Ok(patch) => Response { patch, ..Response::default() },
            Err(error) => refused(refusal::undecodable(kind, &request.name, error)),
        }
    }

    fn validate(
        &self,
        kind: ReviewedKind,
        request: &Request<'_>,
        text: &str,
        caller: Option<TraceContext>,
    ) -> Response {
        let start = self.clock.wall();
        let (response, trace) = self.check(kind, request, text);
        if kind.is_machine_config() && !request.dry_run && self.spans.are_exported() {
            let period = (start, self.clock.wall());
            let span = trace::admission(request, text, caller, &response, period);
            if let Some(span) = span {
                self.spans.record(span);
            }
        }
        // The trace began with the mutation.
        if kind == ReviewedKind::MachineDeployment
            && !request.dry_run
            && let (Some(refusal), Some(trace)) = (&response.refusal, trace)
        {
            let seed = format!("{}/validation", request.uid);
            let span = SpanRecord::child("validation", trace, &seed, start, self.clock.wall());
            let error = Some(refusal.message.clone());
            self.spans.record(SpanRecord { attributes: attributes(request), error, ..span });
        }
        response
    }

    /// Validates an object by the rules of its kind. Returns its trace besides.
    fn check(&self, kind: ReviewedKind, request: &Request<'_>, text: &str) -> (Response, Option<TraceContext>) {
        match kind {
            ReviewedKind::MachineDeployment => {
                validate::object::<MachineDeployment>(kind, request, text, |_, _| vec![])
            }
            ReviewedKind::MachineClass => self.check_class(request, text),
            ReviewedKind::MachineSet => validate::object::<MachineSet>(kind, request, text, |_, _| vec![]),
            ReviewedKind::Machine => validate::object::<Machine>(kind, request, text, |_, _| vec![]),
            ReviewedKind::MachineConfig => machine_config::review(request, text, self.extensions.as_deref()),
            ReviewedKind::MachineConfigPool => {
                validate::object::<MachineConfigPool>(kind, request, text, |_, _| vec![])
            }
            ReviewedKind::KubeletConfig => kubelet_config::review(request, text),
            ReviewedKind::ControllerConfig => validate::object::<ControllerConfig>(kind, request, text, |_, _| vec![]),
        }
    }

    fn check_class(&self, request: &Request<'_>, text: &str) -> (Response, Option<TraceContext>) {
        let unvalidated = Cell::new(None);
        let rules = |class: &MachineClass, old: Option<&MachineClass>| {
            let mut errors = (self.provider_specs)(class).unwrap_or_else(|warning| {
                unvalidated.set(Some(warning));
                vec![]
            });
            errors.extend(old.into_iter().flat_map(|old| immutable::errors(class, old, &self.identity)));
            errors
        };
        let (mut response, trace) = validate::object(ReviewedKind::MachineClass, request, text, rules);
        response.warnings.extend(unvalidated.take().map(clip));
        (response, trace)
    }

    /// The span of a change, in the trace that the user chose, or that of the HTTP request, or a new one. An API server without
    /// tracing sends an unsampled context, which is ignored.
    fn begin(
        &self,
        request: &Request<'_>,
        chosen: Option<TraceContext>,
        caller: Option<TraceContext>,
        start: Timestamp,
    ) -> SpanRecord {
        let seed = format!("{}/admission", request.uid);
        let span = match chosen.or(caller.filter(|caller| caller.sampled)) {
            Some(parent) => SpanRecord::child("admission", parent, &seed, start, start),
            None => SpanRecord::root("admission", self.spans.begin(&seed), start, start),
        };
        SpanRecord { attributes: attributes(request), ..span }
    }
}

/// The object before the change. `None` if it is absent, too large or cannot be decoded.
fn old_object<T: DeserializeOwned>(request: &Request<'_>) -> Option<T> {
    decode(request.old_object().filter(|old| is_readable(old))?).ok()
}

fn refused(status: kube::core::Status) -> Response {
    Response { refusal: Some(status), ..Response::default() }
}

fn attributes(request: &Request<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("k8s.object.kind", request.kind.kind.clone()),
        ("k8s.namespace.name", request.namespace.clone()),
        ("k8s.object.name", request.name.clone()),
        ("k8s.operation", request.operation.clone()),
    ]
}
