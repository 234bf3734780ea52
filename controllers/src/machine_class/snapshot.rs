//! The snapshot of a MachineClass.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{Machine, MachineClass, finalizers};
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{ObjectRef, has_finalizer, name, namespace, uid},
    scoped_watch::ScopedWatch,
};

use crate::shared::clusters::CONTROL;
use crate::shared::{
    class_secrets,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, MACHINES_BY_CLASS, place},
    ownership::vm_id,
};

/// A class, the Machines that name it, and the Secrets that it names.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The class.
    pub class: Arc<MachineClass>,
    /// How many Machines name it.
    pub machines: usize,
    /// Whether one of them may have a VM: it names one, or the class was usable.
    pub is_used: bool,
    /// Why a Machine that may name the class cannot be read.
    pub unreadable: Option<String>,
    /// The Secrets that it names.
    pub secrets: Vec<NamedSecret>,
    /// The scoped watches of its Secrets.
    pub looks: Vec<ScopedWatch>,
}

/// A Secret that a class names.
#[derive(Clone, Debug)]
pub struct NamedSecret {
    /// Its namespace and name.
    pub key: ObjectRef,
    /// The Secret, as far as it is known.
    pub found: Lookup<Secret>,
    /// Whether this class is the first of those that name it: the first one adds the finalizer.
    pub is_ours: bool,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef) -> Option<Self> {
        let class = stores.of::<MachineClass>(CONTROL).get(key)?;
        let place = place(&key.namespace, &key.name);
        let machines = stores.of::<Machine>(CONTROL);
        // An unreadable Machine may name any class.
        let mut unreadable = machines.unreadable().into_iter().filter(|machine| machine.namespace() == &*key.namespace);
        let unreadable = unreadable.next().map(|machine| machine.describe::<Machine>());
        let secrets: Vec<_> = class.secret_names().map(|(place, name)| named(stores, &class, place, name)).collect();
        let exists = |secret: &NamedSecret| matches!(secret.found, Lookup::Found(_) | Lookup::Unreadable(_));
        let is_used = has_finalizer(class.as_ref(), finalizers::MACHINE_CONTROLLER_MANAGER)
            || secrets.iter().all(exists)
            || machines.by(MACHINES_BY_CLASS, &place).iter().any(|machine| vm_id(machine).is_some());
        let machines = machines.count(MACHINES_BY_CLASS, &place);
        let looks = class_secrets::looks(&class);
        Some(Self { class, machines, is_used, unreadable, secrets, looks })
    }
}

/// A Secret that a class names. A Secret of another namespace counts as not found.
fn named(stores: &Stores, class: &Arc<MachineClass>, place: &str, name: &str) -> NamedSecret {
    let key = ObjectRef::new(CONTROL, place, name);
    let is_own = place == namespace(class.as_ref());
    let found = if is_own { class_secrets::find(stores, place, name) } else { Lookup::Missing };
    let is_ours = users(stores, &key).first().is_some_and(|first| uid(first.as_ref()) == uid(class.as_ref()));
    NamedSecret { key, found, is_ours }
}

/// The classes that name a Secret, sorted by name and without duplicates.
pub(super) fn users(stores: &Stores, secret: &ObjectRef) -> Vec<Arc<MachineClass>> {
    let classes = stores.of::<MachineClass>(CONTROL);
    let place = place(&secret.namespace, &secret.name);
    let mut users = classes.by(CLASSES_BY_SECRET, &place);
    users.extend(classes.by(CLASSES_BY_CREDENTIALS, &place));
    users.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    users.dedup_by(|a, b| Arc::ptr_eq(a, b));
    users
}
