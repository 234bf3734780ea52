//! Objects in a line: `object("a").owned_by(&set).label("x", "y").build()`.

use std::marker::PhantomData;

use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// An object to be. What is not said is as in an object that an API server gave out an hour before noon on 2026-06-01.
#[derive(Clone, Debug)]
pub struct ObjectBuilder<K> {
    body: Value,
    kind: PhantomData<K>,
}

/// An object in namespace `default`, with a UID made of its name, at version 10.
pub fn object<K>(name: &str) -> ObjectBuilder<K> {
    let body = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "resourceVersion": "10", "generation": 1, "creationTimestamp": "2026-06-01T11:00:00Z", "labels": {},
        "annotations": {}}});
    ObjectBuilder { body, kind: PhantomData }
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> ObjectBuilder<K> {
    /// Controlled by this one.
    #[must_use]
    pub fn owned_by<O: Resource<DynamicType = ()>>(mut self, owner: &O) -> Self {
        let meta = owner.meta();
        self.body["metadata"]["ownerReferences"] = json!([{"apiVersion": O::api_version(&()), "kind": O::kind(&()),
            "name": meta.name.as_deref().unwrap_or(""), "uid": meta.uid.as_deref().unwrap_or(""), "controller": true,
            "blockOwnerDeletion": true}]);
        self
    }

    /// With a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.body["metadata"]["labels"][key] = value.into();
        self
    }

    /// With an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.body["metadata"]["annotations"][key] = value.into();
        self
    }

    /// With one more finalizer.
    #[must_use]
    pub fn finalizer(mut self, finalizer: &str) -> Self {
        match &mut self.body["metadata"]["finalizers"] {
            Value::Array(list) => list.push(finalizer.into()),
            none => *none = json!([finalizer]),
        }
        self
    }

    /// Created at this time.
    #[must_use]
    pub fn created(self, at: &str) -> Self {
        self.with("/metadata/creationTimestamp", at)
    }

    /// Being deleted, since a minute before noon.
    #[must_use]
    pub fn deleting(self) -> Self {
        self.with("/metadata/deletionTimestamp", "2026-06-01T11:59:00Z")
    }

    /// With any field, by its JSON pointer; the path is made where it is missing.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
        let place = tokens.fold(&mut self.body, |place, token| &mut place[token.as_str()]);
        *place = value.into();
        self
    }

    /// The object. Panics where it is none of its kind: that is a mistake in a test.
    #[allow(clippy::missing_panics_doc, clippy::panic)]
    pub fn build(self) -> K {
        serde_json::from_value(self.body).unwrap_or_else(|error| panic!("no {}: {error}", K::kind(&())))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn objects_are_made_in_a_line() {
        let owner = object::<ConfigMap>("owner").build();
        let map = object::<ConfigMap>("a").owned_by(&owner).finalizer("x").deleting().with("/data/key~1of", "value");
        let map = map.build();
        let owners = map.metadata.owner_references.as_ref().unwrap();
        assert_eq!((owners[0].uid.as_str(), owners[0].controller), ("uid-owner", Some(true)));
        assert!(map.metadata.deletion_timestamp.is_some());
        assert_eq!(map.metadata.finalizers.as_deref(), Some(&["x".to_owned()][..]));
        assert_eq!(map.data.unwrap()["key/of"], "value");
    }
}
