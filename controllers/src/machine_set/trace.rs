//! Why a set creates and deletes Machines, as spans in their traces.

use jiff::Timestamp;
use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::object::{is_deleting, name, namespace, uid};

use super::{
    memory::Context,
    removal::{Removal, is_chosen, is_failed},
    snapshot::Members,
};
use crate::shared::traces;

/// The deployment has other sets with Machines.
const ROLLOUT: &str = "Rollout";
/// The number of replicas has changed.
const SCALE: &str = "Scale";

/// The trace of the request that last changed the set, if it is exported.
fn asked(context: &Context<'_>, set: &MachineSet) -> Option<TraceContext> {
    if !context.traces {
        return None;
    }
    TraceContext::from_annotation(set.metadata.annotations.as_ref(), annotations::TRACEPARENT).filter(|it| it.sampled)
}

/// Has the creations of these Machines hang below the decision, in the trace of the request that last changed the set. Without one
/// there is nothing yet that they could hang below.
pub(super) fn creations(context: &Context<'_>, members: &Members<'_>, machines: &mut [Machine]) -> Vec<SpanRecord> {
    let set = members.snapshot.set.as_ref();
    let Some(asked) = asked(context, set) else { return vec![] };
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

/// The decisions that these Machines go. One that follows from the size of the set belongs to the trace of the request that last
/// changed it, and links to the deletion. Any other one has nothing to do with that request, and belongs to the deletion.
pub(super) fn deletions(context: &Context<'_>, members: &Members<'_>, removal: &Removal<'_>) -> Vec<SpanRecord> {
    if !context.traces {
        return vec![];
    }
    let set = members.snapshot.set.as_ref();
    let asked = asked(context, set);
    let decide = |machine: &Machine| {
        let (reason, deletion) = (deletion_reason(members, machine), traces::deletion(machine));
        let asked = asked.filter(|_| [ROLLOUT, SCALE].contains(&reason));
        let seed = traces::seed(machine, "deletion decision");
        let at: Timestamp = context.now;
        let span = SpanRecord::child("deletion decision", asked.unwrap_or(deletion), &seed, at, at);
        let links = asked.map(|_| deletion).into_iter().collect();
        SpanRecord { links, attributes: attributes(set, machine, reason), ..span }
    };
    removal.machines.iter().map(|machine| decide(machine)).collect()
}

fn deletion_reason(members: &Members<'_>, machine: &Machine) -> &'static str {
    let set = members.snapshot.set.as_ref();
    if is_deleting(set) {
        "SetDeleted"
    } else if members.retired.iter().any(|retired| uid(retired.as_ref()) == uid(machine)) {
        "Retired"
    } else if is_chosen(set, machine) {
        "DeletionCandidate"
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
