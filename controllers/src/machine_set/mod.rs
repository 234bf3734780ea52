//! MachineSet: an exact number of Machines from one template.
//!
//! * Machines are created with names from the set's ledger ([`crate::shared::ledger`]), so that none is created twice.
//! * An ordinal is retired in the ledger before the set deletes its Machine, or lets go one that a user has deleted.
//! * A Machine without an owner that the selector matches is adopted before any Machine is created: a restored fleet is
//!   adopted unchanged.
//! * A Machine in phase Failed that is not preserved is deleted and replaced.
//! * Node template, timeouts and class kind of the template are copied to existing Machines.

mod reconcile;
mod removal;
mod snapshot;
mod status;
mod template;
#[cfg(test)]
mod tests;

use nodewright_api::{Machine, MachineSet};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{ObjectRef, controller_uid, name},
    plan::{Context, Plan},
};

use self::snapshot::Snapshot;
use crate::shared::{
    CONTROL,
    indexes::{MACHINE_BY_INSTANCE, MACHINES_BY_SET_NAME, ORPHAN_MACHINES, SET_BY_UID},
    ledger::set_of,
    membership::{rivals, selects},
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
}

impl Controller for MachineSetController {
    const NAME: &'static str = "machine-set";
    type Primary = MachineSet;
    type Snapshot = Snapshot;
    type Effect = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineSet>(CONTROL, &self.namespace).index(SET_BY_UID);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_SET_NAME)
            .index(ORPHAN_MACHINES)
            .index(MACHINE_BY_INSTANCE)
            .wakes_unreadable(wake_namespace::<MachineSet>)
            .wakes(wake_sets);
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key)
    }

    fn children(&self, snapshot: &Snapshot) -> usize {
        snapshot.machines.len()
    }

    fn plan(&self, context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        reconcile::plan(context, snapshot, self.full_schema.get())
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
        let rivals = rivals(stores, machine);
        let orphans = std::iter::once(machine).chain(&rivals).filter(|it| controller_uid(it.as_ref()).is_none());
        for orphan in orphans {
            wake_all(sets.all().into_iter().filter(|set| selects(set, orphan)), wake);
        }
    }
}
