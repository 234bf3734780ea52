//! The spans of a Machine: one trace from its creation until its Node is ready, and one for its deletion. Span ids are made
//! from the Machine's UID, so a span that is recorded again after a restart is the same span.

use jiff::Timestamp;
use nodewright_api::{Machine, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id};
use nodewright_runtime::object::{self, namespace, uid};

const CREATION: &str = "machine creation";
const DELETION: &str = "machine deletion";

/// What the ids of the two spans are made of. These words are older than the names of the spans: a Machine that was created by an
/// older version keeps its ids, so that the trace of its deletion leads to that of its creation.
const SEEDS: [(&str, &str); 2] = [(CREATION, "machine birth"), (DELETION, "machine death")];

/// The trace of the writer who asked for the Machine, or else its own.
fn creation(machine: &Machine) -> TraceContext {
    let asked = TraceContext::from_annotation(machine.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    asked
        .unwrap_or_else(|| within(machine, CREATION, TraceContext::from_seed(&format!("{}/birth", uid(machine)), true)))
}

fn deletion(machine: &Machine) -> TraceContext {
    let sampled = creation(machine).sampled;
    within(machine, DELETION, TraceContext::from_seed(&format!("{}/death", uid(machine)), sampled))
}

fn within(machine: &Machine, span: &str, trace: TraceContext) -> TraceContext {
    trace.at(span_id(&seed(machine, span)))
}

fn seed(machine: &Machine, span: &str) -> String {
    let word = SEEDS.iter().find(|(name, _)| *name == span).map_or(span, |(_, word)| word);
    format!("{}/{word}", uid(machine))
}

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

pub(super) fn current(machine: &Machine) -> TraceContext {
    if machine.is_deleting() { deletion(machine) } else { within(machine, CREATION, creation(machine)) }
}

fn span(
    machine: &Machine,
    name: &'static str,
    parent: TraceContext,
    (start, end): (Timestamp, Timestamp),
) -> SpanRecord {
    let mut span = SpanRecord::child(name, parent, &seed(machine, name), start, end.max(start));
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

pub(super) fn created(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    span(machine, CREATION, creation(machine), (start, now))
}

/// From the deletion of the object until nothing is left. It links to the creation.
pub(super) fn deleted(machine: &Machine, now: Timestamp) -> SpanRecord {
    let start = machine.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    let links = vec![within(machine, CREATION, creation(machine))];
    SpanRecord { links, ..span(machine, DELETION, deletion(machine), (start, now)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn ids_are_older_than_names() {
        // Machines that exist during an upgrade keep them.
        let machine = machine("m").build();
        let id = |span| within(&machine, span, creation(&machine)).span_id.to_string();
        assert_eq!((id(CREATION), id(DELETION)), ("d10e63114209cf7c".to_owned(), "17fe0070166431a8".to_owned()));
    }
}
