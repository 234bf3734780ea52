//! The plan of a Node that a rollout may replace: its marks.

use json_patch::Patch;
use nodewright_api::{Taint, annotations, taints};
use nodewright_runtime::{
    effect::Never,
    object::annotation,
    plan::{Plan, Step},
};

use super::{
    decision::{Decision, decide},
    snapshot::Snapshot,
};
use crate::shared::{
    TARGET,
    node::{AUTOSCALER_MARKS, Node, set_taints},
    patch,
};

pub(super) fn plan(snapshot: &Snapshot) -> Plan<Never> {
    let (node, mut plan) = (&snapshot.node, Plan::idle());
    let (patch, why) = match decide(snapshot) {
        Decision::Leave => return plan,
        Decision::Mark => (mark(node, snapshot.annotates), "a rollout replaces the machine of the node"),
        Decision::Unmark { is_preserved } => {
            (unmark(node, is_preserved), "no rollout replaces the machine of the node")
        }
    };
    plan.then(why, Step::edit(TARGET, node.as_ref(), patch));
    plan
}

fn mark(node: &Node, annotates: bool) -> Patch {
    let mut all = node.taints().to_vec();
    if !all.iter().any(is_ours) {
        all.push(Taint {
            key: taints::PREFER_NO_SCHEDULE.to_owned(),
            value: Some(taints::PREFER_NO_SCHEDULE_VALUE.to_owned()),
            effect: "PreferNoSchedule".to_owned(),
            time_added: None,
        });
    }
    let mut operations = set_taints(node, &all);
    if annotates && annotation(node, annotations::SCALE_DOWN_DISABLED).is_none() {
        let wanted = AUTOSCALER_MARKS.map(|key| (key, "true".to_owned()));
        operations.extend(patch::annotate(&node.metadata, &wanted.into()).0);
    }
    Patch(operations)
}

fn unmark(node: &Node, is_preserved: bool) -> Patch {
    let mut all = node.taints().to_vec();
    all.retain(|taint| !is_ours(taint));
    let mut operations = set_taints(node, &all);
    if !is_preserved && annotation(node, annotations::SCALE_DOWN_DISABLED_BY_MCM).is_some() {
        operations.extend(patch::unannotate(&node.metadata, AUTOSCALER_MARKS));
    }
    Patch(operations)
}

fn is_ours(taint: &Taint) -> bool {
    taint.key == taints::PREFER_NO_SCHEDULE && taint.effect == "PreferNoSchedule"
}
