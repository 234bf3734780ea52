//! When a Secret loses the finalizer.

use nodewright_api::{finalizers, reasons::unreadable};
use nodewright_runtime::{
    effect::Never,
    finalizers as finalizer,
    object::{has_finalizer, is_deleting},
    plan::{Plan, Step},
};

use super::snapshot::Snapshot;
use crate::shared::CONTROL;

pub(super) fn plan(snapshot: &Snapshot) -> Plan<Never> {
    let mut plan = Plan::idle();
    let secret = snapshot.secret.as_ref();
    let is_held = has_finalizer(secret, finalizers::MACHINE_CONTROLLER);
    if let Some(text) = snapshot.unreadable.as_ref().filter(|_| snapshot.users == 0 && is_held) {
        plan.wait(unreadable::MACHINE_CLASS, format!("{text}; until then it may refer to the secret, which is kept"));
    }
    if snapshot.users == 0 && is_held && snapshot.unreadable.is_none() {
        let remove = finalizer::remove(&secret.metadata, finalizers::MACHINE_CONTROLLER);
        plan.then("no class refers to the secret any more", Step::edit(CONTROL, secret, remove));
    }
    if snapshot.users > 0 && is_deleting(secret) {
        let text = format!("{} classes refer to the secret; it is kept until they are gone", snapshot.users);
        plan.wait("SecretInUse", text);
    }
    plan
}
