//! What a plan knows besides the world: settings and the provider's promises.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::Machine;
use nodewright_driver::{Class, Driver, MachineRequest, SecretText};
use nodewright_runtime::{
    events::{Event, EventKind},
    object::{name, namespace, uid},
    plan::{Failure, FailureClass, Moment, Plan, reference},
};

use super::{
    Owner, Settings, World,
    calls::{Call, Origin, Request, Verb},
    ownership::is_verified,
    trace,
};
use crate::shared::ownership::vm_id;

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    pub(super) driver: &'a dyn Driver,
}

impl Context<'_> {
    /// A call for the Machine of a world.
    pub(super) fn call(self, verb: Verb, world: &World, class: &Class) -> Call {
        let machine = world.machine.as_ref();
        let request = MachineRequest {
            name: name(machine).to_owned(),
            namespace: namespace(machine).to_owned(),
            uid: uid(machine).to_owned(),
            provider_id: vm_id(machine).map(str::to_owned),
            is_proven: is_verified(machine),
            last_known_state: machine.status.as_ref().map(|status| status.last_known_state.clone()).unwrap_or_default(),
            class: class.clone(),
            user_data: SecretText::default(),
        };
        let request = Request {
            machine: request,
            deleting: machine.is_deleting(),
            origin: origin(world),
            token_lifetime: self.creation_timeout(machine),
            deadline: self.driver.deadline(),
            traceparent: trace::current(machine),
        };
        Call { verb, request: Arc::new(request) }
    }

    /// How long the Machine may take to become a healthy Node.
    pub(super) fn creation_timeout(self, machine: &Machine) -> Duration {
        self.settings.creation_timeout_of(machine)
    }

    /// When it has to have become one.
    pub(super) fn deadline(self, machine: &Machine) -> Option<Timestamp> {
        let created = machine.metadata.creation_timestamp.as_ref()?.0;
        created.checked_add(SignedDuration::try_from(self.creation_timeout(machine)).ok()?).ok()
    }

    /// Looks again when it has to have become one.
    pub(super) fn wake_at_deadline(self, plan: &mut Plan<Call>, now: Timestamp, machine: &Machine) {
        if let Some(deadline) = self.deadline(machine).filter(|deadline| *deadline > now) {
            plan.wake_at(deadline);
        }
    }
}

/// The set and the index that a Machine was made for, as far as the set's ledger knows of it.
fn origin(world: &World) -> Option<Origin> {
    let Owner::Set(set) = &world.owner else { return None };
    let (_, index) = world.entry()?;
    Some(Origin { set: name(set.as_ref()).to_owned(), uid: uid(set.as_ref()).to_owned(), index })
}

/// Why the last plan failed, if not because another writer was faster.
pub(super) fn lasting_failure<'a>(at: &'a Moment<'_, Call>) -> Option<&'a Failure> {
    let passing = [FailureClass::Conflict, FailureClass::Taken, FailureClass::Expired];
    at.failure.filter(|failure| !passing.contains(&failure.class))
}

/// An event of a Machine.
pub(super) fn event(machine: &Machine, kind: EventKind, reason: &'static str, message: String) -> Event {
    Event { regarding: reference(machine), kind, reason, message }
}
