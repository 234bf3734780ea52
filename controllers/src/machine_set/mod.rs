//! MachineSet: an exact number of Machines from one template.
//!
//! * Machines are created with names from the set's ledger ([`nodewright_api::stored::Ledger`]), so that none is created twice.
//! * An ordinal is retired in the ledger before the set deletes its Machine, or lets go one that a user has deleted.
//! * A Machine without an owner that the selector matches is adopted before any Machine is created: a restored fleet is
//!   adopted unchanged.
//! * A Machine whose labels the selector no longer matches is released: it keeps running, without an owner, and is replaced.
//! * Limits for the number of Machines and for the size of a template (`ceiling`) stop creations, and nothing else.
//! * A set that finds too many Machines is frozen (`overshoot`): it creates none.
//! * A Machine in phase Failed that is not preserved is deleted and replaced. If replacements fail to join as well, further ones
//!   have to wait (`shared::creation_backoff`).
//! * While its deployment has a newer spec than the one that it sized the set for, the set neither creates Machines nor deletes
//!   surplus ones: what was just taken back costs no Machine.
//! * Node template, timeouts and class kind of the template are copied to existing Machines, those in deletion included.

mod ceiling;
mod creation_timeout;
mod decision;
mod mcm_metrics;
pub(crate) mod memory;
mod metrics;
mod notes;
mod overshoot;
mod plan;
mod preservation;
mod removal;
mod retired;
mod snapshot;
mod status;
mod template;
#[cfg(test)]
mod tests;
mod trace;

use std::sync::Arc;

use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{ObjectRef, controller_uid, name, uid},
};

pub use self::mcm_metrics::StaleMachines;
pub(crate) use self::metrics::register as register_metrics;
use self::{
    memory::{Context, Note, Plan},
    snapshot::{Snapshot, deployment_of, desired, is_ahead},
};
use crate::shared::{
    CONTROL,
    fleet::{FleetSettings, PlanSettings},
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_INSTANCE, MACHINES_BY_SET_NAME, ORPHAN_MACHINES, SET_BY_UID},
    ledger::set_of,
    membership::{conflicting_machines, selects},
    schema::FullSchema,
    wake_all, wake_namespace,
};

/// The controller of MachineSets.
#[derive(Clone, Debug)]
pub struct MachineSetController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with `status.selector`, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
    /// Limits and times.
    pub fleet: FleetSettings,
    /// How many unhealthy Machines sets have deleted.
    pub stale: StaleMachines,
}

impl Controller for MachineSetController {
    const NAME: &'static str = "machine-set";
    type Primary = MachineSet;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        let stale = self.stale.clone();
        on.primary::<MachineSet>(CONTROL, &self.namespace).index(SET_BY_UID);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_SET_NAME)
            .index(ORPHAN_MACHINES)
            .index(MACHINE_BY_INSTANCE)
            .wakes_unreadable(wake_namespace::<MachineSet>)
            .wakes(move |change, stores, wake| {
                stale.count(change, stores);
                wake_sets(change, stores, wake);
            });
        on.kind::<MachineDeployment>(CONTROL, &self.namespace).index(DEPLOYMENT_BY_UID).wakes(
            |change, stores, wake| {
                let progress = |side: &Option<Arc<MachineDeployment>>| {
                    side.as_ref().map(|it| (desired(it.as_ref()), is_ahead(it)))
                };
                if progress(&change.old) != progress(&change.new) {
                    let sets = stores.of::<MachineSet>(CONTROL);
                    change.sides().for_each(|it| wake_all(sets.owned_by(uid(it.as_ref())), wake));
                }
            },
        );
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key, PlanSettings { fleet: self.fleet.clone(), full_schema: self.full_schema.get() })
    }

    fn is_outdated(&self, stores: &Stores, snapshot: &Snapshot) -> bool {
        let key = ObjectRef::of(CONTROL, snapshot.set.as_ref());
        let set = stores.of::<MachineSet>(CONTROL).get(&key);
        set.as_deref().map(desired) != Some(desired(snapshot.set.as_ref()))
            || deployment_of(stores, &snapshot.set).as_deref().map(desired)
                != snapshot.deployment.as_deref().map(desired)
    }

    fn children(&self, snapshot: &Snapshot) -> usize {
        snapshot.machines.len()
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// Wakes the owner of a Machine, the set that its name comes from, and for a Machine without an owner those that select it.
fn wake_sets(change: &Change<Machine>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let sets = stores.of::<MachineSet>(CONTROL);
    for machine in change.sides() {
        let owners = controller_uid(machine.as_ref()).map(|uid| sets.by(SET_BY_UID, uid)).unwrap_or_default();
        if let (true, Some(set)) = (owners.is_empty(), set_of(name(machine.as_ref()))) {
            wake(ObjectRef::of(CONTROL, machine.as_ref()).sibling(set));
        }
        wake_all(owners, wake);
        // When a Machine changes or is deleted, another one that names the same VM may become adoptable.
        let conflicting = conflicting_machines(stores, machine);
        let orphans = std::iter::once(machine).chain(&conflicting).filter(|it| controller_uid(it.as_ref()).is_none());
        for orphan in orphans {
            wake_all(sets.all().into_iter().filter(|set| selects(set, orphan)), wake);
        }
    }
}
