//! What is written for the rollout of a pool: its claims, and to its Nodes.

use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    Taint, annotations,
    machine_config::{DESIRED_CONFIG, DESIRED_IMAGE, MachineConfigPool},
    reasons::machine_config_pool as reasons,
    stored::{ConfigDrain, Disruptions},
    taints,
};
use nodewright_runtime::{
    clip::clip_list,
    events::Event,
    object::{annotation, name},
    plan::{Planned, Step, reference},
};

use super::{call::Render, rollout::Rollout};
use crate::shared::{
    TARGET,
    disruption::{
        node_state::{has_agent, is_behind, is_ready, is_update_taint},
        patches::{self, counted},
    },
    node::{Node, add_taint, remove_taint},
    patch,
    pools::selects_none,
};

const LONGEST_NAME: usize = 64;
const NAMED: usize = 5;

/// The write of the claims, if they change; it is refused if the pool has changed. A pool that selects no Nodes needs no list.
pub(super) fn claims(pool: &MachineConfigPool, claims: &Disruptions) -> Option<Planned<Render>> {
    if selects_none(pool) && annotation(pool, annotations::DISRUPTIONS).is_none() {
        return None;
    }
    let step = Step::edit(TARGET, pool, patches::write(pool, claims)?);
    Planned::new("which nodes may be disrupted has changed", step)
}

/// The writes to the Nodes: the target for those that are claimed, and the taint of those that wait. `target`: that which they are moved
/// to, if they are.
pub(super) fn steps(nodes: &[&Node], rollout: &Rollout<'_>, target: Option<&str>) -> Vec<Planned<Render>> {
    let edit = |node: &Node, why, operations| Planned::new(why, Step::edit(TARGET, node, Patch(operations)));
    let release = |node: &&Node| {
        edit(node, "the node is not to be given what the pool has claimed it for", counted(node, vec![]))
    };
    let releases = rollout.releases.iter().filter_map(release);
    let Some(target) = target else { return releases.collect() };
    let target_given = |node: &&Node| edit(node, "the pool has a claim for the node", give(node, target));
    let marked = |node: &&Node| {
        if is_behind(node, target) {
            let waits = has_agent(node) && !rollout.claims.0.contains_key(name(*node));
            let operations = if waits { taint(node) } else { vec![] };
            return edit(node, "pods that leave other nodes avoid one that has yet to be updated", operations);
        }
        // Of two writes to a Node one would fail.
        let is_released = rollout.releases.iter().any(|it| std::ptr::eq(*it, *node));
        let operations = if is_released { vec![] } else { untaint(node) };
        edit(node, "the node has been given the target", operations)
    };
    releases.chain(rollout.targets.iter().filter_map(target_given)).chain(nodes.iter().filter_map(marked)).collect()
}

/// That Nodes are given the target, once that is written.
pub(super) fn event(pool: &MachineConfigPool, rollout: &Rollout<'_>, target: &str) -> Option<Event> {
    let text = match rollout.targets.as_slice() {
        [] => return None,
        [node] => format!("Targeted node {} to MachineConfig: {target}", name(*node)),
        nodes => {
            let names = clip_list(NAMED, LONGEST_NAME, nodes.iter().map(|node| name(*node).to_owned()), ", ");
            format!("Set target for {} nodes to MachineConfig: {target}: {names}", nodes.len())
        }
    };
    Some(Event::normal(reference(pool), reasons::SET_DESIRED_CONFIG, text).of(TARGET))
}

/// The operations that give a Node the target, and take the taint. They fail if it was given another one, or was cordoned, meanwhile.
fn give(node: &Node, target: &str) -> Vec<PatchOperation> {
    let meta = &node.metadata;
    let mut wanted = vec![(DESIRED_CONFIG, target.to_owned())];
    let mut operations = vec![];
    if is_ready(node) {
        // If it is cordoned after this, and not by its drain, a user has done that.
        wanted.push((annotations::CONFIG_DRAIN, ConfigDrain::Open.to_string()));
        let seen = node.spec.unschedulable.map_or(serde_json::Value::Null, Into::into);
        operations.push(patch::test(&["spec", "unschedulable"], seen));
    }
    operations.extend(counted(node, wanted));
    operations.extend(patch::unannotate(meta, [DESIRED_IMAGE]));
    let untaint = untaint(node);
    if untaint.is_empty() {
        // A rollout of machines marks its Nodes by a taint: one that is about to go is not updated.
        let seen = node.taints();
        // An API server leaves an empty list out.
        let seen = if seen.is_empty() { serde_json::Value::Null } else { serde_json::json!(seen) };
        operations.push(patch::test(&["spec", "taints"], seen));
    }
    operations.extend(untaint);
    operations
}

fn taint(node: &Node) -> Vec<PatchOperation> {
    add_taint(node, is_update_taint, || {
        let (key, effect) = (taints::UPDATE_IN_PROGRESS.to_owned(), "PreferNoSchedule".to_owned());
        Taint { key, value: None, effect, time_added: None }
    })
}

fn untaint(node: &Node) -> Vec<PatchOperation> {
    remove_taint(node, is_update_taint)
}
