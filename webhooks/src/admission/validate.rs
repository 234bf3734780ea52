//! What is refused.

use jiff::Timestamp;
use kube::ResourceExt;
use nodewright_api::field::FieldError;
use nodewright_api::validation::Validate;
use nodewright_api::{MachineDeployment, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext};
use serde::de::DeserializeOwned;

use super::{attributes, old_object, refusal, refused};
use crate::admission::decode::decode;
use crate::configurations::Subject;
use crate::review::{Request, Response};

/// The answer, and the trace that the object belongs to.
pub(super) struct Verdict {
    pub(super) response: Response,
    trace: Option<TraceContext>,
}

impl Verdict {
    /// A refusal belongs into the trace that began when the object was filled in.
    pub(super) fn failed_span(&self, request: &Request<'_>, start: Timestamp, end: Timestamp) -> Option<SpanRecord> {
        let refusal = self.response.refusal.as_ref().filter(|_| !request.dry_run)?;
        let seed = format!("{}/validation", request.uid);
        let record = SpanRecord::child("validation", self.trace?, &seed, start, end);
        Some(SpanRecord { attributes: attributes(request), error: Some(refusal.message.clone()), ..record })
    }
}

/// Judges a MachineDeployment.
pub(super) fn machine_deployment(request: &Request<'_>, text: &str) -> Verdict {
    object::<MachineDeployment>(Subject::MachineDeployment, request, text, |_, _| vec![])
}

/// Judges an object by the rules of its kind and by `further` ones, which are given the object and what it was.
///
/// What was wrong before, and has not been touched, does not count: a rule that came later must not keep an older
/// object from being scaled. An object on its way out is not judged.
pub(super) fn object<T: Validate + DeserializeOwned + ResourceExt>(
    subject: Subject,
    request: &Request<'_>,
    text: &str,
    further: impl Fn(&T, Option<&T>) -> Vec<FieldError>,
) -> Verdict {
    let new: T = match decode(text) {
        Ok(new) => new,
        Err(error) => return Verdict { response: refused(error.into_status(subject, &request.name)), trace: None },
    };
    let trace = TraceContext::from_annotation(new.meta().annotations.as_ref(), annotations::TRACEPARENT);
    if new.meta().deletion_timestamp.is_some() {
        return Verdict { response: Response::default(), trace };
    }
    let old = old_object::<T>(request);
    let errors = errors(&new, old.as_ref(), further);
    let refusal = (!errors.is_empty()).then(|| refusal::invalid(subject, name(request, &new), &errors));
    let warnings = new.warnings().iter().map(|warning| refusal::clip(warning)).collect();
    Verdict { response: Response { refusal, warnings, ..Response::default() }, trace }
}

fn errors<T: Validate>(
    new: &T,
    old: Option<&T>,
    further: impl Fn(&T, Option<&T>) -> Vec<FieldError>,
) -> Vec<FieldError> {
    let Some(old) = old else {
        return new.validate().into_iter().chain(further(new, None)).collect();
    };
    let before = further(old, None);
    let fresh = further(new, Some(old)).into_iter().filter(|error| !before.contains(error));
    new.validate_update(old).into_iter().chain(fresh).collect()
}

/// The name in the request is empty while the server has yet to make one.
fn name<'a>(request: &'a Request<'_>, object: &'a impl ResourceExt) -> &'a str {
    let meta = object.meta();
    let given = Some(request.name.as_str()).filter(|name| !name.is_empty());
    given.or(meta.name.as_deref()).or(meta.generate_name.as_deref()).unwrap_or_default()
}
