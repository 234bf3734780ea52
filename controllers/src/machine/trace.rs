//! The spans of a Machine: one trace from its creation until its Node is ready, and one for its deletion. Span ids are made
//! from the Machine's UID, so a span that is recorded again after a restart is the same span.

use std::borrow::Cow;

use jiff::Timestamp;
use nodewright_api::{Machine, MachinePhase, conditions::machine as conditions};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::{
    clip::clip,
    object::{self, namespace, uid},
};

use super::{memory::Note, scope::Scope, status::since};
use crate::shared::{
    drain::{self, Departure, Detachment, DrainProgress},
    traces::{CREATION, DELETION, creation, current, decided, deletion, seed, within},
};

const VM_CREATION: &str = "VM creation";
const BOOT_AND_JOIN: &str = "boot and join";
const DRAIN: &str = "drain";
const DETACHMENT: &str = "volume detachment";
const VM_DELETION: &str = "VM deletion";
/// No process has seen the deletion yet.
const PENDING: &str = "pending deletion";
const UNHEALTHY: &str = "unhealthy";

/// The ids of the traces of a Machine, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Traces {
    /// That of its creation.
    pub creation: String,
    /// That of its deletion, once it is being deleted.
    pub termination: Option<String>,
}

impl Traces {
    /// Those of a Machine, as the manager exports them.
    pub fn of(machine: &Machine) -> Self {
        let termination = machine.is_deleting().then(|| deletion(machine).trace_id.to_string());
        Self { creation: creation(machine).trace_id.to_string(), termination }
    }
}

fn span(
    machine: &Machine,
    name: impl Into<Cow<'static, str>>,
    parent: TraceContext,
    (start, end): (Timestamp, Timestamp),
) -> SpanRecord {
    let name = name.into();
    let seed = seed(machine, &name);
    let mut span = SpanRecord::child(name, parent, &seed, start, end.max(start));
    span.attributes = vec![
        ("nodewright.machine.name", object::name(machine).to_owned()),
        ("nodewright.machine.namespace", namespace(machine).to_owned()),
        ("nodewright.machine.uid", uid(machine).to_owned()),
        ("nodewright.machine.provider_id", machine.spec.provider_id.clone()),
    ];
    span
}

fn stage(machine: &Machine, name: &'static str, start: Timestamp, end: Timestamp) -> SpanRecord {
    span(machine, name, current(machine), (start, end))
}

/// The drain of a Machine that is being deleted. Its children are recorded as they end.
fn drain(scope: &Scope<'_>, start: Timestamp, end: Timestamp) -> SpanRecord {
    let mut span = stage(scope.machine, DRAIN, start, end);
    let others = |note: &Note| match note {
        Note::Drain(drain::Note::Leavers { others, .. }) if *others > 0 => Some(others.to_string()),
        _ => None,
    };
    span.attributes
        .extend(scope.context.notes.keys().find_map(others).map(|others| ("nodewright.drain.other_pods", others)));
    span
}

/// What has ended of a drain since the last plan: children of its span.
pub(super) fn drained(scope: &Scope<'_>, progress: &DrainProgress) -> Vec<SpanRecord> {
    if progress.departures.is_empty() && progress.detachment.is_none() {
        return vec![];
    }
    let parent = within(scope.machine, DRAIN, scope.trace);
    let pods = progress.departures.iter().map(|pod| departure(scope, parent, pod));
    pods.chain(progress.detachment.as_ref().map(|ended| detachment(scope, parent, ended))).collect()
}

fn departure(scope: &Scope<'_>, parent: TraceContext, departure: &Departure) -> SpanRecord {
    let span = span(scope.machine, DRAIN, parent, (departure.since, scope.now()));
    let mut attributes = span.attributes;
    attributes.extend(departure.attributes());
    SpanRecord {
        name: departure.title().into(),
        id: span_id(&seed(scope.machine, &departure.pod.uid)),
        error: departure.error(),
        attributes,
        ..span
    }
}

/// It may have begun before this process did: then the Machine's condition says when.
fn detachment(scope: &Scope<'_>, parent: TraceContext, ended: &Detachment) -> SpanRecord {
    let reported = since(scope.machine, conditions::VOLUMES_DETACHED);
    let start = reported.map_or(ended.since, |reported| reported.min(ended.since));
    let mut span = span(scope.machine, DETACHMENT, parent, (start, scope.now()));
    span.attributes.push(("nodewright.volumes", ended.volumes.clone()));
    span.error = ended.is_left.then(|| "the volumes were not detached in time".to_owned());
    span
}

/// Whether the Machine is being created or deleted. What happens to it otherwise is no part of either trace.
pub(super) fn is_in_progress(machine: &Machine) -> bool {
    let is_new = [MachinePhase::Unset, MachinePhase::Pending, MachinePhase::CrashLoopBackOff].contains(machine.phase());
    machine.is_deleting() || is_new
}

/// Where the calls of the provider belong: below the part of the Machine's trace that they are made for.
pub(super) fn of_calls(scope: &Scope<'_>) -> TraceContext {
    let machine = scope.machine;
    let stage = if machine.is_deleting() { VM_DELETION } else { VM_CREATION };
    if scope.context.traces && is_in_progress(machine) { within(machine, stage, scope.trace) } else { scope.trace }
}

/// The creation of a Machine that has joined.
pub(super) fn joined(machine: &Machine, now: Timestamp) -> Vec<SpanRecord> {
    let start = object::created(machine).unwrap_or(now);
    let provisioned = since(machine, conditions::INSTANCE_PROVISIONED).unwrap_or(now);
    let part = |name, period| span(machine, name, within(machine, CREATION, creation(machine)), period);
    vec![
        part(VM_CREATION, (start, provisioned)),
        part(BOOT_AND_JOIN, (provisioned, now)),
        span(machine, CREATION, creation(machine), (start, now)),
    ]
}

/// The creation of a Machine that is deleted before it has joined. One that joined before the condition existed has none.
fn never_joined(machine: &Machine, now: Timestamp) -> Vec<SpanRecord> {
    let joined = machine.condition(conditions::NODE_JOINED).map(|condition| condition.status.as_str());
    if joined != Some("False") {
        return vec![];
    }
    let mut spans = self::joined(machine, machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0));
    for span in &mut spans {
        span.error = Some("the machine was deleted before it joined".to_owned());
    }
    spans
}

/// The time in which the Machine was Unknown, which ends now: with the reason if it has failed. `None` if it is in another phase.
pub(super) fn unhealthy(scope: &Scope<'_>, failure: Option<&str>) -> Option<SpanRecord> {
    let machine = scope.machine;
    let since = machine.phase_since().filter(|_| *machine.phase() == MachinePhase::Unknown && scope.traces())?;
    let parent = within(machine, CREATION, creation(machine));
    let span = span(machine, UNHEALTHY, parent, (since, scope.now()));
    let id = span_id(&seed(machine, &format!("{UNHEALTHY}/{since}")));
    Some(SpanRecord { id, error: failure.map(clip), ..span })
}

/// What is known of a Machine's deletion: when it was begun, when the driver was asked to delete the VM, and when the VM was gone.
pub(super) struct Deletion {
    pub(super) begun: Timestamp,
    pub(super) asked: Timestamp,
    pub(super) gone: Timestamp,
    pub(super) has_node: bool,
}

/// From the deletion of the object until nothing is left. It links to the creation.
pub(super) fn deleted(scope: &Scope<'_>, known: &Deletion) -> Vec<SpanRecord> {
    let (machine, now) = (scope.machine, scope.now());
    let start = machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    let mut spans = never_joined(machine, now);
    if known.begun > start {
        spans.push(stage(machine, PENDING, start, known.begun));
    }
    if known.has_node {
        spans.push(drain(scope, known.begun, known.asked));
        spans.push(stage(machine, VM_DELETION, known.asked, known.gone));
        spans.push(stage(machine, "node deletion", known.gone, now));
    } else {
        spans.push(stage(machine, VM_DELETION, known.begun, now));
    }
    let parent = decided(machine).unwrap_or_else(|| deletion(machine));
    let links = vec![within(machine, CREATION, creation(machine))];
    spans.push(SpanRecord { links, ..span(machine, DELETION, parent, (start, now)) });
    spans
}
