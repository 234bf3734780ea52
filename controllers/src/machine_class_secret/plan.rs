//! The plan of a Secret with the finalizer: the steps of its decision.

use nodewright_api::{finalizers, reasons::unreadable};
use nodewright_runtime::{
    effect::Never,
    finalizers as finalizer,
    plan::{Plan, Step},
};

use super::{
    decision::{Decision, decide},
    snapshot::Snapshot,
};
use crate::shared::CONTROL;

pub(super) fn plan(snapshot: &Snapshot) -> Plan<Never> {
    let mut plan = Plan::idle();
    match decide(snapshot) {
        Decision::Keep => {}
        Decision::AwaitReadable(text) => {
            let text = format!("{text}; until then it may refer to the secret, which is kept");
            plan.wait(unreadable::MACHINE_CLASS, text);
        }
        Decision::AwaitUsers(users) => {
            let text = format!("{users} classes refer to the secret; it is kept until they are gone");
            plan.wait("SecretInUse", text);
        }
        Decision::RemoveFinalizer => {
            let secret = snapshot.secret.as_ref();
            let remove = finalizer::remove(&secret.metadata, finalizers::MACHINE_CONTROLLER);
            plan.then("no class refers to the secret any more", Step::edit(CONTROL, secret, remove));
        }
    }
    plan
}
