//! Who plays which Node at the moment, and what the watch says of it.
//!
//! The one watch of Nodes and the one watch of Pods serve all kubelets; this is where they meet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{heart::NodeSeen, node};
use crate::{mirror::Seen, node_view::NodeView};

/// What is known of one Node name.
#[derive(Debug, Default)]
struct Entry {
    /// How many kubelets use the name; more than one only when a test makes them quarrel over it.
    players: usize,
    /// How many of them are not silent.
    speaking: usize,
    seen: Option<NodeSeen>,
    /// The UID of the last Node of this name that was deleted.
    gone: Option<String>,
    poke: Arc<Notify>,
}

/// All Node names that kubelets of this process use.
#[derive(Debug, Default)]
pub(super) struct Registry {
    entries: Mutex<BTreeMap<String, Entry>>,
    started_to_speak: Mutex<BTreeSet<String>>,
    speech: Notify,
}

/// The part of a kubelet in the registry; ends when dropped.
#[derive(Debug)]
pub(super) struct Player {
    registry: Arc<Registry>,
    name: String,
    speaking: bool,
    /// Rings when the watch had something about the Node.
    pub(super) poke: Arc<Notify>,
}

impl Registry {
    /// A kubelet starts to use a name; silently at first.
    pub(super) fn join(self: &Arc<Self>, name: &str) -> Player {
        let mut entries = self.entries.lock();
        let entry = entries.entry(name.to_owned()).or_default();
        entry.players += 1;
        Player { registry: Arc::clone(self), name: name.to_owned(), speaking: false, poke: Arc::clone(&entry.poke) }
    }

    /// Whether a kubelet speaks for this Node now.
    pub(super) fn speaks(&self, name: &str) -> bool {
        self.entries.lock().get(name).is_some_and(|entry| entry.speaking > 0)
    }

    /// Waits for Nodes whose kubelets started to speak, and takes their names.
    pub(super) async fn started_to_speak(&self) -> BTreeSet<String> {
        loop {
            let names = std::mem::take(&mut *self.started_to_speak.lock());
            if !names.is_empty() {
                return names;
            }
            self.speech.notified().await;
        }
    }

    /// Takes what the watch of Nodes has to say.
    pub(super) fn take(&self, seen: Seen<NodeView>) {
        let mut entries = self.entries.lock();
        match seen {
            Seen::Reset(nodes) => {
                let mut there: BTreeMap<String, NodeSeen> = nodes
                    .iter()
                    .map(|node| {
                        (node.metadata.name.clone().unwrap_or_default(), node::seen(&node.metadata, node.conditions()))
                    })
                    .collect();
                for (name, entry) in entries.iter_mut() {
                    let now = there.remove(name);
                    // Known before and not listed now, or another one: deleted while the watch was down.
                    if let Some(before) = &entry.seen
                        && now.as_ref().is_none_or(|now| now.uid != before.uid)
                    {
                        entry.gone = Some(before.uid.clone());
                    }
                    entry.seen = now;
                    entry.poke.notify_one();
                }
            }
            Seen::Applied(node) => {
                if let Some(entry) = node.metadata.name.as_ref().and_then(|name| entries.get_mut(name)) {
                    entry.seen = Some(node::seen(&node.metadata, node.conditions()));
                    entry.poke.notify_one();
                }
            }
            Seen::Deleted(node) => {
                if let Some(entry) = node.metadata.name.as_ref().and_then(|name| entries.get_mut(name)) {
                    entry.seen = None;
                    entry.gone = node.metadata.uid;
                    entry.poke.notify_one();
                }
            }
        }
    }
}

impl Player {
    /// Starts or ends to speak.
    pub(super) fn speak(&mut self, speaking: bool) {
        if self.speaking == speaking {
            return;
        }
        self.speaking = speaking;
        if let Some(entry) = self.registry.entries.lock().get_mut(&self.name) {
            entry.speaking = if speaking { entry.speaking + 1 } else { entry.speaking.saturating_sub(1) };
        }
        if speaking {
            self.registry.started_to_speak.lock().insert(self.name.clone());
            self.registry.speech.notify_one();
        }
    }

    /// What the watch says: the Node as it is, and the UID of the last one that was deleted.
    pub(super) fn view(&self) -> (Option<NodeSeen>, Option<String>) {
        let entries = self.registry.entries.lock();
        entries.get(&self.name).map_or((None, None), |entry| (entry.seen.clone(), entry.gone.clone()))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.speak(false);
        let mut entries = self.registry.entries.lock();
        if let Some(entry) = entries.get_mut(&self.name) {
            entry.players -= 1;
            if entry.players == 0 {
                entries.remove(&self.name);
            }
        }
    }
}
