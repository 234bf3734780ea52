//! Asks the provider whether an Unknown Machine still has its VM: one that has gone is replaced before the health timeout.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::Code;
use nodewright_runtime::plan::Step;

use crate::{
    machine::{
        calls::{Outcome, Verb},
        claim::Vm,
        decision::{Scope, Stage},
        provider::{LASTING, Provider},
        status::phase_since,
    },
    shared::ownership::vm_id,
};

/// Pause between two questions.
const PERIOD: Duration = Duration::from_mins(1);
/// Pause until a provider that knows no VM is asked once more: one answer may come from a server that lags behind.
const CONFIRMATION: Duration = Duration::from_secs(30);

/// The question, if it is time for one and the answer matters, and since when it is certain that there is no VM.
pub(super) fn probe(scope: &Scope<'_>, asks: bool) -> (Stage, Option<Timestamp>) {
    let class = scope.snapshot.class.as_ref().ok().filter(|_| scope.snapshot.claim.vm == Vm::Proven);
    let (Some(class), Some(since)) = (class, phase_since(scope.machine)) else { return Default::default() };
    let provider = Provider::of(scope, class);
    let is_current = |id: Option<&str>, ended: Timestamp| ended >= since && id == vm_id(scope.machine);
    let answer = provider
        .newest(&[Verb::Status])
        .filter(|answer| is_current(answer.call.request.machine.provider_id.as_deref(), answer.ended));
    let asks = asks && !provider.any_running(&[Verb::Status]);
    let question = || asks.then(|| Step::Call(provider.call(Verb::Status)));
    let Some(answer) = answer else {
        return (Stage::step("the node is unhealthy: is there still a VM?", question()), None);
    };
    // The note names the time, so that it says nothing about a later illness.
    let note = format!("no VM since {since}");
    let (due, gone, stage) = match answer.outcome {
        Outcome::Failed(error) if error.code == Code::NotFound => {
            let noted = scope.context.noted(&note).unwrap_or(answer.ended);
            let certain = noted.checked_add(CONFIRMATION).ok();
            let gone = certain.filter(|certain| *certain <= answer.ended);
            let pause = if gone.is_some() { PERIOD } else { CONFIRMATION };
            (
                scope.pause_end(if gone.is_some() { answer.ended } else { noted }, pause),
                gone,
                Stage::default().noting(&note),
            )
        }
        Outcome::Failed(error) if error.code == Code::Unimplemented => {
            (scope.pause_end(answer.ended, LASTING), None, Stage::default())
        }
        Outcome::Failed(_) => (scope.pause_end(answer.ended, PERIOD), None, Stage::default()),
        _ => (scope.pause_end(answer.ended, PERIOD), None, Stage::default().forgetting_notes()),
    };
    let question = due.is_none().then(question).flatten();
    (stage.then("is there still a VM?", question).waking_at(due.filter(|_| asks)), gone)
}
