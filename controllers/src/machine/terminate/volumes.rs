//! The stage in which the volumes are detached from the Node.

use nodewright_api::{OperationState, OperationType, conditions, operations};

use super::{
    super::{scope::Scope, stage::Stage, status::since},
    drain::force_reason,
    instance::is_deletion_begun,
};

/// No volume is attached to the Node any more, or the timeout for that is over.
pub(in super::super) fn volumes_detached(scope: &Scope<'_>) -> Stage {
    let Some(node) = scope.snapshot.node.as_deref() else { return Stage::over() };
    let machine = scope.machine;
    let attached = node.status.volumes_attached.as_ref().map_or(0, Vec::len);
    let is_forced = machine.is_force_deletion() || force_reason(scope, node).is_some();
    if attached == 0 || is_forced || is_deletion_begun(scope) {
        return Stage::over();
    }
    // The condition is the clock of this stage. If somebody removes it, the wait begins again.
    let message = format!("{attached} volumes are still attached to the node");
    let Some(begun) = since(machine, conditions::machine::VOLUMES_DETACHED) else {
        let draft = scope
            .status()
            .operation(OperationType::Delete, OperationState::Processing, operations::DELETE_VOLUME_ATTACHMENTS, None)
            .condition(conditions::machine::DRAINED, true, "Drained", "no pod is left that could leave")
            .condition(conditions::machine::VOLUMES_DETACHED, false, "Attached", message);
        return Stage::step("volumes have yet to be detached", draft.step(machine));
    };
    let due = begun.checked_add(scope.settings.detach_timeout).unwrap_or(scope.now());
    if due <= scope.now() {
        return Stage::over();
    }
    let message = format!("{message}; the VM is removed at {due} at the latest");
    Stage::waiting("DetachingVolumes", message).waking_at(due)
}
