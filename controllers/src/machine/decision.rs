//! What is done about a Machine that is not being deleted, and whose VM is known to be its own.

use jiff::Timestamp;
use nodewright_api::MachinePhase;

use super::{health, provision, scope::Scope, snapshot::Owner};
use crate::shared::{ownership::vm_id, preservation::kept_until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is Failed, and kept for diagnosis until then.
    Preserve(Timestamp),
    /// It is Failed: its set deletes and replaces it.
    AwaitReplacement,
    /// It is Failed and has no set: a user deletes it.
    AwaitUser,
    CreateVm,
    InitializeVm,
    CheckHealth,
    /// Another manager looks after its Node.
    Nothing,
}

pub(super) fn decide(scope: &Scope<'_>) -> Decision {
    let phase = scope.machine.phase();
    let is_healthy = || health::has_healthy_node(scope);
    if *phase == MachinePhase::Failed && !is_healthy() {
        let until = kept_until(scope.machine, scope.settings.preserve_timeout).filter(|until| *until > scope.now());
        return match (until, &scope.snapshot.owner) {
            (Some(until), _) => Decision::Preserve(until),
            (None, Owner::None) => Decision::AwaitUser,
            (None, _) => Decision::AwaitReplacement,
        };
    }
    match vm_id(scope.machine) {
        None => Decision::CreateVm,
        Some(_) if provision::is_unprovisioned(phase) && !is_healthy() => Decision::InitializeVm,
        Some(_) if scope.settings.has_target => Decision::CheckHealth,
        Some(_) => Decision::Nothing,
    }
}
