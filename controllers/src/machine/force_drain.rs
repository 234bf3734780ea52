//! When a drain of a Machine's Node is forced, which is to say that Pods are deleted without grace: once its timeout is over, or once
//! the Node has been not ready or read-only for [`MachineSettings::not_ready_limit`](super::MachineSettings::not_ready_limit).
//!
//! A forced deletion (label `force-deletion`) does not drain at all.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::labels;
use nodewright_runtime::object::label;

use super::{health, scope::Scope};
use crate::shared::node::Node;

/// When a drain is forced.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    /// When its timeout is over.
    deadline: Option<Timestamp>,
    /// Why it is forced from the start, if it is.
    from_start: Option<&'static str>,
}

impl Limit {
    /// For the drain before a deletion: by [`MachineSettings::drain_deadline`](super::MachineSettings::drain_deadline) at the latest. What the Machine
    /// has waited for the disruption budget of a pool does not count.
    pub(super) fn before_deletion(scope: &Scope<'_>) -> Self {
        let deleted = scope.machine.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0);
        let waited =
            scope.snapshot.claimed_since.zip(deleted).map(|(claimed, deleted)| claimed.duration_since(deleted));
        let waited = waited.unwrap_or_default().max(SignedDuration::ZERO);
        let deadline =
            scope.settings.drain_deadline(scope.machine).and_then(|deadline| deadline.checked_add(waited).ok());
        Self { deadline, from_start: None }
    }

    /// For the drain of a Node whose VM stays, which began then.
    pub(super) fn of_kept(scope: &Scope<'_>, since: Timestamp) -> Self {
        let machine = scope.machine;
        let deadline = since.checked_add(scope.settings.drain_timeout_of(machine)).ok();
        let is_forced = label(machine, labels::FORCE_DRAIN) == Some(labels::FORCE_DRAIN_VALUE);
        Self { deadline, from_start: is_forced.then_some("the label force-drain asks for it") }
    }

    /// Why the drain is forced, if it is.
    pub(super) fn force(self, scope: &Scope<'_>, node: &Node) -> Option<&'static str> {
        let is_over = |limit: Option<Timestamp>| limit.is_some_and(|limit| limit <= scope.now());
        if self.from_start.is_some() {
            return self.from_start;
        }
        if is_over(self.deadline) {
            return Some("the drain timeout is over");
        }
        let is_dead = is_over(not_ready_deadline(scope, node));
        is_dead.then_some("the node has been not ready or read-only for too long: its pods cannot end")
    }

    /// When the drain will be forced, unless it is. The time changes only with the Node's health, so it costs no write of its own.
    pub(super) fn forced_at(self, scope: &Scope<'_>, node: &Node) -> Option<Timestamp> {
        let limits = [self.deadline, not_ready_deadline(scope, node)];
        let is_forced = self.force(scope, node).is_some();
        limits.into_iter().flatten().min().filter(|_| !is_forced)
    }
}

fn not_ready_deadline(scope: &Scope<'_>, node: &Node) -> Option<Timestamp> {
    health::unable_since(node)?.checked_add(scope.settings.not_ready_limit).ok()
}
