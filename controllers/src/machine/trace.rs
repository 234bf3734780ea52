//! The spans of a Machine's life: one trace for its birth, one for its death, linked to each other.
//!
//! Span ids are made from the Machine's UID, so that what is told again after a restart is the same span.

use jiff::Timestamp;
use nodewright_api::{Machine, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::object::{name, namespace, uid};

/// The trace that the Machine's birth belongs to: of whoever asked for it, or else its own.
pub(super) fn birth(machine: &Machine) -> TraceContext {
    let asked = TraceContext::from_annotation(machine.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    asked.unwrap_or_else(|| {
        let own = span_id(&format!("{}/machine birth", uid(machine)));
        TraceContext::from_seed(&format!("{}/birth", uid(machine)), true).at(own)
    })
}

/// The trace of its death.
pub(super) fn death(machine: &Machine) -> TraceContext {
    let own = span_id(&format!("{}/machine death", uid(machine)));
    TraceContext::from_seed(&format!("{}/death", uid(machine)), birth(machine).sampled).at(own)
}

/// The context in which requests and calls for the Machine are made.
pub(super) fn current(machine: &Machine) -> TraceContext {
    if machine.is_deleting() { death_span(machine) } else { birth_span(machine) }
}

fn birth_span(machine: &Machine) -> TraceContext {
    birth(machine).at(span_id(&format!("{}/machine birth", uid(machine))))
}

fn death_span(machine: &Machine) -> TraceContext {
    death(machine).at(span_id(&format!("{}/machine death", uid(machine))))
}

fn attributes(machine: &Machine) -> Vec<(&'static str, String)> {
    vec![
        ("nodewright.machine.name", name(machine).to_owned()),
        ("nodewright.machine.namespace", namespace(machine).to_owned()),
        ("nodewright.machine.uid", uid(machine).to_owned()),
        ("nodewright.machine.provider_id", machine.spec.provider_id.clone()),
    ]
}

/// A stage of the birth or the death.
pub(super) fn stage(machine: &Machine, name: &'static str, start: Timestamp, end: Timestamp) -> SpanRecord {
    let seed = format!("{}/{name}", uid(machine));
    let mut span = SpanRecord::child(name, current(machine), &seed, start, end.max(start));
    span.attributes = attributes(machine);
    span
}

/// The whole birth, from the creation of the object until the Node is ready.
pub(super) fn born(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let seed = format!("{}/machine birth", uid(machine));
    let mut span = SpanRecord::child("machine birth", birth(machine), &seed, start, now.max(start));
    span.attributes = attributes(machine);
    span
}

/// The whole death, from the deletion of the object until nothing is left. It links to the birth.
pub(super) fn died(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    let seed = format!("{}/machine death", uid(machine));
    let mut span = SpanRecord::child("machine death", death(machine), &seed, start, now.max(start));
    span.attributes = attributes(machine);
    span.links = vec![birth_span(machine)];
    span
}
