//! What a Machine waits for, in its status: a wait that lasts is reported there, not in the log alone.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{Machine, conditions};
use nodewright_runtime::{clip::clip, object::ObjectRef, plan::Wait};

use super::{
    memory::Plan,
    provider::CALLING,
    scope::{Scope, WORTH_REPORTING},
};
use crate::shared::CONTROL;

/// The plan, and the condition `Waiting` of the Machine, if a wait has lasted for long and no other condition reports it. The
/// condition goes when the wait is over, or with the next change of the phase or of the last operation.
pub(super) fn report(scope: &Scope<'_>, mut plan: Plan) -> Plan {
    let known = scope.machine.condition(conditions::machine::WAITING);
    let has_nothing = known.is_none() && plan.waits.is_empty();
    // While a request fails, the status reports that.
    if has_nothing || writes_machine(scope.machine, &plan) || scope.lasting_failure().is_some() {
        return plan;
    }
    let (wait, due) = unreported(scope, &plan);
    let text = wait.map(|wait| (wait.reason, clip(wait.message.as_str())));
    let is_known = match (&text, known) {
        (Some((reason, message)), Some(known)) => {
            known.reason.as_deref() == Some(*reason) && known.message.as_deref() == Some(message)
        }
        (text, known) => text.is_none() && known.is_none(),
    };
    let again = scope.next_text().filter(|_| known.is_some());
    plan.wake_at(due).wake_at(again.filter(|_| !is_known));
    if is_known || again.is_some() {
        return plan;
    }
    if let Some(until) = known.filter(|_| text.is_none()).and_then(|known| kept_for_another(scope, known)) {
        plan.wake_at(until);
        return plan;
    }
    let kind = conditions::machine::WAITING;
    let draft = match text {
        Some((reason, message)) => scope.status().condition(kind, true, reason, message),
        None => scope.status().without(kind),
    };
    plan.beside("what the machine waits for shows in its status", draft.step());
    plan
}

/// The first wait that has lasted for long, or that the condition reports already, and that no other condition reports; or when there
/// will be one.
fn unreported<'a>(scope: &Scope<'_>, plan: &'a Plan) -> (Option<&'a Wait>, Option<Timestamp>) {
    let known = scope.machine.condition(conditions::machine::WAITING).and_then(|known| known.reason.as_deref());
    let mut next = None;
    for wait in plan.waits.iter().filter(|wait| !is_reported(scope.machine, wait)) {
        match scope.pause_end(since(scope, wait), WORTH_REPORTING).filter(|_| known != Some(wait.reason)) {
            None => return (Some(wait), None),
            Some(due) => next = next.into_iter().chain([due]).min(),
        }
    }
    (None, next)
}

/// Until when a wait for an answer stays in the status that this process has not reported: another manager without leader election
/// may have a call of its own in progress, and would report it again.
fn kept_for_another(scope: &Scope<'_>, known: &NodeCondition) -> Option<Timestamp> {
    let reported = known.last_transition_time.as_ref().filter(|_| known.reason.as_deref() == Some(CALLING))?.0;
    let is_own = scope.context.status_written.is_some_and(|written| written >= reported);
    scope.pause_end(reported, scope.driver.deadline).filter(|_| !is_own)
}

/// Since when the wait lasts. That for an answer begins with the call.
fn since(scope: &Scope<'_>, wait: &Wait) -> Timestamp {
    let known = scope.context.waiting_since(wait.reason);
    let called = scope.context.outcomes.running_since().filter(|_| wait.reason == CALLING);
    called.map_or(known, |called| called.min(known))
}

fn is_reported(machine: &Machine, wait: &Wait) -> bool {
    let others = conditions::machine::ALL.into_iter().filter(|kind| *kind != conditions::machine::WAITING);
    let mut reasons = others.filter_map(|kind| machine.condition(kind)?.reason.as_deref());
    machine.phase().as_str() == wait.reason || reasons.any(|reason| reason == wait.reason)
}

/// A status carries the Machine's version, so nothing else of the Machine is written beside it.
fn writes_machine(machine: &Machine, plan: &Plan) -> bool {
    let own = ObjectRef::of(CONTROL, machine);
    plan.steps().any(|planned| planned.step.key() == Some(&own))
}
