//! What is decided about an object, without any network.

mod decode;
mod identity;
mod mutate;
mod overlay;
mod refusal;
mod validate;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::field::FieldError;
use nodewright_api::{GROUP, Machine, MachineClass, MachineSet};
use nodewright_observability::trace::{SpanRecord, Spans, TraceContext};
use nodewright_runtime::term::Clock;

use crate::census::Census;
use crate::configurations::{Action, Endpoint, Subject};
use crate::review::{self, InvalidReview, Request, Response};
use decode::decode;
pub use identity::IdentityFields;
use refusal::bad_request;
use serde::de::DeserializeOwned;

/// What a provider says about the `providerSpec` of a class. It is given by whoever knows the providers.
///
/// Called for classes of any provider, also unknown ones; for those there is nothing to say. The errors must not
/// quote what is confidential.
pub type ProviderSpecCheck = Arc<dyn Fn(&MachineClass) -> Vec<FieldError> + Send + Sync>;

/// How many values an object may have. An API server stores no more than 1.5 MiB of an object, most of which are texts: an
/// ordinary large one has a fraction of this.
pub(crate) const MOST_VALUES: usize = 40_000;

/// How deep an object may be: as deep as an API server reads one.
const DEEPEST: usize = 10_000;

/// What a value costs at most while it is reviewed: read as a type, before and after a change, and once as a tree. Measured
/// by the test of memory.
const VALUE_SIZE: usize = 400;

/// How much memory a review of these bytes may need, beside the bytes. What has more values than are read costs nothing
/// more, for it is refused unread.
pub(crate) fn memory_for(body: &[u8]) -> usize {
    Census::of(body).values.min(2 * MOST_VALUES) * VALUE_SIZE
}

/// Whether an object may be read: whether it has no more values, and is no deeper, than a review can bear.
fn is_readable(object: &str) -> bool {
    let census = Census::of(object.as_bytes());
    census.values <= MOST_VALUES && census.depth <= DEEPEST
}

/// Decides about objects.
///
/// # Guarantees
///
/// * The same request has the same answer, apart from the stamp of a trace.
/// * A dry run is answered like the real request, except that no trace begins: the result of a dry run must not
///   differ from what is stored.
/// * Fields that this version does not know stay as they are.
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
    /// Asks `provider_specs` and `identity` about classes, hands the spans of admissions to `spans`, and takes their times from `clock`.
    pub(crate) fn new(
        provider_specs: ProviderSpecCheck,
        identity: IdentityFields,
        spans: Spans,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { provider_specs, identity, spans, clock }
    }

    /// Answers a review, given and returned as JSON. `caller` is the trace that the request for the review belongs to.
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
        let is_asked = request.sub_resource.is_empty() && matches!(request.operation.as_str(), "CREATE" | "UPDATE");
        if !is_asked {
            return Response::default();
        }
        if request.kind.group != GROUP || request.kind.kind != endpoint.subject.kind() {
            return refused(bad_request(&format!(
                "this webhook reviews {}.{GROUP}; correct the rules of its configuration",
                endpoint.subject.kind(),
            )));
        }
        let Some(text) = request.object() else {
            return refused(bad_request("the review has no object"));
        };
        if !is_readable(text) {
            let message = format!(
                "the object has more than {MOST_VALUES} values, or is nested deeper than {DEEPEST} levels; make it smaller"
            );
            return refused(refusal::too_large(endpoint.subject, &request.name, &message));
        }
        match endpoint.action {
            Action::Mutate => self.mutate(endpoint.subject, request, text, caller),
            Action::Validate => self.validate(endpoint.subject, request, text),
        }
    }

    fn mutate(&self, subject: Subject, request: &Request<'_>, text: &str, caller: Option<TraceContext>) -> Response {
        let result = match subject {
            Subject::MachineDeployment => {
                let start = self.clock.wall();
                let trace = |chosen: Option<TraceContext>| self.begin(request, chosen, caller);
                mutate::machine_deployment(request, text, trace).map(|changed| {
                    if let Some(begun) = changed.begun {
                        self.spans.record(begun.into_record(request, start, self.clock.wall()));
                    }
                    changed.patch
                })
            }
            Subject::MachineClass => mutate::machine_class(request, text),
            Subject::MachineSet | Subject::Machine => Ok(json_patch::Patch::default()),
        };
        match result {
            Ok(patch) => Response { patch, ..Response::default() },
            Err(undecodable) => refused(undecodable.into_status(subject, &request.name)),
        }
    }

    fn validate(&self, subject: Subject, request: &Request<'_>, text: &str) -> Response {
        match subject {
            Subject::MachineDeployment => {
                let start = self.clock.wall();
                let verdict = validate::machine_deployment(request, text);
                if let Some(record) = verdict.failed_span(request, start, self.clock.wall()) {
                    self.spans.record(record);
                }
                verdict.response
            }
            Subject::MachineClass => {
                let rules = |class: &MachineClass, old: Option<&MachineClass>| {
                    let mut errors = (self.provider_specs)(class);
                    errors.extend(old.into_iter().flat_map(|old| identity::errors(class, old, &self.identity)));
                    errors
                };
                validate::object(subject, request, text, rules).response
            }
            Subject::MachineSet => validate::object::<MachineSet>(subject, request, text, |_, _| vec![]).response,
            Subject::Machine => validate::object::<Machine>(subject, request, text, |_, _| vec![]).response,
        }
    }

    /// The trace of a change: the one that its writer chose, else the one that the request belongs to, else a new one.
    ///
    /// An API server hands its own context on even if it keeps no traces; that must not keep ours from being kept.
    fn begin(&self, request: &Request<'_>, chosen: Option<TraceContext>, caller: Option<TraceContext>) -> Begun {
        let seed = format!("{}/admission", request.uid);
        match chosen.or(caller.filter(|caller| caller.sampled)) {
            Some(parent) => Begun { parent: Some(parent), seed, own: parent },
            None => Begun { parent: None, own: self.spans.begin(&seed), seed },
        }
    }
}

/// The object as it was. One that cannot be read is none.
fn old_object<T: DeserializeOwned>(request: &Request<'_>) -> Option<T> {
    decode(request.old_object().filter(|old| is_readable(old))?).ok()
}

fn refused(status: kube::core::Status) -> Response {
    Response { refusal: Some(status), ..Response::default() }
}

/// The trace that begins, or goes on, with an admission.
#[derive(Clone, Debug)]
struct Begun {
    parent: Option<TraceContext>,
    /// The context of the trace: the parent's, or that of the root.
    own: TraceContext,
    seed: String,
}

impl Begun {
    /// The place of the admission's span, which is written into the object.
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

/// What spans tell of a request.
fn attributes(request: &Request<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("k8s.object.kind", request.kind.kind.clone()),
        ("k8s.namespace.name", request.namespace.clone()),
        ("k8s.object.name", request.name.clone()),
        ("k8s.operation", request.operation.clone()),
    ]
}
