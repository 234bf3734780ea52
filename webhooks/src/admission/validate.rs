//! Validation.

use std::collections::HashSet;

use kube::ResourceExt;
use nodewright_api::annotations;
use nodewright_api::field::FieldError;
use nodewright_api::validation::Validate;
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::clip::clip;
use serde::de::DeserializeOwned;

use super::{old_object, refusal, refused};
use crate::admission::decode::decode;
use crate::configurations::ReviewedKind;
use crate::review::{Request, Response};

/// Validates an object by the rules of its kind and by `further` rules, which get the object after and before the change.
///
/// Ignores errors that the object had before, so that an object older than a rule can be scaled. An object that is being
/// deleted is valid. Returns the trace of the object besides.
pub(super) fn object<T: Validate + DeserializeOwned + ResourceExt>(
    kind: ReviewedKind,
    request: &Request<'_>,
    text: &str,
    further: impl Fn(&T, Option<&T>) -> Vec<FieldError>,
) -> (Response, Option<TraceContext>) {
    let new: T = match decode(text) {
        Ok(new) => new,
        Err(error) => return (refused(refusal::undecodable(kind, &request.name, error)), None),
    };
    let trace = TraceContext::from_annotation(new.meta().annotations.as_ref(), annotations::TRACEPARENT);
    if new.meta().deletion_timestamp.is_some() {
        return (Response::default(), trace);
    }
    let old = old_object::<T>(request);
    let errors = errors(&new, old.as_ref(), further);
    let refusal = (!errors.is_empty()).then(|| refusal::invalid(kind, name(request, &new), &errors));
    let of_change = new.change_warning(old.as_ref());
    let warnings = new.warnings().into_iter().chain(of_change).map(clip).collect();
    (Response { refusal, warnings, ..Response::default() }, trace)
}

fn errors<T: Validate>(
    new: &T,
    old: Option<&T>,
    further: impl Fn(&T, Option<&T>) -> Vec<FieldError>,
) -> Vec<FieldError> {
    let Some(old) = old else {
        return new.validate().into_iter().chain(further(new, None)).collect();
    };
    // An Ignition config may have thousands.
    let before: HashSet<_> = further(old, None).into_iter().collect();
    let fresh = further(new, Some(old)).into_iter().filter(|error| !before.contains(error));
    new.validate_update(old).into_iter().chain(fresh).collect()
}

/// The name of the object. The request has none before the API server generates it.
fn name<'a>(request: &'a Request<'_>, object: &'a impl ResourceExt) -> &'a str {
    let meta = object.meta();
    let given = Some(request.name.as_str()).filter(|name| !name.is_empty());
    given.or(meta.name.as_deref()).or(meta.generate_name.as_deref()).unwrap_or_default()
}
