//! What a decision about one Machine may know.

use std::{cell::OnceCell, sync::Arc};

use jiff::{SignedDuration, Timestamp, TimestampArithmetic};
use nodewright_api::Machine;
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    events::Event,
    object::created,
    plan::{Failure, reference},
};

use super::{calls::Request, memory::Context, settings::MachineSettings, snapshot::Snapshot, status::StatusDraft};
use crate::shared::{cloud_manager::Initializer, traces};

/// How long a wait lasts before the status reports it: most creations and deletions wait for less, and cost no write more.
pub(super) const WORTH_REPORTING: SignedDuration = SignedDuration::from_secs(30);
/// A live kubelet reports within this time: it posts its status at least every five minutes (`nodeStatusReportFrequency`).
pub(super) const REPORTS_WITHIN: SignedDuration = SignedDuration::from_mins(6);
/// A process that has begun to lead is connected within this time. A later connection follows an outage.
const CONNECTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// The pause between two texts about the same wait.
const REPORTED_AGAIN: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) machine: &'a Machine,
    pub(super) snapshot: &'a Snapshot,
    pub(super) context: &'a Context<'a>,
    pub(super) settings: &'a MachineSettings,
    pub(super) driver: crate::shared::driver::DriverProperties,
    pub(super) trace: TraceContext,
    /// What calls of the driver need, once it is made: questions and answers are compared by it several times in a plan.
    pub(super) request: &'a OnceCell<Arc<Request>>,
}

impl<'a> Scope<'a> {
    /// `request` is empty.
    pub(super) fn of(snapshot: &'a Snapshot, context: &'a Context<'a>, request: &'a OnceCell<Arc<Request>>) -> Self {
        let (machine, settings) = (snapshot.machine.as_ref(), snapshot.settings.as_ref());
        let (driver, trace) = (snapshot.driver, traces::current(machine));
        Self { machine, snapshot, context, settings, driver, trace, request }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.now
    }

    /// Whether this manager does the node part of a cloud controller manager for the Machine.
    pub(super) fn initializes_nodes(&self) -> bool {
        self.driver.describes_instances && self.snapshot.cloud_manager.is_on(self.context)
    }

    /// Whether this manager initializes the Machine's Node, or may turn out to.
    pub(super) fn awaits_initialization(&self) -> bool {
        let initializer = self.snapshot.cloud_manager.initializer(self.context);
        self.driver.describes_instances && matches!(initializer, Initializer::This | Initializer::Open(_))
    }

    /// Whether the Machine's spans are exported: what is noted for them alone is not noted otherwise.
    pub(super) fn traces(&self) -> bool {
        self.context.traces && self.trace.sampled
    }

    pub(super) fn status(&self) -> StatusDraft<'a> {
        StatusDraft::of(self.machine, self.now())
    }

    pub(super) fn normal(&self, reason: &'static str, message: impl Into<String>) -> Event {
        Event::normal(reference(self.machine), reason, message)
    }

    pub(super) fn warning(&self, reason: &'static str, message: impl Into<String>) -> Event {
        Event::warning(reference(self.machine), reason, message)
    }

    /// The end of a pause that began then, while that is yet to come.
    pub(super) fn pause_end(&self, begun: Timestamp, pause: impl Into<TimestampArithmetic>) -> Option<Timestamp> {
        begun.checked_add(pause).ok().filter(|end| *end > self.now())
    }

    /// When the status may say something else about a wait, while that is yet to come. What a Machine waits for may change often. A
    /// process that starts does not know since when, and takes nothing back that may still hold.
    pub(super) fn next_text(&self) -> Option<Timestamp> {
        self.pause_end(self.context.status_written.unwrap_or(self.context.leader_since), REPORTED_AGAIN)
    }

    /// When the Machine has to be a healthy Node, while that time is yet to come.
    pub(super) fn creation_deadline(&self) -> Option<Timestamp> {
        self.whole_creation_deadline().filter(|deadline| *deadline > self.now())
    }

    pub(super) fn is_creation_overdue(&self) -> bool {
        self.whole_creation_deadline().is_some_and(|deadline| deadline <= self.now())
    }

    /// When the creation timeout ends, without what this process adds for outages that it has seen: for texts.
    pub(super) fn announced_creation_deadline(&self) -> Option<Timestamp> {
        self.settings.creation_deadline(self.machine)
    }

    /// No Node can join while an API server is away: then it has the time to, once that is back.
    fn whole_creation_deadline(&self) -> Option<Timestamp> {
        let deadline = self.settings.creation_deadline(self.machine)?;
        let connected = self.context.connected_since;
        let created = created(self.machine).unwrap_or(Timestamp::MIN);
        let was_away = connected.duration_since(self.context.leader_since) > CONNECTED_WITHIN && connected > created;
        Some(if was_away {
            deadline.max(connected.saturating_add(REPORTS_WITHIN).unwrap_or(deadline))
        } else {
            deadline
        })
    }

    /// Why the last plan failed, unless another writer was faster.
    pub(super) fn lasting_failure(&self) -> Option<&'a Failure> {
        self.context.failure.filter(|failure| !failure.is_passing())
    }

    /// The failure that the status is to name: in every other attempt, in case the API server refuses the status itself.
    pub(super) fn failure_to_report(&self) -> Option<&'a Failure> {
        self.lasting_failure().filter(|_| !self.context.attempt.is_multiple_of(2))
    }
}
