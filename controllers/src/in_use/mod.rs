//! Keeps the labels that say what is in use: on the namespace, while there are objects from which machines are made, and on each
//! `CustomResourceDefinition`, while the namespace has objects of the kind. The policies of `config/guard` go by them, also while no
//! manager runs (decision 0032).
//!
//! ```text
//! caches ── once a second ──► snapshot ──► plan ──► marks ── read, list, patch ──► outcomes
//!                                            ▲                                        │
//!                                            └───────────────── memory ◄──────────────┘
//! ```
//!
//! It is no [`Controller`](nodewright_runtime::controller::Controller): that would watch namespaces and definitions, and without the
//! rights for it the caches would never be complete. Here missing rights cost the labels, a line in the log, and nothing else.
//!
//! # Guarantees
//! * A label is set soon after the first object is seen, and only a consistent list of each kind that is empty takes it off.
//! * The label of a namespace goes after those of the definitions: a namespace that is being deleted then takes the rights along.
//! * At rest nothing is written. What was found is confirmed by a read every ten minutes.
//! * Definitions of node configuration are labelled only if they are ours: OpenShift's belong to its operator.
//! * Only the leader writes.
//!
//! # Caveats
//! * A second may pass before the first object of a namespace is protected.
//! * Objects in namespaces without a manager of Nodewright count for nothing.

mod call;
mod mark;
mod memory;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use nodewright_runtime::{
    cache::Stores,
    leadership::{Clock, Leadership},
    manager::Manager,
};

pub use self::memory::Note;
use self::{call::Caller, memory::Memory, snapshot::Snapshot};
use crate::shared::{CONTROL, TARGET};

/// How often the caches are looked at. That costs no request.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps the labels while this process leads.
pub struct InUseLabels {
    stores: Stores,
    leadership: Leadership,
    clock: Arc<dyn Clock>,
    caller: Caller,
}

impl InUseLabels {
    /// Those of the kinds that the manager watches; `None` without a control cluster.
    pub fn new(manager: &Manager, namespace: &str, leadership: Leadership, clock: Arc<dyn Clock>) -> Option<Self> {
        let caller = Caller {
            namespace: namespace.to_owned(),
            control: manager.connection(CONTROL, "in-use")?,
            target: manager.connection(TARGET, "in-use"),
        };
        Some(Self { stores: manager.stores(), leadership, clock, caller })
    }

    /// Never ends. `log` gets what is to be logged.
    pub async fn run(self, log: impl Fn(Note)) {
        let mut memory = Memory::default();
        loop {
            tokio::time::sleep(PERIOD).await;
            if self.leadership.remaining().is_zero() {
                memory = Memory::default();
                continue;
            }
            let marks = plan::plan(self.now(), &Snapshot::take(&self.stores, &self.caller.namespace), &memory);
            for mark in marks {
                let outcome = self.caller.perform(&mark).await;
                memory.keep(self.now(), mark, outcome).into_iter().for_each(&log);
            }
        }
    }

    /// Monotonic: the wall clock may jump.
    fn now(&self) -> Duration {
        self.clock.elapsed()
    }
}
