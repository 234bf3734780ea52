//! The Nodes that kubelets of this process have, and their state in the watch.
//!
//! One watch of Nodes and one of Pods serve all kubelets. The registry connects them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{node, schedule::ObservedNode};
use crate::{mirror::Seen, node_view::NodeView};

/// The state of a Node name.
#[derive(Debug, Default)]
struct Entry {
    /// The number of kubelets with this name. More than one only if a test wants it.
    kubelets: usize,
    /// The number of them that are not silent.
    reporting: usize,
    seen: Option<ObservedNode>,
    /// The UID of the last Node of this name that was deleted.
    gone: Option<String>,
    changed_in_watch: Arc<Notify>,
}

/// All Node names of kubelets in this process.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: Mutex<BTreeMap<String, Entry>>,
    started_reporting: Mutex<BTreeSet<String>>,
    reporting_started: Notify,
}

/// The registration of a kubelet. Dropping it removes the kubelet.
#[derive(Debug)]
pub(super) struct Registration {
    registry: Arc<Registry>,
    name: String,
    reporting: bool,
    /// Notified when the watch reported the Node.
    pub(super) changed_in_watch: Arc<Notify>,
}

impl Registry {
    /// Registers a kubelet, which is silent at first.
    pub(super) fn join(self: &Arc<Self>, name: &str) -> Registration {
        let mut entries = self.entries.lock();
        let entry = entries.entry(name.to_owned()).or_default();
        entry.kubelets += 1;
        Registration {
            registry: Arc::clone(self),
            name: name.to_owned(),
            reporting: false,
            changed_in_watch: Arc::clone(&entry.changed_in_watch),
        }
    }

    /// Whether a kubelet of this Node reports.
    pub(super) fn is_reporting(&self, name: &str) -> bool {
        self.entries.lock().get(name).is_some_and(|entry| entry.reporting > 0)
    }

    /// Waits for Nodes whose kubelets started to report, and takes their names.
    pub(super) async fn started_reporting(&self) -> BTreeSet<String> {
        loop {
            let names = std::mem::take(&mut *self.started_reporting.lock());
            if !names.is_empty() {
                return names;
            }
            self.reporting_started.notified().await;
        }
    }

    /// Handles an event of the watch of Nodes.
    pub(super) fn take(&self, seen: Seen<NodeView>) {
        let mut entries = self.entries.lock();
        match seen {
            Seen::Reset(nodes) => {
                let mut there: BTreeMap<String, ObservedNode> = nodes
                    .iter()
                    .map(|node| {
                        (node.metadata.name.clone().unwrap_or_default(), node::seen(&node.metadata, node.conditions()))
                    })
                    .collect();
                for (name, entry) in entries.iter_mut() {
                    let now = there.remove(name);
                    // The Node, or an earlier one of this name, was deleted while the watch was broken.
                    if let Some(before) = &entry.seen
                        && now.as_ref().is_none_or(|now| now.uid != before.uid)
                    {
                        entry.gone = Some(before.uid.clone());
                    }
                    entry.seen = now;
                    entry.changed_in_watch.notify_one();
                }
            }
            Seen::Applied(node) => {
                if let Some(entry) = node.metadata.name.as_ref().and_then(|name| entries.get_mut(name)) {
                    entry.seen = Some(node::seen(&node.metadata, node.conditions()));
                    entry.changed_in_watch.notify_one();
                }
            }
            Seen::Deleted(node) => {
                if let Some(entry) = node.metadata.name.as_ref().and_then(|name| entries.get_mut(name)) {
                    entry.seen = None;
                    entry.gone = node.metadata.uid;
                    entry.changed_in_watch.notify_one();
                }
            }
        }
    }
}

impl Registration {
    /// Starts or stops reporting.
    pub(super) fn set_reporting(&mut self, reporting: bool) {
        if self.reporting == reporting {
            return;
        }
        self.reporting = reporting;
        if let Some(entry) = self.registry.entries.lock().get_mut(&self.name) {
            entry.reporting = if reporting { entry.reporting + 1 } else { entry.reporting.saturating_sub(1) };
        }
        if reporting {
            self.registry.started_reporting.lock().insert(self.name.clone());
            self.registry.reporting_started.notify_one();
        }
    }

    /// The Node in the watch, and the UID of the last deleted one.
    pub(super) fn view(&self) -> (Option<ObservedNode>, Option<String>) {
        let entries = self.registry.entries.lock();
        entries.get(&self.name).map_or((None, None), |entry| (entry.seen.clone(), entry.gone.clone()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.set_reporting(false);
        let mut entries = self.registry.entries.lock();
        if let Some(entry) = entries.get_mut(&self.name) {
            entry.kubelets -= 1;
            if entry.kubelets == 0 {
                entries.remove(&self.name);
            }
        }
    }
}
