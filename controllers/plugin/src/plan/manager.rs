//! Whether a manager acts on what is planned.

use jiff::Timestamp;

use crate::{
    names::TargetKind,
    read::{LEASE_NAMES, Scope},
    resources::LEASES,
    snapshot::Snapshot,
    why::manager,
};

/// The kinds whose controllers roll machines out.
pub(super) const OF_MACHINES: &[TargetKind] = &[TargetKind::Deployment, TargetKind::Machine];
/// The kind whose controller updates the nodes of pools.
pub(super) const OF_POOLS: &[TargetKind] = &[TargetKind::Pool];

/// That no manager of these kinds acts now, by the Leases of a namespace.
pub(super) async fn absent(scope: &Scope, namespace: Option<&str>, kinds: &[TargetKind]) -> Option<String> {
    let mut snapshot = Snapshot::at(Timestamp::now());
    for lease in LEASE_NAMES {
        match scope.control.list(LEASES, namespace, &format!("metadata.name={lease}")).await {
            Ok(leases) => leases.iter().for_each(|lease| snapshot.add(lease)),
            Err(error) => {
                eprintln!("note: whether a manager runs is not known: {}", error.short());
                return None;
            }
        }
    }
    let absent = kinds.iter().find_map(|kind| manager::absent(&snapshot, *kind))?;
    Some(format!("{}; nothing of this happens before one does", absent.cause))
}
