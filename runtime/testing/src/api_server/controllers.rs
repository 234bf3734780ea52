//! What the controllers of a real control plane do with objects: the garbage collector, and those of namespaces and of
//! disruption budgets.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use super::store::Writer;

/// How soon a budget is looked at again that waits for pods to go.
const LOOK_AGAIN: Duration = Duration::from_mins(2);
/// What they all call themselves.
const MANAGER: &str = "kube-controller-manager";

/// Which controllers run, for [`super::ApiServer::run_controllers`]. Each looks some time after a change at all that is
/// there, and does in one go what is to be done; what follows from that comes after the next such time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// Whether objects go with their owners, or lose them, as the deletion of the owner wants it.
    pub garbage: bool,
    /// Whether namespaces that are deleted are emptied, and then go.
    pub namespaces: bool,
    /// Whether disruption budgets count their pods.
    pub budgets: bool,
    /// How long after a change they act.
    pub delay: Duration,
}

impl Controllers {
    /// All of them, a tenth of a second after each change.
    pub fn all() -> Self {
        Self { garbage: true, namespaces: true, budgets: true, delay: Duration::from_millis(100) }
    }
}

/// Acts after each change, until there is no such server any more.
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

/// Does what is to be done; whether something is to be looked at again by itself.
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

/// Leaves something that cannot be done for the next look: others were faster.
pub(super) fn attempt<T, E>(result: Result<T, E>) {
    drop(result.ok());
}
