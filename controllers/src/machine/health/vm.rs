//! Asks the provider whether an Unknown Machine still has its VM: one that has gone is replaced before the health timeout.

use std::time::Duration;

use jiff::Timestamp;
use nodewright_api::{Code, MachinePhase};
use nodewright_driver::{Instance, Power};
use nodewright_runtime::plan::{Notes, Step};

use crate::{
    machine::{
        calls::{Outcome, Verb},
        claim::Vm,
        memory::Note,
        partial_plan::PartialPlan,
        provider::{LASTING, Provider},
        scope::Scope,
    },
    shared::ownership::vm_id,
};

/// Pause between two questions.
const PERIOD: Duration = Duration::from_mins(1);
/// What the provider has said about the VM of an Unknown Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum VmState {
    /// Nothing that counts.
    Open,
    /// It exists, and may run.
    Exists,
    /// It exists and does not run.
    Stopped,
    /// There is none, as two answers say.
    Gone,
}

/// What is asked of the provider, and what it has said.
#[derive(Default)]
pub(super) struct Probe {
    /// Why the provider is asked now, if it is.
    question: Option<&'static str>,
    /// When it is asked next.
    due: Option<Timestamp>,
    notes: Option<Notes<Note>>,
    /// Since when it is certain that there is no VM.
    pub(super) gone: Option<Timestamp>,
    power: Option<Power>,
}

pub(in super::super) fn vm_state(scope: &Scope<'_>) -> VmState {
    if *scope.machine.phase() != MachinePhase::Unknown {
        return VmState::Open;
    }
    let probe = probe(scope, false);
    match probe.power {
        _ if probe.gone.is_some() => VmState::Gone,
        Some(Power::Stopped) => VmState::Stopped,
        Some(_) => VmState::Exists,
        None => VmState::Open,
    }
}

impl Probe {
    pub(super) fn plan(self, scope: &Scope<'_>) -> PartialPlan {
        // Only a question needs the request.
        let mut part = match (self.question, &scope.snapshot.class) {
            (Some(why), Ok(class)) => PartialPlan::step(why, Step::Call(Provider::of(scope, class).call(Verb::Status))),
            _ => PartialPlan::default(),
        };
        part.plan.notes.extend(self.notes.unwrap_or(Notes::Keep));
        part.waking_at(self.due)
    }
}

/// `asks`: whether the answer matters.
pub(super) fn probe(scope: &Scope<'_>, asks: bool) -> Probe {
    let class = scope.snapshot.class.as_ref().ok().filter(|_| scope.snapshot.claim.vm == Vm::Proven);
    let (Some(class), Some(since)) = (class, scope.machine.phase_since()) else { return Probe::default() };
    let provider = Provider::of(scope, class);
    let is_current = |id: Option<&str>, ended: Timestamp| ended >= since && id == vm_id(scope.machine);
    let answer = provider
        .newest(&[Verb::Status])
        .filter(|answer| is_current(answer.call.request.machine.provider_id.as_deref(), answer.ended));
    let asks = asks && !provider.any_running(&[Verb::Status]);
    let Some(answer) = answer else {
        let question = asks.then_some("the node is unhealthy: ask whether the VM exists");
        return Probe { question, ..Probe::default() };
    };
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
    let (begun, pause, gone, notes) = match answer.outcome {
        _ if is_none => {
            let note = Note::NoVm(since);
            let noted = scope.context.noted_since(&note).unwrap_or(answer.ended);
            // One answer may come from a server that lags behind.
            let grace = scope.settings.cloud_node.deletion_grace;
            let certain = noted.checked_add(grace).ok().filter(|certain| *certain <= answer.ended);
            let (begun, pause) = if certain.is_some() { (answer.ended, PERIOD) } else { (noted, grace) };
            (begun, pause, certain, Some(Notes::Replace(vec![note])))
        }
        Outcome::Failed(error) if error.code == Code::Unimplemented => (answer.ended, LASTING, None, None),
        Outcome::Failed(_) => (answer.ended, PERIOD, None, None),
        _ => (answer.ended, PERIOD, None, Some(Notes::Clear)),
    };
    let due = scope.pause_end(begun, pause);
    let question = (due.is_none() && asks).then_some("ask again whether the VM exists");
    let power = match answer.outcome {
        Outcome::Instance(instance) if !is_none => Some(instance.power),
        _ => None,
    };
    Probe { question, due: due.filter(|_| asks), notes, gone, power }
}
