//! What a decision about one Machine may know ([`Scope`]), and what it brings to the plan ([`Stage`]).

use jiff::{SignedDuration, Timestamp, TimestampArithmetic};
use nodewright_api::Machine;
use nodewright_runtime::{
    events::Event,
    plan::{Failure, Notes, Planned, Step, reference},
    scoped_watch::ScopedWatch,
};

use super::{
    calls::Call,
    memory::{Context, Note, Plan},
    settings::Settings,
    snapshot::Snapshot,
    status::StatusDraft,
};

/// How long a wait lasts before the status tells it: most creations and deletions wait for less, and cost no write more.
pub(super) const WORTH_TELLING: SignedDuration = SignedDuration::from_secs(30);
/// A live kubelet reports within this time: it posts its status at least every five minutes (`nodeStatusReportFrequency`).
pub(super) const REPORTS_WITHIN: SignedDuration = SignedDuration::from_mins(6);
/// A process that has begun to lead is connected within this time. A later connection follows an outage.
const CONNECTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// The pause between two texts about the same wait.
const TOLD_AGAIN: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) machine: &'a Machine,
    pub(super) snapshot: &'a Snapshot,
    pub(super) context: &'a Context<'a>,
    pub(super) settings: &'a Settings,
    pub(super) driver: crate::shared::driver::DriverProperties,
}

impl<'a> Scope<'a> {
    pub(super) fn now(&self) -> Timestamp {
        self.context.now
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
        self.pause_end(self.context.status_written.unwrap_or(self.context.leader_since), TOLD_AGAIN)
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
        let created = self.machine.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |created| created.0);
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

/// A part of the plan, and whether the next decision follows.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) is_over: bool,
    pub(super) plan: Plan,
}

impl Stage {
    pub(super) fn over() -> Self {
        Self { is_over: true, ..Self::default() }
    }

    pub(super) fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self::default().and_wait(reason, message)
    }

    pub(super) fn waiting_until(until: Timestamp, reason: &'static str, message: impl Into<String>) -> Self {
        let mut stage = Self::default();
        stage.plan.wait_until(until, reason, message);
        stage
    }

    pub(super) fn step(why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        Self::default().then(why, step)
    }

    /// A write of the status, and an event if there is anything to write.
    pub(super) fn reporting(why: &'static str, step: Option<Step<Call>>, event: Event) -> Self {
        step.map_or_else(Self::default, |step| Self::step(why, step).telling(event))
    }

    pub(super) fn then(mut self, why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        self.plan.then(why, step);
        self
    }

    pub(super) fn beside(mut self, why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        self.plan.beside(why, step);
        self
    }

    pub(super) fn beside_planned(mut self, planned: Planned<Call>) -> Self {
        self.plan.beside(planned.why, planned.step);
        self
    }

    pub(super) fn side_by_side<const N: usize>(mut self, steps: [(&'static str, Option<Step<Call>>); N]) -> Self {
        let steps = steps.into_iter().filter_map(|(why, step)| Some(Planned { why: why.into(), step: step? }));
        self.plan.stage(steps);
        self
    }

    pub(super) fn and_wait(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.plan.wait(reason, message);
        self
    }

    pub(super) fn waking_at(mut self, at: impl Into<Option<Timestamp>>) -> Self {
        if let Some(at) = at.into() {
            self.plan.wake_at(at);
        }
        self
    }

    pub(super) fn scoped_watch(mut self, watch: ScopedWatch) -> Self {
        self.plan.scoped_watch(watch);
        self
    }

    pub(super) fn noting(mut self, note: Note) -> Self {
        self.plan.notes.add(note);
        self
    }

    pub(super) fn forgetting_notes(mut self) -> Self {
        self.plan.notes.extend(Notes::Clear);
        self
    }

    pub(super) fn telling(mut self, event: Event) -> Self {
        self.plan.event(event);
        self
    }

    pub(super) fn and(mut self, next: Self) -> Self {
        self.plan.append(next.plan);
        Self { is_over: next.is_over, plan: self.plan }
    }

    pub(super) fn over_if_idle(self) -> Self {
        Self { is_over: self.plan.is_idle(), ..self }
    }
}
