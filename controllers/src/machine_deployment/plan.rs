//! The plan of a MachineDeployment, composed from the results of the other files.

use std::{borrow::Cow, cmp::Ordering, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    MachineDeployment, MachineDeploymentStatus, MachineSet, annotations, conditions,
    field::FieldError,
    finalizers,
    int_or_percent::ABOVE_ALL,
    reasons::{events, machine_deployment as reasons, unreadable},
    selector,
    validation::Validate,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    apply_configuration::ApplyConfiguration,
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{Kind, annotation, controller_uid, has_finalizer, is_deleting, name, uid},
    plan::{Failure, FailureClass, Notes, Planned, Step, StepVerb, reference},
};

use super::{
    blockers::given_up_at,
    memory::{Context, Note, Plan},
    requests::{marks, roll_back},
    rollout::Goal,
    sets::{RevisionPart, SetPart, new_set, next_revision},
    sizes::{RolloutMode, Target, may_create, targets},
    snapshot::{Scope, SetView, Snapshot},
    stalls,
    status::{ROLLING_OUT, SCALING, StatusInput, deadline, is_complete, refused_creation, status, write},
};
use crate::shared::{
    CONTROL, freeze,
    ledger::Ledger,
    membership::{ORPHAN_FINALIZER, matches, release},
    template,
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let snapshot = &*snapshot.at(context.now);
    let deployment = snapshot.deployment.as_ref();
    let scope = Scope { context, snapshot, deployment, goal: goal(deployment) };
    let mut plan = if deployment.is_deleting() {
        finalize(&scope)
    } else if !has_finalizer(deployment, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        let mut plan = Plan::idle();
        plan.then("add the finalizer before creating machine sets", Step::edit(CONTROL, deployment, add));
        plan
    } else if let Some(problem) = invalid_spec(deployment) {
        let reason = reasons::INVALID_SPEC;
        let selects_all = selector::is_empty(deployment.spec.selector.as_ref());
        stalled(&scope, if selects_all { events::SELECTING_ALL } else { reason }, (reason, problem))
    } else {
        reconcile(&scope)
    };
    plan.wake = plan.wake.into_iter().chain(snapshot.next_available()).min();
    plan.traceparent =
        TraceContext::from_annotation(deployment.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    plan
}

fn goal(deployment: &MachineDeployment) -> Goal {
    // A bound that cannot be read makes the spec invalid, so the goal is not used.
    let (surge, unavailable) =
        deployment.update_bounds().map_or((0, 0), |bounds| (bounds.max_surge, bounds.max_unavailable));
    Goal {
        desired: i64::from(deployment.spec.replicas.max(0)),
        surge: i64::from(surge),
        unavailable: i64::from(unavailable),
    }
}

/// The fields that must be valid for the controller to act: it ignores mistakes in others, as machine-controller-manager does.
const NEEDED: [&str; 5] =
    ["spec.replicas", "spec.selector", "spec.strategy", "spec.template.metadata.labels", "spec.template.spec.class"];

fn invalid_spec(deployment: &MachineDeployment) -> Option<String> {
    let is_needed = |error: &FieldError| NEEDED.iter().any(|field| error.path.as_str().starts_with(field));
    // More than all Machines was allowed in the past, and has a meaning.
    let errors = deployment.validate().into_iter().filter(is_needed).filter(|error| error.detail != ABOVE_ALL);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

fn finalize(scope: &Scope<'_>) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    let mut plan = Plan::idle();
    if has_finalizer(deployment, ORPHAN_FINALIZER) {
        plan.wait("Orphaning", "the garbage collector takes the deployment's name off its machine sets, which stay");
        return plan;
    }
    let obstacle = unreadable_set(snapshot).or_else(|| invalid_ledger(snapshot));
    if let Some((reason, text)) = &obstacle {
        plan.append(stall(scope, reason, reason, text));
    }
    if snapshot.sets.is_empty() && snapshot.unreadable.is_empty() {
        let remove = finalizer::remove(&deployment.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("no machine set is left", Step::edit(CONTROL, deployment, remove));
        return plan;
    }
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
    let input = StatusInput { stalled: obstacle, ..StatusInput::default() };
    write(scope, status(scope, &input)).add_to(&mut plan);
    plan
}

fn reconcile(scope: &Scope<'_>) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    if let Some((reason, text)) = unreadable_set(snapshot) {
        return stalled(scope, reason, (reason, text));
    }
    let mut plan = Plan::idle();
    if let Some(newer) = snapshot.newer_generation() {
        return from_an_old_view(scope, newer);
    }
    // What comes first, unless the API server refuses it: then it is tried again after everything else.
    let mut refused: Vec<Vec<Planned<Never>>> = vec![];
    let own = without_released(snapshot);
    if own.sets.len() < snapshot.sets.len() {
        let releases = releases(scope);
        let strayed = snapshot.sets.iter().filter(|view| is_strayed(snapshot, view));
        if !is_refused(scope, strayed.map(|view| view.set.as_ref())) {
            return releases;
        }
        refused.extend(releases.stages);
    }
    let scope = &Scope { snapshot: &own, ..*scope };
    if !own.orphans.is_empty() {
        // The cache may show sets that a deployment has just orphaned (`--cascade=orphan`), and not yet that the deployment is
        // being deleted. If it adopted the sets again, the garbage collector would delete their Machines.
        plan.then("a deployment that is being deleted adopts no set", Step::confirm(CONTROL, deployment));
        plan.stage(adoptions(scope));
        // Without a set of the present template, another one would be made beside all Machines of the refused one.
        if own.current().is_none() || !is_refused(scope, own.orphans.iter().map(AsRef::as_ref)) {
            return plan;
        }
        refused.append(&mut plan.stages);
    }
    // The sizes wait for the next plan, so that a set sees the marks before the smaller number of replicas.
    let marks = marks(scope);
    if marks.iter().any(|stage| !stage.is_empty()) {
        // A set that shrinks without a mark would delete another Machine than the one that was chosen.
        let shrinks = own.staying().map(|view| view.size().replicas).sum::<i64>() > scope.goal.desired;
        if shrinks || !is_refused(scope, own.machines().map(AsRef::as_ref)) {
            plan.stages.extend(marks.into_iter().filter(|stage| !stage.is_empty()));
            return plan;
        }
        refused.extend(marks);
    }
    plan.append(change(scope));
    plan.stages.extend(refused.into_iter().filter(|stage| !stage.is_empty()));
    plan
}

/// How long the confirmation that no newer generation exists may take before the status tells that it is awaited.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// A set was sized for a generation that is newer than the one in this snapshot. Mostly the snapshot is old, and planning from it
/// would undo newer decisions. After a restore of etcd that generation is gone: a quorum read that returns this very version of the
/// deployment proves it, and the sets get the note of the present generation.
fn from_an_old_view(scope: &Scope<'_>, newer: i64) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    let mut plan = Plan::idle();
    let seen = deployment.metadata.generation.unwrap_or_default();
    let text = format!(
        "its machine sets were sized for generation {newer}, and {seen} is seen here: nothing is done until the API server \
         confirms that {seen} is the newest, as after a restore of etcd. To go on without: remove annotation {} of the machine sets",
        annotations::SIZED_FOR
    );
    let since = scope.context.waiting_since(reasons::OLD_VIEW);
    plan.wait(reasons::OLD_VIEW, text.as_str());
    if scope.context.now.duration_since(since) >= CONFIRMED_WITHIN {
        let told = stalled(scope, reasons::OLD_VIEW, (reasons::OLD_VIEW, text));
        if told.steps().next().is_some() {
            // Alone: it makes another version of the deployment, which the confirmation would not recognize.
            return told;
        }
        plan.wake = told.wake;
    } else {
        plan.wake_at(since.checked_add(CONFIRMED_WITHIN).unwrap_or(scope.context.now));
    }
    plan.then("is there really no newer generation?", Step::confirm_unchanged(CONTROL, deployment));
    let size = |view: &SetView| {
        let mut part = SetPart::extract(view.set.as_ref());
        part.sized_for(deployment);
        let step = Step::apply_if_unchanged(CONTROL, view.set.as_ref(), &part)?;
        Some(Planned { why: "the generation that it was sized for is gone".into(), step })
    };
    plan.stage(snapshot.sets.iter().filter(|view| snapshot.is_sized_for_newer(view)).filter_map(size));
    plan
}

/// Whether the last plan failed because the API server refuses to change one of these objects.
fn is_refused<'a, K: Kind>(scope: &Scope<'_>, mut objects: impl Iterator<Item = &'a K>) -> bool {
    let verbs = [StepVerb::Patch, StepVerb::Apply];
    let failure = scope.context.failure.filter(|failure| failure.is_of::<K>() && !failure.is_passing());
    let failure = failure.filter(|failure| verbs.contains(&failure.verb));
    failure.is_some_and(|failure| objects.any(|object| name(object) == &*failure.key.name))
}

fn change(scope: &Scope<'_>) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    let mut plan = Plan::idle();
    plan.append(freezing(scope));
    if !plan.is_idle() {
        return plan;
    }
    if let Some((step, event)) = roll_back(snapshot).filter(|_| !deployment.spec.paused) {
        plan.then("a rollback is asked for", step);
        plan.event(event);
        return plan;
    }
    roll_out(scope)
}

/// The deployment is frozen while one of its sets is. A user ends the freeze of all of them with one annotation, once.
fn freezing(scope: &Scope<'_>) -> Plan {
    let (deployment, mut plan) = (scope.deployment, Plan::idle());
    let sets = scope.snapshot.sets.iter().map(|view| view.set.as_ref());
    let frozen: Vec<_> = sets.filter(|set| set.is_frozen() && !freeze::is_unfreeze_wanted(&set.metadata)).collect();
    let is_unfreeze_wanted = freeze::is_unfreeze_wanted(&deployment.metadata);
    if is_unfreeze_wanted {
        // Before the deployment's own, which is the wish.
        let ask = |set: &&MachineSet| {
            let step = Step::edit(CONTROL, *set, freeze::ask_to_unfreeze(&set.metadata))?;
            Some(Planned { why: "a user ends the freeze of the deployment".into(), step })
        };
        plan.stage(frozen.iter().filter_map(ask));
    }
    let (why, patch) = if is_unfreeze_wanted || frozen.is_empty() {
        ("none of its machine sets is frozen, or a user ends the freeze", freeze::unfreeze(&deployment.metadata))
    } else {
        ("one of its machine sets is frozen", freeze::freeze(&deployment.metadata))
    };
    plan.then(why, Step::edit(CONTROL, deployment, patch));
    plan
}

fn roll_out(scope: &Scope<'_>) -> Plan {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    let mut mode = RolloutMode::of(snapshot);
    let mut plan = settling(scope, mode);
    mode.settles = !plan.waits.is_empty();
    let stalled = stalls::stalled(scope);
    if let Some((reason, text)) = &stalled {
        plan.append(stall(scope, reason, reason, text));
    }
    let changes: Vec<_> = targets(scope, mode)
        .iter()
        .filter_map(|target| Some((set_change(scope, target)?, scaling_event(scope, target))))
        .collect();
    let (changes, scalings): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
    plan.stage(changes);
    plan.events.extend(scalings.into_iter().flatten());
    let mut input = StatusInput { stalled, ..StatusInput::default() };
    let mut created = None;
    if snapshot.current().is_none() && may_create(snapshot, mode) {
        match obstacle(scope) {
            None => created = Some(new_set(deployment, next_revision(snapshot.old()))),
            Some(set) if is_deleting(set) && controller_uid(set) == Some(uid(deployment)) => {
                let text = format!("machine set {} has to be gone before it is created again", name(set));
                plan.wait("MachineSetLeaving", text);
            }
            // The count is part of the hash: the next plan uses another name.
            Some(_) => input.collisions = Some(template::collisions(deployment).saturating_add(1)),
        }
    }
    input.created = created.as_ref().map(|set| name(set).to_owned());
    let why = "there is no machine set for the template";
    let creation = created.and_then(|set| Step::create(CONTROL, &set)).map(|step| Planned { why: why.into(), step });
    let after = status(scope, &input);
    let write = write(scope, after.clone());
    let refusal = refused_creation(scope.context.failure).filter(|_| creation.is_some());
    if let Some(failure) = refusal {
        let text = format!("Failed to create new machine set: {}", failure.message);
        plan.event(Event::warning(reference(scope.deployment), events::MACHINE_SET_CREATE_ERROR, text));
    }
    if creation.is_some() && refusal.is_none() {
        // The status reports the creation only after it has succeeded.
        plan.stage(creation);
        plan.append(write.plan());
    } else {
        // By `observedGeneration` the sets know that they have their sizes. After a failure the status is written in any case: it
        // reports a refused creation before the next attempt.
        if scope.context.failure.is_none() {
            plan.append(write.plan());
        } else {
            write.add_to(&mut plan);
        }
        plan.stage(creation);
    }
    plan.append(wait_for_progress(scope, &after));
    let given_up = snapshot.old().filter_map(given_up_at).filter(|at| *at > scope.context.now).min();
    plan.wake = plan.wake.into_iter().chain(given_up).chain(stalls::next(scope)).min();
    add_history(plan, scope, &after)
}

/// How long a rollout lasts before it deletes a Machine, so that a change which is taken back at once costs none.
const SETTLING: SignedDuration = SignedDuration::from_secs(5);

/// The wait of a young rollout. A process that starts amid a rollout waits again.
fn settling(scope: &Scope<'_>, mode: RolloutMode) -> Plan {
    let mut plan = Plan::idle();
    plan.notes = Notes::Clear;
    if !mode.rolls || scope.snapshot.old().all(|view| view.size().at_most() == 0) {
        return plan;
    }
    let note = Note::RollingOut(template::hash(&scope.deployment.spec.template, 0));
    let since = scope.context.noted_since(&note).unwrap_or(scope.context.now);
    plan.notes = Notes::Replace(vec![note]);
    let until = since.saturating_add(SETTLING).unwrap_or(scope.context.now);
    if until > scope.context.now {
        plan.wait_until(
            until,
            "RolloutSettling",
            "machines of former templates stay until the template has lasted a while",
        );
    }
    plan
}

/// A wait for help, with an event unless the condition already says the same.
fn stall(scope: &Scope<'_>, reason: &'static str, event: &'static str, text: &str) -> Plan {
    let mut plan = Plan::idle();
    let known = scope.deployment.condition(conditions::machine_deployment::STALLED);
    if known.is_none_or(|known| known.reason != reason) {
        plan.event(Event::warning(reference(scope.deployment), event, text));
    }
    plan.wait(reason, text);
    plan
}

fn stalled(scope: &Scope<'_>, event: &'static str, (reason, text): (&'static str, String)) -> Plan {
    let mut plan = stall(scope, reason, event, &text);
    let input = StatusInput { stalled: Some((reason, text)), ..StatusInput::default() };
    write(scope, status(scope, &input)).add_to(&mut plan);
    plan
}

fn unreadable_set(snapshot: &Snapshot) -> Option<(&'static str, String)> {
    let set = snapshot.unreadable.first()?;
    let text = format!("{}; until then no machine set is created, scaled or deleted", set.describe::<MachineSet>());
    Some((unreadable::MACHINE_SET, text))
}

/// Why a set whose ledger cannot be read is not deleted: without the ledger a retired name could be used again.
fn invalid_ledger(snapshot: &Snapshot) -> Option<(&'static str, String)> {
    let fault = |view: &SetView| {
        let error = annotation(view.set.as_ref(), annotations::LEDGER)?.parse::<Ledger>().err()?;
        Some(format!(
            "machine set {} cannot go: annotation {}: {error}; restore the annotation, or delete the \
            machines of the set and remove the annotation",
            name(view.set.as_ref()),
            annotations::LEDGER
        ))
    };
    snapshot.sets.iter().find_map(fault).map(|text| (unreadable::LEDGER, text))
}

/// Whether the selector no longer matches a set.
fn is_strayed(snapshot: &Snapshot, view: &SetView) -> bool {
    let selector = snapshot.deployment.spec.selector.as_ref();
    !is_deleting(view.set.as_ref()) && !matches(selector, view.set.metadata.labels.as_ref())
}

/// The snapshot without sets that the selector no longer matches: nothing is decided about them, and they keep their Machines.
fn without_released(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    if !snapshot.sets.iter().any(|view| is_strayed(snapshot, view)) {
        return Cow::Borrowed(snapshot);
    }
    let sets = snapshot.sets.iter().filter(|view| !is_strayed(snapshot, view)).cloned().collect();
    Cow::Owned(Snapshot { sets, ..snapshot.clone() })
}

/// Removes the owner from sets that the selector no longer matches: they keep their Machines.
fn releases(scope: &Scope<'_>) -> Plan {
    let (deployment, snapshot) = (scope.deployment, scope.snapshot);
    let mut plan = Plan::idle();
    for view in snapshot.sets.iter().filter(|view| is_strayed(snapshot, view)) {
        let step = Step::edit(CONTROL, view.set.as_ref(), release(&view.set.metadata, uid(deployment)));
        plan.beside("the selector no longer matches the machine set", step);
        let text =
            format!("Released machine set {}, whose labels the selector no longer matches", name(view.set.as_ref()));
        plan.event(Event::normal(reference(deployment), events::RELEASED, text));
    }
    plan
}

/// Adopts sets without an owner. The deployment has its finalizer, so it still exists.
fn adoptions(scope: &Scope<'_>) -> Vec<Planned<Never>> {
    let adopt = |set: &Arc<MachineSet>| {
        let part = SetPart::extract(set).adopted_by(scope.deployment);
        let step = Step::apply_if_unchanged(CONTROL, set.as_ref(), &part)?;
        Some(Planned { why: "the selector matches a machine set without an owner".into(), step })
    };
    scope.snapshot.orphans.iter().filter_map(adopt).collect()
}

fn set_change(scope: &Scope<'_>, target: &Target<'_>) -> Option<Planned<Never>> {
    let (set, snapshot) = (target.view.set.as_ref(), scope.snapshot);
    let mut part = SetPart::extract(set);
    if snapshot.current().is_some_and(|current| uid(current.set.as_ref()) == uid(set)) {
        part.follow(scope.deployment, next_revision(snapshot.old()));
    }
    if target.noted {
        part.resize(target.replicas, scope.goal, scope.deployment);
    }
    let step = Step::apply_if_unchanged(CONTROL, set, &part)?;
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

/// The set with the name of the new one; whether one that is being deleted and has no owner is gone, the API server will say.
fn obstacle<'a>(scope: &Scope<'a>) -> Option<&'a MachineSet> {
    let is_taken = is_name_taken(scope.context.failure);
    let namesake = scope.snapshot.namesake.as_deref();
    namesake.filter(|set| !is_deleting(*set) || controller_uid(*set).is_some() || is_taken)
}

fn is_name_taken(failure: Option<&Failure>) -> bool {
    failure.is_some_and(|failure| failure.class == FailureClass::AlreadyExists && failure.creates::<MachineSet>())
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
        let step = Step::apply(CONTROL, deployment, &RevisionPart::of(&current.set));
        plan.beside("the revision is that of the present set", step);
    }
    plan
}

/// The empty sets beyond the number that is kept for rollbacks, oldest first, once no other change is in progress.
fn surplus_revisions<'a>(scope: &Scope<'a>, after: &MachineDeploymentStatus) -> Vec<&'a SetView> {
    let (snapshot, spec) = (scope.snapshot, &scope.deployment.spec);
    let is_quiet = is_complete(scope.goal.desired, after) || spec.paused;
    let limit = spec.revision_history_limit.filter(|_| is_quiet && snapshot.current().is_some());
    let Some(limit) = limit else { return vec![] };
    let old: Vec<_> = snapshot.old().collect();
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    let is_empty = |view: &&SetView| view.size().at_most() == 0 && view.size().observed;
    old.into_iter().take(surplus).filter(is_empty).collect()
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
            // No object changes when the API server of the target cluster is lost or found, and the message tells of that.
            Some(_) => plan.wait(reason, reconciling.message.clone()).wake_at(after_a_minute(scope.context.now)),
            None => plan.wait(reason, reconciling.message.clone()),
        };
    }
    let deadline = deadline(&scope.deployment.spec, find(conditions::machine_deployment::PROGRESSING));
    // Times on the wire have whole seconds: a second later the deadline has certainly passed.
    let passed = deadline.and_then(|at| at.checked_add(SignedDuration::from_secs(1)).ok());
    plan.wake = plan.wake.into_iter().chain(passed).min();
    plan
}
