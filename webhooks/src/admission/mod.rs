//! The decisions about an object, without I/O.

mod decode;
mod immutable;
mod mutate;
mod overlay;
mod refusal;
mod validate;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::field::FieldError;
use nodewright_api::{GROUP, Machine, MachineClass, MachineDeployment, MachineSet};
use nodewright_observability::trace::{SpanRecord, Spans, TraceContext};
use nodewright_runtime::leadership::Clock;

use crate::configurations::{Action, Endpoint, ReviewedKind};
use crate::json_size::JsonSize;
use crate::review::{self, InvalidReview, Request, Response};
use decode::decode;
pub use immutable::IdentityFields;
use refusal::bad_request;
use serde::de::DeserializeOwned;

/// The providers' rules of a `providerSpec`. The errors must not quote confidential values. A class of an unknown provider has
/// none.
pub type ProviderSpecCheck = Arc<dyn Fn(&MachineClass) -> Vec<FieldError> + Send + Sync>;

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
    provider_specs: ProviderSpecCheck,
    identity: IdentityFields,
    spans: Spans,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Admission").finish_non_exhaustive()
    }
}

impl Admission {
    pub(crate) fn new(
        provider_specs: ProviderSpecCheck,
        identity: IdentityFields,
        spans: Spans,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { provider_specs, identity, spans, clock }
    }

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
        if request.kind.group != GROUP || request.kind.kind != endpoint.kind.kind() {
            return refused(bad_request(&format!(
                "this webhook reviews {}.{GROUP}; correct the rules of its configuration",
                endpoint.kind.kind(),
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
            Action::Validate => self.validate(endpoint.kind, request, text),
        }
    }

    fn mutate(&self, kind: ReviewedKind, request: &Request<'_>, text: &str, caller: Option<TraceContext>) -> Response {
        let result = match kind {
            ReviewedKind::MachineDeployment => {
                let start = self.clock.wall();
                let trace = |chosen: Option<TraceContext>| self.begin(request, chosen, caller);
                mutate::machine_deployment(request, text, trace).map(|changed| {
                    if let Some(begun) = changed.begun {
                        self.spans.record(begun.into_record(request, start, self.clock.wall()));
                    }
                    changed.patch
                })
            }
            ReviewedKind::MachineClass => mutate::machine_class(request, text),
            ReviewedKind::MachineSet | ReviewedKind::Machine => Ok(json_patch::Patch::default()),
        };
        match result {
            Ok(patch) => Response { patch, ..Response::default() },
            Err(error) => refused(refusal::undecodable(kind, &request.name, error)),
        }
    }

    fn validate(&self, kind: ReviewedKind, request: &Request<'_>, text: &str) -> Response {
        match kind {
            ReviewedKind::MachineDeployment => {
                let start = self.clock.wall();
                let outcome = validate::object::<MachineDeployment>(kind, request, text, |_, _| vec![]);
                if let Some(record) = outcome.failed_span(request, start, self.clock.wall()) {
                    self.spans.record(record);
                }
                outcome.response
            }
            ReviewedKind::MachineClass => {
                let rules = |class: &MachineClass, old: Option<&MachineClass>| {
                    let mut errors = (self.provider_specs)(class);
                    errors.extend(old.into_iter().flat_map(|old| immutable::errors(class, old, &self.identity)));
                    errors
                };
                validate::object(kind, request, text, rules).response
            }
            ReviewedKind::MachineSet => validate::object::<MachineSet>(kind, request, text, |_, _| vec![]).response,
            ReviewedKind::Machine => validate::object::<Machine>(kind, request, text, |_, _| vec![]).response,
        }
    }

    /// The trace of a change: the one that the user chose, or that of the HTTP request, or a new one. An API server without
    /// tracing sends an unsampled context, which is ignored.
    fn begin(&self, request: &Request<'_>, chosen: Option<TraceContext>, caller: Option<TraceContext>) -> Begun {
        let seed = format!("{}/admission", request.uid);
        match chosen.or(caller.filter(|caller| caller.sampled)) {
            Some(parent) => Begun { parent: Some(parent), seed, own: parent },
            None => Begun { parent: None, own: self.spans.begin(&seed), seed },
        }
    }
}

/// The object before the change. `None` if it is absent, too large or cannot be decoded.
fn old_object<T: DeserializeOwned>(request: &Request<'_>) -> Option<T> {
    decode(request.old_object().filter(|old| is_readable(old))?).ok()
}

fn refused(status: kube::core::Status) -> Response {
    Response { refusal: Some(status), ..Response::default() }
}

/// The trace that an admission begins or continues.
#[derive(Clone, Debug)]
struct Begun {
    parent: Option<TraceContext>,
    /// The context of the parent, or of the root.
    own: TraceContext,
    seed: String,
}

impl Begun {
    /// The context of the admission's span, for the annotation.
    fn place(&self) -> TraceContext {
        self.parent.map_or(self.own, |parent| parent.at(nodewright_observability::trace::span_id(&self.seed)))
    }

    fn into_record(self, request: &Request<'_>, start: Timestamp, end: Timestamp) -> SpanRecord {
        let record = match self.parent {
            Some(parent) => SpanRecord::child("admission", parent, &self.seed, start, end),
            None => SpanRecord::root("admission", self.own, start, end),
        };
        SpanRecord { attributes: attributes(request), ..record }
    }
}

/// The attributes of spans.
fn attributes(request: &Request<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("k8s.object.kind", request.kind.kind.clone()),
        ("k8s.namespace.name", request.namespace.clone()),
        ("k8s.object.name", request.name.clone()),
        ("k8s.operation", request.operation.clone()),
    ]
}
