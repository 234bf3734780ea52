//! Closed sets of fields with one writer, sent by server-side apply and extracted from the live object. Nothing relies on
//! `managedFields`: the API server sometimes drops them, and after a take-over from a controller that wrote by PUT they name
//! another owner.

use std::sync::Arc;

use kube::Resource;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    object::{Kind, Target, is_deleting, standing},
    without_managed_fields,
};

/// The name of the subresource through which a status is written.
pub const STATUS: &str = "status";

/// The fields of a kind that one controller writes. Every apply sends all of them.
///
/// It serializes as a fragment of the object (`{"metadata":{"labels":{…}},"spec":{…}}`, or `{"status":{…}}`), to which the
/// runtime adds name, UID and version.
///
/// # Guarantees
/// If the fields equal those in the cache, nothing is sent. After a write, the runtime reads the answer with
/// [`ApplyConfiguration::extract`]. It removes fields that should be gone with one merge patch under the answer's version.
///
/// # Assumptions
/// Two writers never have a field in common, and `extract` returns every field that `Self` could write.
pub trait ApplyConfiguration: Serialize + PartialEq + Clone + Send + Sync + 'static {
    /// The kind that the fields belong to.
    type Of: Kind;
    /// The subresource through which they are written, such as [`STATUS`]; empty for the object itself.
    const SUBRESOURCE: &'static str = "";
    /// The fields of a live object.
    fn extract(live: &Self::Of) -> Self;
    /// As [`Self::extract`], as far as `self` writes them: for a controller that owns single keys of a map, such as labels.
    #[must_use]
    fn extract_like(&self, live: &Self::Of) -> Self {
        Self::extract(live)
    }
}

pub(crate) struct Applied {
    /// The version; `None` if the object is gone with this write.
    pub(crate) version: Option<u64>,
    /// The owned fields in wire form, if they differ from the wanted ones.
    pub(crate) differs: Option<Value>,
}

pub(crate) type ReadBack = Arc<dyn Fn(&[u8]) -> Result<Applied, serde_json::Error> + Send + Sync>;

pub(crate) fn read_back<O: ApplyConfiguration>(wanted: &O) -> ReadBack {
    let wanted = wanted.clone();
    Arc::new(move |answer| {
        let live: O::Of = without_managed_fields::from_slice(answer)?;
        let seen = wanted.extract_like(&live);
        let differs = (seen != wanted).then(|| serde_json::to_value(seen)).transpose()?;
        let finalizers = live.meta().finalizers.as_deref().unwrap_or_default();
        let version = standing(live.meta().resource_version.as_deref(), is_deleting(&live), finalizers);
        Ok(Applied { version, differs })
    })
}

/// The merge patch that turns `seen` into `wanted`; `None` when they are equal.
pub(crate) fn correction(seen: &Value, wanted: &Value) -> Option<Value> {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => {
            let mut patch = Map::new();
            for (key, value) in wanted {
                if let Some(change) = seen.get(key).map_or(Some(value.clone()), |old| correction(old, value)) {
                    patch.insert(key.clone(), change);
                }
            }
            for key in seen.keys().filter(|key| !wanted.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (seen, wanted) if seen == wanted => None,
        _ => Some(wanted.clone()),
    }
}

/// The owned fragment with the identity of its target. The UID keeps an apply from creating an object and from a namesake. A
/// status apply carries the version as well, because the API server accepts a `/status` apply with a wrong UID.
pub(crate) fn apply_body(target: &Target, subresource: &str, fragment: &Value) -> Value {
    let mut body = fragment.clone();
    body["apiVersion"] = target.resource().api_version().into();
    body["kind"] = target.resource().kind.as_ref().into();
    let metadata = &mut body["metadata"];
    metadata["name"] = target.key().name.as_ref().into();
    if !target.key().namespace.is_empty() {
        metadata["namespace"] = target.key().namespace.as_ref().into();
    }
    metadata["uid"] = target.uid().into();
    if subresource == STATUS || target.version().is_some() {
        metadata["resourceVersion"] = target.seen().to_string().into();
    }
    body
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_fragments_need_no_correction() {
        let both = json!({"status": {"phase": "Running", "list": [1, 2]}});
        assert_eq!(correction(&both, &both), None);
    }

    #[test]
    fn what_should_be_gone_is_nulled_and_what_differs_is_set() {
        let seen = json!({"status": {"errorCode": "Internal", "phase": "Pending", "kept": 1, "list": [1]}});
        let wanted = json!({"status": {"phase": "Running", "kept": 1, "list": [2], "new": true}});
        let patch = correction(&seen, &wanted);
        assert_eq!(patch, Some(json!({"status": {"errorCode": null, "phase": "Running", "list": [2], "new": true}})));
    }
}
