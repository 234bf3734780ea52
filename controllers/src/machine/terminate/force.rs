//! When the drain before a deletion is forced, and when the deletion continues without the target cluster.
//!
//! A forced deletion (label `force-deletion`) does not drain at all.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::Machine;
use nodewright_runtime::object::is_deleting;

use super::super::{drain::Limit, scope::Scope, settings::Settings};
use crate::shared::drain::FORCED_LIMIT;

/// When the drain is forced: by [`Settings::drain_deadline`] at the latest. What the Machine has waited for the disruption budget of a
/// pool does not count.
pub(super) fn limit(scope: &Scope<'_>) -> Limit {
    let deleted = scope.machine.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0);
    let waited = scope.snapshot.claimed_since.zip(deleted).map(|(claimed, deleted)| claimed.duration_since(deleted));
    let waited = waited.unwrap_or_default().max(SignedDuration::ZERO);
    let deadline = scope.settings.drain_deadline(scope.machine).and_then(|deadline| deadline.checked_add(waited).ok());
    Limit { deadline, from_start: None }
}

/// Whether the drain timeout was over so long ago that the deletion continues without the target cluster, which may be away.
pub(in super::super) fn is_abandoned(settings: &Settings, machine: &Machine, now: Timestamp) -> bool {
    abandoned_at(settings, machine).is_some_and(|limit| limit <= now)
}

/// Twice as long after the timeout as the Pods of a forced drain have to go: by then it has ended if its cluster is there.
pub(super) fn abandoned_at(settings: &Settings, machine: &Machine) -> Option<Timestamp> {
    let limit = settings.drain_deadline(machine).filter(|_| is_deleting(machine))?;
    limit.checked_add(FORCED_LIMIT * 2).ok()
}
