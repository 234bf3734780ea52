//! MachineDeployment: a number of machines from one template, and their replacement when the template changes.
//!
//! * **Sets.** The current MachineSet is the one whose template has the deployment's labels, annotations and class name. The
//!   rest of the template is copied to it without a rollout. A set is created with 0 replicas and with a name that is derived
//!   from the compared fields, so that it is never created twice; if another owner's set has the name, the collision is counted
//!   in the status, which leads to another name. Sets without an owner that the selector matches are adopted.
//! * **Sizes.** `mode` decides whether Machines are replaced, which they are not while the deployment is paused; `sizes` how large each set
//!   is then, by the bounds of `rollout` or the shares of `scale_in`. Each write of a set's replicas is refused once the set has changed.
//!   Notes on the sets say for which goal they were sized, as with Kubernetes' Deployments.
//!   A set that the selector no longer matches is released.
//! * **`InPlaceUpdate`.** Machines keep their VMs: `updates` lists those that are being updated, and moves them to the set of the
//!   present template afterwards. [`crate::rollout_node`] selects their Nodes, and the Machine controller drains these.
//! * **Removal.** Machines that the cluster autoscaler names are marked, so that their set deletes them first.
//! * **Nodes.** While a rollout lasts, [`crate::rollout_node`] marks the Nodes of former templates.
//! * **Status.** All counts are of Machine objects, seen in one store.
//!
//! # Guarantees
//! Those of `rollout`. Nothing is created, scaled or deleted for an invalid spec.
//!
//! # Assumptions
//! The machine set controller runs in the same process, on the same stores: the Machines that it has created are visible here
//! by the time that its set's `observedGeneration` is.
//!
//! # Caveats
//! * `minReadySeconds` has no effect, unless [`FleetSettings::honor_min_ready_seconds`] is set.

mod blockers;
mod decision;
mod history;
mod mcm_metrics;
mod memory;
mod mode;
mod plan;
mod requests;
mod rollout;
mod scale_in;
mod sets;
mod sizes;
mod snapshot;
mod stalls;
mod status;
#[cfg(test)]
pub(crate) mod tests;
mod updates;

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use json_patch::Patch;
use nodewright_api::{Machine, MachineDeployment, MachineSet, machine_config::MachineConfigPool};
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{Cluster, ObjectRef, annotation, controller_uid, is_deleting, name},
};

pub(crate) use self::mcm_metrics::register as register_metrics;
use self::{
    memory::{Context, Note, Plan},
    snapshot::{Snapshot, configured_nodes},
};
use crate::shared::{
    CONTROL, TARGET,
    fleet::{FleetSettings, PlanSettings},
    in_place,
    indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_INSTANCE, MACHINE_BY_NODE, ORPHAN_MACHINES, ORPHAN_SETS, SET_BY_UID},
    membership::{conflicting_machines, would_adopt},
    node::Node,
    ownership::{NodeProof, noted_id},
    patch,
    preservation::preserve_expiry,
    schema::FullSchema,
    wake_all, wake_namespace,
};

pub use crate::shared::template::is_same as is_same_template;

/// The change by which a client rolls a deployment back to the template of one of its sets, as `spec.rollbackTo` does. It fails
/// if the deployment has changed since.
pub fn rollback_patch(deployment: &MachineDeployment, set: &MachineSet) -> Patch {
    let version = patch::same_version(&deployment.metadata);
    Patch([version].into_iter().chain(requests::restore(deployment, set)).collect())
}

/// The controller of MachineDeployments.
#[derive(Clone, Debug)]
pub struct MachineDeploymentController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with `status.selector`, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
    /// Limits and times.
    pub fleet: FleetSettings,
    /// How the Nodes of Machines are known, which are updated in place; `None` without a target cluster.
    pub nodes: Option<NodeProof>,
    /// Whether MachineConfigPools are watched: Nodes that they disrupt are not available to a rollout.
    pub has_pools: bool,
}

impl Controller for MachineDeploymentController {
    const NAME: &'static str = "machine-deployment";
    type Primary = MachineDeployment;
    type Snapshot = Snapshot;
    type Effect = Never;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineDeployment>(CONTROL, &self.namespace).index(DEPLOYMENT_BY_UID);
        on.kind::<MachineSet>(CONTROL, &self.namespace)
            .index(SET_BY_UID)
            .index(ORPHAN_SETS)
            .wakes_unreadable(wake_namespace::<MachineDeployment>)
            .wakes(|change, stores, wake| {
                change.sides().for_each(|set| wake_all(owners(stores, set), wake));
            });
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(ORPHAN_MACHINES)
            .index(MACHINE_BY_INSTANCE)
            .index(MACHINE_BY_NODE)
            .wakes_unreadable(wake_namespace::<MachineDeployment>)
            .wakes(|change, stores, wake| {
                if matters(change) {
                    // When a machine is gone, another one that names the same VM may become adoptable.
                    let conflicting = change.sides().flat_map(|machine| conflicting_machines(stores, machine));
                    let orphans = conflicting.filter(|other| controller_uid(other.as_ref()).is_none());
                    let concerned = change.sides().cloned().chain(orphans);
                    let sets = concerned.flat_map(|machine| sets_of(stores, &machine));
                    sets.for_each(|set| wake_all(owners(stores, &set), wake));
                }
            });
        if self.nodes.is_some() {
            on.kind::<Node>(TARGET, "").wakes(|change, stores, wake| {
                // Few Nodes are updated in place: the others come, change and go for their Machines alone.
                let gist = |node: &Option<Arc<Node>>| node.as_deref().map(in_place::gist).unwrap_or_default();
                if gist(&change.old) != gist(&change.new) {
                    let machines = stores.of::<Machine>(CONTROL);
                    let of_node = |node: &Arc<Node>| machines.by(MACHINE_BY_NODE, name(node.as_ref()));
                    let machines = change.sides().flat_map(of_node).collect::<Vec<_>>();
                    let sets = machines.iter().flat_map(|machine| sets_of(stores, machine));
                    sets.for_each(|set| wake_all(owners(stores, &set), wake));
                }
            });
        }
        if self.nodes.is_some() && self.has_pools {
            on.kind::<MachineConfigPool>(TARGET, "").wakes(|change, stores, wake| {
                let configured = |pool: &Option<Arc<MachineConfigPool>>| {
                    pool.iter().flat_map(|pool| configured_nodes(pool)).collect()
                };
                let (old, new): (BTreeSet<_>, BTreeSet<_>) = (configured(&change.old), configured(&change.new));
                let machines = stores.of::<Machine>(CONTROL);
                for node in old.symmetric_difference(&new) {
                    let sets = machines.by(MACHINE_BY_NODE, node).into_iter().flat_map(|it| sets_of(stores, &it));
                    sets.for_each(|set| wake_all(owners(stores, &set), wake));
                }
            });
        }
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let settings = PlanSettings { fleet: self.fleet.clone(), full_schema: self.full_schema.get() };
        let snapshot = Snapshot::take(stores, key, self.nodes, settings)?;
        Some(if self.has_pools { snapshot.with_pools(stores) } else { snapshot })
    }

    /// Only updates in place depend on the target cluster.
    fn tolerates_unavailable(&self, _: &MachineDeployment, cluster: Cluster, _: Timestamp) -> bool {
        cluster == TARGET
    }

    fn plans_unlisted(&self, _: &MachineDeployment, cluster: Cluster) -> bool {
        cluster == TARGET
    }

    fn children(&self, snapshot: &Snapshot) -> usize {
        snapshot.machines().count()
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}

/// The deployment that controls a set; for a set without an owner those that would adopt it.
fn owners(stores: &Stores, set: &MachineSet) -> Vec<Arc<MachineDeployment>> {
    let deployments = stores.of::<MachineDeployment>(CONTROL);
    match controller_uid(set) {
        Some(uid) => deployments.by(DEPLOYMENT_BY_UID, uid),
        None => deployments.all().into_iter().filter(|it| snapshot::may_adopt(it, set)).collect(),
    }
}

/// The set that controls a machine; for a machine without an owner those that will adopt it.
fn sets_of(stores: &Stores, machine: &Machine) -> Vec<Arc<MachineSet>> {
    let sets = stores.of::<MachineSet>(CONTROL);
    match controller_uid(machine) {
        Some(uid) => sets.by(SET_BY_UID, uid),
        None => sets.all().into_iter().filter(|set| would_adopt(set, machine)).collect(),
    }
}

/// Whether a change of a machine concerns its deployment. Most changes are heartbeats in its node's conditions.
fn matters(change: &Change<Machine>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    gist(old) != gist(new)
}

/// What of a machine its deployment goes by. Of texts, which change often, what the deployment says is as new as its last look.
fn gist(machine: &Machine) -> impl PartialEq {
    let status = machine.status.as_ref();
    let expiry = preserve_expiry(machine);
    let operation = status.map(|status| &status.last_operation);
    let failed = operation.filter(|operation| operation.state == nodewright_api::OperationState::Failed);
    let marked = annotation(machine, nodewright_api::annotations::MARKED_FOR_DELETION_TIME);
    let has_vm = noted_id(machine).is_some();
    let blocked_by = blockers::blocked_by(machine).map(|stage| (&stage.type_, &stage.reason));
    let missing = stalls::missing_reason(machine).map(|(reason, since, _)| (reason, since));
    let of_spec = (is_deleting(machine), controller_uid(machine), marked, in_place::is_moving(machine));
    (of_spec, has_vm, machine.phase(), expiry, failed, blocked_by, missing)
}

#[cfg(test)]
mod change_tests {
    use serde_json::json;

    use super::*;
    use crate::testing::machine;

    #[test]
    fn a_deployment_looks_when_a_deletion_is_blocked_by_something_else_and_not_at_each_text() {
        let drained = |reason: &str, message: &str| {
            let drained = json!([{"type": "Drained", "status": "False", "reason": reason, "message": message}]);
            Arc::new(machine("a").deleting().with("/status/conditions", drained).build())
        };
        let matters = |old: &Arc<Machine>, new: &Arc<Machine>| {
            super::matters(&Change { old: Some(old.clone()), new: Some(new.clone()) })
        };
        let begun = Arc::new(machine("a").deleting().build());
        let left = drained("PodsLeft", "pod a");
        assert!(matters(&begun, &left), "it is blocked now");
        assert!(matters(&left, &drained("EvictionRefused", "pod a")), "by something else");
        assert!(!matters(&left, &drained("PodsLeft", "pod b")), "a text");
    }
}
