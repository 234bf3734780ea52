//! What a MachineDeployment says of itself in words.
//!
//! `Available` and `Progressing` are MCM's, to the letter, for the cluster autoscaler and Gardener read them:
//! a deployment whose `Progressing` says neither `NewMachineSetAvailable` nor `DeploymentPaused` is not scaled down,
//! and `lastUpdateTime` is the clock of the progress deadline. `Reconciling` and `Stalled` are ours, are there only
//! while True, and tell kstatus how far things are.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, MachineDeploymentCondition as Condition, MachineDeploymentStatus as Status, MachineSet,
    MachineSetCondition,
    conditions::{machine_deployment as kinds, machine_set},
    reasons::machine_deployment as reasons,
};
use nodewright_runtime::{
    clip::clip,
    effect::Never,
    object::{is_deleting, name},
    plan::{Failure, FailureClass, Moment},
};

use super::rollout::Goal;
use super::{status::is_complete, world::World};
use crate::shared::failed_machines::FailedMachines;

/// Reconciling: machines of a former template are being replaced.
pub(super) const ROLLING_OUT: &str = "RollingOut";
/// Reconciling: there are not yet as many available machines as desired, or still too many.
pub(super) const SCALING: &str = "Scaling";
/// Stalled: machines would have to be updated in place, which this version does not do.
pub(super) const IN_PLACE_UPDATE_UNSUPPORTED: &str = "InPlaceUpdateUnsupported";

/// What a plan has decided, as far as the conditions tell of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    /// The set that the plan creates.
    pub(super) created: Option<String>,
    /// The number of collisions, where it changes.
    pub(super) collisions: Option<i32>,
    /// Why nothing will happen without help: reason and message.
    pub(super) stalled: Option<(&'static str, String)>,
}

/// All conditions, in the order in which they are always written.
pub(super) fn conditions(
    at: &Moment<'_, Never>,
    world: &World,
    goal: Goal,
    story: &Story,
    (before, after): (&Status, &Status),
    failed: &FailedMachines,
) -> Vec<Condition> {
    let write = Writer { now: Time(seconds(at.now)), before };
    let progressing = Progress { at, world, goal, story, before, after }.condition(&write);
    let stalled = stalled(world, story, progressing.as_ref());
    let reconciling = if stalled.is_some() { None } else { reconciling(world, goal, after) };
    let set = |kind, said: Option<(&str, String)>| {
        said.map(|(reason, message)| write.condition(kind, ConditionStatus::True, reason, message))
    };
    let all = [
        Some(available(&write, goal, after)),
        progressing.clone(),
        replica_failure(world),
        frozen(world, before),
        set(kinds::RECONCILING, reconciling),
        set(kinds::STALLED, stalled),
        set(kinds::FAILED_MACHINES_TRUNCATED, failed.truncation().map(|text| ("TooManyToList", text))),
    ];
    all.into_iter().flatten().collect()
}

/// Times on the wire have whole seconds; what is compared with them must have no more.
fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Makes conditions whose times move only when they have to.
struct Writer<'a> {
    now: Time,
    before: &'a Status,
}

impl Writer<'_> {
    fn known(&self, kind: &str) -> Option<&Condition> {
        self.before.conditions.iter().find(|condition| condition.condition_type == kind)
    }

    fn condition(&self, kind: &str, status: ConditionStatus, reason: &str, message: impl Into<String>) -> Condition {
        let known = self.known(kind);
        let same_status = known.filter(|known| known.status == status);
        let same = same_status.filter(|known| known.reason == reason);
        Condition {
            condition_type: kind.to_owned(),
            last_update_time: same.and_then(|same| same.last_update_time.clone()).or_else(|| Some(self.now.clone())),
            last_transition_time: same_status
                .and_then(|same| same.last_transition_time.clone())
                .or_else(|| Some(self.now.clone())),
            status,
            reason: reason.to_owned(),
            message: clip(message),
        }
    }
}

fn available(write: &Writer<'_>, goal: Goal, after: &Status) -> Condition {
    let needed = goal.floor() - i64::from(after.preserved_failed_replicas);
    if i64::from(after.available_replicas) >= needed {
        let message = "Deployment has minimum availability.";
        write.condition(kinds::AVAILABLE, ConditionStatus::True, reasons::MINIMUM_REPLICAS_AVAILABLE, message)
    } else {
        let message = "Deployment does not have minimum availability.";
        write.condition(kinds::AVAILABLE, ConditionStatus::False, reasons::MINIMUM_REPLICAS_UNAVAILABLE, message)
    }
}

/// What `Progressing` is derived from.
struct Progress<'a> {
    at: &'a Moment<'a, Never>,
    world: &'a World,
    goal: Goal,
    story: &'a Story,
    before: &'a Status,
    after: &'a Status,
}

impl Progress<'_> {
    fn condition(&self, write: &Writer<'_>) -> Option<Condition> {
        let known = write.known(kinds::PROGRESSING);
        let (status, reason, message) = match self.news(known) {
            News::None => return known.cloned(),
            News::Said(status, reason, message) => (status, reason, message),
        };
        let mut condition = write.condition(kinds::PROGRESSING, status, reason, message);
        if reason == reasons::MACHINE_SET_UPDATED {
            // Each step of progress winds the clock of the deadline up again.
            condition.last_update_time = Some(write.now.clone());
        }
        Some(condition)
    }

    fn news(&self, known: Option<&Condition>) -> News {
        let (unknown, holds) = (ConditionStatus::Unknown, ConditionStatus::True);
        let reason = known.map(|known| known.reason.as_str());
        let paused = self.world.deployment.spec.paused;
        if let Some(failure) = refused_creation(self.at.failure) {
            return News::Said(ConditionStatus::False, reasons::MACHINE_SET_CREATE_ERROR, failure.to_string());
        }
        if paused {
            let keeps = [Some(reasons::PAUSED), Some(reasons::PROGRESS_DEADLINE_EXCEEDED)].contains(&reason);
            let text = "Deployment is paused".to_owned();
            return if keeps { News::None } else { News::Said(unknown, reasons::PAUSED, text) };
        }
        if let Some(created) = &self.story.created {
            let text = format!("Created new machine set {created:?}");
            return News::Said(holds, reasons::NEW_MACHINE_SET_CREATED, text);
        }
        if reason == Some(reasons::PAUSED) {
            return News::Said(unknown, reasons::RESUMED, "Deployment is resumed".to_owned());
        }
        self.rollout_news(known, reason)
    }

    fn rollout_news(&self, known: Option<&Condition>, reason: Option<&str>) -> News {
        let is_rolled_out = reason == Some(reasons::NEW_MACHINE_SET_AVAILABLE);
        let all_updated = self.after.replicas == self.after.updated_replicas;
        if is_rolled_out && all_updated && self.world.current().is_some() {
            // Scaling is no rollout.
            return News::None;
        }
        let holds = ConditionStatus::True;
        let subject = self.subject();
        if is_complete(self.goal.desired, self.after) && self.world.current().is_some() {
            let text = format!("{subject} has successfully progressed.");
            return News::Said(holds, reasons::NEW_MACHINE_SET_AVAILABLE, text);
        }
        if self.has_moved() {
            return News::Said(holds, reasons::MACHINE_SET_UPDATED, format!("{subject} is progressing."));
        }
        if known.is_none() || is_rolled_out {
            // A rollout begins with a set that was there before, such as in a rollback. The autoscaler must know.
            return match self.world.current() {
                Some(current) => {
                    let text = format!("Found new machine set {:?}", name(current.set.as_ref()));
                    News::Said(holds, reasons::FOUND_NEW_MACHINE_SET, text)
                }
                None => News::None,
            };
        }
        match deadline(&self.world.deployment.spec, known) {
            Some(deadline) if deadline < self.at.now => {
                let text = format!("{subject} has timed out progressing.");
                News::Said(ConditionStatus::False, reasons::PROGRESS_DEADLINE_EXCEEDED, text)
            }
            _ => News::None,
        }
    }

    fn subject(&self) -> String {
        match self.world.current() {
            Some(current) => format!("MachineSet {:?}", name(current.set.as_ref())),
            None => format!("Machine Deployment {:?}", name(self.world.deployment.as_ref())),
        }
    }

    /// Whether more machines are new, ready or available, or fewer are old, than when the status was last written.
    fn has_moved(&self) -> bool {
        let old = |status: &Status| status.replicas - status.updated_replicas;
        let (before, after) = (self.before, self.after);
        after.updated_replicas > before.updated_replicas
            || old(after) < old(before)
            || after.ready_replicas > before.ready_replicas
            || after.available_replicas > before.available_replicas
    }
}

enum News {
    None,
    Said(ConditionStatus, &'static str, String),
}

/// The refusal of a set's creation that will not pass by itself.
pub(super) fn refused_creation(failure: Option<&Failure>) -> Option<&Failure> {
    failure.filter(|failure| {
        let lasting = matches!(failure.class, FailureClass::Invalid | FailureClass::Forbidden);
        lasting && failure.step.creates::<MachineSet>()
    })
}

/// When a rollout that has not got on since will be called stuck.
pub(super) fn deadline(
    spec: &nodewright_api::MachineDeploymentSpec,
    progressing: Option<&Condition>,
) -> Option<Timestamp> {
    let allowed = SignedDuration::from_secs(i64::from(spec.progress_deadline_seconds?));
    let over = [reasons::NEW_MACHINE_SET_AVAILABLE, reasons::PROGRESS_DEADLINE_EXCEEDED, reasons::PAUSED];
    let known = progressing.filter(|known| !over.contains(&known.reason.as_str()))?;
    known.last_update_time.as_ref()?.0.checked_add(allowed).ok()
}

/// What the sets cannot do, the new one's word before that of the old ones.
fn replica_failure(world: &World) -> Option<Condition> {
    let sets = world.current().into_iter().chain(&world.sets);
    let mut failures = sets.filter_map(|view| view.set.condition(machine_set::REPLICA_FAILURE));
    let MachineSetCondition { status, last_transition_time, reason, message, .. } = failures.next()?.clone();
    Some(Condition {
        condition_type: kinds::REPLICA_FAILURE.to_owned(),
        status,
        last_update_time: last_transition_time.clone(),
        last_transition_time,
        reason,
        message,
    })
}

/// Whoever froze the deployment has said why; that stands as long as the label does.
fn frozen(world: &World, before: &Status) -> Option<Condition> {
    let known = before.conditions.iter().find(|condition| condition.condition_type == kinds::FROZEN);
    known.filter(|_| world.deployment.is_frozen()).cloned()
}

fn stalled(world: &World, story: &Story, progressing: Option<&Condition>) -> Option<(&'static str, String)> {
    let late = progressing.filter(|known| known.reason == reasons::PROGRESS_DEADLINE_EXCEEDED);
    let late = late.filter(|_| !is_deleting(world.deployment.as_ref()));
    story.stalled.clone().or_else(|| late.map(|known| (reasons::PROGRESS_DEADLINE_EXCEEDED, known.message.clone())))
}

/// What is still to be done, and what it depends on.
fn reconciling(world: &World, goal: Goal, after: &Status) -> Option<(&'static str, String)> {
    let desired = goal.desired;
    let (updated, available) = (after.updated_replicas, after.available_replicas);
    let deleting = world.machines().filter(|machine| is_deleting(machine.as_ref())).count();
    let old = after.replicas - updated;
    if is_deleting(world.deployment.as_ref()) {
        return Some((
            SCALING,
            format!("the deployment is being deleted, {} machines are not yet gone", after.replicas),
        ));
    }
    let text = |what: &str| {
        format!(
            "{what}: {updated} of {desired} machines are up to date, {available} are available, {deleting} are in deletion"
        )
    };
    let paused = world.deployment.spec.paused;
    if !paused && (old > 0 || world.current().is_none()) {
        return Some((ROLLING_OUT, text("machines of a former template are being replaced")));
    }
    let settled = if paused {
        i64::from(after.replicas) == desired && i64::from(available) == desired
    } else {
        is_complete(desired, after)
    };
    (!settled).then(|| (SCALING, text("the number of machines changes")))
}
