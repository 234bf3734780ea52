//! `MachineClass`: kept while machines need it, and its secrets kept while it is there.
//!
//! * **Class.** It carries its finalizer while any Machine names it, so that a machine can still be deleted at the
//!   provider after somebody has deleted its class. A class that is being deleted says what keeps it. The finalizer comes
//!   once all Secrets of the class are there, or a Machine that names the class has a VM: a VM is asked for only with it,
//!   so without it none was, and Machines of a class that could never be used end without one.
//! * **Identity.** While it carries the finalizer an annotation records by what its VMs are found, as it was when the class
//!   came into use. So the webhook lets a change of that be set back that was made while it was away, and no VM is made
//!   meanwhile.
//! * **Secrets.** A Secret carries a finalizer of its own while any class refers to it, one that is being deleted
//!   included. So machines keep the class, and the class keeps the credentials. The first of the classes that refer to it
//!   adds the finalizer; [`MachineClassSecretController`] takes it off when none does any more.
//! * **Status.** Where the schema has one: how many machines name the class, whether its secrets exist, and whether
//!   the driver can read its providerSpec. If it cannot, there is an event as well, and `machine_class_invalid` names it.
//!
//! # Guarantees
//! * Secrets are looked at by their names while a class refers to them (`crate::shared::class_secrets`). Of those that carry the
//!   finalizer the metadata is watched besides, so that none is left with it.
//! * That a Secret does not exist is said only after the API server has said so.
//! * A Secret of a type that is another program's gets no finalizer; it counts as not found.
//!
//! # Caveats
//! A reference into another namespace than the one that is watched counts as not found: secrets elsewhere are none of
//! the controllers' business.

mod metrics;
mod plan;
mod secret;
mod status;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{Machine, MachineClass, finalizers};
use nodewright_runtime::{
    cache::{Change, Lookup, Stores},
    controller::{Controller, Watches},
    effect::Never,
    look::Look,
    object::{Key, has_finalizer, name, namespace, uid},
    plan::{Moment, Plan},
};

pub use self::metrics::InvalidClasses;
pub use self::secret::{MachineClassSecretController, SecretMetadata, SecretWorld};
use crate::shared::clusters::CONTROL;
use crate::shared::{
    class_secrets,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, MACHINES_BY_CLASS, place},
    ownership::vm_id,
    schema::FullSchema,
};

/// Says what is wrong with the providerSpec of a class; nothing when the list is empty.
pub type ProviderSpecCheck = Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

/// By which fields below `providerSpec` VMs of a class are found.
pub type IdentityFields = Arc<dyn Fn(&MachineClass) -> Vec<String> + Send + Sync>;

/// Keeps classes.
#[derive(Clone)]
pub struct MachineClassController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with a status, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
    /// What the driver says of a providerSpec.
    pub check: ProviderSpecCheck,
    /// What of a class the driver finds VMs by.
    pub identity: IdentityFields,
}

impl fmt::Debug for MachineClassController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineClassController").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A class, and what depends on it or it on.
#[derive(Clone, Debug)]
pub struct World {
    /// The class.
    pub class: Arc<MachineClass>,
    /// How many machines name it.
    pub machines: usize,
    /// Whether one of them may have a VM: it names one, or the class could have been used.
    pub is_used: bool,
    /// What to say of a Machine that cannot be read, and may name it.
    pub unreadable: Option<String>,
    /// The secrets that it refers to.
    pub secrets: Vec<NamedSecret>,
    /// What it looks at to see them.
    pub looks: Vec<Look>,
}

/// A secret that a class refers to.
#[derive(Clone, Debug)]
pub struct NamedSecret {
    /// Its namespace and name.
    pub key: Key,
    /// What is known of it.
    pub found: Lookup<Secret>,
    /// Whether the class is the first of those that refer to it: that one adds the finalizer.
    pub is_ours: bool,
}

impl Controller for MachineClassController {
    const NAME: &'static str = "machine-class";
    type Primary = MachineClass;
    type World = World;
    type Effect = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineClass>(CONTROL, &self.namespace)
            .index(CLASSES_BY_SECRET)
            .index(CLASSES_BY_CREDENTIALS)
            .wakes(rivals);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_CLASS)
            .wakes_unreadable(|machine, stores, wake| {
                let classes = stores.of::<MachineClass>(CONTROL).keys();
                classes.into_iter().filter(|class| &*class.namespace == machine.namespace()).for_each(wake);
            })
            .wakes(|change, _, wake| {
                if is_turnover(change, |machine| machine.class_name().to_owned()) {
                    let class = |machine: &Machine| Key::of(CONTROL, machine).sibling(machine.class_name());
                    change.sides().for_each(|machine| wake(class(machine)));
                }
            });
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<World> {
        let class = stores.of::<MachineClass>(CONTROL).get(key)?;
        let place = place(&key.namespace, &key.name);
        let machines = stores.of::<Machine>(CONTROL);
        // What class an unreadable Machine names is not known, so it may be each.
        let mut unreadable = machines.unreadable().into_iter().filter(|machine| machine.namespace() == &*key.namespace);
        let unreadable = unreadable.next().map(|machine| machine.describe::<Machine>());
        let secrets: Vec<_> = class.secret_names().map(|(place, name)| named(stores, &class, place, name)).collect();
        let exists = |secret: &NamedSecret| matches!(secret.found, Lookup::Found(_) | Lookup::Unreadable(_));
        let is_used = has_finalizer(class.as_ref(), finalizers::MACHINE_CONTROLLER_MANAGER)
            || secrets.iter().all(exists)
            || machines.by(MACHINES_BY_CLASS, &place).iter().any(|machine| vm_id(machine).is_some());
        let machines = machines.count(MACHINES_BY_CLASS, &place);
        let looks = class_secrets::looks(&class);
        Some(World { class, machines, is_used, unreadable, secrets, looks })
    }

    fn plan(&self, at: &Moment<'_, Never>, world: &World) -> Plan<Never> {
        let mut plan = plan::plan(self, at, world);
        plan.looks.extend(world.looks.iter().cloned());
        plan
    }
}

/// A secret as a class sees it. One of another namespace does not exist for it.
fn named(stores: &Stores, class: &Arc<MachineClass>, place: &str, name: &str) -> NamedSecret {
    let key = Key::new(CONTROL, place, name);
    let is_own = place == namespace(class.as_ref());
    let found = if is_own { class_secrets::find(stores, place, name) } else { Lookup::Missing };
    let is_ours = users(stores, &key).first().is_some_and(|first| uid(first.as_ref()) == uid(class.as_ref()));
    NamedSecret { key, found, is_ours }
}

/// When the secrets of a class change, another one may be the first of those that refer to them.
fn rivals(change: &Change<MachineClass>, stores: &Stores, wake: &mut dyn FnMut(Key)) {
    let secrets = |class: &MachineClass| -> Vec<Key> {
        class.secret_names().map(|(place, name)| Key::new(CONTROL, place, name)).collect()
    };
    if is_turnover(change, secrets) {
        let named = change.sides().flat_map(|class| secrets(class));
        let users = named.flat_map(|secret| users(stores, &secret));
        users.for_each(|class| wake(Key::of(CONTROL, class.as_ref())));
    }
}

/// The classes that refer to a secret, by name, each once.
fn users(stores: &Stores, secret: &Key) -> Vec<Arc<MachineClass>> {
    let classes = stores.of::<MachineClass>(CONTROL);
    let place = place(&secret.namespace, &secret.name);
    let mut users = classes.by(CLASSES_BY_SECRET, &place);
    users.extend(classes.by(CLASSES_BY_CREDENTIALS, &place));
    users.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    users.dedup_by(|a, b| Arc::ptr_eq(a, b));
    users
}

/// Whether an object came, went, or changed in what is looked at.
fn is_turnover<K, T: PartialEq>(change: &Change<K>, look: impl Fn(&K) -> T) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => look(old) != look(new),
        _ => true,
    }
}
