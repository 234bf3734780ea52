//! Removes the finalizer from Secrets that no class refers to. The class itself adds it.

use std::sync::Arc;

use nodewright_api::{MachineClass, finalizers, reasons::unreadable};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    finalizers as finalizer,
    object::{ObjectRef, has_finalizer, is_deleting},
    plan::{Context, Plan, Step},
};

use super::snapshot::users;
use crate::shared::{
    CONTROL,
    class_secrets::{NAMEABLE, SecretMetadata},
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET},
};

/// Works even if the last reference was removed while no controller ran.
#[derive(Clone, Debug)]
pub struct MachineClassSecretController {
    /// The namespace of the custom resources, and of the Secrets.
    pub namespace: String,
}

#[derive(Clone, Debug)]
pub struct SecretSnapshot {
    pub secret: Arc<SecretMetadata>,
    /// How many classes refer to it, including those that are being deleted.
    pub users: usize,
    /// Why a class that may refer to it cannot be read.
    pub unreadable: Option<String>,
}

impl Controller for MachineClassSecretController {
    const NAME: &'static str = "machine-class-secret";
    type Primary = SecretMetadata;
    type Snapshot = SecretSnapshot;
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<SecretMetadata>(CONTROL, &self.namespace)
            .selecting(NAMEABLE)
            .metadata_only()
            .keeping(|secret| has_finalizer(secret, finalizers::MACHINE_CONTROLLER));
        on.kind::<MachineClass>(CONTROL, &self.namespace)
            .index(CLASSES_BY_SECRET)
            .index(CLASSES_BY_CREDENTIALS)
            .wakes_unreadable(|_, stores, wake| {
                stores.of::<SecretMetadata>(CONTROL).keys().into_iter().for_each(wake);
            })
            .wakes(|change, _, wake| {
                let named = change.sides().flat_map(|class| class.secret_names());
                named.for_each(|(namespace, name)| wake(ObjectRef::new(CONTROL, namespace, name)));
            });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<SecretSnapshot> {
        let secret = stores.of::<SecretMetadata>(CONTROL).get(key)?;
        // An unreadable class may refer to any Secret.
        let unreadable = stores.of::<MachineClass>(CONTROL).unreadable();
        let unreadable = unreadable.first().map(|class| class.describe::<MachineClass>());
        Some(SecretSnapshot { secret, users: users(stores, key).len(), unreadable })
    }

    fn plan(_: &Context<'_, Never>, snapshot: &SecretSnapshot) -> Plan<Never> {
        let mut plan = Plan::idle();
        let secret = snapshot.secret.as_ref();
        let is_held = has_finalizer(secret, finalizers::MACHINE_CONTROLLER);
        if let Some(text) = snapshot.unreadable.as_ref().filter(|_| snapshot.users == 0 && is_held) {
            plan.wait(
                unreadable::MACHINE_CLASS,
                format!("{text}; until then it may refer to the secret, which is kept"),
            );
        }
        if snapshot.users == 0 && is_held && snapshot.unreadable.is_none() {
            let remove = finalizer::remove(&secret.metadata, finalizers::MACHINE_CONTROLLER);
            plan.then("no class refers to the secret any more", Step::edit(CONTROL, secret, remove));
        }
        if snapshot.users > 0 && is_deleting(secret) {
            plan.wait(
                "SecretInUse",
                format!("{} classes refer to the secret; it is kept until they are gone", snapshot.users),
            );
        }
        plan
    }
}
