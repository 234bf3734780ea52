//! The traces of a Machine, and of the request that it follows from: which spans they are, by what objects say. The Machine controller
//! records those of the Machine, and others lead to them.

use jiff::Timestamp;
use nodewright_api::{Machine, MachineDeployment, annotations};
use nodewright_observability::trace::{SpanRecord, TraceContext, span_id_of};
use nodewright_runtime::object::{annotation, name, namespace, uid};

pub(crate) const CREATION: &str = "machine creation";
pub(crate) const DELETION: &str = "machine deletion";

/// What the ids of the two spans are made of. These words are older than the names of the spans: a Machine that was created by an
/// older version keeps its ids, so that the trace of its deletion leads to that of its creation.
const SEEDS: [(&str, &str); 2] = [(CREATION, "machine birth"), (DELETION, "machine death")];

/// The span of the request that last changed the deployment, if one is known. A request that the webhooks have not seen, such as one to
/// the subresource `scale`, has a trace of its own, in which it is sampled as the one before.
pub(crate) fn change(deployment: &MachineDeployment) -> Option<TraceContext> {
    let seen = reviewed(deployment)?;
    Some(if is_reviewed(deployment) { seen } else { unreviewed(deployment, seen) })
}

/// The span of the newest request, if the webhooks have not seen it: the root of its trace. It links to the request before.
pub(crate) fn unreviewed_change(deployment: &MachineDeployment, now: Timestamp) -> Option<SpanRecord> {
    let before = reviewed(deployment).filter(|_| !is_reviewed(deployment))?;
    let span = SpanRecord::root("unreviewed change", unreviewed(deployment, before), now, now);
    let attributes = vec![
        ("k8s.object.kind", "MachineDeployment".to_owned()),
        ("k8s.namespace.name", namespace(deployment).to_owned()),
        ("k8s.object.name", name(deployment).to_owned()),
    ];
    Some(SpanRecord { links: vec![before], attributes, ..span })
}

fn reviewed(deployment: &MachineDeployment) -> Option<TraceContext> {
    TraceContext::from_annotation(deployment.metadata.annotations.as_ref(), annotations::TRACEPARENT)
}

/// A trace that was chosen without the webhooks has no generation.
fn is_reviewed(deployment: &MachineDeployment) -> bool {
    let reviewed = annotation(deployment, annotations::TRACEPARENT_GENERATION);
    reviewed.is_none_or(|text| text == deployment.metadata.generation.unwrap_or_default().to_string())
}

fn unreviewed(deployment: &MachineDeployment, before: TraceContext) -> TraceContext {
    let generation = deployment.metadata.generation.unwrap_or_default();
    TraceContext::from_parts(&[uid(deployment), "/", &generation.to_string()], before.sampled)
}

/// The trace of the writer who asked for the Machine, or else its own.
pub(crate) fn creation(machine: &Machine) -> TraceContext {
    let asked = TraceContext::from_annotation(machine.metadata.annotations.as_ref(), annotations::TRACEPARENT);
    asked.unwrap_or_else(|| within(machine, CREATION, TraceContext::from_parts(&[uid(machine), "/birth"], true)))
}

/// The span of the Machine's deletion: below the decision that it goes, or else the root of its trace.
pub(crate) fn deletion(machine: &Machine) -> TraceContext {
    let trace = decided(machine)
        .unwrap_or_else(|| TraceContext::from_parts(&[uid(machine), "/death"], creation(machine).sampled));
    within(machine, DELETION, trace)
}

/// The decision of the Machine's set that it goes.
pub(crate) fn decided(machine: &Machine) -> Option<TraceContext> {
    TraceContext::from_annotation(machine.metadata.annotations.as_ref(), annotations::DELETION_TRACEPARENT)
}

/// The span that the Machine's stages belong to.
pub(crate) fn current(machine: &Machine) -> TraceContext {
    if machine.is_deleting() { deletion(machine) } else { within(machine, CREATION, creation(machine)) }
}

/// The span of this name in a trace of the Machine.
pub(crate) fn within(machine: &Machine, span: &str, trace: TraceContext) -> TraceContext {
    trace.at(span_id_of(&[uid(machine), "/", seed_of(span)]))
}

/// What the id of the Machine's span of this name is made of.
pub(crate) fn seed(machine: &Machine, span: &str) -> String {
    format!("{}/{}", uid(machine), seed_of(span))
}

fn seed_of(span: &str) -> &str {
    SEEDS.iter().find(|(name, _)| *name == span).map_or(span, |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    const REQUEST: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn deployment(generation: i64, annotations: &[(&str, &str)]) -> MachineDeployment {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut deployment = MachineDeployment::default();
        deployment.metadata.generation = Some(generation);
        deployment.metadata.uid = Some("uid".to_owned());
        deployment.metadata.annotations = Some(annotations.collect());
        deployment
    }

    #[test]
    fn a_request_that_no_webhook_has_seen_has_a_trace_of_its_own() {
        let now = Timestamp::UNIX_EPOCH;
        let reviewed = [(annotations::TRACEPARENT, REQUEST), (annotations::TRACEPARENT_GENERATION, "2")];
        let seen = deployment(2, &reviewed);
        assert_eq!(change(&seen).unwrap().to_string(), REQUEST);
        assert_eq!(unreviewed_change(&seen, now), None);
        let scaled = deployment(3, &reviewed);
        let span = unreviewed_change(&scaled, now).unwrap();
        assert_eq!((span.id, Some(span.context)), (span.context.span_id, change(&scaled)), "the root of its trace");
        assert_eq!(span.links[0].to_string(), REQUEST);
        assert!(span.context.sampled);
        assert_ne!(change(&scaled), change(&deployment(4, &reviewed)));
        let chosen = deployment(7, &reviewed[..1]);
        assert_eq!(change(&chosen).unwrap().to_string(), REQUEST, "chosen without webhooks: it holds for all");
        assert_eq!(change(&deployment(1, &[])), None);
    }

    #[test]
    fn ids_are_older_than_names() {
        // Machines that exist during an upgrade keep them.
        let machine = machine("m").build();
        let id = |span| within(&machine, span, creation(&machine)).span_id.to_string();
        assert_eq!((id(CREATION), id(DELETION)), ("d10e63114209cf7c".to_owned(), "17fe0070166431a8".to_owned()));
    }
}
