//! Stores that are filled with objects and not by watches: for what would be done, without a manager.

use std::sync::Arc;

use nodewright_runtime::{
    cache::{Store, Stores},
    object::{Cluster, Kind},
};

/// Adds a store with these objects, which has no index yet.
pub(crate) fn fill<K: Kind>(stores: &Stores, cluster: Cluster, objects: impl IntoIterator<Item = K>) -> Arc<Store<K>> {
    let store = Arc::new(Store::new(cluster, ""));
    for object in objects {
        store.apply(object);
    }
    stores.add(store.clone());
    store
}
