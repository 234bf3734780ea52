//! What is written for the rollout of a pool: its claims, and to its Nodes.

use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    Taint, annotations,
    machine_config::{DESIRED_CONFIG, DESIRED_IMAGE, MachineConfigPool},
    reasons::machine_config_pool as reasons,
    stored::ConfigDrain,
    taints,
};
use nodewright_runtime::{
    annotations as annotation_patch,
    clip::clip_list,
    events::Event,
    object::{annotation, name},
    plan::{Planned, Step, reference},
};

use super::{
    call::Render,
    node_state::{given, has_agent, has_update_taint, is_behind, is_ready},
    rollout::Rollout,
};
use crate::shared::{
    TARGET,
    node::{Node, set_taints},
    patch,
};

const LONGEST_NAME: usize = 64;
const NAMED: usize = 5;

/// The write of the claims, if they change; it is refused if the pool has changed.
pub(super) fn claims(pool: &MachineConfigPool, rollout: &Rollout<'_>) -> Option<Planned<Render>> {
    let known = annotation(pool, annotations::DISRUPTIONS);
    let wanted = (!rollout.claims.0.is_empty()).then(|| rollout.claims.to_string());
    if known == wanted.as_deref() {
        return None;
    }
    let mut operations = vec![patch::same_version(&pool.metadata)];
    operations.extend(annotation_patch::set(&pool.metadata, annotations::DISRUPTIONS, wanted.as_deref()).0);
    Planned::new("which nodes may be disrupted has changed", Step::edit(TARGET, pool, Patch(operations)))
}

/// The writes to the Nodes: the target for those that are claimed, and the taint of those that wait.
pub(super) fn steps(nodes: &[&Node], rollout: &Rollout<'_>, target: &str) -> Vec<Planned<Render>> {
    let is_among = |all: &[&Node], node: &Node| all.iter().any(|it| std::ptr::eq(*it, node));
    let step = |node: &&Node| {
        let (operations, why) = if is_among(&rollout.releases, node) {
            return None;
        } else if is_among(&rollout.targets, node) {
            (give(node, target), "the pool has a claim for the node")
        } else if has_agent(node) && is_behind(node, target) && !rollout.claims.0.contains_key(name(*node)) {
            (taint(node), "pods that leave other nodes avoid one that has yet to be updated")
        } else if !is_behind(node, target) {
            (untaint(node), "the node has been given the target")
        } else {
            return None;
        };
        Planned::new(why, Step::edit(TARGET, *node, Patch(operations)))
    };
    let release = |node: &&Node| {
        let why = "the node is not to be given what the pool has claimed it for";
        Planned::new(why, Step::edit(TARGET, *node, Patch(counted(node, vec![]))))
    };
    rollout.releases.iter().filter_map(release).chain(nodes.iter().filter_map(step)).collect()
}

/// The operations that set annotations, and count that: they fail if somebody has counted meanwhile.
fn counted(node: &Node, more: Vec<(&'static str, String)>) -> Vec<PatchOperation> {
    let known = annotation(node, annotations::CONFIG_GIVEN);
    let count = (annotations::CONFIG_GIVEN, given(node).wrapping_add(1).to_string());
    let mut operations = patch::annotate(&node.metadata, &more.into_iter().chain([count]).collect()).0;
    if known.is_none() && node.metadata.annotations.as_ref().is_some_and(|all| !all.is_empty()) {
        let path = ["metadata", "annotations", annotations::CONFIG_GIVEN];
        operations.insert(0, patch::test(&path, serde_json::Value::Null));
    }
    operations
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
        // Whoever cordons it from now on is somebody else.
        wanted.push((annotations::CONFIG_DRAIN, ConfigDrain::Open.to_string()));
        let seen = node.spec.unschedulable.map_or(serde_json::Value::Null, Into::into);
        operations.push(patch::test(&["spec", "unschedulable"], seen));
    }
    operations.extend(counted(node, wanted));
    operations.extend(patch::unannotate(meta, [DESIRED_IMAGE]));
    operations.extend(untaint(node));
    operations
}

fn taint(node: &Node) -> Vec<PatchOperation> {
    if has_update_taint(node) {
        return vec![];
    }
    let (key, effect) = (taints::UPDATE_IN_PROGRESS.to_owned(), "PreferNoSchedule".to_owned());
    let mut all = node.taints().to_vec();
    all.push(Taint { key, value: None, effect, time_added: None });
    set_taints(node, &all)
}

fn untaint(node: &Node) -> Vec<PatchOperation> {
    let mut all = node.taints().to_vec();
    all.retain(|taint| taint.key != taints::UPDATE_IN_PROGRESS);
    set_taints(node, &all)
}
