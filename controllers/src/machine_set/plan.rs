//! What a MachineSet decides.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{
    ConditionStatus, Machine, MachinePhase, MachineSet, MachineSetStatus, MachineSpec, NodeTemplate, annotations,
    conditions, finalizers, labels,
    reasons::{self, unreadable},
    selector,
};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    effect::Never,
    events::{Event, EventKind},
    finalizers as finalizer,
    object::{annotation, has_finalizer, is_deleting, label, name, uid},
    plan::{FailureClass, Moment, Plan, Planned, Step, reference},
};

use super::{
    World,
    deletion_order::{self, ByAge, marked},
    owned::MachinePart,
    status::{invalid_ledger_text, status, unreadable_text},
};
use crate::shared::clusters::CONTROL;
use crate::shared::{
    ledger::{Index, Ledger, LedgerPart},
    membership::{ORPHAN_FINALIZER, is_sized},
    pacing,
};

/// How many Machines one plan creates or deletes at most; then it looks again whether that is still what is wanted.
const BATCH: usize = 100;

pub(super) fn plan(at: &Moment<'_, Never>, world: &World, full_schema: bool) -> Plan<Never> {
    let mut plan = Plan::idle();
    let set = world.set.as_ref();
    plan.traceparent = TraceContext::from_annotation(set.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    if !is_deleting(set) && !has_finalizer(set, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("the set has to outlive its machines", Step::edit(CONTROL, set, add));
        return plan;
    }
    let ledger = match annotation(set, annotations::LEDGER).map(str::parse::<Ledger>) {
        Some(Ok(ledger)) => ledger,
        // Names that have had their life may be in it: guessing would give one of them a second one.
        Some(Err(_)) => {
            tell_invalid_ledger(&mut plan, set);
            tell(&mut plan, at, world, full_schema);
            return plan;
        }
        None if world.machines.is_empty() && world.unreadable.is_empty() && is_deleting(set) => {
            Ledger::seeded(uid(set))
        }
        None => {
            let ledger = LedgerPart::of(&Ledger::seeded(uid(set)));
            plan.then("the names of the machines are fixed", Step::apply_pinned(CONTROL, set, &ledger));
            return plan;
        }
    };
    let members = Members::of(world, &ledger);
    tell_unreadable(&mut plan, world);
    if is_deleting(set) {
        end(&mut plan, world, &members, &ledger);
    } else {
        keep(&mut plan, at, world, &members, &ledger);
    }
    tell(&mut plan, at, world, full_schema);
    plan
}

/// Says that nothing is done while the ledger cannot be read.
fn tell_invalid_ledger(plan: &mut Plan<Never>, set: &MachineSet) {
    if let Some(text) = invalid_ledger_text(set) {
        tell_failure(plan, set, unreadable::LEDGER, text);
    }
}

/// Names the Machines that may be the set's and cannot be read: they count, and nothing is done in their place.
fn tell_unreadable(plan: &mut Plan<Never>, world: &World) {
    if let Some(text) = unreadable_text(world) {
        tell_failure(plan, &world.set, unreadable::MACHINE, text);
    }
}

/// Waits, and says why in an event unless the condition says so already.
fn tell_failure(plan: &mut Plan<Never>, set: &MachineSet, reason: &'static str, text: String) {
    plan.wait(reason, text.clone());
    let known = set.condition(conditions::machine_set::REPLICA_FAILURE);
    if known.is_none_or(|known| known.reason != reason || known.message != text) {
        plan.event(warning(set, reason, text));
    }
}

/// The Machines of a set, by what the ledger says of them.
struct Members<'a> {
    /// Neither deleting nor retired: these count as replicas.
    staying: Vec<&'a Arc<Machine>>,
    /// Retired, and yet to be deleted.
    doomed: Vec<&'a Arc<Machine>>,
    /// Indices of Machines whose deletion somebody else began.
    leaving: Vec<Index>,
    /// Indices in use.
    seen: BTreeSet<Index>,
    /// How many Machines may be the set's and stay, but cannot be read. They count where Machines are missing, and do not
    /// where there are too many.
    unreadable: usize,
}

impl<'a> Members<'a> {
    fn of(world: &'a World, ledger: &Ledger) -> Self {
        let unreadable = world.unreadable_members().filter(|machine| !machine.is_deleting()).count();
        let mut members = Self { staying: vec![], doomed: vec![], leaving: vec![], seen: BTreeSet::new(), unreadable };
        for machine in &world.machines {
            let index = index(world, ledger, machine);
            members.seen.extend(index);
            let retired = match index {
                Some(index) => ledger.is_retired(index),
                None => ledger.is_noted(name(machine.as_ref())),
            };
            match (is_deleting(machine.as_ref()), retired) {
                (true, true) => {}
                (true, false) => members.leaving.extend(index),
                (false, true) => members.doomed.push(machine),
                (false, false) => members.staying.push(machine),
            }
        }
        members
    }
}

impl Members<'_> {
    /// The same, with the indices as seen whose names unreadable Machines have: whosever they are, the names are in use.
    fn without_unreadable_names(&self, world: &World, ledger: &Ledger, missing: usize) -> Self {
        let mut members = Self {
            staying: self.staying.clone(),
            doomed: self.doomed.clone(),
            leaving: self.leaving.clone(),
            seen: self.seen.clone(),
            unreadable: self.unreadable,
        };
        let names: BTreeSet<&str> = world.unreadable.iter().map(|machine| machine.name()).collect();
        loop {
            let wanted = ledger.lowest_free(&members.seen, missing.min(BATCH));
            let set = name(world.set.as_ref());
            let held: Vec<_> =
                wanted.into_iter().filter(|index| names.contains(ledger.name(set, *index).as_str())).collect();
            if held.is_empty() {
                return members;
            }
            members.seen.extend(held);
        }
    }
}

fn index(world: &World, ledger: &Ledger, machine: &Machine) -> Option<Index> {
    ledger.index(name(world.set.as_ref()), name(machine), annotation(machine, annotations::INDEX))
}

/// A set that is being deleted: all Machines go, then the finalizer.
fn end(plan: &mut Plan<Never>, world: &World, members: &Members<'_>, ledger: &Ledger) {
    let set = world.set.as_ref();
    if has_finalizer(set, ORPHAN_FINALIZER) {
        plan.wait("Orphaning", "the garbage collector takes the set's name off its machines, which stay");
        return;
    }
    if world.machines.is_empty() && world.unreadable_members().next().is_some() {
        return;
    }
    if world.machines.is_empty() {
        let remove = finalizer::remove(&set.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("no machine is left", remove.and_then(|remove| Step::edit(CONTROL, set, remove)));
        return;
    }
    let victims: Vec<_> = members.staying.iter().copied().take(BATCH).collect();
    remove(plan, world, members, ledger, &victims, "the set is being deleted");
    // A machine that was released just now must not go: only what is still as it was seen.
    plan.pin_deletions();
    plan.wait("MachinesLeaving", format!("{} machines are yet to be gone", world.machines.len()));
}

/// A set that stays: as many Machines as it says.
fn keep(plan: &mut Plan<Never>, at: &Moment<'_, Never>, world: &World, members: &Members<'_>, ledger: &Ledger) {
    let set = world.set.as_ref();
    let invalid = fault(set);
    if let Some(fault) = &invalid {
        plan.wait(reasons::machine_set::INVALID_SPEC, fault.clone());
        plan.event(warning(set, reasons::machine_set::INVALID_SPEC, fault.clone()));
    }
    let replicas = usize::try_from(set.spec.replicas).unwrap_or(0);
    let victims = if invalid.is_none() { victims(at, set, members, replicas) } else { vec![] };
    if !victims.is_empty() || !members.doomed.is_empty() || !members.leaving.is_empty() {
        remove(plan, world, members, ledger, &victims, "there are more machines than wanted, or it has failed");
        return;
    }
    if invalid.is_some() {
        return;
    }
    let missing = replicas.saturating_sub(members.staying.len() + members.unreadable);
    let members = &members.without_unreadable_names(world, ledger, missing);
    let room = if is_sized(set) { BATCH } else { missing.min(BATCH) };
    if room > 0 && !world.orphans.is_empty() {
        adopt(plan, world, ledger, room);
        return;
    }
    wake_for_preserved(plan, at, members);
    let taken = taken_names(at, world, ledger, members, missing);
    if !taken.is_empty() {
        let ledger = LedgerPart::of(&ledger.retire(taken));
        plan.then("a name is held by a foreign machine", Step::apply_pinned(CONTROL, set, &ledger));
        return;
    }
    propagate(plan, world, members, ledger);
    fill(plan, set, members, ledger, missing);
    if let Some(names) = listed(world.contested.iter().map(|machine| name(machine.as_ref()))) {
        let message = format!("machines are not adopted, because other machines name the same VMs: {names}");
        plan.wait(reasons::machine::PROVIDER_ID_NOT_UNIQUE, message.clone());
        plan.event(warning(set, reasons::machine::PROVIDER_ID_NOT_UNIQUE, message));
    }
    if !world.orphans.is_empty() {
        let message = "machines without an owner that the set selects: its deployment has yet to give it its size";
        plan.wait("SurplusOrphans", format!("{} {message}", world.orphans.len()));
    }
}

/// What keeps a set from being acted on.
fn fault(set: &MachineSet) -> Option<String> {
    if selector::is_empty(set.spec.selector.as_ref()) {
        return Some("spec.selector: Required value: without one the set would own every machine".to_owned());
    }
    let replicas = set.spec.replicas;
    (replicas < 0).then(|| format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0"))
}

/// Takes Machines that nobody owns, before any is created: after a restore they are the fleet. Those that are too many are
/// taken as well, and deleted then; but not by a set that has yet to be given its size.
///
/// The cache may show Machines that a set has just left behind (`--cascade=orphan`), and not yet that it goes. One that
/// took them back would delete them in the end: so it is asked whether it stays.
fn adopt(plan: &mut Plan<Never>, world: &World, ledger: &Ledger, count: usize) {
    let set = world.set.as_ref();
    plan.then("a set that is being deleted takes nobody", Step::confirm(CONTROL, set));
    plan.stage(world.orphans.iter().take(count).filter_map(|machine| {
        let part = MachinePart::of(set, index(world, ledger, machine)).adopting(machine);
        let step = Step::apply_pinned(CONTROL, machine.as_ref(), &part)?;
        Some(Planned { why: "nobody owns the machine, and the set selects it".into(), step })
    }));
}

/// A failed Machine that is preserved is replaced when its time is over.
fn wake_for_preserved(plan: &mut Plan<Never>, at: &Moment<'_, Never>, members: &Members<'_>) {
    let expiry =
        |machine: &Machine| machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref().map(|at| at.0);
    let failed = members.staying.iter().filter(|machine| is_failed(machine));
    for expiry in failed.filter_map(|machine| expiry(machine)).filter(|expiry| *expiry > at.now) {
        plan.wake_at(expiry);
    }
}

/// Who has to go: those that failed, those that the autoscaler chose, and of the others the surplus in deletion order.
/// The surplus is counted without the former: they go whatever their place in that order is, and nobody goes beside them
/// in their stead.
fn victims<'a>(
    at: &Moment<'_, Never>,
    set: &MachineSet,
    members: &Members<'a>,
    replicas: usize,
) -> Vec<&'a Arc<Machine>> {
    let mut staying: Vec<&'a Arc<Machine>> = members.staying.clone();
    deletion_order::sort(&mut staying, ByAge::parse(annotation(set, annotations::DELETION_ORDER)));
    let goes = |machine: &Machine| is_chosen(set, machine) || (is_failed(machine) && !is_preserved(at, machine));
    let (mut victims, others): (Vec<_>, Vec<_>) = staying.into_iter().partition(|machine| goes(machine));
    let surplus = others.len().saturating_sub(replicas);
    victims.extend(others.into_iter().take(surplus));
    victims.truncate(BATCH);
    victims
}

fn is_failed(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Failed
}

/// The autoscaler has marked it, and the replica count that came with the mark has reached the set.
fn is_chosen(set: &MachineSet, machine: &Machine) -> bool {
    let candidate = annotation(machine, annotations::MACHINE_PRIORITY) == Some(annotations::MACHINE_PRIORITY_CANDIDATE);
    let changed = annotation(set, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME).and_then(|time| time.parse().ok());
    candidate && marked(machine).zip(changed).is_some_and(|(marked, changed)| marked <= changed)
}

/// Kept for diagnosis: until its time is over, or from the wish for it until the time is set.
fn is_preserved(at: &Moment<'_, Never>, machine: &Machine) -> bool {
    let expiry = machine.status.as_ref().and_then(|status| status.current_status.preserve_expiry_time.as_ref());
    let wished = annotation(machine, annotations::PRESERVE).is_some_and(|value| {
        [annotations::PRESERVE_NOW, annotations::PRESERVE_WHEN_FAILED, annotations::PRESERVE_AUTO].contains(&value)
    });
    expiry.map_or(wished, |expiry| expiry.0 > at.now)
}

/// Retires before it harms: the ledger first, under the set's version, and the deletions only once that stands.
fn remove(
    plan: &mut Plan<Never>,
    world: &World,
    members: &Members<'_>,
    ledger: &Ledger,
    victims: &[&Arc<Machine>],
    why: &'static str,
) {
    let set = world.set.as_ref();
    let indices = victims.iter().filter_map(|machine| index(world, ledger, machine));
    let unnamed = victims.iter().filter(|machine| index(world, ledger, machine).is_none());
    let present = |wanted: &str| world.machines.iter().any(|machine| name(machine.as_ref()) == wanted);
    let after = ledger
        .retire(indices.chain(members.leaving.iter().copied()))
        .note(unnamed.map(|machine| name(machine.as_ref()).to_owned()), present);
    let retire = Step::apply_pinned(CONTROL, set, &LedgerPart::of(&after));
    plan.then("a name is retired before its machine goes", retire);
    let doomed = members.doomed.iter().take(BATCH).chain(victims.iter());
    let deletions: Vec<_> =
        doomed.map(|machine| Planned { why: why.into(), step: Step::delete(CONTROL, machine.as_ref()) }).collect();
    if let Some(message) = summary(
        "Deleted",
        members.doomed.iter().take(BATCH).chain(victims.iter()).map(|machine| name(machine.as_ref())),
    ) {
        plan.event(Event {
            regarding: reference(set),
            kind: EventKind::Normal,
            reason: reasons::events::SUCCESSFUL_DELETE,
            message,
        });
    }
    plan.stage(deletions);
}

/// Names that the set would ask for next and cannot have: a Machine of somebody else holds them, or one of the set's
/// own under which they do not count.
fn taken_names(
    at: &Moment<'_, Never>,
    world: &World,
    ledger: &Ledger,
    members: &Members<'_>,
    missing: usize,
) -> Vec<Index> {
    if missing == 0 {
        return vec![];
    }
    let set = name(world.set.as_ref());
    let uncounted = world.machines.iter().filter(|machine| index(world, ledger, machine).is_none());
    let held: BTreeSet<&str> = world.namesakes.iter().chain(uncounted).map(|machine| name(machine.as_ref())).collect();
    // By the time of this plan the cache has reached what the server has: who held the name is gone since.
    let refused = at.failure.filter(|failure| failure.class == FailureClass::Taken);
    let refused = refused.map(|failure| &*failure.step.key.name);
    let wanted = ledger.lowest_free(&members.seen, missing.min(BATCH));
    let is_taken = |index: &Index| {
        let name = ledger.name(set, *index);
        held.contains(name.as_str()) || refused == Some(name.as_str())
    };
    wanted.into_iter().filter(is_taken).collect()
}

/// Creates what is missing, under the lowest names that are free.
fn fill(plan: &mut Plan<Never>, set: &MachineSet, members: &Members<'_>, ledger: &Ledger, missing: usize) {
    if missing == 0 {
        return;
    }
    if set.is_frozen() {
        plan.wait("Frozen", "the set is frozen: no machine is created until the label `freeze` is removed");
        return;
    }
    if label(set, labels::SCALE_UP_DISABLED) == Some(labels::SCALE_UP_DISABLED_VALUE) {
        plan.wait("ScaleUpDisabled", "machines are being moved to another set: none is created here");
        return;
    }
    let indices = ledger.lowest_free(&members.seen, missing.min(BATCH));
    let machines: Vec<Machine> = indices
        .into_iter()
        .map(|index| MachinePart::of(set, Some(index)).machine(set, ledger.name(name(set), index)))
        .collect();
    if let Some(message) = summary("Created", machines.iter().map(name)) {
        plan.event(Event {
            regarding: reference(set),
            kind: EventKind::Normal,
            reason: reasons::events::SUCCESSFUL_CREATE,
            message,
        });
    }
    plan.stage(machines.iter().filter_map(|machine| {
        let step = Step::create(CONTROL, machine)?;
        Some(Planned { why: "a machine is missing".into(), step })
    }));
}

/// Brings what may change without a new Machine to the Machines.
fn propagate(plan: &mut Plan<Never>, world: &World, members: &Members<'_>, ledger: &Ledger) {
    let set = world.set.as_ref();
    // Nearly always nothing has changed, and there may be thousands of them: looked at first, and put together then.
    let differs = differing(&set.spec.template.spec, members);
    let changed = differs.filter_map(|machine| {
        let part = MachinePart::of(set, index(world, ledger, machine)).for_live(machine);
        let step = Step::apply(CONTROL, machine.as_ref(), &part)?;
        Some(Planned { why: "the template changed in what machines take over in place".into(), step })
    });
    plan.stage(changed.take(BATCH).collect::<Vec<_>>());
}

/// The Machines that differ from the template in what they take over while they live.
fn differing<'a>(template: &'a MachineSpec, members: &'a Members<'_>) -> impl Iterator<Item = &'a Arc<Machine>> {
    // Machines share their node template: what is equal once need not be compared again.
    let mut equal: Option<&Arc<NodeTemplate>> = None;
    members.staying.iter().copied().filter(move |machine| {
        let known = equal.is_some_and(|equal| Arc::ptr_eq(equal, &machine.spec.node_template));
        let same = known || machine.spec.node_template == template.node_template;
        equal = Some(&machine.spec.node_template).filter(|_| same).or(equal);
        !same || !is_same_beside_node_template(template, &machine.spec)
    })
}

/// Spelled out, so that a field that comes in cannot be forgotten.
fn is_same_beside_node_template(template: &MachineSpec, live: &MachineSpec) -> bool {
    let MachineSpec {
        class,
        provider_id: _,
        node_template: _,
        drain_timeout,
        health_timeout,
        creation_timeout,
        in_place_update_timeout,
        machine_preserve_timeout,
        disable_health_timeout,
        max_evict_retries,
        node_conditions,
    } = template;
    class.kind == live.class.kind
        && *drain_timeout == live.drain_timeout
        && *health_timeout == live.health_timeout
        && *creation_timeout == live.creation_timeout
        && *in_place_update_timeout == live.in_place_update_timeout
        && *machine_preserve_timeout == live.machine_preserve_timeout
        && *disable_health_timeout == live.disable_health_timeout
        && *max_evict_retries == live.max_evict_retries
        && *node_conditions == live.node_conditions
}

/// Writes the status: at once when a condition, the generation or the goal is concerned, else not too often.
fn tell(plan: &mut Plan<Never>, at: &Moment<'_, Never>, world: &World, full_schema: bool) {
    let set = world.set.as_ref();
    let wanted = status(at, world, full_schema);
    // A status apply carries the version that was seen: not in one plan with another write to the set.
    let writes_set = plan.steps().any(|planned| match &planned.step {
        Step::Apply(apply) => apply.at().uid() == uid(set),
        Step::Edit(edit) => edit.at().uid() == uid(set),
        _ => false,
    });
    if writes_set {
        return;
    }
    let before = set.status.clone().unwrap_or_default();
    let after = &wanted.status;
    let settled = after.replicas == set.spec.replicas && after.available_replicas == after.replicas;
    let urgent = settled
        || after.replicas == 0
        || gist(after) != gist(&before)
        || after.observed_generation != before.observed_generation;
    let Some(step) = Step::apply(CONTROL, set, &wanted) else { return };
    match pacing::due(at.now, at.status_written).filter(|_| !urgent) {
        Some(later) => drop(plan.wake_at(later)),
        // What is refused again would keep the status, which tells of it, from being written.
        None if at.failure.is_some() => plan.stages.insert(0, vec![Planned { why: "the status changed".into(), step }]),
        None => drop(plan.beside("the status changed", step)),
    }
}

/// What its conditions say, without the counts in their messages.
fn gist(status: &MachineSetStatus) -> Vec<(&str, &ConditionStatus, &str)> {
    let all = status.conditions.iter();
    all.map(|it| (it.condition_type.as_str(), &it.status, it.reason.as_str())).collect()
}

fn warning(set: &MachineSet, reason: &'static str, message: String) -> Event {
    Event { regarding: reference(set), kind: EventKind::Warning, reason, message }
}

/// One line for a batch.
fn summary<'a>(verb: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    let noun = if names.len() == 1 { "machine" } else { "machines" };
    listed(names.into_iter()).map(|names| format!("{verb} {noun} {names}"))
}

/// The first names, and how many more.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    let (first, more) = (names.iter().take(3).copied().collect::<Vec<_>>().join(", "), names.len().saturating_sub(3));
    match (names.len(), more) {
        (0, _) => None,
        (_, 0) => Some(first),
        _ => Some(format!("{first} and {more} more")),
    }
}
