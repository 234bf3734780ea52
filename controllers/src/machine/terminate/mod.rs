//! The stages of a deletion. Objects and provider show which are over, so that a restart continues from there.

mod abandon;
mod drain;
mod instance;
mod node;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{MachinePhase, OperationState, OperationType, conditions, finalizers, labels, operations};
use nodewright_runtime::{
    clip::clip,
    finalizers as finalizer,
    object::{self, label},
    plan::Step,
};

pub(super) use self::{
    abandon::is_abandoned,
    drain::{disruption_claimed, drained, node_readable, volumes_detached, volumes_released},
    instance::{owner_unknown, token_dropped, try_again, vm_deleted},
    node::{LISTING_NODES, NODES_UNLISTED, node_deleted},
};
use super::{calls::Verb, partial_plan::PartialPlan, provider::Provider, scope::Scope, snapshot::Owner, trace};
use crate::shared::{CONTROL, ledger::LedgerAnnotation};

/// How long a deletion lasts before its stage is written to the status. Most deletions end before, and cost no write for it.
const WORTH_SHOWING: SignedDuration = SignedDuration::from_secs(10);
const REQUEST_FAILED: &str = "RequestFailed";
/// How long after its deletion a Machine waits for its set to retire its name.
const RETIRE_OURSELVES: SignedDuration = SignedDuration::from_mins(1);

pub(super) fn has_finalizer(scope: &Scope<'_>) -> PartialPlan {
    let is_over = object::has_finalizer(scope.machine, finalizers::MACHINE_CONTROLLER_MANAGER);
    PartialPlan { is_over, ..PartialPlan::default() }
}

pub(super) fn begun(scope: &Scope<'_>) -> PartialPlan {
    if *scope.machine.phase() == MachinePhase::Terminating {
        return PartialPlan::over();
    }
    let (kind, state) = (OperationType::Delete, OperationState::Processing);
    let draft = scope.status().phase(MachinePhase::Terminating).timeout_active(false).not_preserved().not_held();
    let draft = draft.operation(kind, state, operations::GET_VM_STATUS, None);
    PartialPlan::step("the machine is being deleted", draft.step())
}

/// Names in the status the request that fails: beside a request that fails again the status would not be written.
pub(super) fn failure_reported(scope: &Scope<'_>) -> PartialPlan {
    let Some(failure) = scope.failure_to_report() else { return PartialPlan::over() };
    let (operation, condition) = if instance::is_deletion_begun(scope) {
        (operations::INITIATE_NODE_DELETION, conditions::machine::NODE_DELETED)
    } else {
        (operations::INITIATE_DRAIN, conditions::machine::DRAINED)
    };
    let (operation, message) = (format!("{operation}: {failure}"), failure.to_string());
    PartialPlan::default().showing(scope, (&operation, condition), (REQUEST_FAILED, &message)).over_if_idle()
}

/// The Machine's name is retired: no other Machine will have it. The MachineSet controller retires names, many at once. If it
/// does not, because another controller manager keeps the sets or the set's spec is not valid, the name is retired here.
pub(super) fn name_retired(scope: &Scope<'_>) -> PartialPlan {
    let snapshot = scope.snapshot;
    if let Some((reason, message)) = snapshot.ledger_error() {
        let progress = (operations::INITIATE_NODE_DELETION, conditions::machine::CONFIGURATION_VALID);
        return PartialPlan::blocked(scope, progress, reason, &message);
    }
    let (Owner::Set(set), Some((ledger, ordinal))) = (&snapshot.owner, snapshot.ledger_entry()) else {
        return PartialPlan::over();
    };
    if ledger.is_retired(ordinal) {
        return PartialPlan::over();
    }
    let part = PartialPlan::waiting("Retiring", "the machine set has yet to retire this machine's name");
    let deleted = scope.machine.metadata.deletion_timestamp.as_ref();
    if let Some(due) = deleted.and_then(|deleted| scope.pause_end(deleted.0, RETIRE_OURSELVES)) {
        return part.waking_at(due);
    }
    let ledger = LedgerAnnotation::of(&ledger.retire([ordinal]));
    part.beside("no set has retired the name", Step::apply_if_unchanged(CONTROL, set.as_ref(), ledger))
}

pub(super) fn finished(scope: &Scope<'_>) -> PartialPlan {
    let machine = scope.machine;
    let remove = finalizer::remove(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    let mut part = PartialPlan::step("nothing is left of the machine", Step::edit(CONTROL, machine, remove));
    if scope.context.traces {
        part.plan.spans = trace::deleted(scope, &deletion(scope));
    }
    part
}

fn deletion(scope: &Scope<'_>) -> trace::Deletion {
    let (machine, now) = (scope.machine, scope.now());
    let provider = scope.snapshot.class.as_ref().ok().map(|class| Provider::of(scope, class));
    let known = |verb| provider.as_ref().and_then(|provider| provider.known(verb));
    let asked = known(Verb::Delete).map_or(now, |known| known.begun);
    let gone = known(Verb::Status).and_then(|known| known.last.as_ref()).map_or(now, |(ended, _)| *ended);
    let begun = machine.phase_since().unwrap_or(now);
    trace::Deletion { begun, asked, gone, has_node: label(machine, labels::NODE).is_some() }
}

/// What the status says while a stage lasts: the last operation, and a condition that is False.
type Shown<'a> = (&'a str, &'static str);

const DRAINING: Shown<'_> = (operations::INITIATE_DRAIN, conditions::machine::DRAINED);

impl PartialPlan {
    fn blocked(scope: &Scope<'_>, progress: Shown<'_>, reason: &'static str, message: &str) -> Self {
        Self::waiting(reason, message).showing(scope, progress, (reason, message))
    }

    /// Shows the stage in the status once it has lasted for a while, and again only for another reason.
    fn showing(self, scope: &Scope<'_>, progress: Shown<'_>, (reason, message): (&'static str, &str)) -> Self {
        let known = scope.machine.condition(progress.1);
        if known.is_some_and(|known| known.status == "False" && known.reason.as_deref() == Some(reason)) {
            return self;
        }
        if let Some(due) = scope.machine.phase_since().and_then(|begun| scope.pause_end(begun, WORTH_SHOWING)) {
            return self.waking_at(due);
        }
        self.writing(scope, progress, (reason, message))
    }

    /// As `showing`, and again when the message changes, with a pause in between. The same pause follows the report of a request
    /// that failed: that report is a write that succeeds, after which the request is made and fails again.
    fn showing_news(self, scope: &Scope<'_>, progress: Shown<'_>, (reason, message): (&'static str, &str)) -> Self {
        let known = scope.machine.condition(progress.1).filter(|known| known.status == "False");
        let says = |known: &NodeCondition, reason: &str| known.reason.as_deref() == Some(reason);
        let Some(known) = known.filter(|known| says(known, reason) || says(known, REQUEST_FAILED)) else {
            return self.showing(scope, progress, (reason, message));
        };
        if says(known, reason) && known.message.as_deref() == Some(&*clip(message)) {
            return self;
        }
        match scope.next_text() {
            Some(due) => self.waking_at(due),
            None => self.writing(scope, progress, (reason, message)),
        }
    }

    fn writing(
        self,
        scope: &Scope<'_>,
        (operation, condition): Shown<'_>,
        (reason, message): (&'static str, &str),
    ) -> Self {
        // While requests fail, the status says that.
        if reason != REQUEST_FAILED && scope.lasting_failure().is_some() {
            return self;
        }
        let draft = scope.status().operation(OperationType::Delete, OperationState::Processing, operation, None);
        let draft = if condition == conditions::machine::VOLUMES_DETACHED {
            draft.condition(conditions::machine::DRAINED, true, "Drained", "no pod is left that could leave")
        } else {
            draft
        };
        self.beside("report progress", draft.condition(condition, false, reason, message).step())
    }
}
