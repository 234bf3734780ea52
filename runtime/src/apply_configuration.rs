//! Closed sets of fields with one writer, sent by server-side apply and extracted from the live object. Nothing relies on
//! `managedFields`: the API server sometimes drops them, and after a take-over from a controller that wrote by PUT they name
//! another owner.

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
/// Two writers never have a field in common, and `extract` returns every field that `Self` could write. That of a status reads nothing
/// but the status: an answer may be decoded without `spec`, labels, annotations and owners.
pub trait ApplyConfiguration: Serialize + PartialEq + Send + Sync + 'static {
    /// The kind that the fields belong to.
    type Of: Kind;
    /// The subresource through which they are written, such as [`STATUS`]; empty for the object itself.
    const SUBRESOURCE: &'static str = "";
    /// The fields of a live object.
    fn extract(live: &Self::Of) -> Self;
    /// As [`Self::extract`], as far as `self` writes them: for a controller that owns single keys of a map, such as labels.
    #[must_use]
    fn extract_like(&self, live: &Self::Of) -> Self
    where
        Self: Sized,
    {
        Self::extract(live)
    }
    /// Whether these are the fields of a live object, for parts that can be compared without a copy.
    fn is_in(&self, live: &Self::Of) -> bool
    where
        Self: Sized,
    {
        *self == self.extract_like(live)
    }
}

pub(crate) struct Applied {
    /// The version; `None` if the object is gone with this write.
    pub(crate) version: Option<u64>,
    /// The owned fields in wire form, if they differ from the wanted ones.
    pub(crate) differs: Option<Value>,
}

/// The fields of any kind, as they are sent.
pub(crate) trait Fields: Send + Sync {
    /// In wire form.
    fn fragment(&self) -> Result<Value, serde_json::Error>;
    /// The body of the request.
    fn body(&self, target: &Target) -> Result<Vec<u8>, serde_json::Error>;
    /// What the API server's answer to the write says.
    fn applied(&self, answer: &[u8]) -> Result<Applied, serde_json::Error>;
}

impl<O: ApplyConfiguration> Fields for O {
    fn fragment(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn body(&self, target: &Target) -> Result<Vec<u8>, serde_json::Error> {
        if O::SUBRESOURCE == STATUS {
            // Most writes are statuses, which have no metadata of their own: no tree is made of them.
            return serde_json::to_vec(&StatusBody { identity: identity(target, true), fields: self });
        }
        serde_json::to_vec(&with_identity(self.fragment()?, identity(target, false)))
    }

    fn applied(&self, answer: &[u8]) -> Result<Applied, serde_json::Error> {
        let live: O::Of = if O::SUBRESOURCE == STATUS {
            // A type that cannot be without its spec is decoded as a whole.
            without_managed_fields::status_from_slice(answer).or_else(|_| without_managed_fields::from_slice(answer))?
        } else {
            without_managed_fields::from_slice(answer)?
        };
        let differs = (!self.is_in(&live)).then(|| serde_json::to_value(self.extract_like(&live))).transpose()?;
        let finalizers = live.meta().finalizers.as_deref().unwrap_or_default();
        let version = standing(live.meta().resource_version.as_deref(), is_deleting(&live), finalizers);
        Ok(Applied { version, differs })
    }
}

/// The merge patch that turns `seen` into `wanted`; `None` when they are equal.
pub(crate) fn correction(seen: &Value, wanted: &Value) -> Option<Value> {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => {
            let mut patch = Map::new();
            for (key, value) in wanted {
                if let Some(change) = seen.get(key).map_or_else(|| Some(value.clone()), |old| correction(old, value)) {
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    api_version: String,
    kind: &'a str,
    metadata: IdentityMeta<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMeta<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    uid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
}

#[derive(Serialize)]
struct StatusBody<'a, O> {
    #[serde(flatten)]
    identity: Identity<'a>,
    #[serde(flatten)]
    fields: &'a O,
}

/// The identity of the target of an apply. The UID keeps an apply from creating an object and from a namesake. A status apply
/// carries the version as well, because the API server accepts a `/status` apply with a wrong UID.
fn identity(target: &Target, is_status: bool) -> Identity<'_> {
    let resource_version = (is_status || target.version().is_some()).then(|| target.seen().to_string());
    let (key, uid) = (target.key(), target.uid());
    Identity {
        api_version: target.resource().api_version(),
        kind: target.resource().kind.as_ref(),
        metadata: IdentityMeta { name: &key.name, namespace: &key.namespace, uid, resource_version },
    }
}

fn with_identity(mut fragment: Value, identity: Identity<'_>) -> Value {
    let IdentityMeta { name, namespace, uid, resource_version } = identity.metadata;
    fragment["apiVersion"] = identity.api_version.into();
    fragment["kind"] = identity.kind.into();
    let metadata = &mut fragment["metadata"];
    metadata["name"] = name.into();
    metadata["uid"] = uid.into();
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    if let Some(version) = resource_version {
        metadata["resourceVersion"] = version.into();
    }
    fragment
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
