//! What the provider has answered to this process about a Machine's VM, and when a call is made again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use nodewright_api::Code;
use nodewright_driver::{Class, DriverError, Instance, MachineRequest, SecretText};
use nodewright_runtime::{
    effect::Known,
    object::{name, namespace, uid},
    plan::Step,
};

use super::{
    calls::{Call, Origin, Outcome, Request, Verb},
    claim::is_verified,
    partial_plan::PartialPlan,
    scope::{Scope, WORTH_REPORTING},
    settings::MachineSettings,
    snapshot::{Owner, Snapshot},
    trace,
};
use crate::shared::ownership::{adopted_uid, vm_id};

/// The longest pause after a failure that may pass by itself.
pub(super) const PASSING: Duration = Duration::from_mins(1);
/// The longest pause after any other failure, such as revoked credentials. A correction of the class ends it.
pub(super) const LASTING: Duration = Duration::from_mins(10);

/// The longest pause that a driver may ask for after a failure for lack of capacity.
const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(1);

pub(super) const PAUSE_OVER: &str = "the pause after a failed call is over";

/// The wait for an answer to a call, or for its turn.
pub(super) const CALLING: &str = "CallingProvider";

pub(super) struct Provider<'a> {
    pub(super) scope: Scope<'a>,
    request: Arc<Request>,
}

/// The newest answer to one of several calls.
pub(super) struct Answer<'a> {
    /// The call as it was made: the Machine and its class may have changed since.
    pub(super) call: &'a Call,
    pub(super) ended: Timestamp,
    pub(super) outcome: &'a Outcome,
    pub(super) known: &'a Known<Outcome>,
}

impl Answer<'_> {
    /// Whether this process has written the status since the answer came.
    pub(super) fn is_reported(&self, scope: &Scope<'_>) -> bool {
        scope.context.status_written.is_some_and(|written| written >= self.ended)
    }
}

/// Whether another Machine has the name, is a question to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inquiry {
    Ask,
    Await,
}

pub(super) enum VmStatus<'a> {
    /// The tags of the VM are the Machine's; or the Machine has this one. [`super::ownership`] says whether it is its own.
    Found(Answer<'a>, &'a Instance),
    NotFound(Answer<'a>),
    Unimplemented(Answer<'a>),
    Foreign(Answer<'a>, &'a DriverError),
    Failed(Answer<'a>, &'a DriverError),
}

impl<'a> Provider<'a> {
    /// `class` is that of the Machine's snapshot.
    pub(super) fn of(scope: &Scope<'a>, class: &Class) -> Self {
        let request = scope.request.get_or_init(|| Arc::new(request(scope, class)));
        Self { scope: *scope, request: request.clone() }
    }

    pub(super) fn call(&self, verb: Verb) -> Call {
        Call { verb, request: self.request.clone() }
    }

    /// Whether a VM with this token is the Machine's own, or adopted.
    pub(super) fn owns(&self, owner_uid: Option<&str>) -> bool {
        self.request.machine.owns(owner_uid)
    }

    /// Whether a call was made for the VM that is known now, with the same proof.
    pub(super) fn is_of_this_vm(&self, answer: &Answer<'_>) -> bool {
        let (asked, now) = (&answer.call.request.machine, &self.request.machine);
        (&asked.provider_id, asked.is_proven, &asked.adopted_uid) == (&now.provider_id, now.is_proven, &now.adopted_uid)
    }

    pub(super) fn known(&self, verb: Verb) -> Option<&'a Known<Outcome>> {
        self.scope.context.outcomes.get(&self.call(verb))
    }

    pub(super) fn any_running(&self, verbs: &[Verb]) -> bool {
        verbs.iter().any(|verb| self.scope.context.outcomes.is_running(&self.call(*verb)))
    }

    /// The message of the wait [`CALLING`] while one of these calls has no answer yet.
    pub(super) fn awaited(&self, verbs: &[Verb]) -> Option<String> {
        let known = verbs.iter().filter_map(|verb| self.known(*verb)).find(|known| known.running)?;
        Some(if known.queued {
            "a call to the provider has yet to be sent: as many are in progress as the flags --*-concurrency allow, or the \
             provider asks for fewer"
                .to_owned()
        } else {
            // Not since when: two managers would name two times. The condition has that of its transition.
            format!("the provider has not answered a call yet; it has {:?} for it", self.request.deadline)
        })
    }

    pub(super) fn newest(&self, verbs: &[Verb]) -> Option<Answer<'a>> {
        let calls = verbs.iter().map(|verb| self.call(*verb));
        let outcomes = self.scope.context.outcomes;
        let known = calls.filter_map(|call| Some((outcomes.asked(&call)?, outcomes.get(&call)?)));
        let (call, known) = known.filter(|(_, known)| known.last.is_some()).max_by_key(|(_, known)| known.order)?;
        let (ended, outcome) = known.last.as_ref()?;
        Some(Answer { call, ended: *ended, outcome, known })
    }

    /// What the newest answer says of the VM that the Machine names now; `None` when no answer speaks of it.
    pub(super) fn vm_status(&self) -> Option<VmStatus<'a>> {
        let id = self.request.machine.provider_id.as_deref();
        let answer = self.newest(&[Verb::Status, Verb::Create])?;
        let is_of_id = answer.call.request.machine.provider_id.as_deref() == id && answer.call.verb == Verb::Status;
        match answer.outcome {
            Outcome::Instance(instance) if is_of_id || Some(instance.provider_id.as_str()) == id => {
                Some(VmStatus::Found(answer, instance))
            }
            Outcome::Failed(error) if is_of_id => Some(match error.code {
                _ if error.mismatch.is_some() => VmStatus::Foreign(answer, error),
                Code::NotFound => VmStatus::NotFound(answer),
                Code::Unimplemented => VmStatus::Unimplemented(answer),
                _ => VmStatus::Failed(answer, error),
            }),
            _ => None,
        }
    }

    /// The end of the pause after an answer; `None` once it is over, and when the class or its Secrets were corrected.
    pub(super) fn due(&self, answer: &Answer<'_>, pause: Duration) -> Option<Timestamp> {
        let is_corrected = answer.call.request.machine.class.revision != self.request.machine.class.revision;
        self.scope.pause_end(answer.ended, pause).filter(|_| !is_corrected)
    }

    pub(super) fn ask(&self, why: &'static str, verb: Verb) -> PartialPlan {
        // A call that takes long is a wait, which the next plan reports.
        let later = self.scope.now().checked_add(WORTH_REPORTING).ok();
        PartialPlan::step(why, Step::Call(self.call(verb))).waking_at(later)
    }

    /// Finds out whether another Machine has the name.
    pub(super) fn inquire(&self, inquiry: Inquiry) -> PartialPlan {
        match inquiry {
            Inquiry::Ask => self.ask("ask whether another machine has this name, and the VM", Verb::Namesakes),
            Inquiry::Await => PartialPlan::waiting(
                "LookingForMachines",
                "the API server is asked whether another machine has the name",
            ),
        }
    }
}

/// The pause after a call has failed `failures` times in a row, as in machine-controller-manager, except that it grows. By
/// default 5 s to 1 min if the failure may pass by itself, 10 min without capacity unless the driver names a time, else 3 to 10 min.
pub(super) fn creation_pause(error: &DriverError, failures: u32, settings: &MachineSettings) -> Duration {
    match error.code {
        Code::ResourceExhausted => {
            let asked = error.exhausted.as_ref().and_then(|exhausted| exhausted.retry_after);
            asked.map_or(settings.exhausted_retry, |asked| asked.min(LONGEST_RETRY_AFTER)).max(settings.short_retry)
        }
        _ if error.is_passing() => grown(settings.short_retry, failures, PASSING),
        _ => grown(settings.medium_retry, failures, LASTING),
    }
}

/// By default 5 s to 1 min if the failure may pass by itself, else 5 s to 10 min.
pub(super) fn deletion_pause(error: &DriverError, failures: u32, settings: &MachineSettings) -> Duration {
    grown(settings.short_retry, failures, if error.is_passing() { PASSING } else { LASTING })
}

fn grown(first: Duration, failures: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest).max(first)
}

/// What each call of one plan needs.
pub(super) fn request(scope: &Scope<'_>, class: &Class) -> Request {
    let machine = scope.machine;
    let of_driver = MachineRequest {
        name: name(machine).to_owned(),
        namespace: namespace(machine).to_owned(),
        uid: uid(machine).to_owned(),
        adopted_uid: adopted_uid(machine).map(str::to_owned),
        provider_id: vm_id(machine).map(str::to_owned),
        is_proven: is_verified(machine),
        last_known_state: machine.status.as_ref().map(|status| status.last_known_state.clone()).unwrap_or_default(),
        class: class.clone(),
        user_data: SecretText::default(),
        node_template: machine.spec.node_template.clone(),
        traceparent: None,
    };
    Request {
        machine: of_driver,
        deleting: machine.is_deleting(),
        origin: origin(scope.snapshot),
        volumes: BTreeSet::new(),
        token_lifetime: scope.settings.creation_timeout_of(machine),
        deadline: scope.driver.deadline,
        pool: scope.snapshot.pool().into(),
        limits: scope.settings.limits,
        traceparent: trace::of_calls(scope),
    }
}

fn origin(snapshot: &Snapshot) -> Option<Origin> {
    let Owner::Set(set) = &snapshot.owner else { return None };
    let (_, ordinal) = snapshot.ledger_entry()?;
    Some(Origin { set: name(set.as_ref()).to_owned(), uid: uid(set.as_ref()).to_owned(), ordinal })
}
