//! `MachineClass`: kept while Machines need it; its Secrets are kept while it exists.
//!
//! * **Class.** It has a finalizer while any Machine names it, so that a Machine can still be deleted at the provider after
//!   a user has deleted its class. A class that is being deleted reports why it stays. The finalizer is added once all Secrets
//!   of the class exist, or a Machine that names the class has a VM. A VM is created only if the class has the finalizer. So a
//!   class without it has no VMs, and Machines of a class that was never usable can be deleted without it.
//! * **Identity.** While the class has the finalizer an annotation records the fields that identify its VMs, with their values
//!   when the class came into use. So a change of these fields that no webhook reviewed can be reverted, and no VM is created
//!   until then.
//! * **Secrets.** A Secret has a finalizer of its own while any class refers to it, including a class that is being deleted. So
//!   Machines keep the class, and the class keeps the credentials. The first of the classes that refer to it adds the
//!   finalizer; [`MachineClassSecretController`] removes it when no class refers to it any more.
//! * **Status.** If the schema has one: how many Machines name the class, whether its Secrets exist, and whether the
//!   driver can read its providerSpec. If it cannot, there is an event as well, and the metric `machine_class_invalid`.
//!
//! # Guarantees
//! * Secrets are watched by name while a class refers to them (`crate::shared::class_secrets`). Of those with the
//!   finalizer the metadata is watched as well, so that none keeps it without a class.
//! * A missing Secret is reported only after the API server has confirmed it.
//! * A Secret of a type that belongs to another program gets no finalizer; it counts as not found.
//!
//! # Caveats
//! A reference into another namespace than the watched one counts as not found.

mod metrics;
mod reconcile;
mod secret;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use nodewright_api::{Machine, MachineClass};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::ObjectRef,
    plan::{Context, Plan},
};

pub use self::{
    metrics::InvalidClasses,
    secret::{MachineClassSecretController, SecretMetadata, SecretSnapshot},
    snapshot::{NamedSecret, Snapshot},
};
use crate::shared::clusters::CONTROL;
use crate::shared::{
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, MACHINES_BY_CLASS},
    schema::FullSchema,
};

/// Returns the errors of a class's providerSpec; empty if it is valid.
pub type ProviderSpecCheck = Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

/// Returns the fields below `providerSpec` that identify the VMs of a class.
pub type IdentityFields = Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

/// The controller of MachineClasses.
#[derive(Clone)]
pub struct MachineClassController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with a status, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
    /// The driver's validation of a providerSpec.
    pub check: ProviderSpecCheck,
    /// The driver's fields that identify VMs.
    pub identity: IdentityFields,
}

impl fmt::Debug for MachineClassController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineClassController").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Controller for MachineClassController {
    const NAME: &'static str = "machine-class";
    type Primary = MachineClass;
    type Snapshot = Snapshot;
    type Effect = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineClass>(CONTROL, &self.namespace)
            .index(CLASSES_BY_SECRET)
            .index(CLASSES_BY_CREDENTIALS)
            .wakes(wake_users);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_CLASS)
            .wakes_unreadable(|machine, stores, wake| {
                let classes = stores.of::<MachineClass>(CONTROL).keys();
                classes.into_iter().filter(|class| &*class.namespace == machine.namespace()).for_each(wake);
            })
            .wakes(|change, _, wake| {
                if is_turnover(change, |machine| machine.class_name().to_owned()) {
                    let class = |machine: &Machine| ObjectRef::of(CONTROL, machine).sibling(machine.class_name());
                    change.sides().for_each(|machine| wake(class(machine)));
                }
            });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key)
    }

    fn plan(&self, context: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        reconcile::plan(self, context, snapshot)
    }
}

/// When the Secrets of a class change, another class may become the first of those that refer to them.
fn wake_users(change: &Change<MachineClass>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let secrets = |class: &MachineClass| -> Vec<ObjectRef> {
        class.secret_names().map(|(place, name)| ObjectRef::new(CONTROL, place, name)).collect()
    };
    if is_turnover(change, secrets) {
        let named = change.sides().flat_map(|class| secrets(class));
        let users = named.flat_map(|secret| snapshot::users(stores, &secret));
        users.for_each(|class| wake(ObjectRef::of(CONTROL, class.as_ref())));
    }
}

/// Whether an object was created or deleted, or this part of it changed.
fn is_turnover<K, T: PartialEq>(change: &Change<K>, part: impl Fn(&K) -> T) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => part(old) != part(new),
        _ => true,
    }
}
