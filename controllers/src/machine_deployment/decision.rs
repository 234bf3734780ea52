//! What a MachineDeployment does next: the first of these that applies.

use std::{borrow::Cow, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    MachineDeployment, MachineSet, annotations,
    field::FieldError,
    finalizers,
    int_or_percent::ABOVE_ALL,
    reasons::{events, machine_deployment as reasons, unreadable},
    selector,
    stored::LEDGER,
    validation::Validate,
};
use nodewright_runtime::{
    object::{Kind, controller_uid, has_finalizer, is_deleting, name, uid},
    plan::{Failure, FailureClass, StepVerb},
};

use super::{
    memory::Note,
    mode::{RolloutMode, may_create},
    requests::{Marks, Rollback, marks, rollback},
    sets::{new_set, next_revision},
    sizes::{Target, targets},
    snapshot::{Scope, SetView, Snapshot},
    stalls::{self, Stall},
    updates::{self, Lists, Updates},
};
use crate::shared::{
    freeze,
    membership::{ORPHAN_FINALIZER, matches},
    pause, template,
};

/// How long a rollout lasts before it deletes a Machine, so that a change which is taken back at once costs none.
const SETTLING: SignedDuration = SignedDuration::from_secs(5);

#[derive(Debug)]
pub(super) enum Decision<'a> {
    AddFinalizer,
    /// The garbage collector removes the owner from the sets of a deployment that is being deleted.
    AwaitOrphaning,
    /// The sets of a deployment that is being deleted go first.
    DeleteSets(Option<Stall>),
    /// No set of a deployment that is being deleted is left.
    RemoveFinalizer,
    /// Nothing is done until a user has corrected something.
    Stall(Stall),
    /// A set was sized for this generation, which is newer than the one in the snapshot.
    ConfirmGeneration(i64),
    /// The sizes wait for the next plan.
    Prepare(Preparation<'a>),
    /// What the API server refuses is repeated after everything else.
    Change(Change<'a>, Vec<Preparation<'a>>),
}

/// What comes before the sizes of the sets.
#[derive(Debug)]
pub(super) enum Preparation<'a> {
    /// The selector no longer matches these sets, which keep their Machines.
    Release(Vec<&'a SetView>),
    /// The selector matches sets without an owner.
    Adopt(&'a [Arc<MachineSet>]),
    /// The cluster autoscaler names Machines: a set sees the marks before the smaller number of replicas.
    Mark(Marks<'a>),
    /// Machines were updated in place, and move to the set of their new template.
    Move(Updates<'a>),
}

#[derive(Debug)]
pub(super) enum Change<'a> {
    /// One of its sets is frozen: the deployment is, too.
    Freeze,
    /// None of its sets is frozen, or a user ends the freeze, also of these sets.
    Unfreeze(Vec<&'a MachineSet>),
    RollBack(Rollback<'a>),
    RollOut(Box<Rollout<'a>>),
}

/// The sizes of the sets, and which set is missing.
#[derive(Debug)]
pub(super) struct Rollout<'a> {
    /// The note of a rollout that may yet delete Machines, and until when it deletes none.
    pub(super) young: Option<(Note, Timestamp)>,
    pub(super) stalled: Option<Stall>,
    pub(super) targets: Vec<Target<'a>>,
    /// Which Machines are being updated in place.
    pub(super) lists: Lists,
    pub(super) creation: Creation<'a>,
}

/// The set of the present template.
#[derive(Debug)]
pub(super) enum Creation<'a> {
    /// It exists, or must not exist yet.
    None,
    Create(Box<MachineSet>),
    /// A set of the same name is being deleted.
    AwaitDeletion(&'a MachineSet),
    /// Another owner's set has the name. The number of collisions is part of the hash: the next plan uses another name.
    CountCollision,
}

/// Decides with all sets of the deployment, and with those alone that its selector matches ([`without_strayed`]).
pub(super) fn decide<'a>(scope: &Scope<'a>, own: &Scope<'a>) -> Decision<'a> {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    if deployment.is_deleting() {
        return finalize(snapshot);
    }
    if !has_finalizer(deployment, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return Decision::AddFinalizer;
    }
    if let Some(stall) = invalid_spec(deployment).or_else(|| unreadable_set(snapshot)) {
        return Decision::Stall(stall);
    }
    if let Some(newer) = snapshot.newer_generation() {
        return Decision::ConfirmGeneration(newer);
    }
    match prepare(scope, own) {
        Ok(refused) => Decision::Change(change(own), refused),
        Err(preparation) => Decision::Prepare(preparation),
    }
}

fn finalize<'a>(snapshot: &Snapshot) -> Decision<'a> {
    if has_finalizer(snapshot.deployment.as_ref(), ORPHAN_FINALIZER) {
        return Decision::AwaitOrphaning;
    }
    if snapshot.sets.is_empty() && snapshot.unreadable.is_empty() {
        return Decision::RemoveFinalizer;
    }
    Decision::DeleteSets(unreadable_set(snapshot).or_else(|| invalid_ledger(snapshot)))
}

/// The fields that must be valid for the controller to act: it ignores errors in others, as machine-controller-manager does.
const NEEDED: [&str; 5] =
    ["spec.replicas", "spec.selector", "spec.strategy", "spec.template.metadata.labels", "spec.template.spec.class"];

fn invalid_spec(deployment: &MachineDeployment) -> Option<Stall> {
    let is_needed = |error: &FieldError| NEEDED.iter().any(|field| error.path.as_str().starts_with(field));
    // More than all Machines was allowed in the past, and has a meaning.
    let errors = deployment.validate().into_iter().filter(is_needed).filter(|error| error.detail != ABOVE_ALL);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    let reason = reasons::INVALID_SPEC;
    let event = if selector::is_empty(deployment.spec.selector.as_ref()) { events::SELECTING_ALL } else { reason };
    (!errors.is_empty()).then(|| Stall { reason, event, text: errors.join("; ") })
}

fn unreadable_set(snapshot: &Snapshot) -> Option<Stall> {
    let set = snapshot.unreadable.first()?;
    let text = format!("{}; until then no machine set is created, scaled or deleted", set.describe::<MachineSet>());
    Some(Stall::new(unreadable::MACHINE_SET, text))
}

/// Why a set whose ledger cannot be read is not deleted: without the ledger a retired name could be used again.
fn invalid_ledger(snapshot: &Snapshot) -> Option<Stall> {
    let error = |view: &SetView| {
        let error = LEDGER.read(view.set.as_ref())?.err()?;
        Some(format!(
            "machine set {} cannot go: annotation {}: {error}; restore the annotation, or delete the \
            machines of the set and remove the annotation",
            name(view.set.as_ref()),
            annotations::LEDGER
        ))
    };
    snapshot.sets.iter().find_map(error).map(|text| Stall::new(unreadable::LEDGER, text))
}

/// The preparation that is due, or else those that the API server refuses.
fn prepare<'a>(scope: &Scope<'a>, own_scope: &Scope<'a>) -> Result<Vec<Preparation<'a>>, Preparation<'a>> {
    let (all, own, mut refused) = (scope.snapshot, own_scope.snapshot, vec![]);
    let strayed: Vec<_> = all.sets.iter().filter(|view| is_strayed(all, view)).collect();
    if !strayed.is_empty() {
        let is_refused = is_refused(scope, strayed.iter().map(|view| view.set.as_ref()));
        refused.push(Preparation::Release(strayed));
        if !is_refused {
            return refused.pop().map_or(Ok(vec![]), Err);
        }
    }
    if !own.orphans.is_empty() {
        let adopt = Preparation::Adopt(&own.orphans);
        let is_refused = is_refused(scope, own.orphans.iter().map(AsRef::as_ref));
        let is_refused = is_refused && scope.context.failure.is_some_and(Failure::is_refusal);
        // Without a set of the present template, another one would be made beside all Machines of the refused one. The Machines of a set
        // that may be adopted yet are not replaced.
        if own.current().is_none() || !is_refused {
            return Err(adopt);
        }
        refused.push(adopt);
    }
    let marks = marks(scope.context.now, own);
    if !marks.is_empty() {
        // A set that shrinks without a mark would delete another Machine than the one that was chosen.
        let shrinks = own.staying().map(|view| view.size().replicas).sum::<i64>() > scope.goal.desired;
        if shrinks || !is_refused(scope, own.machines().map(AsRef::as_ref)) {
            return Err(Preparation::Mark(marks));
        }
        refused.push(Preparation::Mark(marks));
    }
    let updates = Updates::of(own_scope);
    if !updates.is_empty() {
        if !is_refused(scope, updates.machines()) {
            return Err(Preparation::Move(updates));
        }
        refused.push(Preparation::Move(updates));
    }
    Ok(refused)
}

/// Whether the last plan failed because the API server refuses to change one of these objects.
fn is_refused<'a, K: Kind>(scope: &Scope<'_>, mut objects: impl Iterator<Item = &'a K>) -> bool {
    let verbs = [StepVerb::Patch, StepVerb::Apply];
    let failure = scope.context.failure.filter(|failure| failure.is_of::<K>() && !failure.is_passing());
    let failure = failure.filter(|failure| verbs.contains(&failure.verb));
    failure.is_some_and(|failure| objects.any(|object| name(object) == &*failure.key.name))
}

/// Whether the selector no longer matches a set.
fn is_strayed(snapshot: &Snapshot, view: &SetView) -> bool {
    let selector = snapshot.deployment.spec.selector.as_ref();
    !is_deleting(view.set.as_ref()) && !matches(selector, view.set.metadata.labels.as_ref())
}

/// The snapshot without sets that the selector no longer matches: nothing is decided about them, and they keep their Machines.
pub(super) fn without_strayed(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    if !snapshot.sets.iter().any(|view| is_strayed(snapshot, view)) {
        return Cow::Borrowed(snapshot);
    }
    let sets = snapshot.sets.iter().filter(|view| !is_strayed(snapshot, view)).cloned().collect();
    Cow::Owned(Snapshot { sets, ..snapshot.clone() })
}

fn change<'a>(scope: &Scope<'a>) -> Change<'a> {
    let rollback = || rollback(scope.snapshot).filter(|_| pause::permits_rollout(scope.deployment));
    freezing(scope)
        .or_else(|| rollback().map(Change::RollBack))
        .unwrap_or_else(|| Change::RollOut(Box::new(roll_out(scope))))
}

/// The deployment is frozen while one of its sets is. A user ends the freeze of all of them with one annotation, once.
fn freezing<'a>(scope: &Scope<'a>) -> Option<Change<'a>> {
    let meta = &scope.deployment.metadata;
    let sets = scope.snapshot.sets.iter().map(|view| view.set.as_ref());
    let frozen: Vec<_> = sets.filter(|set| set.is_frozen() && !freeze::is_unfreeze_wanted(&set.metadata)).collect();
    if freeze::is_unfreeze_wanted(meta) {
        Some(Change::Unfreeze(frozen))
    } else if frozen.is_empty() {
        (!freeze::unfreeze(meta).0.is_empty()).then(|| Change::Unfreeze(vec![]))
    } else {
        (!freeze::freeze(meta).0.is_empty()).then_some(Change::Freeze)
    }
}

fn roll_out<'a>(scope: &Scope<'a>) -> Rollout<'a> {
    let mut mode = RolloutMode::of(scope.snapshot);
    let young = young(scope, mode);
    mode.settles = young.as_ref().is_some_and(|(_, until)| *until > scope.context.now);
    let stalled = stalls::stalled(scope);
    let targets = targets(scope, mode);
    let replicas = targets.iter().find(|target| scope.snapshot.is_current(&target.view.set));
    let lists = updates::lists(scope, mode, replicas.map_or(0, |target| target.replicas));
    Rollout { young, stalled, targets, lists, creation: creation(scope, mode) }
}

/// A rollout that may delete Machines, and when it begins to. A process that starts amid a rollout waits again.
fn young(scope: &Scope<'_>, mode: RolloutMode) -> Option<(Note, Timestamp)> {
    let is_rolling = mode.rolls && scope.snapshot.old().any(|view| view.size().at_most() > 0);
    let note = is_rolling.then(|| Note::RollingOut(template::hash(&scope.deployment.spec.template, 0)))?;
    let since = scope.context.noted_since(&note).unwrap_or(scope.context.now);
    Some((note, since.saturating_add(SETTLING).unwrap_or(scope.context.now)))
}

fn creation<'a>(scope: &Scope<'a>, mode: RolloutMode) -> Creation<'a> {
    let (snapshot, deployment) = (scope.snapshot, scope.deployment);
    if snapshot.current().is_some() || !may_create(snapshot, mode) {
        return Creation::None;
    }
    match namesake(scope) {
        None => Creation::Create(Box::new(new_set(deployment, next_revision(snapshot.old())))),
        Some(set) if is_deleting(set) && controller_uid(set) == Some(uid(deployment)) => Creation::AwaitDeletion(set),
        Some(_) => Creation::CountCollision,
    }
}

/// The set with the name of the new one; whether one that is being deleted and has no owner is gone, the API server will say.
fn namesake<'a>(scope: &Scope<'a>) -> Option<&'a MachineSet> {
    let is_taken = is_name_taken(scope.context.failure);
    let namesake = scope.snapshot.namesake.as_deref();
    namesake.filter(|set| !is_deleting(*set) || controller_uid(*set).is_some() || is_taken)
}

fn is_name_taken(failure: Option<&Failure>) -> bool {
    failure.is_some_and(|failure| failure.class == FailureClass::AlreadyExists && failure.creates::<MachineSet>())
}
