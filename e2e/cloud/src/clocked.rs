//! The cloud with a clock: executes what is due, stores changes, and updates kubelets.
//!
//! # Guarantees
//! * A change is stored before a caller or a kubelet learns of it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use nodewright_runtime::leadership::Clock;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::{
    api::{Code, Failure},
    nodes::Nodes,
    state::Cloud,
    store::{Store, StoreError},
};

/// The state file, and the channel that reports a failed write.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) store: Store,
    pub(super) broken: Option<oneshot::Sender<StoreError>>,
}

/// What all callers of a cloud share.
pub(super) struct Clocked {
    state: Mutex<(Cloud, Option<Journal>)>,
    clock: Arc<dyn Clock>,
    nodes: Option<Nodes>,
    due_changed: Notify,
    /// Whether the cloud is unreachable.
    pub(super) down: watch::Sender<bool>,
}

impl Clocked {
    pub(super) fn new(cloud: Cloud, journal: Option<Journal>, clock: Arc<dyn Clock>, nodes: Option<Nodes>) -> Self {
        let down = watch::Sender::new(false);
        Self { state: Mutex::new((cloud, journal)), clock, nodes, due_changed: Notify::new(), down }
    }

    /// Whether the VMs run real kubelets.
    pub(super) fn has_real_nodes(&self) -> bool {
        matches!(self.nodes, Some(Nodes::Real(_)))
    }

    /// Calls `act` with the cloud and the present time, and stores the changes.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> Result<T, Failure> {
        let (result, is_stored) = self.act(act);
        if is_stored { Ok(result) } else { Err(Failure::new(Code::Internal, "the state cannot be stored")) }
    }

    /// Calls `act` with the cloud and the present time. Returns whether the changes are stored, if there is a state
    /// file.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> T) -> (T, bool) {
        let mut guard = self.state.lock();
        let (cloud, journal) = &mut *guard;
        let result = act(cloud, self.clock.wall());
        let changes = cloud.take_changes();
        if let Some(journal) = journal
            && let Err(error) = journal.store.append(&changes, cloud.memory())
        {
            tracing::error!(%error, "the state cannot be stored; the cloud ends");
            if let Some(broken) = journal.broken.take() {
                drop(broken.send(error));
            }
            return (result, false);
        }
        let touched = cloud.take_touched();
        if let Some(nodes) = &self.nodes {
            // Under the lock, so that changes of a VM reach the kubelets in order.
            for id in touched {
                nodes.set(&id, cloud.memory().vms.get(&id));
            }
        }
        drop(guard);
        if !changes.is_empty() {
            self.due_changed.notify_one();
        }
        (result, true)
    }

    /// Advances the cloud whenever something is due.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            let Ok(due) = self.with(|cloud, now| {
                cloud.advance(now);
                cloud.next_due().map(|due| now.duration_until(due).try_into().unwrap_or(Duration::ZERO))
            }) else {
                return;
            };
            let nap = async {
                match due {
                    Some(due) => tokio::time::sleep(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.due_changed.notified() => {}
                () = nap => {}
            }
        }
    }
}
