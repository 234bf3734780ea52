//! What a stage of a termination comes to.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{OperationState, OperationType};
use nodewright_runtime::{
    events::Event,
    look::Look,
    plan::{Planned, Step, Wait},
};

use super::super::{
    calls::Call,
    scope::Scope,
    status::{own_condition, phase_since},
};

/// How long a stage may last before the status shows it.
const WORTH_SHOWING: SignedDuration = SignedDuration::from_secs(5);
/// The reason of a condition that names a request which fails.
pub(super) const REQUEST_FAILED: &str = "RequestFailed";

/// A stage: whether it is over, and what it does or waits for.
#[derive(Default)]
pub(in super::super) struct Stage {
    pub(in super::super) is_over: bool,
    /// Made side by side.
    pub(in super::super) steps: Vec<Planned<Call>>,
    pub(in super::super) wait: Option<Wait>,
    pub(in super::super) wake: Option<Timestamp>,
    pub(in super::super) look: Option<Look>,
    pub(in super::super) event: Option<Event>,
}

/// What the status says while a stage lasts: the last operation, and a condition that is False.
pub(super) struct Progress<'a> {
    pub(super) operation: &'a str,
    pub(super) condition: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: &'a str,
}

impl Stage {
    /// The next stage begins.
    pub(super) fn over() -> Self {
        Self { is_over: true, ..Self::default() }
    }

    pub(super) fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self::default().and_wait(reason, message)
    }

    pub(super) fn and_wait(self, reason: &'static str, message: impl Into<String>) -> Self {
        Self { wait: Some(Wait { reason, message: message.into(), until: None }), ..self }
    }

    /// Waits for what the status shows.
    pub(super) fn blocked(scope: &Scope<'_>, progress: &Progress<'_>) -> Self {
        Self::waiting(progress.reason, progress.message).showing(scope, progress)
    }

    pub(super) fn step(why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        Self::default().and_step(why, step)
    }

    pub(super) fn and_step(mut self, why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        self.steps.extend(step.into().map(|step| Planned { why: why.into(), step }));
        self
    }

    pub(super) fn waking_at(mut self, at: Timestamp) -> Self {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
        self
    }

    pub(super) fn looking_at(self, look: Look) -> Self {
        Self { look: Some(look), ..self }
    }

    pub(super) fn telling(self, event: Event) -> Self {
        Self { event: Some(event), ..self }
    }

    /// Shows the stage in the status once it has lasted for a while.
    pub(super) fn showing(self, scope: &Scope<'_>, progress: &Progress<'_>) -> Self {
        let (machine, now) = (scope.machine, scope.now());
        let due = phase_since(machine).and_then(|begun| begun.checked_add(WORTH_SHOWING).ok()).unwrap_or(now);
        if due > now {
            return self.waking_at(due);
        }
        let Progress { operation, condition, reason, message } = *progress;
        // While requests fail, the status says that.
        if reason != REQUEST_FAILED && scope.lasting_failure().is_some() {
            return self;
        }
        // The message may count Pods; it is not written again for each of them.
        let known = own_condition(machine, condition);
        if known.is_some_and(|known| known.status == "False" && known.reason.as_deref() == Some(reason)) {
            return self;
        }
        let draft = scope
            .status()
            .operation(OperationType::Delete, OperationState::Processing, operation, None)
            .condition(condition, false, reason, message);
        self.and_step("the stage lasts", draft.step(machine))
    }
}
