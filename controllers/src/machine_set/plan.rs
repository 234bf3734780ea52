//! The plan of a MachineSet: the steps of its decision.

use std::sync::Arc;

use jiff::SignedDuration;
use nodewright_api::{
    Machine, MachineSet, annotations, conditions, finalizers, reasons, reasons::events, reasons::unreadable,
};
use nodewright_runtime::{
    clip::few,
    effect::Never,
    events::Event,
    finalizers as finalizer,
    object::{name, uid},
    plan::{Failure, Notes, Planned, Step, StepVerb, reference},
};

use super::{
    decision::{Action, Decision, Fill, First, Names, Reconciliation, SizeAwaited, decide, names},
    memory::{Context, Note, Plan},
    notes::SetNotes,
    overshoot::Freezing,
    preservation::AutoPreservation,
    removal::Removal,
    snapshot::{Members, Snapshot},
    status::{invalid_ledger_text, unreadable_text, write},
    template::{adoptions, creations, updates},
    trace,
};
use crate::shared::{
    CONTROL,
    availability::Availability,
    freeze,
    ledger::{Ledger, Ordinal},
    membership::{is_sized, release},
    preservation::preserve_expiry,
    status_writer::StatusWrite,
};

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let set = snapshot.set.as_ref();
    let mut plan = Plan::idle();
    plan.traceparent = trace::asked(set);
    plan.extends_trace = !trace::is_settled(set);
    match names(snapshot) {
        Names::AddFinalizer => {
            let add = finalizer::add(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
            plan.then("the set has to outlive its machines", Step::edit(CONTROL, set, add));
            return plan;
        }
        Names::Seed(ledger) => {
            let ledger = SetNotes::of(set, &ledger);
            plan.then("the names of the machines are fixed", Step::apply_if_unchanged(CONTROL, set, ledger));
            return plan;
        }
        Names::Invalid => plan.append(failure(set, unreadable::LEDGER, invalid_ledger_text(set))),
        Names::Known(ledger) => plan.append(with_names(context, snapshot, &ledger)),
    }
    plan.events.extend(refusal(set, context.failure));
    // The status is written with the version that was read, so not in one plan with another write of the set.
    if plan.steps().any(|planned| writes(&planned.step, set)) {
        return status_between(context, snapshot, plan);
    }
    let rule = Availability::new(context.now, set.spec.min_ready_seconds, &snapshot.settings.fleet);
    plan.wake_at(rule.next(snapshot.machines.iter().map(AsRef::as_ref)));
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
        let (traceparent, extends_trace) = (writes.traceparent, writes.extends_trace);
        let mut plan = Plan { traceparent, extends_trace, notes: writes.notes, ..Plan::idle() };
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

fn with_names(context: &Context<'_>, snapshot: &Snapshot, ledger: &Ledger) -> Plan {
    let members = &Members::of(snapshot, ledger);
    let set = snapshot.set.as_ref();
    let mut plan = failure(set, unreadable::MACHINE, unreadable_text(snapshot));
    match decide(context, members) {
        Decision::AwaitOrphaning => {
            plan.wait("Orphaning", "the garbage collector takes the set's name off its machines, which stay");
        }
        Decision::RemoveAll(removal) => {
            let mut deletions = remove(context, members, &removal, "the set is being deleted");
            // Delete a Machine only if it has not changed: one that was released meanwhile must stay.
            deletions.pin_deletions();
            plan.append(deletions);
            plan.wait("MachinesLeaving", format!("{} machines are yet to be gone", snapshot.machines.len()));
        }
        Decision::AwaitUnreadable => {}
        Decision::RemoveFinalizer => {
            let remove = finalizer::remove(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
            plan.then("no machine is left", Step::edit(CONTROL, set, remove));
        }
        Decision::Reconcile(decided) => plan.append(reconcile(context, members, decided)),
    }
    plan
}

fn reconcile(context: &Context<'_>, members: &Members<'_>, decided: Reconciliation<'_>) -> Plan {
    let set = members.snapshot.set.as_ref();
    let mut plan = await_size(context, decided.size);
    if let Some(text) = decided.invalid {
        plan.wait(reasons::machine_set::INVALID_SPEC, text.clone());
        plan.event(Event::warning(reference(set), reasons::machine_set::INVALID_SPEC, text));
    }
    plan.stage(preservations(&decided.preservation));
    plan.append(failure(set, unreadable::LEDGER, decided.kept));
    if let Some(action) = decided.action {
        plan.append(act(context, members, action));
    }
    for refused in decided.refused {
        for planned in act(context, members, refused).stages.into_iter().flatten() {
            plan.beside(planned.why, planned.step);
        }
    }
    plan
}

/// Asks for the preservation of failed Machines, or takes that back. The Machine controller preserves them.
fn preservations(decided: &AutoPreservation<'_>) -> Vec<Planned<Never>> {
    let asked = |machine: &Arc<Machine>, value: Option<&str>, why: &'static str| {
        let patch = nodewright_runtime::annotations::set(&machine.metadata, annotations::PRESERVE, value);
        Planned::new(why, Step::edit(CONTROL, machine.as_ref(), patch))
    };
    let begin = decided.begin.iter().filter_map(|machine| {
        asked(machine, Some(annotations::PRESERVE_AUTO), "the machine has failed, and the set preserves some of these")
    });
    let end = decided.end.iter().filter_map(|machine| asked(machine, None, "the set preserves fewer failed machines"));
    begin.chain(end).collect()
}

fn await_size(context: &Context<'_>, size: Option<SizeAwaited>) -> Plan {
    let mut plan = Plan::idle();
    plan.notes = Notes::Clear;
    let Some(SizeAwaited { generation, until }) = size else { return plan };
    plan.notes = Notes::Replace(vec![Note::SizeAwaited(generation)]);
    if until > context.now {
        let text = format!("generation {generation} of the deployment may change the number of replicas");
        plan.wait_until(until, "SizeAwaited", text);
    }
    plan
}

fn act(context: &Context<'_>, members: &Members<'_>, action: Action<'_>) -> Plan {
    let set = members.snapshot.set.as_ref();
    match action {
        Action::Remove(removal) => {
            remove(context, members, &removal, "there are more machines than wanted, or it has failed")
        }
        Action::Release(machines) => releases(set, &machines),
        Action::Freeze(freezing) => freeze(set, freezing),
        Action::Fill(decided) => fill(context, members, decided),
    }
}

fn freeze(set: &MachineSet, freezing: Freezing) -> Plan {
    let mut plan = Plan::idle();
    match freezing {
        Freezing::Freeze(text) => {
            plan.then("there are too many machines", Step::edit(CONTROL, set, freeze::freeze(&set.metadata)));
            let text = format!("Froze machine set {}: {text}", name(set));
            plan.event(Event::warning(reference(set), events::FROZE_MACHINE_SET, text));
        }
        Freezing::Unfreeze => {
            let why = "there are no longer too many machines, or a user ends the freeze";
            plan.then(why, Step::edit(CONTROL, set, freeze::unfreeze(&set.metadata)));
            if set.is_frozen() {
                let text = format!("Unfroze machine set {}", name(set));
                plan.event(Event::normal(reference(set), events::UNFROZE_MACHINE_SET, text));
            }
        }
    }
    plan
}

/// How often a set that has reached a ceiling looks again.
const CEILING_RETRY: SignedDuration = SignedDuration::from_mins(1);

fn fill(context: &Context<'_>, members: &Members<'_>, decided: Fill) -> Plan {
    let set = members.snapshot.set.as_ref();
    let mut plan = match decided.first {
        First::Adopt(count) => adopt(members, count),
        First::Retire(taken) => {
            let ledger = SetNotes::of(set, &members.ledger.retire(taken));
            let mut plan = Plan::idle();
            plan.then("a name is held by a foreign machine", Step::apply_if_unchanged(CONTROL, set, ledger));
            plan
        }
        First::Create(ordinals) => keep(context, members, ordinals),
        First::Hold(reason, text) => {
            let mut plan = keep(context, members, vec![]);
            plan.wait(reason, text);
            plan
        }
    };
    if let Some(ceiling) = decided.ceiling {
        // Machines of other sets may go.
        let again = context.now.saturating_add(CEILING_RETRY).unwrap_or(context.now);
        plan.wait_until(again, ceiling.reason, ceiling.text);
    }
    if decided.refused_adoptions > 0 {
        // They are tried again after what the set can do without them.
        plan.append(adopt(members, decided.refused_adoptions));
    }
    plan.wake_at(decided.wake);
    if let Some(text) = decided.backoff {
        plan.wait(reasons::machine_set::CREATION_BACKOFF, text);
    }
    plan
}

fn adopt(members: &Members<'_>, count: usize) -> Plan {
    let mut plan = Plan::idle();
    // The cache may show Machines that a set has just orphaned (`--cascade=orphan`), and not yet that the set is being deleted. If
    // the set adopted them again, it would delete them in the end.
    let set = members.snapshot.set.as_ref();
    plan.then("a set that is being deleted adopts no machine", Step::confirm(CONTROL, set));
    plan.stage(adoptions(members, count));
    plan
}

/// Removes the owner from Machines that the selector no longer matches. Their names are retired when the cache shows them as
/// those of others.
fn releases(set: &MachineSet, machines: &[&Arc<Machine>]) -> Plan {
    let mut plan = Plan::idle();
    let release = |machine: &&Arc<Machine>| {
        let step = Step::edit(CONTROL, machine.as_ref(), release(&machine.metadata, uid(set)));
        Planned::new("the selector no longer matches the machine", step)
    };
    plan.stage(machines.iter().filter_map(release));
    let names = machines.iter().map(|machine| name(machine.as_ref()));
    plan.event(summary("Released", names).map(|text| Event::normal(reference(set), events::RELEASED, text)));
    plan
}

/// Retires with the set's version first, and deletes after that write.
fn remove(context: &Context<'_>, members: &Members<'_>, removal: &Removal<'_>, why: &'static str) -> Plan {
    let set = members.snapshot.set.as_ref();
    let decisions = trace::deletions(context, members, removal);
    let mut plan = Plan { spans: decisions.spans, ..Plan::idle() };
    let notes = SetNotes::of(set, &removal.ledger).beginning(removal.round);
    let retire = Step::apply_if_unchanged(CONTROL, set, notes);
    let deletions = removal
        .machines
        .iter()
        .map(|machine| Planned { why: why.into(), step: Step::delete(CONTROL, machine.as_ref()) });
    plan.then("a name is retired before its machine goes", retire);
    plan.stage(decisions.notes);
    plan.stage(deletions);
    let names = removal.machines.iter().map(|machine| name(machine.as_ref()));
    plan.event(summary("Deleted", names).map(|text| Event::normal(reference(set), events::SUCCESSFUL_DELETE, text)));
    let preserved = removal.machines.iter().filter(|it| preserve_expiry(it).is_some_and(|expiry| expiry > context.now));
    let preserved = summary("Deleted preserved", preserved.map(|machine| name(machine.as_ref())));
    plan.event(preserved.map(|text| Event::warning(reference(set), events::PRESERVED_MACHINE_DELETED, text)));
    plan
}

fn keep(context: &Context<'_>, members: &Members<'_>, ordinals: Vec<Ordinal>) -> Plan {
    let (snapshot, set) = (members.snapshot, members.snapshot.set.as_ref());
    let mut plan = Plan::idle();
    let mut steps = updates(members);
    let mut machines = creations(members, ordinals, context.now);
    plan.spans = trace::creations(context, members, &mut machines);
    let create = |machine: &Machine| Planned::new("a machine is missing", Step::create(CONTROL, machine));
    steps.extend(machines.iter().filter_map(create));
    let created = summary("Created", machines.iter().map(name));
    plan.event(created.map(|text| Event::normal(reference(set), events::SUCCESSFUL_CREATE, text)));
    // In one stage: a machine that cannot be changed does not keep others from being created.
    plan.stage(steps);
    let contested: Vec<_> = snapshot.contested.iter().map(|machine| name(machine.as_ref())).collect();
    if let Some(names) = listed(&contested) {
        let text = format!("machines are not adopted, because other machines name the same VMs: {names}");
        plan.wait(reasons::machine::PROVIDER_ID_NOT_UNIQUE, text.clone());
        plan.event(Event::warning(reference(set), reasons::machine::PROVIDER_ID_NOT_UNIQUE, text));
    }
    if !snapshot.orphans.is_empty() && !is_sized(set) {
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
    (!names.is_empty()).then(|| few(10, names.iter().copied()))
}
