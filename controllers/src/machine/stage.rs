//! What one decision brings to a plan.

use jiff::Timestamp;
use nodewright_runtime::{
    events::Event,
    plan::{Plan, Planned, Step},
    scoped_watch::ScopedWatch,
};

use super::calls::Call;

/// Steps, waits and events of one decision, and whether the next decision follows.
#[derive(Default)]
pub(super) struct Stage {
    /// Otherwise the plan ends here.
    pub(super) is_over: bool,
    pub(super) plan: Plan<Call>,
}

impl Stage {
    /// There is nothing to do here.
    pub(super) fn over() -> Self {
        Self { is_over: true, ..Self::default() }
    }

    pub(super) fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self::default().and_wait(reason, message)
    }

    pub(super) fn step(why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        Self::default().then(why, step)
    }

    pub(super) fn waiting_until(until: Timestamp, reason: &'static str, message: impl Into<String>) -> Self {
        let mut stage = Self::default();
        stage.plan.wait_until(until, reason, message);
        stage
    }

    /// A write of the status, and an event if there is anything to write.
    pub(super) fn reporting(why: &'static str, step: Option<Step<Call>>, event: Event) -> Self {
        match step {
            Some(step) => Self::step(why, step).telling(event),
            None => Self::default(),
        }
    }

    /// Adds a step after those that are there.
    pub(super) fn then(mut self, why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        self.plan.then(why, step);
        self
    }

    pub(super) fn beside(mut self, why: &'static str, step: impl Into<Option<Step<Call>>>) -> Self {
        self.plan.beside(why, step);
        self
    }

    /// Adds steps that are made side by side, after those that are there.
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

    pub(super) fn looking_at(mut self, look: ScopedWatch) -> Self {
        self.plan.look(look);
        self
    }

    pub(super) fn telling(mut self, event: Event) -> Self {
        self.plan.event(event);
        self
    }

    /// Adds what the next decision brings, after what is there.
    pub(super) fn and(self, next: Self) -> Self {
        let mut plan = self.plan;
        plan.append(next.plan);
        Self { is_over: next.is_over, plan }
    }

    /// Over if it changes nothing.
    pub(super) fn over_if_idle(self) -> Self {
        Self { is_over: self.plan.is_idle(), ..self }
    }
}
