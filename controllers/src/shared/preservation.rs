//! Until when a failed Machine is kept for diagnosis.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, annotations};
use nodewright_runtime::object::annotation;

/// Until its expiry, or if no controller has set one although it was asked for, for as long after its failure as
/// machine-controller-manager would keep it: for `timeout`, unless its spec says how long.
pub(crate) fn kept_until(machine: &Machine, timeout: SignedDuration) -> Option<Timestamp> {
    if let Some(expiry) = preserve_expiry(machine) {
        return Some(expiry);
    }
    let asked_for = annotation(machine, annotations::PRESERVE).is_some_and(|value| {
        [annotations::PRESERVE_NOW, annotations::PRESERVE_WHEN_FAILED, annotations::PRESERVE_AUTO].contains(&value)
    });
    if !asked_for {
        return None;
    }
    let own = machine.spec.machine_preserve_timeout.and_then(|own| SignedDuration::try_from(own.to_std()).ok());
    let created = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let failed = machine.phase_since().or(created)?;
    failed.saturating_add(own.unwrap_or(timeout)).ok()
}

pub(crate) fn preserve_expiry(machine: &Machine) -> Option<Timestamp> {
    Some(machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0)
}
