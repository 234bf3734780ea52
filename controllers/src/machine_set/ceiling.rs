//! Why a set may create no further Machine, or fewer than it lacks: ceilings that protect against a wrong number of replicas,
//! and against templates that would fill the API server's store.
//!
//! # Caveats
//! Sets that grow at the same time do not see one another's newest Machines. They may exceed the ceiling of the namespace by
//! what they have requested at once.

use nodewright_api::{MachineSet, reasons::machine_set as reasons, validation::template_size};
use nodewright_runtime::object::is_deleting;

use super::snapshot::{Population, Snapshot};
use crate::shared::fleet::FleetSettings;

/// The reason why fewer Machines are created than the set lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ceiling {
    pub(super) room: usize,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

/// The ceiling that limits the creation of `missing` Machines, if one does.
pub(super) fn ceiling(snapshot: &Snapshot, settings: &FleetSettings, missing: usize) -> Option<Ceiling> {
    if let Some(text) = template_size(&snapshot.set.spec.template).filter(|_| missing > 0) {
        return Some(Ceiling { room: 0, reason: reasons::TEMPLATE_TOO_LARGE, text });
    }
    let Population { namespace, deployment, .. } = snapshot.population;
    let limits = [
        ("the deployment", deployment, settings.max_machines_per_deployment, "--max-machines-per-deployment"),
        ("the namespace", namespace, settings.max_machines, "--max-machines"),
    ];
    let limited = |(of, present, limit, flag): (&str, usize, usize, &str)| {
        let room = limit.saturating_sub(present);
        let text = format!(
            "{missing} machines are missing, and {of} has {present} of at most {limit} machines: lower the number of replicas, \
             delete machines, or raise {flag}"
        );
        (room < missing).then_some(Ceiling { room, reason: reasons::TOO_MANY_MACHINES, text })
    };
    limits.into_iter().filter_map(limited).min_by_key(|ceiling| ceiling.room)
}

/// How many Machines a set lacks, by its spec and its live Machines.
pub(super) fn lacking(set: &MachineSet, snapshot: &Snapshot) -> usize {
    let live = snapshot.machines.iter().filter(|machine| !is_deleting(machine.as_ref())).count();
    let wanted = if is_deleting(set) { 0 } else { usize::try_from(set.spec.replicas).unwrap_or(0) };
    wanted.saturating_sub(live + snapshot.unreadable_members().filter(|machine| !machine.is_deleting()).count())
}
