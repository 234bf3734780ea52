//! What becomes of the update of a Machine's Node.

use jiff::Timestamp;
use nodewright_api::{
    Machine, MachinePhase, annotations,
    reasons::node::{DRAIN_SUCCESSFUL, READY_FOR_UPDATE, UPDATE_FAILED, UPDATE_SUCCESSFUL},
};
use nodewright_runtime::{
    clip::clip_to,
    object::{annotation, is_deleting},
};

use crate::{
    machine::scope::Scope,
    shared::{
        in_place::{Progress, reason, since},
        node::Node,
    },
};

const LONGEST_REASON: usize = 512;

#[derive(Clone, Copy, Debug)]
pub(super) enum Decision<'a> {
    /// No update is asked for, or none is in progress: the health of the Node counts.
    Nothing,
    /// The Node is selected, and the Pods on it leave. Its health counts as well.
    Drain(&'a Node),
    /// The Node is drained: the Machine says that it is being updated.
    Begin(&'a Node),
    /// The phase of the Machine is written: the program on the Node may begin.
    Permit(&'a Node),
    /// The program has until then to answer.
    Await(Timestamp),
    TimedOut,
    /// The Node is no longer selected, and its condition still permits the update.
    Revoke(&'a Node),
    /// The program's answer, which the Node shows first, and then the Machine.
    Show(&'a Node, Answer),
    Record(&'a Node, Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Successful,
    Failed,
}

pub(super) fn decide<'a>(scope: &Scope<'a>) -> Decision<'a> {
    let (machine, snapshot) = (scope.machine, scope.snapshot);
    let phase = machine.phase();
    let is_updating = *phase == MachinePhase::InPlaceUpdating;
    if snapshot.unreadable_node.is_some() || snapshot.node.as_deref().is_some_and(is_deleting) {
        return Decision::Nothing;
    }
    let Some(node) = snapshot.node.as_deref() else {
        return if is_updating { awaited(scope, None) } else { Decision::Nothing };
    };
    let is_in_use =
        matches!(phase, MachinePhase::Running | MachinePhase::Unknown | MachinePhase::InPlaceUpdateSuccessful);
    match Progress::of(node) {
        Progress::Successful => answered(scope, node, Answer::Successful),
        Progress::Failed => answered(scope, node, Answer::Failed),
        // The Machine has said that it is being updated, and the Node does not permit it yet.
        Progress::Selected | Progress::Drained if is_updating => Decision::Permit(node),
        Progress::Ready if is_updating => awaited(scope, Some(node)),
        Progress::Candidate if [Some(READY_FOR_UPDATE), Some(DRAIN_SUCCESSFUL)].contains(&reason(node)) => {
            Decision::Revoke(node)
        }
        Progress::Drained | Progress::Ready if is_in_use => Decision::Begin(node),
        // One whose update has failed is tried again, once the program's answer was removed.
        Progress::Selected if is_in_use || *phase == MachinePhase::InPlaceUpdateFailed => Decision::Drain(node),
        _ => Decision::Nothing,
    }
}

fn awaited<'a>(scope: &Scope<'a>, node: Option<&Node>) -> Decision<'a> {
    let permitted = node.and_then(|node| since(node, READY_FOR_UPDATE)).map(|time| time.min(scope.now()));
    match scope.settings.update_deadline(scope.machine, permitted) {
        Some(deadline) if deadline <= scope.now() => Decision::TimedOut,
        Some(deadline) => Decision::Await(deadline),
        None => Decision::Nothing,
    }
}

/// The Node shows an answer before the Machine does: the copy of its conditions in the Machine's status has it then.
fn answered<'a>(scope: &Scope<'a>, node: &'a Node, answer: Answer) -> Decision<'a> {
    let phase = scope.machine.phase();
    let (shown, is_due) = match answer {
        Answer::Successful => {
            (UPDATE_SUCCESSFUL, matches!(phase, MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateFailed))
        }
        // It may have said the opposite before.
        Answer::Failed => {
            let others = [MachinePhase::InPlaceUpdateFailed, MachinePhase::Failed, MachinePhase::Terminating];
            (UPDATE_FAILED, !others.contains(phase))
        }
    };
    if reason(node) != Some(shown) {
        Decision::Show(node, answer)
    } else if is_due {
        Decision::Record(node, answer)
    } else {
        Decision::Nothing
    }
}

/// Why the update of a Machine has failed, if it has, and nothing has changed since: what its Node reports about its health does not
/// count then, as in machine-controller-manager.
pub(in super::super) fn failure(machine: &Machine, node: &Node) -> Option<String> {
    if !matches!(machine.phase(), MachinePhase::InPlaceUpdateFailed | MachinePhase::Failed) {
        return None;
    }
    match Progress::of(node) {
        Progress::Failed => Some(format!("the update of the node in place has failed: {}", failure_reason(node))),
        Progress::Drained | Progress::Ready => {
            Some("the update of the node in place was not finished in time".to_owned())
        }
        _ => None,
    }
}

/// The reason that the program on the Node gives for its failure.
pub(super) fn failure_reason(node: &Node) -> String {
    let reason = annotation(node, annotations::UPDATE_FAILED_REASON).filter(|reason| !reason.is_empty());
    clip_to(LONGEST_REASON, reason.unwrap_or("the program on the node gives no reason").to_owned())
}

/// Whether the Pods have yet to leave the Node.
pub(in super::super) fn needs_drain(machine: &Machine, node: &Node) -> bool {
    Progress::of(node) == Progress::Selected && *machine.phase() != MachinePhase::InPlaceUpdating
}
