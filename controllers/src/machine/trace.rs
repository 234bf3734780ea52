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
    drain::{self, Departure, Detachment, Progress},
    traces::{CREATION, DELETION, creation, current, deletion, seed, within},
};

const DRAIN: &str = "drain";
const DETACHMENT: &str = "volume detachment";
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

pub(super) fn stage(machine: &Machine, name: &'static str, start: Timestamp, end: Timestamp) -> SpanRecord {
    span(machine, name, current(machine), (start, end))
}

/// The drain of a Machine that is being deleted. Its children are recorded as they end.
pub(super) fn drain(scope: &Scope<'_>, start: Timestamp, end: Timestamp) -> SpanRecord {
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
pub(super) fn drained(scope: &Scope<'_>, progress: &Progress) -> Vec<SpanRecord> {
    if progress.departures.is_empty() && progress.detachment.is_none() {
        return vec![];
    }
    let parent = within(scope.machine, DRAIN, scope.trace);
    let pods = progress.departures.iter().map(|pod| departure(scope, parent, pod));
    pods.chain(progress.detachment.as_ref().map(|ended| detachment(scope, parent, ended))).collect()
}

fn departure(scope: &Scope<'_>, parent: TraceContext, departure: &Departure) -> SpanRecord {
    let pod = &departure.pod;
    let span = span(scope.machine, DRAIN, parent, (departure.since, scope.now()));
    let mut attributes = span.attributes;
    attributes.push(("k8s.namespace.name", pod.namespace.to_string()));
    attributes.push(("k8s.pod.name", pod.name.to_string()));
    attributes.push(("k8s.pod.uid", pod.uid.to_string()));
    attributes.extend(departure.removal.map(|removal| ("nodewright.pod.removal", removal.to_owned())));
    attributes.extend(departure.held_back_by.as_ref().map(|why| ("nodewright.pod.held_back_by", why.to_string())));
    SpanRecord {
        name: format!("pod {}/{}", pod.namespace, pod.name).into(),
        id: span_id(&seed(scope.machine, &pod.uid)),
        error: departure.is_left.then(|| "the drain ended before the pod did".to_owned()),
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

pub(super) fn created(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    span(machine, CREATION, creation(machine), (start, now))
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

/// From the deletion of the object until nothing is left. It links to the creation.
pub(super) fn deleted(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    let links = vec![within(machine, CREATION, creation(machine))];
    SpanRecord { links, ..span(machine, DELETION, deletion(machine), (start, now)) }
}
