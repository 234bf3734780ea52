//! The steps of an update in place.

use json_patch::Patch;
use nodewright_api::{MachinePhase, OperationState, OperationType, reasons};
use nodewright_runtime::{object::name, plan::Step};

use super::decision::{Answer, Decision, decide, failure_reason};
use crate::{
    machine::{calls::Call, drain, health, partial_plan::PartialPlan, scope::Scope, status::StatusDraft},
    shared::{
        TARGET,
        disruption::{
            AWAITING_BUDGET, DisruptionDecision, SharedBudget,
            patches::{HAS_ROOM, claimed, used},
        },
        in_place,
        node::Node,
    },
};

const WAITS: &str = "UpdatingInPlace";
const AWAITING_COMPONENTS: &str = "CriticalComponentsNotReady";

/// What the update of its Node adds to the plan of a Machine.
pub(in super::super) enum Part {
    /// Nothing: the health of its Node counts.
    None,
    /// The health counts as well, and what is done for it comes first.
    Beside(PartialPlan),
    /// While the Node is being updated its health says nothing.
    Instead(PartialPlan),
}

pub(in super::super) fn part(scope: &Scope<'_>) -> Part {
    Part::Instead(match decide(scope) {
        Decision::Nothing => return Part::None,
        Decision::Drain(node) => return Part::Beside(drained(scope, node)),
        Decision::Begin(node) => begun(scope, node),
        Decision::Permit(node) => permitted(scope, node),
        Decision::Await(until) => {
            let text =
                format!("the program on the node updates it; without an answer the update has failed at {until:.0}");
            PartialPlan::waiting_until(until, WAITS, text)
        }
        Decision::TimedOut => timed_out(scope),
        Decision::Revoke(node) => {
            let text = "Node is a candidate for in-place update".to_owned();
            let step = report_progress(scope, node, reasons::node::CANDIDATE_FOR_UPDATE, text);
            return Part::Beside(PartialPlan::step("the node is no longer selected", step));
        }
        Decision::Show(node, answer) => shown(scope, node, answer),
        Decision::Record(node, answer) => recorded(scope, node, answer),
    })
}

/// What a Machine waits for whose Node was updated and takes no Pods yet, beside the check of its health.
pub(in super::super) fn awaiting_components(scope: &Scope<'_>, health: PartialPlan) -> PartialPlan {
    let node = scope.snapshot.node.as_deref().filter(|node| in_place::awaits_components(node));
    match node.filter(|_| *scope.machine.phase() == MachinePhase::Running) {
        Some(node) => health.and_wait(
            AWAITING_COMPONENTS,
            format!("node {} was updated, and {}", name(node), in_place::AWAITED_COMPONENTS),
        ),
        None => health,
    }
}

fn drained(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    let mut begin = in_place::begin(node, scope.now());
    if !begin.is_empty() {
        if let Some(shared) = &scope.snapshot.shared_budget {
            let part = match shared.update(node) {
                DisruptionDecision::Granted => {
                    begin.extend(used(node));
                    PartialPlan::step("no new pod may start on the node", Step::edit(TARGET, node, Patch(begin)))
                }
                DisruptionDecision::Claim(claim) => {
                    PartialPlan::step(HAS_ROOM, claimed(shared, node, claim, scope.now()))
                }
                DisruptionDecision::Wait(text) => PartialPlan::waiting(AWAITING_BUDGET, text),
            };
            return part.scoped_watch(SharedBudget::watch());
        }
        return PartialPlan::step("no new pod may start on the node", Step::edit(TARGET, node, Patch(begin)));
    }
    let mut since = in_place::drained_since(node).unwrap_or(scope.now());
    if *scope.machine.phase() == MachinePhase::InPlaceUpdateFailed {
        // It is tried again.
        since = since.max(scope.machine.phase_since().unwrap_or(since));
    }
    drain::of_kept(scope, node, since).unwrap_or_else(|| begun(scope, node))
}

fn begun(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    let text = format!("Machine {} is undergoing an in-place update", name(scope.machine));
    let event = scope.normal(reasons::machine::IN_PLACE_UPDATING, "its node is drained, and may be updated in place");
    let draft = scope.status().node_conditions(Some(node)).phase(MachinePhase::InPlaceUpdating).timeout_active(false);
    let draft = draft.operation(OperationType::InPlaceUpdate, OperationState::Processing, text, None);
    PartialPlan::step("the node is drained for its update in place", draft.step()).event(event.routine())
}

fn permitted(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    let text = "Node is ready for in-place update".to_owned();
    PartialPlan::step(
        "the program on the node may update it",
        report_progress(scope, node, reasons::node::READY_FOR_UPDATE, text),
    )
}

fn report_progress(scope: &Scope<'_>, node: &Node, reason: &str, text: String) -> Option<Step<Call>> {
    Step::edit_status(TARGET, node, in_place::report(node, reason, text, scope.now()))
}

fn shown(scope: &Scope<'_>, node: &Node, answer: Answer) -> PartialPlan {
    let (reason, text) = match answer {
        Answer::Successful => (reasons::node::UPDATE_SUCCESSFUL, "Node in-place update successful".to_owned()),
        Answer::Failed => {
            (reasons::node::UPDATE_FAILED, format!("Node in-place update failed: {}", failure_reason(node)))
        }
    };
    PartialPlan::step("the program on the node has answered", report_progress(scope, node, reason, text))
}

fn recorded(scope: &Scope<'_>, node: &Node, answer: Answer) -> PartialPlan {
    if answer == Answer::Failed {
        let text = format!("Machine {} failed to update dependencies: {}", name(scope.machine), failure_reason(node));
        return failed(scope, scope.status().node_conditions(Some(node)), text);
    }
    // The health of a node that is not ready counts from now on.
    let is_healthy = health::unhealthy_because(scope, node).is_none();
    let phase = if is_healthy { MachinePhase::Running } else { MachinePhase::InPlaceUpdateSuccessful };
    let text = format!("Machine {} successfully updated dependencies", name(scope.machine));
    let event = scope.normal(reasons::machine::IN_PLACE_UPDATE_SUCCESSFUL, "its node was updated in place").routine();
    let draft = scope.status().node_conditions(Some(node)).phase(phase).timeout_active(false);
    let draft = draft.operation(OperationType::InPlaceUpdate, OperationState::Successful, text, None);
    PartialPlan::step("the node was updated", draft.step()).event(event)
}

fn timed_out(scope: &Scope<'_>) -> PartialPlan {
    let timeout = scope.settings.update_timeout_of(scope.machine);
    let text = format!("Machine {} failed to in-place update in {timeout:?}", name(scope.machine));
    failed(scope, scope.status(), text)
}

fn failed(scope: &Scope<'_>, draft: StatusDraft<'_>, text: String) -> PartialPlan {
    let event = scope.warning(reasons::machine::IN_PLACE_UPDATE_FAILED, text.as_str());
    let draft = draft.phase(MachinePhase::InPlaceUpdateFailed).timeout_active(false);
    let draft = draft.operation(OperationType::InPlaceUpdate, OperationState::Failed, text, None);
    PartialPlan::step("the update of the node in place has failed", draft.step()).event(event)
}
