//! Code that two or more controllers use, and the drain, which knows nothing of Machines. A controller imports from here and
//! never from another controller.

pub(crate) mod availability;
pub(crate) mod class_secrets;
pub(crate) mod cloud_manager;
pub(crate) mod cloud_node;
pub(crate) mod conditions;
pub(crate) mod creation_backoff;
pub(crate) mod disruption;
pub(crate) mod drain;
pub(crate) mod driver;
pub mod fleet;
pub(crate) mod freeze;
pub(crate) mod frozen_metric;
pub(crate) mod gauges;
pub(crate) mod generated;
pub(crate) mod in_place;
pub(crate) mod indexes;
pub mod ledger;
pub(crate) mod lists;
pub(crate) mod machine_config;
pub(crate) mod mcm_metrics;
pub(crate) mod membership;
pub(crate) mod metadata;
pub(crate) mod node;
pub(crate) mod node_agent;
pub(crate) mod node_claims;
pub mod ownership;
pub(crate) mod patch;
pub(crate) mod pause;
pub(crate) mod pool_traces;
pub(crate) mod pools;
pub(crate) mod preservation;
pub(crate) mod rendering;
pub mod schema;
pub(crate) mod status_writer;
pub(crate) mod stores;
pub(crate) mod template;
pub(crate) mod traces;
pub(crate) mod usable_class;

use std::sync::Arc;

use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{Cluster, Kind, ObjectRef},
};

/// The cluster that holds the custom resources and the leases.
pub const CONTROL: Cluster = Cluster::new("control");
/// The cluster that the nodes join. It may be served by the same API server as [`CONTROL`].
pub const TARGET: Cluster = Cluster::new("target");

pub(crate) fn wake_all<K: Kind>(objects: impl IntoIterator<Item = Arc<K>>, wake: &mut dyn FnMut(ObjectRef)) {
    objects.into_iter().for_each(|object| wake(ObjectRef::of(CONTROL, object.as_ref())));
}

/// Wakes all objects of a kind in the target cluster.
pub(crate) fn wake_every<K: Kind>(stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    stores.of::<K>(TARGET).keys().into_iter().for_each(wake);
}

/// Wakes all objects of a kind in the namespace of an unreadable object, which may belong to any of them. It happens rarely.
pub(crate) fn wake_namespace<K: Kind>(object: &Unreadable, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let keys = stores.of::<K>(CONTROL).keys();
    keys.into_iter().filter(|key| &*key.namespace == object.namespace()).for_each(wake);
}
