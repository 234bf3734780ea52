//! The plan of a MachineDeployment: the steps of its decision.

use std::{cmp::Ordering, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use nodewright_api::{
    MachineDeployment, MachineDeploymentStatus, MachineSet, annotations, conditions, finalizers, labels,
    reasons::{events, machine_deployment as reasons},
};
use nodewright_runtime::{
    annotations as annotations_patch,
    apply_configuration::ApplyConfiguration,
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{name, uid},
    plan::{Notes, Planned, Step, reference},
};

use super::{
    decision::{Change, Creation, Decision, Preparation, Rollout, decide, without_strayed},
    history::surplus_revisions,
    memory::{Context, Plan},
    rollout::Goal,
    sets::{RevisionPart, SetPart, next_revision},
    sizes::{Target, excluded_at},
    snapshot::{Scope, SetView, Snapshot},
    stalls::{self, Stall},
    status::{ROLLING_OUT, SCALING, StatusInput, deadline, refused_creation, status, write},
    updates::Lists,
};
use crate::shared::{CONTROL, freeze, membership::release, template, traces};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let snapshot = &*snapshot.at(context.now);
    let deployment = snapshot.deployment.as_ref();
    let scope = &Scope { context, snapshot, deployment, goal: Goal::of(deployment) };
    let own = &Scope { snapshot: &without_strayed(snapshot), ..*scope };
    let mut plan = match decide(scope, own) {
        Decision::AddFinalizer => add_finalizer(deployment),
        Decision::AwaitOrphaning => await_orphaning(),
        Decision::DeleteSets(cause) => delete_sets(scope, cause),
        Decision::RemoveFinalizer => remove_finalizer(deployment),
        Decision::Stall(cause) => stalled(scope, cause),
        Decision::ConfirmGeneration(newer) => confirm_generation(scope, newer),
        Decision::Prepare(preparation) => prepare(own, &preparation),
        Decision::Change(decided, refused) => {
            let mut plan = change(own, &decided);
            plan.stages.extend(refused.iter().flat_map(|refused| prepare(own, refused).stages));
            plan
        }
    };
    plan.wake_at(snapshot.next_available());
    trace(context, deployment, &mut plan);
    plan
}

/// The trace of the request that last changed the deployment: the plan belongs to it until what was asked for is there.
fn trace(context: &Context<'_>, deployment: &MachineDeployment, plan: &mut Plan) {
    plan.traceparent = traces::change(deployment);
    let status = deployment.status.as_ref();
    let observed = status.map_or(0, |status| status.observed_generation);
    let is_observed = observed >= deployment.metadata.generation.unwrap_or_default();
    let is_there = status.is_some_and(|status| {
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        counts.iter().all(|count| *count == deployment.spec.replicas)
    });
    plan.extends_trace = !(is_observed && is_there);
    if context.traces && !is_observed && !plan.is_idle() {
        plan.spans.extend(traces::unreviewed_change(deployment, context.now));
    }
}

fn add_finalizer(deployment: &MachineDeployment) -> Plan {
    let mut plan = Plan::idle();
    let add = finalizer::add(&deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    plan.then("add the finalizer before creating machine sets", Step::edit(CONTROL, deployment, add));
    plan
}

fn await_orphaning() -> Plan {
    let mut plan = Plan::idle();
    plan.wait("Orphaning", "the garbage collector takes the deployment's name off its machine sets, which stay");
    plan
}

fn remove_finalizer(deployment: &MachineDeployment) -> Plan {
    let mut plan = Plan::idle();
    let remove = finalizer::remove(&deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    plan.then("no machine set is left", Step::edit(CONTROL, deployment, remove));
    plan
}

fn delete_sets(scope: &Scope<'_>, cause: Option<Stall>) -> Plan {
    let snapshot = scope.snapshot;
    let mut plan = cause.as_ref().map_or_else(Plan::idle, |cause| stall(scope, cause));
    if !snapshot.sets.is_empty() {
        let delete = |view: &SetView| Planned {
            why: "the deployment is being deleted".into(),
            step: Step::delete(CONTROL, view.set.as_ref()),
        };
        plan.stage(snapshot.staying().map(delete));
        // Delete a set only if it has not changed: one that was released meanwhile must stay.
        plan.pin_deletions();
        plan.wait("MachineSetsLeaving", format!("{} machine sets are yet to be gone", snapshot.sets.len()));
    }
    write(scope, status(scope, &StatusInput::stalled(cause))).add_to(&mut plan);
    plan
}

/// How long the confirmation that no newer generation exists may take before the status reports that it is awaited.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// A set was sized for a generation that is newer than the one in this snapshot. Mostly the snapshot is old, and planning from it
/// would undo newer decisions. After a restore of etcd that generation is gone: a quorum read that returns this very version of the
/// deployment proves it, and the sets get the note of the present generation.
fn confirm_generation(scope: &Scope<'_>, newer: i64) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    let mut plan = Plan::idle();
    let seen = deployment.metadata.generation.unwrap_or_default();
    let text = format!(
        "its machine sets were sized for generation {newer}, and {seen} is seen here: nothing is done until the API server \
         confirms that {seen} is the newest, as after a restore of etcd. To continue without a confirmation, remove annotation {} of the machine sets",
        annotations::SIZED_FOR
    );
    let since = scope.context.waiting_since(reasons::OLD_VIEW);
    plan.wait(reasons::OLD_VIEW, text.as_str());
    if scope.context.now.duration_since(since) >= CONFIRMED_WITHIN {
        let report = stalled(scope, Stall::new(reasons::OLD_VIEW, text));
        if report.steps().next().is_some() {
            // Alone: it makes another version of the deployment, which the confirmation would not recognize.
            return report;
        }
        plan.wake = report.wake;
    } else {
        plan.wake_at(since.checked_add(CONFIRMED_WITHIN).unwrap_or(scope.context.now));
    }
    plan.then("confirm that there is no newer generation", Step::confirm_unchanged(CONTROL, deployment));
    let size = |view: &SetView| {
        let mut part = SetPart::extract(view.set.as_ref());
        part.sized_for(deployment);
        let step = Step::apply_if_unchanged(CONTROL, view.set.as_ref(), part)?;
        Some(Planned { why: "the generation that it was sized for is gone".into(), step })
    };
    plan.stage(snapshot.sets.iter().filter(|view| snapshot.is_sized_for_newer(view)).filter_map(size));
    plan
}

fn prepare(scope: &Scope<'_>, preparation: &Preparation<'_>) -> Plan {
    let mut plan = Plan::idle();
    match preparation {
        Preparation::Release(sets) => return releases(scope.deployment, sets),
        Preparation::Adopt(sets) => {
            // The cache may show sets that a deployment has just orphaned (`--cascade=orphan`), and not yet that the deployment is
            // being deleted. If it adopted the sets again, the garbage collector would delete their Machines.
            plan.then("a deployment that is being deleted adopts no set", Step::confirm(CONTROL, scope.deployment));
            plan.stage(adoptions(scope.deployment, sets));
        }
        Preparation::Mark(marks) => {
            plan.stage(marks.steps());
            plan.then(
                "names of machines that are gone or leaving are dropped from the list",
                Step::edit(CONTROL, scope.deployment, marks.list.clone()),
            );
        }
        Preparation::Move(updates) => updates.stages().into_iter().for_each(|stage| {
            plan.stage(stage);
        }),
    }
    plan
}

/// Removes the owner from sets that the selector no longer matches: they keep their Machines.
fn releases(deployment: &MachineDeployment, sets: &[&SetView]) -> Plan {
    let mut plan = Plan::idle();
    for set in sets.iter().map(|view| view.set.as_ref()) {
        // No deployment is left that would let the set create machines again.
        let grows = annotations_patch::set_label(&set.metadata, labels::SCALE_UP_DISABLED, None);
        let patch = Patch([release(&set.metadata, uid(deployment)).0, grows.0].concat());
        let step = Step::edit(CONTROL, set, patch);
        plan.beside("the selector no longer matches the machine set", step);
        let text = format!("Released machine set {}, whose labels the selector no longer matches", name(set));
        plan.event(Event::normal(reference(deployment), events::RELEASED, text));
    }
    plan
}

/// Adopts sets without an owner. The deployment has its finalizer, so it still exists.
fn adoptions(deployment: &MachineDeployment, sets: &[Arc<MachineSet>]) -> Vec<Planned<Never>> {
    let adopt = |set: &Arc<MachineSet>| {
        let part = SetPart::extract(set).adopted_by(deployment);
        let step = Step::apply_if_unchanged(CONTROL, set.as_ref(), part)?;
        Some(Planned { why: "the selector matches a machine set without an owner".into(), step })
    };
    sets.iter().filter_map(adopt).collect()
}

fn change(scope: &Scope<'_>, change: &Change<'_>) -> Plan {
    let (deployment, mut plan) = (scope.deployment, Plan::idle());
    match change {
        Change::Freeze => {
            let patch = freeze::freeze(&deployment.metadata);
            plan.then("one of its machine sets is frozen", Step::edit(CONTROL, deployment, patch));
        }
        Change::Unfreeze(sets) => {
            // Before the deployment's own annotation, which asks for it.
            let ask = |set: &&MachineSet| {
                let step = Step::edit(CONTROL, *set, freeze::ask_to_unfreeze(&set.metadata))?;
                Some(Planned { why: "a user ends the freeze of the deployment".into(), step })
            };
            plan.stage(sets.iter().filter_map(ask));
            let why = "none of its machine sets is frozen, or a user ends the freeze";
            plan.then(why, Step::edit(CONTROL, deployment, freeze::unfreeze(&deployment.metadata)));
        }
        Change::RollBack(rollback) => {
            let (patch, event) = (rollback.patch(deployment), rollback.event(deployment));
            plan.then("a rollback is asked for", Step::edit(CONTROL, deployment, patch));
            plan.event(event);
        }
        Change::RollOut(rollout) => return roll_out(scope, rollout),
    }
    plan
}

fn roll_out(scope: &Scope<'_>, rollout: &Rollout<'_>) -> Plan {
    let mut plan = settle(scope, rollout);
    if let Some(cause) = &rollout.stalled {
        plan.append(stall(scope, cause));
    }
    let changes =
        rollout.targets.iter().filter_map(|target| Some((target, set_change(scope, target, &rollout.lists)?)));
    // A set that Machines have left is smaller before another one counts them: the other way round it might create as many.
    let shrinks = |target: &Target<'_>| target.replicas < i64::from(target.view.set.spec.replicas);
    let in_turn = scope.snapshot.may_have_moved();
    let (first, then): (Vec<_>, Vec<_>) = changes.partition(|(target, _)| in_turn && shrinks(target));
    let mut targets = vec![];
    for changes in [first, then] {
        let (resized, stage): (Vec<&Target<'_>>, Vec<_>) = changes.into_iter().unzip();
        targets.extend(resized);
        plan.stage(stage);
    }
    plan.events.extend(targets.into_iter().filter_map(|target| scaling_event(scope, target)));
    if let Creation::AwaitDeletion(set) = &rollout.creation {
        let text = format!("machine set {} has to be gone before it is created again", name(*set));
        plan.wait("MachineSetLeaving", text);
    }
    let after = status(scope, &input(scope, rollout));
    create_and_report(scope, rollout, &after, &mut plan);
    plan.append(wait_for_progress(scope, &after));
    let fails = scope.snapshot.old().filter_map(excluded_at).filter(|at| *at > scope.context.now).min();
    plan.wake_at(fails).wake_at(stalls::next(scope));
    add_history(plan, scope, &after)
}

/// The wait of a young rollout.
fn settle(scope: &Scope<'_>, rollout: &Rollout<'_>) -> Plan {
    let mut plan = Plan::idle();
    plan.notes = Notes::Clear;
    let Some((note, until)) = &rollout.young else { return plan };
    plan.notes = Notes::Replace(vec![note.clone()]);
    if *until > scope.context.now {
        let text = "machines of former templates stay until the template has lasted a while";
        plan.wait_until(*until, "RolloutSettling", text);
    }
    plan
}

fn input(scope: &Scope<'_>, rollout: &Rollout<'_>) -> StatusInput {
    let mut input = StatusInput::stalled(rollout.stalled.clone());
    match &rollout.creation {
        Creation::Create(set) => input.created = Some(name(set.as_ref()).to_owned()),
        Creation::CountCollision => input.collisions = Some(template::collisions(scope.deployment).saturating_add(1)),
        Creation::None | Creation::AwaitDeletion(_) => {}
    }
    input
}

/// Creates the set of the present template, if it is missing, and writes the status: the status reports the creation only after it
/// has succeeded, and a refused creation before the next attempt.
fn create_and_report(scope: &Scope<'_>, rollout: &Rollout<'_>, after: &MachineDeploymentStatus, plan: &mut Plan) {
    let creation = match &rollout.creation {
        Creation::Create(set) => Step::create(CONTROL, set.as_ref()),
        _ => None,
    };
    let creation = creation.map(|step| Planned { why: "there is no machine set for the template".into(), step });
    let write = write(scope, after.clone());
    match refused_creation(scope.context.failure).filter(|_| creation.is_some()) {
        None if creation.is_some() => {
            plan.stage(creation);
            plan.append(write.plan());
            return;
        }
        None => {}
        Some(failure) => {
            let text = format!("Failed to create new machine set: {}", failure.message);
            plan.event(Event::warning(reference(scope.deployment), events::MACHINE_SET_CREATE_ERROR, text));
        }
    }
    // By `observedGeneration` the sets know that they have their sizes. After a failure the status is written in any case.
    if scope.context.failure.is_none() {
        plan.append(write.plan());
    } else {
        write.add_to(plan);
    }
    plan.stage(creation);
}

/// A wait for help, with an event unless the condition already has the reason.
fn stall(scope: &Scope<'_>, cause: &Stall) -> Plan {
    let mut plan = Plan::idle();
    let Stall { reason, event, text } = cause;
    let known = scope.deployment.condition(conditions::machine_deployment::STALLED);
    if known.is_none_or(|known| known.reason != *reason) {
        plan.event(Event::warning(reference(scope.deployment), event, text.as_str()));
    }
    plan.wait(reason, text.as_str());
    plan
}

fn stalled(scope: &Scope<'_>, cause: Stall) -> Plan {
    let mut plan = stall(scope, &cause);
    write(scope, status(scope, &StatusInput::stalled(Some(cause)))).add_to(&mut plan);
    plan
}

fn set_change(scope: &Scope<'_>, target: &Target<'_>, lists: &Lists) -> Option<Planned<Never>> {
    let (set, snapshot) = (target.view.set.as_ref(), scope.snapshot);
    let mut part = SetPart::extract(set);
    if snapshot.is_current(set) {
        part.follow(scope.deployment, next_revision(snapshot.old()));
    }
    part.updates(lists.get(uid(set)));
    part.spec.auto_preserve_failed_machine_max = snapshot.auto_preserve_share(set);
    if target.noted {
        part.resize(target.replicas, scope.goal, scope.deployment);
    }
    let step = Step::apply_if_unchanged(CONTROL, set, part)?;
    let Goal { desired, surge, unavailable } = scope.goal;
    let bounds = format!("desired {desired}, surge {surge}, unavailable {unavailable}");
    let why = match (i64::from(set.spec.replicas), target.replicas) {
        (before, after) if before == after => "the machine set follows its deployment".into(),
        (before, after) => format!("from {before} to {after} replicas: {bounds}").into(),
    };
    Some(Planned { why, step })
}

fn scaling_event(scope: &Scope<'_>, target: &Target<'_>) -> Option<Event> {
    let direction = match target.replicas.cmp(&i64::from(target.view.set.spec.replicas)) {
        Ordering::Equal => return None,
        Ordering::Less => "down",
        Ordering::Greater => "up",
    };
    let text = format!("Scaled {direction} machine set {} to {}", name(target.view.set.as_ref()), target.replicas);
    Some(Event::normal(reference(scope.deployment), events::SCALING_MACHINE_SET, text))
}

fn add_history(mut plan: Plan, scope: &Scope<'_>, after: &MachineDeploymentStatus) -> Plan {
    for view in surplus_revisions(scope, after) {
        plan.beside("more revisions than are kept", Step::delete(CONTROL, view.set.as_ref()));
    }
    // Delete a set only if it has not changed: a late deletion must not hit one that is in use again.
    plan.pin_deletions();
    let deployment = scope.deployment;
    let newest = next_revision(scope.snapshot.old());
    // The status is written with the version that was read, so not in one plan with another write of the deployment.
    let writes_status =
        |planned: &Planned<Never>| matches!(&planned.step, Step::Apply(apply) if apply.at.uid() == uid(deployment));
    let current = scope.snapshot.current().filter(|view| view.revision() >= newest);
    if let Some(current) = current.filter(|_| !plan.steps().any(writes_status)) {
        let step = Step::apply(CONTROL, deployment, RevisionPart::of(&current.set));
        plan.beside("the revision is that of the present set", step);
    }
    plan
}

fn after_a_minute(now: Timestamp) -> Timestamp {
    now.saturating_add(SignedDuration::from_mins(1)).unwrap_or(Timestamp::MAX)
}

fn wait_for_progress(scope: &Scope<'_>, after: &MachineDeploymentStatus) -> Plan {
    let mut plan = Plan::idle();
    let find = |kind: &str| after.conditions.iter().find(|condition| condition.condition_type == kind);
    if let Some(reconciling) = find(conditions::machine_deployment::RECONCILING) {
        let reason = if reconciling.reason == ROLLING_OUT { ROLLING_OUT } else { SCALING };
        match scope.snapshot.target {
            // No object changes when the API server of the target cluster is lost or found, and the message reports that.
            Some(_) => plan.wait(reason, reconciling.message.clone()).wake_at(after_a_minute(scope.context.now)),
            None => plan.wait(reason, reconciling.message.clone()),
        };
    }
    let deadline = deadline(&scope.deployment.spec, find(conditions::machine_deployment::PROGRESSING));
    // Times on the wire have whole seconds: a second later the deadline has certainly passed.
    let passed = deadline.and_then(|at| at.checked_add(SignedDuration::from_secs(1)).ok());
    plan.wake_at(passed);
    plan
}
