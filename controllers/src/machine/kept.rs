//! A failed Machine that is kept for diagnosis says so: meanwhile its set neither deletes nor replaces it.

use nodewright_api::{annotations, conditions, reasons};

use super::{
    decision::{Scope, Stage},
    memory::Note,
    snapshot::Owner,
};
use crate::shared::preservation::{kept_until, preserve_expiry};

/// The wait of a failed Machine that is kept, with one event; `None` if it is not kept, or not any more.
pub(super) fn kept(scope: &Scope<'_>) -> Option<Stage> {
    let until = kept_until(scope.machine, scope.settings.preserve_timeout).filter(|until| *until > scope.now())?;
    let source = match preserve_expiry(scope.machine) {
        Some(_) => "status.currentStatus.preserveExpiryTime".to_owned(),
        None => format!("annotation {}", annotations::PRESERVE),
    };
    let reason = reasons::machine::PRESERVED;
    let end = match scope.snapshot.owner {
        Owner::None => "; it has no set, so that it stays until somebody deletes it",
        _ => ", and replaced then",
    };
    let text = format!("the failed machine is kept for diagnosis until {until:.0} ({source}){end}");
    let shown = scope.machine.condition(conditions::machine::WAITING).and_then(|shown| shown.reason.as_deref());
    let is_reported = shown == Some(reason) || scope.context.noted_since(&Note::Preserved).is_some();
    let stage = Stage::waiting_until(until, reason, text.as_str()).noting(Note::Preserved);
    Some(if is_reported { stage } else { stage.telling(scope.normal(reason, text)) })
}
