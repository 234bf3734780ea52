//! A controller that plans, with what it remembers from one plan to the next.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::{
    apply_configuration::STATUS,
    controller::Controller,
    effect::{Never, Outcomes},
    object::ObjectRef,
    plan::{Context, Plan, Step, Wait, Waiting},
};

use super::cluster::Cluster;

/// For how long the manager has led: what a young leader does not know yet, this one does.
const LEADS_SINCE: SignedDuration = SignedDuration::from_hours(1);

pub(super) struct Planner<C: Controller> {
    controller: C,
    leader_since: Timestamp,
    memories: BTreeMap<ObjectRef, Memory<C::Note>>,
}

struct Memory<N> {
    notes: BTreeMap<N, Timestamp>,
    waits: Vec<Wait>,
    since: Vec<Waiting>,
    status_written: Option<Timestamp>,
    wake: Option<Timestamp>,
}

impl<N> Default for Memory<N> {
    fn default() -> Self {
        Self { notes: BTreeMap::new(), waits: vec![], since: vec![], status_written: None, wake: None }
    }
}

impl<C: Controller<Effect = Never>> Planner<C> {
    pub(super) fn new(controller: C, now: Timestamp) -> Self {
        let leader_since = now.saturating_sub(LEADS_SINCE).unwrap_or(now);
        Self { controller, leader_since, memories: BTreeMap::new() }
    }

    /// Plans an object, and carries that out. Whether that changed anything.
    pub(super) fn plan(&mut self, cluster: &mut Cluster, key: &ObjectRef) -> bool {
        let Some(snapshot) = self.controller.snapshot(cluster.stores(), key) else { return false };
        let (memory, outcomes) = (self.memories.entry(key.clone()).or_default(), Outcomes::default());
        let now = cluster.now;
        let context = Context {
            leader_since: self.leader_since,
            connected_since: self.leader_since,
            notes: &memory.notes,
            waits: &memory.since,
            status_written: memory.status_written,
            ..Context::new(now, &outcomes)
        };
        let plan = C::plan(&context, &snapshot);
        memory.since =
            plan.waits.iter().map(|wait| Waiting::new(wait.reason, context.waiting_since(wait.reason))).collect();
        memory.wake = plan.wake;
        memory.carry_out(cluster, plan)
    }

    pub(super) fn wake(&self, key: &ObjectRef) -> Option<Timestamp> {
        self.memories.get(key)?.wake
    }

    pub(super) fn waits(&self, key: &ObjectRef) -> impl Iterator<Item = &str> {
        self.memories.get(key).into_iter().flat_map(|memory| memory.waits.iter().map(|wait| wait.message.as_str()))
    }
}

impl<N: Ord> Memory<N> {
    fn carry_out(&mut self, cluster: &mut Cluster, plan: Plan<Never, N>) -> bool {
        let mut changed = false;
        'stages: for stage in &plan.stages {
            for planned in stage {
                let is_status = matches!(&planned.step, Step::Apply(apply) if apply.subresource == STATUS);
                // As in the runtime, the steps after a refused one wait for the next plan.
                let Some(done) = cluster.carry_out(&planned.step) else { break 'stages };
                changed |= done;
                if is_status && done {
                    self.status_written = Some(cluster.now);
                }
            }
        }
        self.waits = plan.waits;
        let notes = std::mem::take(&mut self.notes);
        self.notes = plan.notes.after(notes, cluster.now);
        changed
    }
}
