//! The snapshot of a MachineClass.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{Machine, MachineClass, finalizers};
use nodewright_runtime::{
    cache::{Lookup, Stores},
    object::{ObjectRef, has_finalizer, namespace, uid},
    scoped_watch::ScopedWatch,
};

use super::{call::Validate, is_of, uninitialized::Uninitialized};
use crate::shared::{
    CONTROL, class_secrets,
    cloud_manager::CloudNodeMode,
    driver::Provider,
    indexes::{MACHINES_BY_CLASS, object_key},
    ownership::vm_id,
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub class: Arc<MachineClass>,
    pub machines: usize,
    /// Whether one of them may have a VM: it names one, or the class was usable.
    pub is_used: bool,
    /// Why a Machine that may name the class cannot be read.
    pub unreadable: Option<String>,
    pub secrets: Vec<NamedSecret>,
    /// The question what is wrong with its providerSpec; `None` if the class is of another provider.
    pub validate: Option<Validate>,
    pub provider: Provider,
    pub scoped_watches: Vec<ScopedWatch>,
    /// Whether the served schema is ours, with a status.
    pub full_schema: bool,
    /// The Nodes that nobody initializes, if this manager initializes Nodes.
    pub(super) uninitialized: Option<Uninitialized>,
}

#[derive(Clone, Debug)]
pub struct NamedSecret {
    pub key: ObjectRef,
    pub found: Lookup<Secret>,
    /// Whether this class is the first of those that name it: the first one adds the finalizer.
    pub is_ours: bool,
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        (provider, session): (Provider, u64),
        full_schema: bool,
        (mode, is_described): (CloudNodeMode, bool),
    ) -> Option<Self> {
        let class = stores.of::<MachineClass>(CONTROL).get(key)?;
        let class_key = object_key(&key.namespace, &key.name);
        let machines = stores.of::<Machine>(CONTROL);
        // An unreadable Machine may name any class.
        let mut unreadable = machines.unreadable().into_iter().filter(|machine| machine.namespace() == &*key.namespace);
        let unreadable = unreadable.next().map(|machine| machine.describe::<Machine>());
        let secrets = class
            .secret_names()
            .map(|(namespace, name)| named(stores, &class, ObjectRef::new(CONTROL, namespace, name)));
        let secrets: Vec<_> = secrets.collect();
        let exists = |secret: &NamedSecret| matches!(secret.found, Lookup::Found(_) | Lookup::Unreadable(_));
        let is_used = has_finalizer(class.as_ref(), finalizers::MACHINE_CONTROLLER_MANAGER)
            || secrets.iter().all(exists)
            || machines.by(MACHINES_BY_CLASS, &class_key).iter().any(|machine| vm_id(machine).is_some());
        let machines = machines.count(MACHINES_BY_CLASS, &class_key);
        let scoped_watches = class_secrets::scoped_watches(&class);
        let validate = is_of(&class, &provider.name).then(|| Validate { class: class.clone(), session });
        let uninitialized = Uninitialized::take(stores, mode, is_described);
        Some(Self {
            class,
            machines,
            is_used,
            unreadable,
            secrets,
            validate,
            provider,
            scoped_watches,
            full_schema,
            uninitialized,
        })
    }

    /// Whether the Secrets exist, and none has user data: no VM is created.
    pub(super) fn lacks_user_data(&self) -> bool {
        let has_none = |secret: &NamedSecret| secret.found.found().is_some_and(|it| !class_secrets::has_user_data(it));
        !self.secrets.is_empty() && self.secrets.iter().all(has_none)
    }
}

/// A Secret that a class names. A Secret of another namespace counts as not found.
fn named(stores: &Stores, class: &Arc<MachineClass>, key: ObjectRef) -> NamedSecret {
    let is_own = *key.namespace == *namespace(class.as_ref());
    let found = if is_own { class_secrets::find(stores, &key) } else { Lookup::Missing };
    let is_ours =
        class_secrets::users(stores, &key).first().is_some_and(|first| uid(first.as_ref()) == uid(class.as_ref()));
    NamedSecret { key, found, is_ours }
}
