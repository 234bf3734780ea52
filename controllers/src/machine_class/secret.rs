//! The Secrets of classes: let go once no class refers to them. A class itself sees to it that they are kept.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use nodewright_api::{MachineClass, finalizers, reasons::unreadable};
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Never,
    finalizers as finalizer,
    object::{Key, has_finalizer, is_deleting},
    plan::{Moment, Plan, Step},
};
use serde::Deserialize;

use super::users;
use crate::shared::clusters::CONTROL;
use crate::shared::{
    class_secrets::NAMEABLE,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET},
};

/// A Secret without what is secret: neither asked for nor kept.
#[derive(kube::Resource, Clone, Debug, Deserialize)]
#[resource(inherit = "Secret")]
pub struct SecretMetadata {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
}

/// Lets go of the Secrets that no class refers to any more, also of one that was left in a moment when nobody watched.
#[derive(Clone, Debug)]
pub struct MachineClassSecretController {
    /// The namespace of the custom resources, and of the Secrets.
    pub namespace: String,
}

/// A Secret and who refers to it.
#[derive(Clone, Debug)]
pub struct SecretWorld {
    /// The Secret.
    pub secret: Arc<SecretMetadata>,
    /// How many classes refer to it, those that are being deleted included.
    pub users: usize,
    /// What to say of a class that cannot be read, and may refer to it.
    pub unreadable: Option<String>,
}

impl Controller for MachineClassSecretController {
    const NAME: &'static str = "machine-class-secret";
    type Primary = SecretMetadata;
    type World = SecretWorld;
    type Effect = Never;

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
                named.for_each(|(namespace, name)| wake(Key::new(CONTROL, namespace, name)));
            });
    }

    fn observe(&self, stores: &Stores, key: &Key) -> Option<SecretWorld> {
        let secret = stores.of::<SecretMetadata>(CONTROL).get(key)?;
        // What an unreadable class refers to is not known, so it may be each.
        let unreadable = stores.of::<MachineClass>(CONTROL).unreadable();
        let unreadable = unreadable.first().map(|class| class.describe::<MachineClass>());
        Some(SecretWorld { secret, users: users(stores, key).len(), unreadable })
    }

    fn plan(&self, _: &Moment<'_, Never>, world: &SecretWorld) -> Plan<Never> {
        let mut plan = Plan::idle();
        let secret = world.secret.as_ref();
        let is_held = has_finalizer(secret, finalizers::MACHINE_CONTROLLER);
        if let Some(text) = world.unreadable.as_ref().filter(|_| world.users == 0 && is_held) {
            plan.wait(
                unreadable::MACHINE_CLASS,
                format!("{text}; until then it may refer to the secret, which is kept"),
            );
        }
        if world.users == 0 && is_held && world.unreadable.is_none() {
            let remove = finalizer::remove(&secret.metadata, finalizers::MACHINE_CONTROLLER);
            let step = remove.and_then(|remove| Step::edit(CONTROL, secret, remove));
            plan.then("no class refers to the secret any more", step);
        }
        if world.users > 0 && is_deleting(secret) {
            plan.wait(
                "SecretInUse",
                format!("{} classes refer to the secret; it is kept until they are gone", world.users),
            );
        }
        plan
    }
}
