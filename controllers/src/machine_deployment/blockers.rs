//! What a deployment that does not get on waits for: the first Machine, its Node, and the cause.

use std::cmp::Ordering;

use k8s_openapi::{
    api::core::v1::NodeCondition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use nodewright_api::{
    LastOperation, Machine, OperationState, OperationType,
    conditions::{self, machine_set},
};
use nodewright_runtime::{
    clip::clip_to,
    object::{is_deleting, name},
};

use super::{
    sizes::excluded_at,
    snapshot::{SetView, Snapshot},
};
use crate::shared::ownership::node_name;

const LONGEST_CAUSE: usize = 256;

/// The first blocker: a former set that cannot delete its Machines, else the Machine that has been in deletion for the longest,
/// else the oldest one of the current set that is not available.
pub(super) fn blocker(snapshot: &Snapshot) -> Option<String> {
    let without_ledger = |view: &&SetView| excluded_at(view).is_some() && !view.machines.is_empty();
    if let Some(view) = snapshot.old().find(without_ledger) {
        let machine = view.machines.iter().min_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())))?;
        let cause = view.set.condition(machine_set::REPLICA_FAILURE).map_or("", |failure| failure.message.as_str());
        let text = format!("machine set {} cannot delete {}: {cause}", name(view.set.as_ref()), subject(machine));
        return Some(clip_to(2 * LONGEST_CAUSE, text));
    }
    let leaving = snapshot.machines().filter(|machine| is_deleting(machine.as_ref()));
    let leaving = leaving.min_by(|a, b| by_time(a, b, |meta| meta.deletion_timestamp.as_ref()));
    let current = snapshot.current();
    let coming = current.into_iter().flat_map(|view| {
        view.machines
            .iter()
            .filter(|machine| !is_deleting(machine.as_ref()) && !view.availability.is_available(machine))
    });
    let coming = coming.min_by(|a, b| by_time(a, b, |meta| meta.creation_timestamp.as_ref()));
    let machine = leaving.or(coming)?;
    Some(format!("{}: {}", subject(machine), cause(machine)))
}

/// The earlier Machine first. Names break ties.
fn by_time(a: &Machine, b: &Machine, time: fn(&ObjectMeta) -> Option<&Time>) -> Ordering {
    let key = |machine: &Machine| time(&machine.metadata).map(|time| time.0);
    key(a).cmp(&key(b)).then_with(|| name(a).cmp(name(b)))
}

fn subject(machine: &Machine) -> String {
    match node_name(machine) {
        Some(node) => format!("machine {} (node {node})", name(machine)),
        None => format!("machine {} (without a node)", name(machine)),
    }
}

/// What a Machine waits for. A deletion says it in the condition of its stage, such as which disruption budget refuses an eviction:
/// the texts of its operation are machine-controller-manager's, and name the stage only unless it has failed. Otherwise the last
/// operation says it.
fn cause(machine: &Machine) -> String {
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let begun = operation.filter(|it| !is_deleting(machine) || it.operation_type != OperationType::Create);
    let text = |operation: &LastOperation| operation.description.clone();
    let failed = begun.filter(|it| it.operation_type == OperationType::Delete && it.state == OperationState::Failed);
    let cause = failed.map(text).or_else(|| refusal(machine).map(str::to_owned)).or_else(|| begun.map(text));
    match cause.as_deref().unwrap_or_default() {
        "" if is_deleting(machine) => "it is in deletion".to_owned(),
        "" => "its controller has not seen it yet".to_owned(),
        cause => clip_to(LONGEST_CAUSE, cause),
    }
}

fn refusal(machine: &Machine) -> Option<&str> {
    blocked_by(machine)?.message.as_deref()
}

/// The condition of the stage of a deletion, if that takes long.
pub(super) fn blocked_by(machine: &Machine) -> Option<&NodeCondition> {
    use conditions::machine::{DRAINED, INSTANCE_TERMINATED, NODE_DELETED, VOLUMES_DETACHED};
    let stages = [DRAINED, VOLUMES_DETACHED, INSTANCE_TERMINATED, NODE_DELETED];
    let waits = stages.iter().filter_map(|stage| machine.condition(stage)).find(|stage| stage.status == "False");
    waits.filter(|_| is_deleting(machine))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::machine;

    #[test]
    fn a_deletion_says_what_its_stage_waits_for_and_not_what_its_creation_has_said() {
        let named = |description: &str, kind: &str| {
            machine("a").with("/status/lastOperation", json!({"description": description, "type": kind}))
        };
        assert_eq!(cause(&named("joined the cluster", "Create").build()), "joined the cluster");
        assert_eq!(cause(&named("joined the cluster", "Create").deleting().build()), "it is in deletion");
        assert_eq!(cause(&named("Initiate node drain", "Delete").deleting().build()), "Initiate node drain");
        let drained = |status: &str| {
            let drained = json!([{"type": "Drained", "status": status, "message": "web-none allows no disruption"}]);
            named("Initiate node drain", "Delete").with("/status/conditions", drained).deleting().build()
        };
        assert_eq!(cause(&drained("False")), "web-none allows no disruption");
        assert_eq!(cause(&drained("True")), "Initiate node drain");
        let failed = json!({"description": "code = [Internal]", "type": "Delete", "state": "Failed"});
        let terminated = json!([{"type": "InstanceTerminated", "status": "False", "message": "out of order"}]);
        let failed = machine("a").with("/status/lastOperation", failed).with("/status/conditions", terminated);
        assert_eq!(cause(&failed.deleting().build()), "code = [Internal]", "with the code");
    }
}
