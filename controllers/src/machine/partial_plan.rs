//! A part of a Machine's plan, built step by step.

use jiff::Timestamp;
use nodewright_observability::trace::SpanRecord;
use nodewright_runtime::{
    events::Event,
    plan::{Planned, Step},
    scoped_watch::ScopedWatch,
};

use super::{
    calls::Call,
    memory::{Note, Plan},
};

/// A part of the plan, and whether the next decision follows.
#[derive(Default)]
pub(super) struct PartialPlan {
    pub(super) is_over: bool,
    pub(super) plan: Plan,
}

impl PartialPlan {
    pub(super) fn over() -> Self {
        Self { is_over: true, ..Self::default() }
    }

    pub(super) fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self::default().and_wait(reason, message)
    }

    pub(super) fn waiting_until(until: Timestamp, reason: &'static str, message: impl Into<String>) -> Self {
        let mut part = Self::default();
        part.plan.wait_until(until, reason, message);
        part
    }

    pub(super) fn step(why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        Self::default().then(why, step)
    }

    /// A write of the status, and an event if there is anything to write.
    pub(super) fn reporting(why: &'static str, step: Option<Step<Call>>, event: Event) -> Self {
        step.map_or_else(Self::default, |step| Self::step(why, step).event(event))
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
        self.plan.stage(steps.into_iter().filter_map(|(why, step)| Planned::new(why, step)));
        self
    }

    pub(super) fn and_wait(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.plan.wait(reason, message);
        self
    }

    pub(super) fn waking_at(mut self, at: impl Into<Option<Timestamp>>) -> Self {
        self.plan.wake_at(at);
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

    pub(super) fn event(mut self, event: impl Into<Option<Event>>) -> Self {
        self.plan.event(event);
        self
    }

    pub(super) fn span(mut self, span: impl Into<Option<SpanRecord>>) -> Self {
        self.plan.spans.extend(span.into());
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
