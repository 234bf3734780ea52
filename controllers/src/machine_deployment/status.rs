//! The status of a MachineDeployment.
//!
//! `Available` and `Progressing` are exactly MCM's, because the cluster autoscaler and Gardener read them: a deployment whose
//! `Progressing` has neither the reason `NewMachineSetAvailable` nor `DeploymentPaused` is not scaled down. `Reconciling` and
//! `Stalled` are Nodewright's, for kstatus, and present only while True.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus::{False, True, Unknown},
    MachineDeploymentCondition as Condition, MachineDeploymentSpec, MachineDeploymentStatus as Status, MachineSet,
    MachineSetCondition,
    conditions::{machine_deployment as kinds, machine_set},
    reasons::{machine_deployment as reasons, machine_set::OVERSHOOTING_REPLICA_COUNT},
    selector,
    stored::UPDATING,
};
use nodewright_runtime::{
    clip::clip,
    object::{is_deleting, name},
    plan::Failure,
};

use super::{
    blockers::blocker,
    memory::{Note, StatusWrite},
    snapshot::{Scope, Snapshot},
    stalls::Stall,
};
use crate::shared::{
    availability::is_ready,
    conditions::Finding,
    in_place,
    pause::{self, Announcement},
    preservation::is_preserved_failed,
    status_writer::{FailedMachines, Health, Urgency, count, unknown, write_status},
};

/// Reconciling: Machines of a former template are being replaced.
pub(super) const ROLLING_OUT: &str = "RollingOut";
/// Reconciling: there are fewer available Machines than desired, or too many.
pub(super) const SCALING: &str = "Scaling";
/// A cause that no Machine reports: only what is changing waits for it, so a deployment that is complete does not say so.
const TARGET_AWAY: &str =
    "the API server of the target cluster is out of reach: no node can join or be drained, and no health is evaluated";

#[derive(Clone, Debug, Default)]
pub(super) struct StatusInput {
    pub(super) created: Option<String>,
    pub(super) collisions: Option<i32>,
    /// Why no progress is possible without help: reason and message.
    pub(super) stalled: Option<(&'static str, String)>,
}

impl StatusInput {
    pub(super) fn stalled(stall: Option<Stall>) -> Self {
        Self { stalled: stall.map(|it| (it.reason, it.text)), ..Self::default() }
    }
}

/// Counts Machine objects: a Machine that is being deleted counts until its VM is gone.
pub(super) fn status(scope: &Scope<'_>, input: &StatusInput) -> Status {
    let (deployment, snapshot) = (scope.deployment, scope.snapshot);
    let before = deployment.status.clone().unwrap_or_default();
    let machines = || snapshot.machines().map(AsRef::as_ref);
    let available = i32::try_from(snapshot.available()).unwrap_or(i32::MAX);
    let wanted: i64 = snapshot.sets.iter().map(|view| i64::from(view.set.spec.replicas)).sum();
    let views = snapshot.sets.iter();
    let with_sets = views.flat_map(|view| view.machines.iter().map(|machine| (machine.as_ref(), view.set.as_ref())));
    // Preserved ones are not replaced.
    let failed = FailedMachines::of(with_sets.filter(|(machine, _)| !is_preserved_failed(machine)));
    let mut after = Status {
        replicas: count(machines()),
        updated_replicas: snapshot.current().map_or(0, |current| count(current.machines.iter())),
        ready_replicas: count(machines().filter(|machine| is_ready(machine))),
        available_replicas: available,
        unavailable_replicas: i32::try_from(wanted - i64::from(available)).unwrap_or(i32::MAX).max(0),
        preserved_failed_replicas: count(machines().filter(|machine| is_preserved_failed(machine))),
        collision_count: input.collisions.or(before.collision_count),
        selector: if scope.snapshot.settings.full_schema {
            selector::to_text(deployment.spec.selector.as_ref())
        } else {
            String::new()
        },
        observed_generation: deployment.metadata.generation.unwrap_or_default(),
        failed_machines: failed.listed.clone(),
        ..Status::default()
    };
    after.conditions = Draft { scope, input, before: &before, after: &after }.conditions(&failed);
    after
}

pub(super) fn write(scope: &Scope<'_>, after: Status) -> StatusWrite {
    let deployment = scope.deployment;
    let collisions = deployment.status.as_ref().and_then(|before| before.collision_count);
    let before = health(&deployment.status.clone().unwrap_or_default());
    let unknown = unknown(scope.snapshot.machines().map(AsRef::as_ref));
    let urgency = if collisions != after.collision_count || is_complete(i64::from(deployment.spec.replicas), &after) {
        Urgency::Now
    } else if health(&after).is_dip(before, unknown) {
        Urgency::MayPass(Note::Unhealthy)
    } else {
        Urgency::Normal
    };
    write_status(scope.context, deployment, after, urgency)
}

fn health(status: &Status) -> Health {
    Health {
        generation: status.observed_generation,
        replicas: status.replicas,
        updated: status.updated_replicas,
        ready: status.ready_replicas,
        available: status.available_replicas,
    }
}

struct Draft<'a> {
    scope: &'a Scope<'a>,
    input: &'a StatusInput,
    before: &'a Status,
    after: &'a Status,
}

impl Draft<'_> {
    fn conditions(&self, failed: &FailedMachines) -> Vec<Condition> {
        let progressing = self.progressing();
        let stalled = self.stalled(progressing.as_ref());
        let reconciling = if stalled.is_some() { None } else { self.reconciling() };
        let present = |kind, failure: Option<(&'static str, String)>| {
            failure.map(|(reason, message)| self.condition(kind, (True, reason, message)))
        };
        let all = [
            Some(self.condition(kinds::AVAILABLE, self.available())),
            progressing,
            self.replica_failure(),
            self.frozen(),
            present(kinds::RECONCILING, reconciling),
            present(kinds::STALLED, stalled),
            present(kinds::FAILED_MACHINES_TRUNCATED, failed.truncation().map(|text| ("TooManyToList", text))),
        ];
        all.into_iter().flatten().collect()
    }

    /// Times on the wire have whole seconds.
    fn now(&self) -> Time {
        let now = self.scope.context.now;
        Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
    }

    fn condition(&self, kind: &str, (status, reason, message): Finding<'static>) -> Condition {
        let same_status = self.scope.deployment.condition(kind).filter(|known| known.status == status);
        let same = same_status.filter(|known| known.reason == reason);
        let updated = same.and_then(|same| same.last_update_time.clone());
        let changed = same_status.and_then(|same| same.last_transition_time.clone());
        Condition {
            condition_type: kind.to_owned(),
            last_update_time: updated.or_else(|| Some(self.now())),
            last_transition_time: changed.or_else(|| Some(self.now())),
            status,
            reason: reason.to_owned(),
            message: clip(message),
        }
    }

    fn available(&self) -> Finding<'static> {
        let needed = self.scope.goal.floor() - i64::from(self.after.preserved_failed_replicas);
        if i64::from(self.after.available_replicas) >= needed {
            (True, reasons::MINIMUM_REPLICAS_AVAILABLE, "Deployment has minimum availability.".to_owned())
        } else {
            (False, reasons::MINIMUM_REPLICAS_UNAVAILABLE, "Deployment does not have minimum availability.".to_owned())
        }
    }

    fn progressing(&self) -> Option<Condition> {
        let known = self.scope.deployment.condition(kinds::PROGRESSING);
        let Some(finding) = self.progress(known) else { return known.cloned() };
        let is_progress = finding.1 == reasons::MACHINE_SET_UPDATED;
        let mut condition = self.condition(kinds::PROGRESSING, finding);
        if is_progress {
            // Each step of progress restarts the clock of the deadline.
            condition.last_update_time = Some(self.now());
        }
        Some(condition)
    }

    /// The condition `Progressing`; `None` if it does not change.
    fn progress(&self, known: Option<&Condition>) -> Option<Finding<'static>> {
        let reason = known.map(|known| known.reason.as_str());
        if let Some(failure) = refused_creation(self.scope.context.failure) {
            return Some((False, reasons::MACHINE_SET_CREATE_ERROR, failure.to_string()));
        }
        match pause::announcement(self.scope.deployment, reason) {
            Some(Announcement::Stays) => return None,
            Some(Announcement::Due) => return Some((Unknown, reasons::PAUSED, "Deployment is paused".to_owned())),
            None => {}
        }
        if let Some(created) = &self.input.created {
            return Some((True, reasons::NEW_MACHINE_SET_CREATED, format!("Created new machine set {created:?}")));
        }
        if reason == Some(reasons::PAUSED) {
            return Some((Unknown, reasons::RESUMED, "Deployment is resumed".to_owned()));
        }
        self.rollout_progress(known, reason)
    }

    fn rollout_progress(&self, known: Option<&Condition>, reason: Option<&str>) -> Option<Finding<'static>> {
        let current = self.scope.snapshot.current();
        let is_rolled_out = reason == Some(reasons::NEW_MACHINE_SET_AVAILABLE);
        let all_updated = self.after.replicas == self.after.updated_replicas;
        if is_rolled_out && all_updated && current.is_some() {
            // Scaling is not a rollout.
            return None;
        }
        let subject = match current {
            Some(current) => format!("MachineSet {:?}", name(current.set.as_ref())),
            None => format!("Machine Deployment {:?}", name(self.scope.deployment)),
        };
        if is_complete(self.scope.goal.desired, self.after) && current.is_some() {
            return Some((True, reasons::NEW_MACHINE_SET_AVAILABLE, format!("{subject} has successfully progressed.")));
        }
        if self.has_progressed() {
            return Some((True, reasons::MACHINE_SET_UPDATED, format!("{subject} is progressing.")));
        }
        if known.is_none() || is_rolled_out {
            // A rollout begins with an existing set, such as in a rollback. The autoscaler must know.
            let text = format!("Found new machine set {:?}", name(current?.set.as_ref()));
            return Some((True, reasons::FOUND_NEW_MACHINE_SET, text));
        }
        let deadline = deadline(&self.scope.deployment.spec, known)?;
        let text = format!("{subject} has timed out progressing.");
        (deadline < self.scope.context.now).then_some((False, reasons::PROGRESS_DEADLINE_EXCEEDED, text))
    }

    /// Whether more Machines are new, ready or available, or fewer are old, than when the status was last written.
    fn has_progressed(&self) -> bool {
        let old = |status: &Status| status.replicas - status.updated_replicas;
        let (before, after) = (self.before, self.after);
        after.updated_replicas > before.updated_replicas
            || old(after) < old(before)
            || after.ready_replicas > before.ready_replicas
            || after.available_replicas > before.available_replicas
    }

    fn replica_failure(&self) -> Option<Condition> {
        let snapshot = self.scope.snapshot;
        let sets = snapshot.current().into_iter().chain(&snapshot.sets);
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

    /// Which of its sets is frozen. The condition, also another client's, stays as it is while the label is there.
    fn frozen(&self) -> Option<Condition> {
        let Scope { deployment, snapshot, context, .. } = self.scope;
        let new = || {
            let set = snapshot.sets.iter().find(|view| view.set.is_frozen())?;
            let now = Some(Time(context.now));
            Some(Condition {
                condition_type: kinds::FROZEN.to_owned(),
                status: True,
                last_update_time: now.clone(),
                last_transition_time: now,
                reason: OVERSHOOTING_REPLICA_COUNT.to_owned(),
                message: format!("machine set {} is frozen: it creates no machine", name(set.set.as_ref())),
            })
        };
        if !deployment.is_frozen() {
            return None;
        }
        deployment.condition(kinds::FROZEN).cloned().or_else(new)
    }

    fn stalled(&self, progressing: Option<&Condition>) -> Option<(&'static str, String)> {
        let late = progressing.filter(|known| known.reason == reasons::PROGRESS_DEADLINE_EXCEEDED);
        let late = late.filter(|_| !is_deleting(self.scope.deployment));
        let late = late.map(|known| {
            let blocker = blocker(self.scope.snapshot).map(|blocker| format!(" {blocker}")).unwrap_or_default();
            (reasons::PROGRESS_DEADLINE_EXCEEDED, format!("{}{blocker}", known.message))
        });
        self.input.stalled.clone().or(late)
    }

    fn reconciling(&self) -> Option<(&'static str, String)> {
        let (snapshot, deployment, after) = (self.scope.snapshot, self.scope.deployment, self.after);
        let desired = self.scope.goal.desired;
        let (updated, available) = (after.updated_replicas, after.available_replicas);
        let deleting = snapshot.machines().filter(|machine| is_deleting(machine.as_ref())).count();
        let with_cause = |text: String| {
            let away = (snapshot.target == Some(false)).then(|| TARGET_AWAY.to_owned());
            [Some(text), away, blocker(snapshot)].into_iter().flatten().collect::<Vec<_>>().join("; ")
        };
        if is_deleting(deployment) {
            let text = format!("the deployment is being deleted, {} machines are not yet gone", after.replicas);
            return Some((SCALING, with_cause(text)));
        }
        let text = |what: &str| {
            let counts = format!(
                "{updated} of {desired} machines are up to date, {available} are available, {deleting} are in deletion"
            );
            with_cause(format!("{what}: {counts}"))
        };
        if pause::permits_rollout(deployment) && (after.replicas - updated > 0 || snapshot.current().is_none()) {
            return Some((ROLLING_OUT, text(rolling_out(snapshot))));
        }
        if let Some(what) = awaited_components(snapshot) {
            return Some((ROLLING_OUT, text(&what)));
        }
        let is_settled = pause::is_settled(deployment, after.replicas, available);
        (!is_settled.unwrap_or_else(|| is_complete(desired, after)))
            .then(|| (SCALING, text(scaling(snapshot, desired, after))))
    }
}

/// A Node that was updated in place, and takes no Pods yet.
fn awaited_components(snapshot: &Snapshot) -> Option<String> {
    // Only of updates in place are Nodes known.
    snapshot.nodes.as_ref()?;
    let nodes = snapshot.machines().filter_map(|machine| snapshot.node_of(machine));
    let name = nodes.filter(|node| in_place::awaits_components(node)).map(name).min()?;
    Some(format!("node {name} {}", in_place::AWAITED_COMPONENTS))
}

/// What a deployment waits for that rolls nothing out: it may be that only failed Machines are not available that are preserved.
fn scaling(snapshot: &Snapshot, desired: i64, status: &Status) -> &'static str {
    let preserved: i64 = snapshot.staying().map(|view| view.size().preserved).sum();
    let [replicas, available] = [status.replicas, status.available_replicas].map(i64::from);
    if preserved > 0 && replicas == desired && available + preserved >= desired {
        "machines that have failed are preserved, and replaced when that ends"
    } else {
        "the number of machines changes"
    }
}

fn rolling_out(snapshot: &Snapshot) -> &'static str {
    let is_waiting = || snapshot.sets.iter().all(|view| UPDATING.of(view.set.as_ref()).is_none());
    if !snapshot.is_in_place() {
        "machines of a former template are being replaced"
    } else if snapshot.deployment.spec.strategy.is_manual() && is_waiting() {
        "machines of a former template wait for a user to label their nodes node.machine.sapcloud.io/selected-for-update=true"
    } else {
        "machines of a former template are being updated in place"
    }
}

pub(super) fn refused_creation(failure: Option<&Failure>) -> Option<&Failure> {
    failure.filter(|failure| failure.is_refusal() && failure.creates::<MachineSet>())
}

pub(super) fn deadline(spec: &MachineDeploymentSpec, progressing: Option<&Condition>) -> Option<Timestamp> {
    let allowed = SignedDuration::from_secs(i64::from(spec.progress_deadline_seconds?));
    let over = [reasons::NEW_MACHINE_SET_AVAILABLE, reasons::PROGRESS_DEADLINE_EXCEEDED, reasons::PAUSED];
    let known = progressing.filter(|known| !over.contains(&known.reason.as_str()))?;
    known.last_update_time.as_ref()?.0.checked_add(allowed).ok()
}

/// Whether all desired Machines exist, are up to date and available, and there are no others.
pub(super) fn is_complete(desired: i64, status: &Status) -> bool {
    [status.replicas, status.updated_replicas, status.available_replicas].iter().all(|&it| i64::from(it) == desired)
}
