//! The writes by which a pool claims a Node, and by which a Node uses a claim.

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    machine_config::MachineConfigPool,
    stored::{CONFIG_GIVEN, Claim, DISRUPTIONS, Disruptions},
};
use nodewright_runtime::{
    annotations,
    object::{annotation, name},
    plan::Step,
};

use super::{SharedBudget, node_state::given};
use crate::shared::{TARGET, node::Node, patch};

/// Why a pool claims a Node for its Machine.
pub(crate) const HAS_ROOM: &str = "the pool has room for a disruption";

/// The step by which the pool lists a Node, with a claim that begins now if it is a new one.
pub(crate) fn claimed<E>(shared: &SharedBudget, node: &Node, claim: Claim, now: Timestamp) -> Option<Step<E>> {
    let since = if claim.since == Claim::SINCE_NOW { now } else { claim.since };
    let mut claims = shared.claims.clone();
    claims.0.insert(name(node).to_owned(), Claim { since, ..claim });
    Step::edit(TARGET, shared.pool(), write(shared.pool(), &claims)?)
}

/// The operations that use the claim of a Node, after others that set annotations of it.
pub(crate) fn used(node: &Node) -> Vec<PatchOperation> {
    let meta = &node.metadata;
    if meta.annotations.as_ref().is_none_or(std::collections::BTreeMap::is_empty) {
        let (key, count) = count_of(node);
        return vec![patch::same_version(meta), patch::set(&["metadata", "annotations", key], count.into())];
    }
    counted(node, vec![])
}

/// The operations that set annotations of a Node, and count that it is disrupted: they fail if somebody has counted meanwhile.
pub(crate) fn counted(node: &Node, more: Vec<(&'static str, String)>) -> Vec<PatchOperation> {
    patch::annotate(&node.metadata, &more.into_iter().chain([count_of(node)]).collect()).0
}

fn count_of(node: &Node) -> (&'static str, String) {
    CONFIG_GIVEN.written(&given(node).wrapping_add(1))
}

/// The write of the claims of a pool, if they change; it is refused if the pool has changed. Also an empty list is written: one that is
/// missing is lost.
pub(crate) fn write(pool: &MachineConfigPool, claims: &Disruptions) -> Option<Patch> {
    let (key, wanted) = DISRUPTIONS.written(claims);
    if annotation(pool, key) == Some(wanted.as_str()) {
        return None;
    }
    let mut operations = vec![patch::same_version(&pool.metadata)];
    operations.extend(annotations::set(&pool.metadata, key, Some(&wanted)).0);
    Some(Patch(operations))
}
