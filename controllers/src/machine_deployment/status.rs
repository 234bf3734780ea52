//! What a MachineDeployment says of itself: counts here, words in [`conditions`](super::conditions).

use nodewright_api::{Machine, MachineDeploymentCondition, MachineDeploymentStatus, MachinePhase, selector};
use nodewright_runtime::{
    effect::Never,
    plan::{Moment, Plan, Step},
};

use super::rollout::Goal;
use super::{
    conditions::{self, Story},
    owned::StatusPart,
    template,
    world::{World, is_available, is_ready},
};
use crate::shared::clusters::CONTROL;
use crate::shared::{failed_machines::FailedMachines, pacing};

/// The whole status. `story` is what the plan knows beyond the world.
pub(super) fn status(
    at: &Moment<'_, Never>,
    world: &World,
    goal: Goal,
    story: &Story,
    full_schema: bool,
) -> MachineDeploymentStatus {
    let deployment = world.deployment.as_ref();
    let before = deployment.status.clone().unwrap_or_default();
    let failed = failed(world);
    let mut after = MachineDeploymentStatus {
        collision_count: story.collisions.or(before.collision_count),
        selector: if full_schema { selector::to_text(deployment.spec.selector.as_ref()) } else { String::new() },
        observed_generation: deployment.metadata.generation.unwrap_or_default(),
        failed_machines: failed.listed.clone(),
        ..counts(world)
    };
    after.conditions = conditions::conditions(at, world, goal, story, (&before, &after), &failed);
    after
}

/// Counted are Machine objects: one in deletion is there until its instance is gone.
fn counts(world: &World) -> MachineDeploymentStatus {
    let machines = || world.machines().map(AsRef::as_ref);
    let available = count(machines().filter(|machine| is_available(machine)));
    let wanted: i64 = world.sets.iter().map(|view| i64::from(view.set.spec.replicas)).sum();
    MachineDeploymentStatus {
        replicas: count(machines()),
        updated_replicas: world.current().map_or(0, |current| count(current.machines.iter())),
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

/// The machines whose last operation failed. A preserved one is no failure that anybody waits for.
fn failed(world: &World) -> FailedMachines {
    let all =
        world.sets.iter().flat_map(|view| view.machines.iter().map(|machine| (machine.as_ref(), view.set.as_ref())));
    FailedMachines::of(all.filter(|(machine, _)| !is_preserved_failed(machine)))
}

/// Whether all that is desired is there, up to date and available, and nothing else.
pub(super) fn is_complete(desired: i64, status: &MachineDeploymentStatus) -> bool {
    [status.replicas, status.updated_replicas, status.available_replicas].iter().all(|&it| i64::from(it) == desired)
}

/// Adds the write of the status to a plan: at once when it says something new or the goal is reached; where only
/// counts move, not too often.
pub(super) fn tell(plan: &mut Plan<Never>, at: &Moment<'_, Never>, world: &World, after: MachineDeploymentStatus) {
    let deployment = world.deployment.as_ref();
    let before = deployment.status.clone().unwrap_or_default();
    let urgent = is_news(&before, &after) || is_complete(i64::from(deployment.spec.replicas), &after);
    let Some(step) = Step::apply(CONTROL, deployment, &StatusPart { status: after }) else { return };
    match pacing::due(at.now, at.status_written).filter(|_| !urgent) {
        Some(later) => drop(plan.wake_at(later)),
        None => drop(plan.beside("the status changed", step)),
    }
}

/// Whether more than counts has changed. Messages carry counts, and `lastUpdateTime` follows them.
fn is_news(before: &MachineDeploymentStatus, after: &MachineDeploymentStatus) -> bool {
    let gist = |status: &MachineDeploymentStatus| {
        let word = |it: &MachineDeploymentCondition| (it.condition_type.clone(), it.status.clone(), it.reason.clone());
        status.conditions.iter().map(word).collect::<Vec<_>>()
    };
    before.observed_generation != after.observed_generation
        || before.collision_count != after.collision_count
        || gist(before) != gist(after)
}

/// The next number of collisions.
pub(super) fn next_collision(world: &World) -> i32 {
    template::collisions(&world.deployment).saturating_add(1)
}
