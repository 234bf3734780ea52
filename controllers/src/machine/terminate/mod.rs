//! What a Machine that is being deleted goes through, stage by stage: proof, drain, volumes, VM, Node, ledger.
//!
//! Whether a stage is over is read from the objects and asked of the provider, so a restart goes on wherever things stand.

mod drain;
mod instance;
mod ledger;
mod node;
mod progress;
mod proof;
mod volumes;

use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions, finalizers, labels, operations, reasons,
};
use nodewright_observability::trace::SpanRecord;
use nodewright_runtime::{
    events::EventKind,
    finalizers as finalizer,
    object::{self, label},
    plan::Step,
};

use self::progress::{Progress, REQUEST_FAILED};
pub(super) use self::{
    drain::drained,
    instance::vm_deleted,
    ledger::name_retired,
    node::{node_deleted, node_readable},
    proof::vm_proven,
    volumes::volumes_detached,
};
use super::{calls::Verb, provider::Provider, scope::Scope, stage::Stage, status::phase_since, trace};
use crate::shared::clusters::CONTROL;

/// Without the finalizer the Machine is no longer ours to terminate.
pub(super) fn has_finalizer(scope: &Scope<'_>) -> Stage {
    let is_over = object::has_finalizer(scope.machine, finalizers::MACHINE_CONTROLLER_MANAGER);
    Stage { is_over, ..Stage::default() }
}

/// The phase is Terminating.
pub(super) fn begun(scope: &Scope<'_>) -> Stage {
    if *scope.machine.phase() == MachinePhase::Terminating {
        return Stage::over();
    }
    let (kind, state) = (OperationType::Delete, OperationState::Processing);
    let draft = scope.status().phase(MachinePhase::Terminating).timeout_active(false).not_preserved().not_held();
    let draft = draft.operation(kind, state, operations::GET_VM_STATUS, None);
    let text = if scope.snapshot.claim.is_settled() {
        "the node is drained, then the VM is removed"
    } else {
        "the machine is being deleted; only a VM that is proven to be its own is removed"
    };
    let event = scope.event(EventKind::Normal, reasons::machine::TERMINATING, text);
    Stage::step("the machine is being deleted", draft.step(scope.machine)).telling(event)
}

/// Names in the status the request that fails, before anything else is done: beside a request that fails again the status
/// would not be written.
pub(super) fn failure_reported(scope: &Scope<'_>) -> Stage {
    let Some(failure) = scope.failure_to_report() else { return Stage::over() };
    let (operation, condition) = if instance::is_deletion_begun(scope) {
        (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_DELETED)
    } else {
        (operations::INITIATE_DRAIN, conditions::machine::DRAINED)
    };
    let (operation, message) = (format!("{operation}: {failure}"), failure.to_string());
    let progress = Progress { operation: &operation, condition, reason: REQUEST_FAILED, message: &message };
    Stage::default().showing(scope, &progress).over_if_idle()
}

/// The finalizer goes last.
pub(super) fn finished(scope: &Scope<'_>) -> Stage {
    let machine = scope.machine;
    let remove = finalizer::remove(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    let remove = remove.and_then(|remove| Step::edit(CONTROL, machine, remove));
    let event = scope.event(EventKind::Normal, reasons::machine::TERMINATED, "nothing is left");
    let mut stage = Stage::step("nothing is left of the machine", remove).telling(event);
    stage.plan.spans = spans(scope);
    stage
}

/// The spans of the whole termination.
fn spans(scope: &Scope<'_>) -> Vec<SpanRecord> {
    let (machine, now) = (scope.machine, scope.now());
    let begun = phase_since(machine).unwrap_or(now);
    let mut spans = vec![];
    if let Ok(class) = &scope.snapshot.class {
        let provider = Provider::of(scope, class);
        let asked = provider.known(Verb::Delete).map_or(now, |known| known.begun);
        let status = provider.known(Verb::Status).and_then(|known| known.last.as_ref());
        let gone = status.map_or(now, |(ended, _)| *ended);
        if label(machine, labels::NODE).is_some() {
            spans.push(trace::stage(machine, "drain", begun, asked));
            spans.push(trace::stage(machine, "node deletion", gone, now));
        }
        spans.push(trace::stage(machine, "VM deletion", asked, gone));
    }
    spans.push(trace::terminated(machine, now));
    spans
}
