//! What a Machine that is being deleted goes through, stage by stage: proof, drain, volumes, VM, Node, ledger.
//!
//! Whether a stage is over is read from the objects and asked of the provider, so a restart goes on wherever things stand.

mod drain;
mod instance;
mod ledger;
mod node;
mod proof;
mod stage;
mod volumes;

use nodewright_api::{conditions, labels, operations};
use nodewright_observability::trace::SpanRecord;
use nodewright_runtime::object::label;

pub(super) use self::stage::Stage;
use self::stage::{Progress, REQUEST_FAILED};
use super::{calls::Verb, provider::Provider, scope::Scope, status::phase_since, trace};

/// The stages in their order. Each begins when those before it are over.
pub(super) const STAGES: [fn(&Scope<'_>) -> Stage; 7] = [
    proof::proven,
    node::readable,
    drain::drained,
    volumes::detached,
    instance::deleted,
    node::deleted,
    ledger::retired,
];

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
    let stage = Stage::default().showing(scope, &progress);
    Stage { is_over: stage.steps.is_empty(), ..stage }
}

/// The spans of the termination, once it is over.
pub(super) fn spans(scope: &Scope<'_>) -> Vec<SpanRecord> {
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
    spans.push(trace::died(machine, now));
    spans
}
