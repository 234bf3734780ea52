//! What a MachineSet does for its Machines: the first of these that applies.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineSet, finalizers, labels, selector, stored::LEDGER};
use nodewright_runtime::{
    object::{has_finalizer, is_deleting, label, name, uid},
    plan::{Failure, StepVerb},
};

use super::{
    ceiling::{Ceiling, ceiling},
    memory::{Context, Note},
    overshoot::{self, Freezing},
    preservation::{self, AutoPreservation},
    removal::{Removal, deletion_candidates, next_expiry, removal},
    retired,
    snapshot::{BATCH, Members, Snapshot, is_ahead, is_consistent},
    status::invalid_ledger_text,
    template::taken,
};
use crate::shared::{
    creation_backoff::CreationBackoff,
    ledger::{Ledger, Ordinal},
    membership::{ORPHAN_FINALIZER, is_sized},
};

/// What the ledger permits. Without it a retired name could be used again.
#[derive(Debug)]
pub(super) enum Names {
    /// The set has to outlive its Machines.
    AddFinalizer,
    /// The set has no ledger yet.
    Seed(Ledger),
    /// The ledger cannot be read, or has no name left.
    Invalid,
    Known(Ledger),
}

pub(super) fn names(snapshot: &Snapshot) -> Names {
    let set = snapshot.set.as_ref();
    if !is_deleting(set) && !has_finalizer(set, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return Names::AddFinalizer;
    }
    let has_machines = !snapshot.machines.is_empty() || !snapshot.unreadable.is_empty();
    match LEDGER.read(set) {
        Some(Ok(ledger)) if invalid_ledger_text(set).is_none() => Names::Known(ledger),
        Some(_) => Names::Invalid,
        None if is_deleting(set) && !has_machines => Names::Known(Ledger::seeded(uid(set))),
        None => Names::Seed(Ledger::seeded(uid(set))),
    }
}

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// The garbage collector removes the owner from the Machines of a set that is being deleted.
    AwaitOrphaning,
    /// The Machines of a set that is being deleted go first.
    RemoveAll(Removal<'a>),
    /// Machines that cannot be read may belong to a set that is being deleted.
    AwaitUnreadable,
    /// No Machine of a set that is being deleted is left.
    RemoveFinalizer,
    Reconcile(Reconciliation<'a>),
}

#[derive(Debug)]
pub(super) struct Reconciliation<'a> {
    /// Why the spec is invalid: then at most Machines go whose names are retired.
    pub(super) invalid: Option<String>,
    /// The deployment is yet to size the set for its present spec.
    pub(super) size: Option<SizeAwaited>,
    /// Failed Machines that are preserved from now on, and those that are no longer: before anything else.
    pub(super) preservation: AutoPreservation<'a>,
    pub(super) action: Option<Action<'a>>,
    /// Deletions and releases that the API server refuses are repeated beside everything else, so that one Machine does not block
    /// the others.
    pub(super) refused: Vec<Action<'a>>,
    /// Why Machines stay although the ledger retires them.
    pub(super) kept: Option<String>,
}

#[derive(Debug)]
pub(super) enum Action<'a> {
    Remove(Removal<'a>),
    /// The selector no longer matches these Machines.
    Release(Vec<&'a Arc<Machine>>),
    Freeze(Freezing),
    Fill(Fill),
}

/// How the set gets the Machines that it lacks.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) first: First,
    /// Why fewer Machines are created than the set lacks.
    pub(super) ceiling: Option<Ceiling>,
    /// How many Machines the set would adopt, if the API server did not refuse it.
    pub(super) refused_adoptions: usize,
    /// When time changes what is decided.
    pub(super) wake: Option<Timestamp>,
    /// Why Machines that fail to join are replaced later.
    pub(super) backoff: Option<String>,
}

#[derive(Debug)]
pub(super) enum First {
    /// So many Machines without an owner are adopted before any is created: after a restore they are the fleet.
    Adopt(usize),
    /// Foreign Machines have the names of these ordinals.
    Retire(Vec<Ordinal>),
    Create(Vec<Ordinal>),
    /// Machines are missing, and none is created: reason and message.
    Hold(&'static str, &'static str),
}

/// The replicas of the set may have been taken back: until they are confirmed, nothing is created, and no surplus is deleted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeAwaited {
    pub(super) generation: i64,
    pub(super) until: Timestamp,
}

pub(super) fn decide<'a>(context: &Context<'_>, members: &Members<'a>) -> Decision<'a> {
    let set = members.snapshot.set.as_ref();
    let (size, backoff) = (size_awaited(context, members.snapshot), members.backoff(context.now));
    if is_deleting(set) {
        return finalize(members, &backoff);
    }
    let is_awaited = size.is_some_and(|size| size.until > context.now);
    let invalid = invalid_spec(set);
    // Without a size, or with an invalid spec, no Machine is a surplus.
    let enough = if is_awaited || invalid.is_some() { usize::MAX } else { replicas(set) };
    let fleet = &members.snapshot.settings.fleet;
    let retired = retired::retired(context, members, enough, fleet);
    // One whose annotation is refused is deleted: it must not stay for good.
    let is_refused = is_denied(context.failure) && context.failure.is_some_and(Failure::is_refusal);
    let preserves = invalid.is_none() && !is_refused;
    let preservation = if preserves { preservation::evaluate(context, members) } else { AutoPreservation::default() };
    let candidates = match invalid {
        Some(_) => vec![],
        None => deletion_candidates(context, members, enough, &backoff, &preservation.begin),
    };
    let removes = !candidates.is_empty() || !retired.due.is_empty() || !members.leaving.is_empty();
    let removal = removes.then(|| removal(members, &retired.due, candidates, &backoff));
    let is_repeated = |removal: &Removal<'_>| removal.ledger == *members.ledger && is_denied(context.failure);
    let mut decided = Reconciliation { invalid, size, preservation, action: None, refused: vec![], kept: None };
    match removal.map(|removal| (is_repeated(&removal) && decided.invalid.is_none(), Action::Remove(removal))) {
        Some((true, remove)) => decided.refused.push(remove),
        Some((false, remove)) => decided.action = Some(remove),
        None => {}
    }
    if decided.invalid.is_some() || decided.action.is_some() {
        return Decision::Reconcile(decided);
    }
    decided.kept = if is_awaited { None } else { retired::text(members, &retired) };
    if !members.unselected.is_empty() {
        let release = Action::Release(members.unselected.iter().take(BATCH).copied().collect());
        if !is_denied(context.failure) {
            return Decision::Reconcile(Reconciliation { action: Some(release), ..decided });
        }
        decided.refused.push(release);
    }
    let freezing = if is_awaited { None } else { overshoot::evaluate(members, &fleet.overshoot) };
    let missing = if is_awaited { 0 } else { missing(members, &retired) };
    let fill = || Action::Fill(fill(context, members, missing, &backoff));
    Decision::Reconcile(Reconciliation { action: Some(freezing.map_or_else(fill, Action::Freeze)), ..decided })
}

fn finalize<'a>(members: &Members<'a>, backoff: &CreationBackoff<'_>) -> Decision<'a> {
    let snapshot = members.snapshot;
    if has_finalizer(snapshot.set.as_ref(), ORPHAN_FINALIZER) {
        Decision::AwaitOrphaning
    } else if !snapshot.machines.is_empty() {
        let all = members.staying.iter().chain(&members.unselected).copied().take(BATCH).collect();
        Decision::RemoveAll(removal(members, &members.retired, all, backoff))
    } else if snapshot.unreadable_members().next().is_some() {
        Decision::AwaitUnreadable
    } else {
        Decision::RemoveFinalizer
    }
}

fn invalid_spec(set: &MachineSet) -> Option<String> {
    if selector::is_empty(set.spec.selector.as_ref()) {
        return Some("spec.selector: Required value: without one the set would own every machine".to_owned());
    }
    if !is_consistent(set) {
        let text = "spec.template.metadata.labels: Invalid value: the selector must match them";
        return Some(text.to_owned());
    }
    let replicas = set.spec.replicas;
    (replicas < 0).then(|| format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"))
}

fn replicas(set: &MachineSet) -> usize {
    usize::try_from(set.spec.replicas).unwrap_or(0)
}

/// How long a set waits for its deployment to size it again. It ends the wait of a set whose deployment cannot write its status.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(10);

fn size_awaited(context: &Context<'_>, snapshot: &Snapshot) -> Option<SizeAwaited> {
    let deployment = snapshot.deployment.as_deref().filter(|deployment| is_ahead(deployment))?;
    let generation = deployment.metadata.generation.unwrap_or_default();
    let since = context.noted_since(&Note::SizeAwaited(generation)).unwrap_or(context.now);
    Some(SizeAwaited { generation, until: since.saturating_add(LONGEST_WAIT).unwrap_or(context.now) })
}

/// Whether the last plan failed because the API server refuses a deletion or a release. If it refuses both, each plan fails at one
/// of them.
fn is_denied(failure: Option<&Failure>) -> bool {
    let verbs = [StepVerb::Delete, StepVerb::Patch];
    failure.is_some_and(|failure| verbs.contains(&failure.verb) && failure.is_of::<Machine>() && !failure.is_passing())
}

/// How many Machines the set lacks. One that the ledger retires and that is needed is replaced before it goes.
fn missing(members: &Members<'_>, retired: &retired::Retired<'_>) -> usize {
    let present = members.staying.len() + members.unreadable;
    let missing = replicas(&members.snapshot.set).saturating_sub(present);
    if retired.kept.is_empty() { missing } else { missing.min(retired.room.saturating_sub(present)) }
}

fn fill(context: &Context<'_>, members: &Members<'_>, missing: usize, backoff: &CreationBackoff<'_>) -> Fill {
    let (snapshot, fleet) = (members.snapshot, &members.snapshot.settings.fleet);
    let ceiling = ceiling(snapshot, fleet, missing);
    let missing = ceiling.as_ref().map_or(missing, |ceiling| ceiling.room);
    let room = if is_sized(&snapshot.set) { BATCH } else { missing.min(BATCH) };
    let adoptions = room.min(snapshot.orphans.len());
    let is_refused = adoptions > 0 && is_adoption_denied(context.failure, snapshot);
    let adopts = adoptions > 0 && !is_refused;
    let first = if adopts { First::Adopt(adoptions) } else { ordinals(context, members, missing) };
    let ceiling = ceiling.filter(|_| !adopts);
    // Machines of other sets may go.
    let thawing = snapshot.set.is_frozen().then(|| context.now.saturating_add(fleet.overshoot.period).ok()).flatten();
    let wake = thawing.into_iter().chain(next_expiry(context, members, backoff)).min();
    let refused_adoptions = if is_refused { adoptions } else { 0 };
    Fill { first, ceiling, refused_adoptions, wake, backoff: backoff.report() }
}

fn ordinals(context: &Context<'_>, members: &Members<'_>, missing: usize) -> First {
    let next = members.next_ordinals(missing);
    let taken = taken(context, members, &next);
    if !taken.is_empty() {
        return First::Retire(taken);
    }
    creation_blocker(&members.snapshot.set)
        .filter(|_| !next.is_empty())
        .map_or(First::Create(next), |(reason, text)| First::Hold(reason, text))
}

/// Why the set creates no Machine, however many are missing.
fn creation_blocker(set: &MachineSet) -> Option<(&'static str, &'static str)> {
    if set.is_frozen() {
        return Some(("Frozen", "the set is frozen: no machine is created while there are too many"));
    }
    let is_disabled = label(set, labels::SCALE_UP_DISABLED).is_some();
    is_disabled.then_some(("ScaleUpDisabled", "machines are being moved to another set: none is created here"))
}

/// Whether the last plan failed because the API server refuses an adoption: the others of its stage have been made. A server that does
/// not answer, or is overloaded, refuses nothing: what may be adopted yet is not replaced.
fn is_adoption_denied(failure: Option<&Failure>, snapshot: &Snapshot) -> bool {
    let verbs = [StepVerb::Apply, StepVerb::Correct];
    let failure = failure.filter(|failure| verbs.contains(&failure.verb) && failure.is_of::<Machine>());
    let failure = failure.filter(|failure| failure.is_refusal());
    failure.is_some_and(|failure| snapshot.orphans.iter().any(|it| name(it.as_ref()) == &*failure.key.name))
}
