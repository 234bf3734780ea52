//! The plan of a MachineSet, composed from the results of the other files.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    Machine, MachineSet, annotations, conditions, finalizers, reasons, reasons::unreadable, selector,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{annotation, has_finalizer, is_deleting, name, uid},
    plan::{Failure, Notes, Planned, Step, StepVerb, reference},
};

use super::{
    ceiling::{Ceiling, ceiling},
    memory::{Context, Note, Plan},
    notes::SetNotes,
    overshoot,
    removal::{Removal, next_expiry, removal, victims},
    retired,
    snapshot::{BATCH, Members, Snapshot, is_ahead, is_consistent},
    status::{invalid_ledger_text, unreadable_text, write},
    template::{adoptions, creations, taken, updates},
};
use crate::shared::{
    CONTROL,
    availability::Availability,
    fleet::FleetSettings,
    ledger::{Ledger, Ordinal},
    membership::{ORPHAN_FINALIZER, is_sized, release},
    status_writer::StatusWrite,
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let fleet = &snapshot.settings.fleet;
    let set = snapshot.set.as_ref();
    let mut plan = Plan::idle();
    plan.traceparent = TraceContext::from_annotation(set.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    if !is_deleting(set) && !has_finalizer(set, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("the set has to outlive its machines", Step::edit(CONTROL, set, add));
        return plan;
    }
    match annotation(set, annotations::LEDGER).map(str::parse::<Ledger>) {
        // No name is left: nothing is deleted that could not be replaced.
        Some(Ok(ledger)) if ledger.is_used_up() && !is_deleting(set) => {
            plan.append(failure(set, unreadable::LEDGER, invalid_ledger_text(set)));
        }
        Some(Ok(ledger)) => plan.append(reconcile(context, &Members::of(snapshot, &ledger), fleet)),
        // No action: without the ledger a retired name could be used again.
        Some(Err(_)) => plan.append(failure(set, unreadable::LEDGER, invalid_ledger_text(set))),
        None if snapshot.machines.is_empty() && snapshot.unreadable.is_empty() && is_deleting(set) => {
            let ledger = Ledger::seeded(uid(set));
            plan.append(reconcile(context, &Members::of(snapshot, &ledger), fleet));
        }
        None => {
            let ledger = SetNotes::of(set, &Ledger::seeded(uid(set)));
            plan.then("the names of the machines are fixed", Step::apply_if_unchanged(CONTROL, set, &ledger));
            return plan;
        }
    }
    plan.events.extend(refusal(set, context.failure));
    // The status is written with the version that was read, so not in one plan with another write of the set.
    if plan.steps().any(|planned| writes(&planned.step, set)) {
        return status_between(context, snapshot, plan);
    }
    let rule = Availability::new(context.now, set.spec.min_ready_seconds, fleet);
    plan.wake = plan.wake.into_iter().chain(rule.next(snapshot.machines.iter().map(AsRef::as_ref))).min();
    match write(context, snapshot) {
        // The status reports that a step was refused. It comes first: if that step is refused again, later steps are skipped.
        StatusWrite::Now(status) if context.failure.is_some() => plan.stages.insert(0, vec![*status]),
        other => other.add_to(&mut plan),
    }
    plan
}

/// How long each plan may write the set before its status comes first, once. A set that loses a thousand machines retires their
/// names for as long as that takes, and others read its numbers meanwhile.
const STATUS_WAITS: SignedDuration = SignedDuration::from_secs(5);

/// The status, if it has waited for other writes of the set for too long; else these.
fn status_between(context: &Context<'_>, snapshot: &Snapshot, mut writes: Plan) -> Plan {
    let since = context.noted_since(&Note::StatusDeferred).unwrap_or(context.now);
    if since.saturating_add(STATUS_WAITS).is_ok_and(|due| due <= context.now)
        && let StatusWrite::Now(status) = write(context, snapshot)
    {
        // Without the note of this wait.
        writes.notes.extend(Notes::Clear);
        let mut plan = Plan { traceparent: writes.traceparent, notes: writes.notes, ..Plan::idle() };
        plan.then(status.why, Some(status.step));
        return plan;
    }
    writes.notes.add(Note::StatusDeferred);
    writes
}

/// The last plan could not create or delete a Machine, and not because another writer was faster.
fn refusal(set: &MachineSet, failure: Option<&Failure>) -> Option<Event> {
    let failure = failure.filter(|failure| failure.is_of::<Machine>() && !failure.is_passing())?;
    let reason = match failure.verb {
        StepVerb::Create => reasons::events::FAILED_CREATE,
        StepVerb::Delete => reasons::events::FAILED_DELETE,
        _ => return None,
    };
    Some(Event::warning(reference(set), reason, failure.to_string()))
}

fn writes(step: &Step<Never>, set: &MachineSet) -> bool {
    match step {
        Step::Apply(apply) => apply.at.uid() == uid(set),
        Step::Edit { at, .. } => at.uid() == uid(set),
        _ => false,
    }
}

/// A wait for help, with an event unless the condition already says the same.
fn failure(set: &MachineSet, reason: &'static str, text: Option<String>) -> Plan {
    let mut plan = Plan::idle();
    let Some(text) = text else { return plan };
    let known = set.condition(conditions::machine_set::REPLICA_FAILURE);
    if known.is_none_or(|known| known.reason != reason || known.message != text) {
        plan.event(Event::warning(reference(set), reason, text.clone()));
    }
    plan.wait(reason, text);
    plan
}

fn reconcile(context: &Context<'_>, members: &Members<'_>, settings: &FleetSettings) -> Plan {
    let set = members.snapshot.set.as_ref();
    let mut plan = failure(set, unreadable::MACHINE, unreadable_text(members.snapshot));
    if is_deleting(set) {
        plan.append(finalize(members, context.now));
        return plan;
    }
    let invalid = invalid_spec(set);
    if let Some(text) = invalid.clone() {
        plan.wait(reasons::machine_set::INVALID_SPEC, text.clone());
        plan.event(Event::warning(reference(set), reasons::machine_set::INVALID_SPEC, text));
    }
    let snapshot = members.snapshot;
    let replicas = usize::try_from(set.spec.replicas).unwrap_or(0);
    let awaited = size_awaited(context, snapshot);
    let size_is_awaited = !awaited.waits.is_empty();
    plan.append(awaited);
    let enough = if size_is_awaited || invalid.is_some() { usize::MAX } else { replicas };
    let backoff = members.backoff(context.now);
    let retired = retired::retired(context, members, enough, settings);
    let victims = if invalid.is_some() { vec![] } else { victims(context, members, enough, settings, &backoff) };
    let mut denied = Plan::idle();
    if !victims.is_empty() || !retired.due.is_empty() || !members.leaving.is_empty() {
        let why = "there are more machines than wanted, or it has failed";
        let removal = removal(members, &retired.due, victims, &backoff);
        let is_repeated = removal.ledger == *members.ledger && is_denied(context.failure);
        let deletions = remove(set, &removal, why);
        if !is_repeated {
            plan.append(deletions);
            return plan;
        }
        denied = deletions;
    }
    if !size_is_awaited && invalid.is_none() {
        plan.append(failure(set, unreadable::LEDGER, retired::text(members, &retired)));
    }
    if invalid.is_some() {
        plan.append(denied);
        return plan;
    }
    if !members.unselected.is_empty() {
        let releases = releases(members);
        if !is_denied(context.failure) {
            plan.append(releases);
            return plan;
        }
        denied.append(releases);
    }
    let judged = if size_is_awaited { Plan::idle() } else { overshoot::judged(members, &settings.overshoot) };
    if !judged.is_idle() {
        plan.append(judged);
        return plan;
    }
    if set.is_frozen() {
        // Machines of other sets may go.
        plan.wake_at(context.now.saturating_add(settings.overshoot.period).unwrap_or(Timestamp::MAX));
    }
    let missing = replicas.saturating_sub(members.staying.len() + members.unreadable);
    let missing = if size_is_awaited { 0 } else { missing };
    // A machine that the ledger retires and that is needed is replaced before it goes.
    let room = retired.room.saturating_sub(members.staying.len() + members.unreadable);
    let missing = if retired.kept.is_empty() { missing } else { missing.min(room) };
    plan.append(fill(context, members, settings, missing));
    // Denied deletions and releases are repeated beside everything else, so that one machine does not hold up the others.
    for planned in denied.stages.into_iter().flatten() {
        plan.beside(planned.why, planned.step);
    }
    if let Some(expiry) = next_expiry(members, context.now, settings, &backoff) {
        plan.wake_at(expiry);
    }
    if let Some(text) = backoff.report() {
        plan.wait(reasons::machine_set::CREATION_BACKOFF, text);
    }
    plan
}

/// Adopts Machines without an owner, or creates the missing ones, as far as the ceilings allow.
fn fill(context: &Context<'_>, members: &Members<'_>, settings: &FleetSettings, missing: usize) -> Plan {
    let (snapshot, set) = (members.snapshot, members.snapshot.set.as_ref());
    let mut plan = Plan::idle();
    let ceiling = ceiling(snapshot, settings, missing);
    let missing = ceiling.as_ref().map_or(missing, |ceiling| ceiling.room);
    let room = if is_sized(set) { BATCH } else { missing.min(BATCH) };
    let mut adoption = Plan::idle();
    if room > 0 && !snapshot.orphans.is_empty() {
        // The cache may show Machines that a set has just orphaned (`--cascade=orphan`), and not yet that the set is being
        // deleted. If the set adopted them again, it would delete them in the end.
        adoption.then("a set that is being deleted adopts no machine", Step::confirm(CONTROL, set));
        adoption.stage(adoptions(members, room));
        if !is_adoption_denied(context.failure, snapshot) {
            return adoption;
        }
    }
    let next = members.next_ordinals(missing);
    let taken = taken(context, members, &next);
    if taken.is_empty() {
        plan.append(keep(members, next));
    } else {
        let ledger = SetNotes::of(set, &members.ledger.retire(taken));
        plan.then("a name is held by a foreign machine", Step::apply_if_unchanged(CONTROL, set, &ledger));
    }
    if let Some(Ceiling { reason, text, .. }) = ceiling {
        // Machines of other sets may go.
        plan.wait_until(context.now.saturating_add(CEILING_RETRY).unwrap_or(context.now), reason, text);
    }
    // One that was denied is tried again after what the set can do without it.
    plan.append(adoption);
    plan
}

/// Whether the last plan failed because the API server refuses an adoption: the others of its stage have been made.
fn is_adoption_denied(failure: Option<&Failure>, snapshot: &Snapshot) -> bool {
    let verbs = [StepVerb::Apply, StepVerb::Correct];
    let failure = failure.filter(|failure| verbs.contains(&failure.verb) && failure.is_of::<Machine>());
    let failure = failure.filter(|failure| !failure.is_passing());
    failure.is_some_and(|failure| snapshot.orphans.iter().any(|it| name(it.as_ref()) == &*failure.key.name))
}

/// How often a set that has reached a ceiling looks again.
const CEILING_RETRY: SignedDuration = SignedDuration::from_mins(1);

/// Whether the last plan failed because the API server refuses a deletion or a release. If it refuses both, each plan fails at one
/// of them.
fn is_denied(failure: Option<&Failure>) -> bool {
    let verbs = [StepVerb::Delete, StepVerb::Patch];
    failure.is_some_and(|failure| verbs.contains(&failure.verb) && failure.is_of::<Machine>() && !failure.is_passing())
}

/// Removes the owner from Machines that the selector no longer matches. Their names are retired when the cache shows them as
/// those of others.
fn releases(members: &Members<'_>) -> Plan {
    let set = members.snapshot.set.as_ref();
    let mut plan = Plan::idle();
    let release = |machine: &&Arc<Machine>| {
        let step = Step::edit(CONTROL, machine.as_ref(), release(&machine.metadata, uid(set)))?;
        Some(Planned { why: "the selector no longer matches the machine".into(), step })
    };
    plan.stage(members.unselected.iter().take(BATCH).filter_map(release));
    let names = members.unselected.iter().take(BATCH).map(|machine| name(machine.as_ref()));
    if let Some(text) = summary("Released", names) {
        plan.event(Event::normal(reference(set), reasons::events::RELEASED, text));
    }
    plan
}

/// How long a set waits for its deployment to size it again. It ends the wait of a set whose deployment cannot write its status.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(10);

/// The wait of a set whose deployment has a newer spec than the one that the set was sized for. Its replicas may have been taken
/// back: until they are confirmed, nothing is created, and no surplus is deleted.
fn size_awaited(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::idle();
    plan.notes = Notes::Clear;
    let Some(deployment) = snapshot.deployment.as_deref().filter(|deployment| is_ahead(deployment)) else {
        return plan;
    };
    let generation = deployment.metadata.generation.unwrap_or_default();
    let note = Note::SizeAwaited(generation);
    let since = context.noted_since(&note).unwrap_or(context.now);
    plan.notes = Notes::Replace(vec![note]);
    let until = since.saturating_add(LONGEST_WAIT).unwrap_or(context.now);
    if until > context.now {
        let text = format!("generation {generation} of the deployment may change the number of replicas");
        plan.wait_until(until, "SizeAwaited", text);
    }
    plan
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

fn finalize(members: &Members<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::idle();
    let (snapshot, set) = (members.snapshot, members.snapshot.set.as_ref());
    if has_finalizer(set, ORPHAN_FINALIZER) {
        plan.wait("Orphaning", "the garbage collector takes the set's name off its machines, which stay");
    } else if !snapshot.machines.is_empty() {
        let victims = members.staying.iter().chain(&members.unselected).copied().take(BATCH).collect();
        let backoff = members.backoff(now);
        plan = remove(set, &removal(members, &members.retired, victims, &backoff), "the set is being deleted");
        // Delete a Machine only if it has not changed: one that was released meanwhile must stay.
        plan.pin_deletions();
        plan.wait("MachinesLeaving", format!("{} machines are yet to be gone", snapshot.machines.len()));
    } else if snapshot.unreadable_members().next().is_none() {
        let remove = finalizer::remove(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("no machine is left", Step::edit(CONTROL, set, remove));
    }
    plan
}

/// Retires with the set's version first, and deletes after that write.
fn remove(set: &MachineSet, removal: &Removal<'_>, why: &'static str) -> Plan {
    let mut plan = Plan::idle();
    let notes = SetNotes::of(set, &removal.ledger).beginning(removal.round);
    let retire = Step::apply_if_unchanged(CONTROL, set, &notes);
    let deletions = removal
        .machines
        .iter()
        .map(|machine| Planned { why: why.into(), step: Step::delete(CONTROL, machine.as_ref()) });
    plan.then("a name is retired before its machine goes", retire);
    plan.stage(deletions);
    if let Some(text) = summary("Deleted", removal.machines.iter().map(|machine| name(machine.as_ref()))) {
        plan.event(Event::normal(reference(set), reasons::events::SUCCESSFUL_DELETE, text));
    }
    plan
}

fn keep(members: &Members<'_>, ordinals: Vec<Ordinal>) -> Plan {
    let (snapshot, set) = (members.snapshot, members.snapshot.set.as_ref());
    let mut plan = Plan::idle();
    let mut steps = updates(members);
    match creations(members, ordinals) {
        Err((reason, text)) => drop(plan.wait(reason, text)),
        Ok(machines) => {
            let create = |machine: &Machine| {
                Some(Planned { why: "a machine is missing".into(), step: Step::create(CONTROL, machine)? })
            };
            steps.extend(machines.iter().filter_map(create));
            if let Some(text) = summary("Created", machines.iter().map(name)) {
                plan.event(Event::normal(reference(set), reasons::events::SUCCESSFUL_CREATE, text));
            }
        }
    }
    // In one stage: a machine that cannot be changed does not keep others from being created.
    plan.stage(steps);
    let contested: Vec<_> = snapshot.contested.iter().map(|machine| name(machine.as_ref())).collect();
    if let Some(names) = listed(&contested) {
        let text = format!("machines are not adopted, because other machines name the same VMs: {names}");
        plan.wait(reasons::machine::PROVIDER_ID_NOT_UNIQUE, text.clone());
        plan.event(Event::warning(reference(set), reasons::machine::PROVIDER_ID_NOT_UNIQUE, text));
    }
    if !snapshot.orphans.is_empty() {
        let text = "machines without an owner that the set selects: its deployment has yet to give it its size";
        plan.wait("SurplusOrphans", format!("{} {text}", snapshot.orphans.len()));
    }
    plan
}

fn summary<'a>(verb: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    let noun = if names.len() == 1 { "machine" } else { "machines" };
    listed(&names).map(|names| format!("{verb} {noun} {names}"))
}

/// Ten names fit into the 1,024 bytes of a message, however long they are.
fn listed(names: &[&str]) -> Option<String> {
    let (first, more) = names.split_at(names.len().min(10));
    match (first.join(", "), more.len()) {
        (first, _) if first.is_empty() => None,
        (first, 0) => Some(first),
        (first, more) => Some(format!("{first} and {more} more")),
    }
}
