//! Worlds in a line: `object("a").owned_by(&set).label("x", "y").build()`, and `Worlds::new().with(map).stores()`.

use std::marker::PhantomData;

use serde_json::{Value, json};

use crate::{
    cache::Stores,
    object::{Cluster, Kind, ResourceType, name, uid},
};

/// An object to be. What is not said is as in an object that an API server gave out an hour before noon on 2026-06-01.
#[derive(Clone, Debug)]
pub struct ObjectBuilder<K> {
    body: Value,
    kind: PhantomData<K>,
}

/// An object in namespace `default`, with a UID made of its name, at version 10.
pub fn object<K: Kind>(name: &str) -> ObjectBuilder<K> {
    let body = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "resourceVersion": "10", "generation": 1, "creationTimestamp": "2026-06-01T11:00:00Z", "labels": {},
        "annotations": {}}});
    ObjectBuilder { body, kind: PhantomData }
}

impl<K: Kind> ObjectBuilder<K> {
    /// Controlled by this one.
    #[must_use]
    pub fn owned_by<O: Kind>(mut self, owner: &O) -> Self {
        let resource = ResourceType::of::<O>();
        self.body["metadata"]["ownerReferences"] = json!([{"apiVersion": resource.api_version(),
            "kind": resource.kind, "name": name(owner), "uid": uid(owner), "controller": true,
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

/// What a controller may look at, without an API server.
#[derive(Debug, Default)]
pub struct Worlds {
    stores: Stores,
}

impl Worlds {
    /// With nothing in them.
    pub fn new() -> Self {
        Self::default()
    }

    /// With an object in the control cluster.
    #[must_use]
    pub fn with<K: Kind>(self, object: K) -> Self {
        self.with_in(Cluster::CONTROL, object)
    }

    /// With an object in some cluster.
    #[must_use]
    pub fn with_in<K: Kind>(self, cluster: Cluster, object: K) -> Self {
        // Either the store that is there, or a new one that nobody else has yet.
        let store = self.stores.of::<K>(cluster);
        store.apply(object);
        self.stores.add(store);
        self
    }

    /// The stores, for [`crate::controller::Controller::observe`].
    pub fn stores(self) -> Stores {
        self.stores
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::object::{controller_uid, has_finalizer, is_deleting};

    #[test]
    fn worlds_are_made_in_a_line() {
        let owner: ConfigMap = object("owner").build();
        let stores = Worlds::new()
            .with(object::<ConfigMap>("a").owned_by(&owner).finalizer("x").deleting().build())
            .with_in(Cluster::TARGET, object::<ConfigMap>("b").with("/data/key~1of", "value").build())
            .with(owner)
            .stores();
        let mine = stores.of::<ConfigMap>(Cluster::CONTROL).owned_by("uid-owner");
        let [a] = &mine[..] else { panic!("{mine:?}") };
        assert!(is_deleting(a.as_ref()) && has_finalizer(a.as_ref(), "x"));
        assert_eq!(controller_uid(a.as_ref()), Some("uid-owner"));
        let there = stores.of::<ConfigMap>(Cluster::TARGET).by_name("default", "b").unwrap();
        assert_eq!(there.data.as_ref().unwrap()["key/of"], "value");
        assert_eq!(stores.of::<ConfigMap>(Cluster::CONTROL).len(), 2);
    }
}
