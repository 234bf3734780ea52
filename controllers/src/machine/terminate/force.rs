//! When a drain is forced: its Pods are deleted without grace. And when a deletion continues without the target cluster.
//!
//! A drain is forced once the drain timeout is over ([`Settings::drain_deadline`]), or once the Node has been not ready or read-only
//! for [`Settings::not_ready_limit`]. A forced deletion (label `force-deletion`) does not drain at all. Apart from that, the drain
//! module deletes a single Pod whose eviction was refused for too long ([`Rules::grace_period`](crate::shared::drain::Rules)).

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_runtime::object::is_deleting;

use super::super::{health, scope::Scope, settings::Settings};
use crate::shared::{drain::FORCED_LIMIT, node::Node};

/// Why the drain is forced, if it is.
pub(super) fn force(scope: &Scope<'_>, node: &Node) -> Option<&'static str> {
    let is_over = |limit: Option<Timestamp>| limit.is_some_and(|limit| limit <= scope.now());
    if is_over(scope.settings.drain_deadline(scope.machine)) {
        return Some("the drain timeout is over");
    }
    let is_dead = is_over(not_ready_deadline(scope, node));
    is_dead.then_some("the node has been not ready or read-only for too long: its pods cannot end")
}

fn not_ready_deadline(scope: &Scope<'_>, node: &Node) -> Option<Timestamp> {
    health::unable_since(node)?.checked_add(scope.settings.not_ready_limit).ok()
}

/// When the drain will be forced, unless it is. The time changes only with the Node's health, so it costs no write of its own.
pub(super) fn forced_at(scope: &Scope<'_>, node: &Node) -> Option<Timestamp> {
    let limits = [scope.settings.drain_deadline(scope.machine), not_ready_deadline(scope, node)];
    let is_forced = force(scope, node).is_some();
    limits.into_iter().flatten().min().filter(|_| !is_forced)
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
