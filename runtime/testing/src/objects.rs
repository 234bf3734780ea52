//! Objects in one line: `object("a").owned_by(&set).label("x", "y").build()`.

use std::marker::PhantomData;

use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A builder of an object. Fields that are not set are as from an API server that returned the object at 11:00 on 2026-06-01.
#[derive(Clone, Debug)]
pub struct ObjectBuilder<K> {
    body: Value,
    kind: PhantomData<K>,
}

/// An object in namespace `default`, with a UID made of its name, at resource version 10.
pub fn object<K>(name: &str) -> ObjectBuilder<K> {
    let body = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "resourceVersion": "10", "generation": 1, "creationTimestamp": "2026-06-01T11:00:00Z", "labels": {},
        "annotations": {}}});
    ObjectBuilder { body, kind: PhantomData }
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> ObjectBuilder<K> {
    /// Sets the controller owner.
    #[must_use]
    pub fn owned_by<O: Resource<DynamicType = ()>>(mut self, owner: &O) -> Self {
        let meta = owner.meta();
        self.body["metadata"]["ownerReferences"] = json!([{"apiVersion": O::api_version(&()), "kind": O::kind(&()),
            "name": meta.name.as_deref().unwrap_or(""), "uid": meta.uid.as_deref().unwrap_or(""), "controller": true,
            "blockOwnerDeletion": true}]);
        self
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.body["metadata"]["labels"][key] = value.into();
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.body["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Adds a finalizer.
    #[must_use]
    pub fn finalizer(mut self, finalizer: &str) -> Self {
        match &mut self.body["metadata"]["finalizers"] {
            Value::Array(list) => list.push(finalizer.into()),
            none => *none = json!([finalizer]),
        }
        self
    }

    /// Sets the creation time.
    #[must_use]
    pub fn created(self, at: &str) -> Self {
        self.with("/metadata/creationTimestamp", at)
    }

    /// Sets the deletion timestamp: one minute before noon.
    #[must_use]
    pub fn deleting(self) -> Self {
        self.with("/metadata/deletionTimestamp", "2026-06-01T11:59:00Z")
    }

    /// Sets any field by its JSON pointer, and creates missing parents.
    #[must_use]
    pub fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
        let place = tokens.fold(&mut self.body, |place, token| &mut place[token.as_str()]);
        *place = value.into();
        self
    }

    /// Builds the object. Panics if it does not decode as its kind: that is a mistake in a test.
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
