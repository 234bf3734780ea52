//! The status of a MachineDeployment: counts here, conditions in [`conditions`](super::conditions).

use nodewright_api::{Machine, MachineDeploymentStatus, MachinePhase, selector};
use nodewright_runtime::effect::Never;

use super::{
    conditions::{Draft, StatusInput, is_complete},
    scope::Scope,
    snapshot::{Snapshot, is_available, is_ready},
};
use crate::shared::{
    failed_machines::FailedMachines,
    status_writer::{StatusWrite, write_status},
};

pub(super) fn status(scope: &Scope<'_>, input: &StatusInput) -> MachineDeploymentStatus {
    let deployment = scope.deployment;
    let before = deployment.status.clone().unwrap_or_default();
    let failed = failed(scope.snapshot);
    let mut after = MachineDeploymentStatus {
        collision_count: input.collisions.or(before.collision_count),
        selector: if scope.full_schema { selector::to_text(deployment.spec.selector.as_ref()) } else { String::new() },
        observed_generation: deployment.metadata.generation.unwrap_or_default(),
        failed_machines: failed.listed.clone(),
        ..counts(scope.snapshot)
    };
    after.conditions = Draft { scope, input, before: &before, after: &after }.conditions(&failed);
    after
}

/// Decides when the status is written: at once if the goal is reached.
pub(super) fn write(scope: &Scope<'_>, after: MachineDeploymentStatus) -> StatusWrite<Never> {
    let deployment = scope.deployment;
    let collisions = deployment.status.as_ref().and_then(|before| before.collision_count);
    let is_urgent = collisions != after.collision_count || is_complete(i64::from(deployment.spec.replicas), &after);
    write_status(scope.context, deployment, after, is_urgent)
}

/// Counts Machine objects: a Machine that is being deleted counts until its VM is gone.
fn counts(snapshot: &Snapshot) -> MachineDeploymentStatus {
    let machines = || snapshot.machines().map(AsRef::as_ref);
    let available = count(machines().filter(|machine| is_available(machine)));
    let wanted: i64 = snapshot.sets.iter().map(|view| i64::from(view.set.spec.replicas)).sum();
    MachineDeploymentStatus {
        replicas: count(machines()),
        updated_replicas: snapshot.current().map_or(0, |current| count(current.machines.iter())),
        ready_replicas: count(machines().filter(|machine| is_ready(machine))),
        available_replicas: available,
        unavailable_replicas: i32::try_from(wanted - i64::from(available)).unwrap_or(i32::MAX).max(0),
        preserved_failed_replicas: count(machines().filter(|machine| is_preserved_failed(machine))),
        ..MachineDeploymentStatus::default()
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

fn is_preserved_failed(machine: &Machine) -> bool {
    let expiry = machine.status.as_ref().and_then(|status| status.current_status.preserve_expiry_time.as_ref());
    *machine.phase() == MachinePhase::Failed && expiry.is_some()
}

/// The Machines whose last operation failed, except preserved ones: these are not replaced.
fn failed(snapshot: &Snapshot) -> FailedMachines {
    let all =
        snapshot.sets.iter().flat_map(|view| view.machines.iter().map(|machine| (machine.as_ref(), view.set.as_ref())));
    FailedMachines::of(all.filter(|(machine, _)| !is_preserved_failed(machine)))
}
