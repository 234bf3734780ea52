//! Controllers of a real control plane: the garbage collector, the namespace controller and the disruption controller.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use super::store::Writer;

/// How soon a disruption budget that waits for pods to go is reconciled again.
const LOOK_AGAIN: Duration = Duration::from_mins(2);
/// Their common field manager.
const MANAGER: &str = "kube-controller-manager";

/// The controllers for [`super::ApiServer::run_controllers`]. Some time after a change, each reconciles all objects in one
/// pass. The changes of this pass are reconciled after the next such delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// The garbage collector: dependents are deleted or orphaned, as the deletion of their owner asks for.
    pub garbage: bool,
    /// The namespace controller: deleted namespaces are emptied, then removed.
    pub namespaces: bool,
    /// The disruption controller: disruption budgets count their pods.
    pub budgets: bool,
    /// The delay between a change and the reconciliation.
    pub delay: Duration,
}

impl Controllers {
    /// All controllers, with a delay of a tenth of a second.
    pub fn all() -> Self {
        Self { garbage: true, namespaces: true, budgets: true, delay: Duration::from_millis(100) }
    }
}

/// Reconciles after each change, until the server is dropped.
pub(super) async fn run(server: Weak<Shared>, controllers: Controllers) {
    let Some(mut wake) = server.upgrade().map(|shared| shared.watches.subscribe()) else { return };
    loop {
        tokio::time::sleep(controllers.delay).await;
        wake.borrow_and_update();
        let Some(shared) = server.upgrade() else { return };
        let waits = act(&shared, controllers);
        drop(shared);
        let changed = wake.changed();
        let woken =
            if waits { tokio::time::timeout(LOOK_AGAIN, changed).await.unwrap_or(Ok(())) } else { changed.await };
        if woken.is_err() {
            return;
        }
    }
}

/// Runs each controller once. Returns whether to run again without a change.
fn act(shared: &Arc<Shared>, controllers: Controllers) -> bool {
    let writer = Writer::direct(MANAGER, (shared.time)());
    let mut store = shared.store.lock();
    let before = store.version();
    if controllers.namespaces {
        store.empty_namespaces(&writer);
    }
    if controllers.garbage {
        store.collect_garbage(&writer);
    }
    let waits = controllers.budgets && store.count_pods(&writer);
    let changed = store.version() != before;
    drop(store);
    if changed {
        shared.announce();
    }
    waits
}

/// Ignores a failure: another client was faster, and the next pass tries again.
pub(super) fn attempt<T, E>(result: Result<T, E>) {
    drop(result.ok());
}
