//! What becomes of the Nodes of Machines that are updated in place: they are drained, and updated by the program on them.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{conditions, labels, reasons::node as reasons, taints};
use serde_json::{Value, json};

use super::machines::Event;
use crate::shared::{
    in_place::{Progress, awaits_components, reason, since},
    node::Node,
};

/// What happens next to a Node, if anything does.
fn next(node: &Node) -> Option<Event> {
    match Progress::of(node) {
        Progress::Selected | Progress::Drained => Some(Event::Permitted),
        Progress::Ready => Some(Event::Updated),
        // The program has answered, and the manager has not noticed yet.
        Progress::Successful if reason(node) != Some(reasons::UPDATE_SUCCESSFUL) => Some(Event::Updated),
        _ => awaits_components(node).then_some(Event::Opened),
    }
}

/// The same, and when, if an update takes so long.
pub(super) fn foreseen(node: &Node, update: SignedDuration, now: Timestamp) -> Option<(Timestamp, Event)> {
    let event = next(node)?;
    let permitted = since(node, reasons::READY_FOR_UPDATE).filter(|_| Progress::of(node) == Progress::Ready);
    Some((permitted.and_then(|at| at.saturating_add(update).ok()).map_or(now, |at| at.max(now)), event))
}

/// The Node after an event, and the phase of its Machine if that changes; `None` if it is not what happens next.
pub(super) fn after(
    mut node: Value,
    decoded: &Node,
    event: Event,
    now: Timestamp,
) -> Option<(Value, Option<&'static str>)> {
    if next(decoded) != Some(event) {
        return None;
    }
    let phase = match event {
        Event::Permitted => {
            set_condition(&mut node, reasons::READY_FOR_UPDATE, now);
            Some("InPlaceUpdating")
        }
        Event::Updated => {
            node["metadata"]["labels"][labels::UPDATE_RESULT] = labels::UPDATE_SUCCESSFUL.into();
            set_condition(&mut node, reasons::UPDATE_SUCCESSFUL, now);
            Some("Running")
        }
        _ => {
            let is_closed = |taint: &Value| taint["key"] == taints::CRITICAL_COMPONENTS_NOT_READY;
            node["spec"]["taints"].as_array_mut()?.retain(|taint| !is_closed(taint));
            None
        }
    };
    Some((node, phase))
}

/// The Node of a Machine that joins.
pub(super) fn joined(machine: &str, provider_id: Option<&str>) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine, "uid": machine}, "spec": {"providerID": provider_id}, "status": {}})
}

/// Sets the condition by which a Node shows how far its update is.
fn set_condition(node: &mut Value, reason: &str, now: Timestamp) {
    let of = conditions::node::IN_PLACE_UPDATE;
    let condition = json!({"type": of, "status": "True", "reason": reason, "lastTransitionTime": now.to_string()});
    let others = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<_> = others.filter(|it| it["type"] != of).cloned().chain([condition]).collect();
    node["status"]["conditions"] = all.into();
}
