//! Which Pods leave now, and what keeps the others.

use jiff::SignedDuration;
use nodewright_runtime::{
    object::{Target, name, namespace, uid},
    plan::{FailureClass, Refusal},
};

use super::{Blocker, Drain, DrainProgress, End, Forced, How, Note, PodView, Removal, budgets::BudgetState};

/// The pause after a refused eviction if the disruption budget has room again: several Nodes may want the same place.
const SOON: SignedDuration = SignedDuration::from_secs(1);
const REFUSED_TOO_LONG: &str = "evictions were refused for too long";

impl Drain<'_> {
    /// Empties the Node of Pods.
    pub(crate) fn evictions(&self) -> DrainProgress {
        let mut progress = self.removals();
        if self.traces {
            self.departures(&mut progress);
        }
        progress
    }

    fn removals(&self) -> DrainProgress {
        let mut progress = DrainProgress::default();
        progress.watches.push(self.view.watch_pods(self.node));
        if self.has_volumes(self.view.pods.iter().flatten()) {
            self.watch_volumes(&mut progress);
        }
        if let Some(limit) = self.abandoned_at() {
            progress.notes.push(Note::Forced);
            if limit <= self.now {
                return DrainProgress { end: Some(End::TimedOut), ..progress };
            }
            progress.wake_at(limit);
        }
        let Some(pods) = &self.view.pods else { return progress };
        let left: Vec<&PodView> =
            pods.iter().map(AsRef::as_ref).filter(|pod| self.counts(pod, &mut progress)).collect();
        match (self.rules.force, &self.view.unreadable) {
            (None, Some(message)) if left.is_empty() => progress.blockers.push(Blocker::Unreadable(message.clone())),
            _ if left.is_empty() => progress.end = Some(End::Done),
            (Some(why), _) => self.delete_all(&left, why, &mut progress),
            (None, _) => self.evict(&left, &mut progress),
        }
        progress.blockers.sort_unstable();
        progress
    }

    fn counts(&self, pod: &PodView, progress: &mut DrainProgress) -> bool {
        if !pod.leaves() || self.rules.force.is_some() && pod.is_gone_but_for_finalizers() {
            return false;
        }
        let Some(ends_at) = pod.ends_at().filter(|_| self.is_silent()) else { return true };
        if ends_at > self.now {
            progress.wake_at(ends_at);
        }
        ends_at > self.now
    }

    /// Whether the kubelet does not answer: nothing would confirm the end of a Pod.
    fn is_silent(&self) -> bool {
        self.node.conditions().iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
    }

    fn delete_all(&self, left: &[&PodView], why: &'static str, progress: &mut DrainProgress) {
        for pod in left {
            self.delete(pod, why, progress);
            progress.blockers.push(Blocker::Leaving { pod: title(pod) });
        }
    }

    /// Deletes a Pod that was not evicted in time. It is requested until it is gone, and reported once.
    fn delete(&self, pod: &PodView, why: &'static str, progress: &mut DrainProgress) {
        progress.removals.push(self.removal(pod, How::DeleteNow, why));
        let note = Note::Deleting(uid(pod).into());
        if self.since(&note).is_none() {
            let forced = progress.forced.get_or_insert_with(|| Forced { why, pods: vec![] });
            forced.pods.push(title(pod));
        }
        progress.notes.push(note);
    }

    fn evict(&self, left: &[&PodView], progress: &mut DrainProgress) {
        let (queued, free): (Vec<&PodView>, Vec<&PodView>) = left.iter().partition(|pod| self.has_turns(pod));
        let mut is_busy = self.moving(progress);
        is_busy |= !queued.is_empty() && self.awaits_owners(progress);
        for pod in &queued {
            let limit = pod.ends_at().and_then(|ends_at| self.pending(ends_at, self.rules.detach_timeout));
            if let Some(limit) = limit {
                progress.wake_at(limit);
                is_busy = true;
            }
        }
        for pod in queued {
            if is_busy && pod.ends_at().is_none() {
                progress.blockers.push(Blocker::Queued { pod: title(pod) });
            } else {
                is_busy |= self.ask(pod, progress);
            }
        }
        // After them: those that leave one by one take longest.
        for pod in free {
            self.ask(pod, progress);
        }
        if left.iter().any(|pod| Refusal::of(self.refusals, uid(*pod)).is_some()) {
            progress.watches.push(self.view.watch_budgets());
        }
    }

    /// Asks for a Pod to be evicted, unless the time for that has yet to come. Returns whether the Pod is asked for.
    fn ask(&self, pod: &PodView, progress: &mut DrainProgress) -> bool {
        if let Some(ends_at) = pod.ends_at() {
            if ends_at > self.now {
                progress.wake_at(ends_at);
                progress.blockers.push(Blocker::Leaving { pod: title(pod) });
            } else {
                let finalizers = pod.metadata.finalizers.clone().unwrap_or_default();
                progress.blockers.push(Blocker::Overdue { pod: title(pod), since: ends_at, finalizers });
            }
            return false;
        }
        let Some(refusal) = Refusal::of(self.refusals, uid(pod)) else {
            progress.removals.push(self.removal(pod, How::Evict, "the node is drained"));
            progress.blockers.push(Blocker::Leaving { pod: title(pod) });
            return true;
        };
        let budget_state = self.budget_state(pod);
        let why = budget_state.why(&refusal.message);
        progress.blockers.push(Blocker::Refused { pod: title(pod), since: refusal.since, why });
        let is_over = refusal.at.duration_since(refusal.since) >= self.rules.grace_period;
        if is_over && !matches!(budget_state, BudgetState::Never(_) | BudgetState::Room) {
            self.delete(pod, REFUSED_TOO_LONG, progress);
            // If that is refused as well, the other Pods go on.
            return false;
        }
        let asked = refusal.retry_after.and_then(|after| SignedDuration::try_from(after).ok()).unwrap_or_default();
        let is_of_budget = refusal.class == FailureClass::TooManyRequests;
        let pause = if is_of_budget && matches!(budget_state, BudgetState::Room) { SOON } else { self.rules.retry };
        if let Some(due) = self.pending(refusal.at, pause.max(asked)) {
            progress.wake_at(due);
            return false;
        }
        progress.removals.push(self.removal(pod, How::Evict, "the node is drained"));
        true
    }

    fn removal(&self, pod: &PodView, how: How, why: &'static str) -> Removal {
        Removal { why, how, target: Target::of(self.view.cluster(), pod) }
    }
}

pub(super) fn title(pod: &PodView) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}
