//! Whether a Machine is preserved, and until when.
//!
//! Users ask for it by an annotation of the Machine or of its Node, and a set for its failed Machines. The Machine controller sets the
//! expiry time in the status, and clears it when the preservation ends. See `machine::preserve`.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    GoDuration, Machine, MachinePhase, annotations,
    stored::{NODE_PRESERVE, PRESERVE, Preserve},
};
use nodewright_runtime::object::{annotation, created};

/// What the Machine itself says is asked for. What its Node had last counts more, because the documentation asks users to annotate that.
pub(crate) fn requested(machine: &Machine) -> Option<Preserve> {
    match annotation(machine, annotations::LAST_APPLIED_NODE_PRESERVE_VALUE) {
        None | Some("") => PRESERVE.of(machine),
        Some(_) => NODE_PRESERVE.of(machine),
    }
}

/// Until its expiry. A Machine that another controller has made Failed may have none yet: then for as long after its failure as
/// machine-controller-manager would preserve it: for `timeout`, unless its spec says how long.
pub(crate) fn kept_until(machine: &Machine, timeout: SignedDuration) -> Option<Timestamp> {
    if let Some(expiry) = preserve_expiry(machine) {
        return Some(expiry);
    }
    requested(machine).filter(|wanted| *wanted != Preserve::Never)?;
    expiry_from(machine, machine.phase_since().or_else(|| created(machine))?, timeout)
}

/// When a preservation ends that begins then.
pub(crate) fn expiry_from(machine: &Machine, begun: Timestamp, timeout: SignedDuration) -> Option<Timestamp> {
    let timeout = machine.spec.machine_preserve_timeout.map_or(timeout, GoDuration::to_signed);
    let until = begun.saturating_add(timeout).ok()?;
    // Times on the wire have whole seconds, and it lasts for the whole time.
    Timestamp::from_second(until.as_second() + i64::from(until.subsec_nanosecond() > 0)).ok()
}

pub(crate) fn preserve_expiry(machine: &Machine) -> Option<Timestamp> {
    Some(machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0)
}

/// Whether a Machine has failed and is preserved. It is neither replaced nor available, and counts as a replica.
pub(crate) fn is_preserved_failed(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Failed && preserve_expiry(machine).is_some()
}

/// Whether a set has asked for the preservation of a Machine.
pub(crate) fn is_auto_preserved(machine: &Machine) -> bool {
    requested(machine) == Some(Preserve::Auto)
}
