//! What a decision about one Machine may know.

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_driver::Driver;
use nodewright_runtime::{
    events::{Event, EventKind},
    plan::{Context, Failure, FailureClass, reference},
};

use super::{calls::Call, settings::Settings, snapshot::Snapshot, status::StatusDraft};

/// Made once for each plan. Decisions are functions of it that return values.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) machine: &'a Machine,
    pub(super) snapshot: &'a Snapshot,
    /// Time, outcomes of provider calls, failures of the last plan.
    pub(super) context: &'a Context<'a, Call>,
    pub(super) settings: &'a Settings,
    /// For its deadlines. A decision never calls it.
    pub(super) driver: &'a dyn Driver,
}

impl<'a> Scope<'a> {
    pub(super) fn now(&self) -> Timestamp {
        self.context.now
    }

    pub(super) fn status(&self) -> StatusDraft {
        StatusDraft::of(self.machine, self.now())
    }

    pub(super) fn event(&self, kind: EventKind, reason: &'static str, message: impl Into<String>) -> Event {
        Event { regarding: reference(self.machine), kind, reason, message: message.into() }
    }

    /// When the Machine has to be a healthy Node, while that time is yet to come.
    pub(super) fn creation_deadline(&self) -> Option<Timestamp> {
        self.settings.creation_deadline(self.machine).filter(|deadline| *deadline > self.now())
    }

    /// Whether the Machine should be a healthy Node by now.
    pub(super) fn is_creation_overdue(&self) -> bool {
        self.settings.creation_deadline(self.machine).is_some_and(|deadline| deadline <= self.now())
    }

    /// Why the last plan failed, unless another writer was faster.
    pub(super) fn lasting_failure(&self) -> Option<&'a Failure> {
        let passing = [FailureClass::Conflict, FailureClass::AlreadyExists, FailureClass::Expired];
        self.context.failure.filter(|failure| !passing.contains(&failure.class))
    }

    /// The failure that the status is to name now. Only every other attempt has one: if the API server refuses the status
    /// itself, the attempts in between go on without it.
    pub(super) fn failure_to_report(&self) -> Option<&'a Failure> {
        self.lasting_failure().filter(|_| !self.context.attempt.is_multiple_of(2))
    }
}
