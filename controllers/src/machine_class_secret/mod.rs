//! Removes the finalizer from Secrets that no class refers to. The class itself adds it.

mod decision;
mod plan;
mod snapshot;

use nodewright_api::{MachineClass, finalizers};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    object::{ObjectRef, has_finalizer},
    plan::{Context, Plan},
};

use self::snapshot::Snapshot;
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

impl Controller for MachineClassSecretController {
    const NAME: &'static str = "machine-class-secret";
    type Primary = SecretMetadata;
    type Snapshot = Snapshot;
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

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        Snapshot::take(stores, key)
    }

    fn plan(_: &Context<'_, Never>, snapshot: &Snapshot) -> Plan<Never> {
        plan::plan(snapshot)
    }
}
