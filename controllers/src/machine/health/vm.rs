//! Asks the provider whether an Unknown Machine still has its VM: one that has gone is replaced before the health timeout.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::Code;
use nodewright_driver::Instance;
use nodewright_runtime::plan::Step;

use crate::{
    machine::memory::Note,
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
    let note = Note::NoVm(since);
    let stage = Stage::default();
    // The Machine's own VM would be found before another's of its name.
    let is_anothers =
        |instance: &Instance| instance.owner_uid.is_some() && !provider.owns(instance.owner_uid.as_deref());
    let is_none = match answer.outcome {
        Outcome::Failed(error) => error.code == Code::NotFound,
        Outcome::Instance(instance) => {
            is_anothers(instance) && Some(instance.provider_id.as_str()) != vm_id(scope.machine)
        }
        _ => false,
    };
    let (begun, pause, gone, stage) = match answer.outcome {
        _ if is_none => {
            let noted = scope.context.noted_since(&note).unwrap_or(answer.ended);
            let certain = noted.checked_add(CONFIRMATION).ok().filter(|certain| *certain <= answer.ended);
            let (begun, pause) = if certain.is_some() { (answer.ended, PERIOD) } else { (noted, CONFIRMATION) };
            (begun, pause, certain, stage.noting(note))
        }
        Outcome::Failed(error) if error.code == Code::Unimplemented => (answer.ended, LASTING, None, stage),
        Outcome::Failed(_) => (answer.ended, PERIOD, None, stage),
        _ => (answer.ended, PERIOD, None, stage.forgetting_notes()),
    };
    let due = scope.pause_end(begun, pause);
    let question = due.is_none().then(question).flatten();
    (stage.then("is there still a VM?", question).waking_at(due.filter(|_| asks)), gone)
}
