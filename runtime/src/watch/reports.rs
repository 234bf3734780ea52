//! What a watch reports to people besides its own failures.

use std::sync::Arc;

use super::{Watching, undecodable::Undecodable};
use crate::{
    cache::Unreadable,
    object::{Cluster, ResourceType},
};

/// The log lines, metrics and events of one watch.
pub(crate) struct Reports<'a> {
    pub(super) cluster: Cluster,
    pub(super) resource: &'a ResourceType,
    pub(super) selector: &'a Arc<str>,
    pub(super) watching: &'a Watching,
}

impl Reports<'_> {
    pub(super) fn undecodable(&self, Undecodable { object, why, .. }: &Undecodable) {
        let Self { cluster, resource, .. } = self;
        tracing::error!(%resource, %cluster, namespace = object.namespace(), name = object.name(), why,
            "an object cannot be decoded; what depends on it waits until it is corrected or gone");
        self.watching.undecodable.add(*cluster, resource, self.selector, object, why);
    }

    /// An undecodable object is gone, can be decoded again, or is not watched any more.
    pub(super) fn undecodable_ended(&self, object: &Unreadable) {
        self.watching.undecodable.remove(self.cluster, self.resource, self.selector, object);
    }

    pub(super) fn handler_panicked(&self) {
        let Self { cluster, resource, .. } = self;
        tracing::error!(%resource, %cluster,
            "the handler of a change panicked; the objects that it would have woken are planned with their next changes");
        self.watching.metrics.watch_panicked(*cluster, resource);
    }
}
