//! Why a set creates and deletes Machines, as spans in their traces.

use json_patch::Patch;
use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::{
    effect::Never,
    object::{is_deleting, name, namespace, uid},
    plan::{Planned, Step},
};

use super::{
    memory::Context,
    removal::{Removal, is_chosen, is_failed},
    snapshot::Members,
};
use crate::shared::{CONTROL, patch::merge, traces};

/// The deployment has other sets with Machines.
const ROLLOUT: &str = "Rollout";
/// The number of replicas has changed.
const SCALE: &str = "Scale";
/// The Machine was chosen to go when the number of replicas falls.
const CANDIDATE: &str = "DeletionCandidate";

/// The trace of the request that last changed the set.
pub(super) fn asked(set: &MachineSet) -> Option<TraceContext> {
    TraceContext::from_annotation(set.metadata.annotations.as_ref(), annotations::TRACEPARENT)
}

/// The same, if it is exported.
fn exported(context: &Context<'_>, set: &MachineSet) -> Option<TraceContext> {
    asked(set).filter(|trace| context.traces && trace.sampled)
}

/// Whether the set has done what it was asked for.
pub(super) fn is_settled(set: &MachineSet) -> bool {
    set.status.as_ref().is_some_and(|status| {
        let counts = [status.replicas, status.available_replicas];
        status.observed_generation >= set.metadata.generation.unwrap_or_default()
            && counts.iter().all(|count| *count == set.spec.replicas)
    })
}

/// Has the creations of these Machines hang below the decision, in the trace of the request that last changed the set. Without one
/// there is nothing yet that they could hang below.
pub(super) fn creations(context: &Context<'_>, members: &Members<'_>, machines: &mut [Machine]) -> Vec<SpanRecord> {
    let set = members.snapshot.set.as_ref();
    let Some(asked) = exported(context, set) else { return vec![] };
    let leaving: Vec<_> = members.snapshot.machines.iter().filter(|machine| is_deleting(machine.as_ref())).collect();
    let reason = creation_reason(members, leaving.len());
    // Of several it is not known which one replaces which.
    let links = match (&leaving[..], &*machines) {
        ([replaced], [_]) if reason == "Replacement" => vec![traces::deletion(replaced)],
        _ => vec![],
    };
    let decide = |machine: &mut Machine| {
        // The name is the Machine's alone for ever, and it has no UID yet.
        let seed = format!("{}/{}/creation decision", uid(set), name(machine));
        let here = asked.at(span_id(&seed)).to_string();
        machine.metadata.annotations.get_or_insert_default().insert(annotations::TRACEPARENT.to_owned(), here);
        let span = SpanRecord::child("creation decision", asked, &seed, context.now, context.now);
        SpanRecord { links: links.clone(), attributes: attributes(set, machine, reason), ..span }
    };
    machines.iter_mut().map(decide).collect()
}

fn creation_reason(members: &Members<'_>, leaving: usize) -> &'static str {
    let set = members.snapshot.set.as_ref();
    let observed = set.status.as_ref().map_or(0, |status| status.observed_generation);
    if set.metadata.generation.unwrap_or_default() > observed {
        return resized(members);
    }
    if leaving > 0 { "Replacement" } else { "Missing" }
}

fn resized(members: &Members<'_>) -> &'static str {
    let snapshot = members.snapshot;
    if snapshot.population.deployment > snapshot.machines.len() { ROLLOUT } else { SCALE }
}

/// The decisions that Machines go.
#[derive(Default)]
pub(super) struct Decisions {
    pub(super) spans: Vec<SpanRecord>,
    /// Names the decision on the Machine, whose deletion is then a part of the same trace.
    pub(super) notes: Vec<Planned<Never>>,
}

/// The decisions that these Machines go. One that follows from the size of the set belongs to the trace of the request that last
/// changed it, and has the deletion below it, or links to it if it cannot be noted. Any other one has nothing to do with that request,
/// and belongs to the deletion.
pub(super) fn deletions(context: &Context<'_>, members: &Members<'_>, removal: &Removal<'_>) -> Decisions {
    let mut decisions = Decisions::default();
    if !context.traces {
        return decisions;
    }
    let set = members.snapshot.set.as_ref();
    let asked = exported(context, set);
    for machine in removal.machines.iter().map(AsRef::as_ref) {
        let reason = deletion_reason(members, machine);
        let asked = asked.filter(|_| [ROLLOUT, SCALE, CANDIDATE].contains(&reason));
        let parent = asked.unwrap_or_else(|| traces::deletion(machine));
        let seed = traces::seed(machine, "deletion decision");
        let span = SpanRecord::child("deletion decision", parent, &seed, context.now, context.now);
        let here = span.context.at(span.id);
        let note = asked.and_then(|_| note(context, machine, here));
        let is_above = note.is_some() || asked.is_none() || traces::decided(machine) == Some(here);
        let links = if is_above { vec![] } else { vec![traces::deletion(machine)] };
        decisions.spans.push(SpanRecord { links, attributes: attributes(set, machine, reason), ..span });
        decisions.notes.extend(note);
    }
    decisions
}

/// Only in the first attempt: a Machine that cannot be patched, because its spec is not valid any more, is deleted all the same.
fn note(context: &Context<'_>, machine: &Machine, decision: TraceContext) -> Option<Planned<Never>> {
    if context.attempt > 0 {
        return None;
    }
    let wanted = [(annotations::DELETION_TRACEPARENT.to_owned(), decision.to_string())].into();
    let patch = Patch(merge("annotations", machine.metadata.annotations.as_ref(), &wanted));
    Planned::new("the trace of the deletion", Step::edit(CONTROL, machine, patch))
}

fn deletion_reason(members: &Members<'_>, machine: &Machine) -> &'static str {
    let set = members.snapshot.set.as_ref();
    if is_deleting(set) {
        "SetDeleted"
    } else if members.retired.iter().any(|retired| uid(retired.as_ref()) == uid(machine)) {
        "Retired"
    } else if is_chosen(set, machine) {
        CANDIDATE
    } else if is_failed(machine) {
        "Failed"
    } else {
        resized(members)
    }
}

fn attributes(set: &MachineSet, machine: &Machine, reason: &str) -> Vec<(&'static str, String)> {
    vec![
        ("nodewright.machine.name", name(machine).to_owned()),
        ("nodewright.machine.namespace", namespace(machine).to_owned()),
        ("nodewright.machine_set.name", name(set).to_owned()),
        ("nodewright.decision.reason", reason.to_owned()),
    ]
}
