//! When a deletion continues without the target cluster, which may be away.

use jiff::Timestamp;
use nodewright_api::Machine;
use nodewright_runtime::object::is_deleting;

use super::super::settings::MachineSettings;
use crate::shared::drain::FORCED_LIMIT;

/// Whether the drain timeout was over so long ago that it does.
pub(in super::super) fn is_abandoned(settings: &MachineSettings, machine: &Machine, now: Timestamp) -> bool {
    abandoned_at(settings, machine).is_some_and(|limit| limit <= now)
}

/// Twice as long after the timeout as the Pods of a forced drain have to go: by then it has ended if its cluster is there.
pub(super) fn abandoned_at(settings: &MachineSettings, machine: &Machine) -> Option<Timestamp> {
    let limit = settings.drain_deadline(machine).filter(|_| is_deleting(machine))?;
    limit.checked_add(FORCED_LIMIT * 2).ok()
}
