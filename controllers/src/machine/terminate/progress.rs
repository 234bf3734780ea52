//! How the status shows a stage that lasts.

use jiff::SignedDuration;
use nodewright_api::{OperationState, OperationType};

use super::super::{
    scope::Scope,
    stage::Stage,
    status::{own_condition, phase_since},
};

/// How long a stage may last before the status shows it.
const WORTH_SHOWING: SignedDuration = SignedDuration::from_secs(5);
/// The reason of a condition that names a request which fails.
pub(super) const REQUEST_FAILED: &str = "RequestFailed";

/// What the status says while a stage lasts: the last operation, and a condition that is False.
pub(super) struct Progress<'a> {
    pub(super) operation: &'a str,
    pub(super) condition: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: &'a str,
}

impl Stage {
    /// Waits for what the status shows.
    pub(super) fn blocked(scope: &Scope<'_>, progress: &Progress<'_>) -> Self {
        Self::waiting(progress.reason, progress.message).showing(scope, progress)
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
        self.beside("the stage lasts", draft.step(machine))
    }
}
