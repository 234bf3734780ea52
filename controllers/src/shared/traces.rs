//! The two traces of a Machine: which spans they are, by what its object says. The Machine controller records them, and others lead to
//! them.

use nodewright_api::{Machine, annotations};
use nodewright_observability::trace::{TraceContext, span_id};
use nodewright_runtime::object::uid;

pub(crate) const CREATION: &str = "machine creation";
pub(crate) const DELETION: &str = "machine deletion";

/// What the ids of the two spans are made of. These words are older than the names of the spans: a Machine that was created by an
/// older version keeps its ids, so that the trace of its deletion leads to that of its creation.
const SEEDS: [(&str, &str); 2] = [(CREATION, "machine birth"), (DELETION, "machine death")];

/// The trace of the writer who asked for the Machine, or else its own.
pub(crate) fn creation(machine: &Machine) -> TraceContext {
    let asked = TraceContext::from_annotation(machine.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    asked
        .unwrap_or_else(|| within(machine, CREATION, TraceContext::from_seed(&format!("{}/birth", uid(machine)), true)))
}

/// The span of the Machine's deletion, the root of its trace.
pub(crate) fn deletion(machine: &Machine) -> TraceContext {
    let sampled = creation(machine).sampled;
    within(machine, DELETION, TraceContext::from_seed(&format!("{}/death", uid(machine)), sampled))
}

/// The span that the Machine's stages belong to.
pub(crate) fn current(machine: &Machine) -> TraceContext {
    if machine.is_deleting() { deletion(machine) } else { within(machine, CREATION, creation(machine)) }
}

/// The span of this name in a trace of the Machine.
pub(crate) fn within(machine: &Machine, span: &str, trace: TraceContext) -> TraceContext {
    trace.at(span_id(&seed(machine, span)))
}

/// What the id of the Machine's span of this name is made of.
pub(crate) fn seed(machine: &Machine, span: &str) -> String {
    let word = SEEDS.iter().find(|(name, _)| *name == span).map_or(span, |(_, word)| word);
    format!("{}/{word}", uid(machine))
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
