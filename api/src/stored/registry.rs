//! The list of the facts, for the page and for the test that compares the two.

use crate::{
    annotations,
    conditions::{machine, machine_config_pool, node},
    labels,
};

/// Where a fact is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its name: `api/tests/golden/<name>.txt` has texts of it.
    pub name: &'static str,
    /// The kind of the object.
    pub object: &'static str,
    /// The field.
    pub field: &'static str,
    /// The key of the annotation or label, or the type of the condition; else empty.
    pub key: &'static str,
}

impl Fact {
    const fn annotation(name: &'static str, object: &'static str, key: &'static str) -> Self {
        Self { name, object, field: "annotation", key }
    }

    const fn condition(name: &'static str, object: &'static str, key: &'static str) -> Self {
        Self { name, object, field: "condition", key }
    }

    const fn label(name: &'static str, object: &'static str, key: &'static str) -> Self {
        Self { name, object, field: "label", key }
    }

    const fn field(name: &'static str, object: &'static str, field: &'static str) -> Self {
        Self { name, object, field, key: "" }
    }
}

/// All facts.
pub const FACTS: [Fact; 47] = [
    Fact::annotation("ledger", "MachineSet", annotations::LEDGER),
    Fact::annotation("ordinal", "Machine", annotations::INDEX),
    Fact::field("machine-name", "Machine", "metadata.name"),
    Fact::annotation("creation-round", "MachineSet", annotations::CREATION_BACKOFF),
    Fact::annotation("sized-for", "MachineSet", annotations::SIZED_FOR),
    Fact::annotation("updating", "MachineSet", annotations::UPDATING),
    Fact::annotation("desired-replicas", "MachineSet", annotations::DESIRED_REPLICAS),
    Fact::annotation("max-replicas", "MachineSet", annotations::MAX_REPLICAS),
    Fact::annotation("revision", "MachineSet", annotations::REVISION),
    Fact::annotation("revision-history", "MachineSet", annotations::REVISION_HISTORY),
    Fact::label("freeze", "MachineSet", labels::FREEZE),
    Fact::annotation("class-identity", "MachineClass", annotations::IDENTITY),
    Fact::annotation("unexplained-vms", "MachineClass", annotations::UNEXPLAINED_VMS),
    Fact::annotation("swept-vms", "MachineClass", annotations::SWEPT_VMS),
    Fact::annotation("removals", "MachineDeployment", annotations::TRIGGER_DELETION),
    Fact::annotation("scaler-change", "MachineDeployment", annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME),
    Fact::annotation("marked-for-deletion", "Machine", annotations::MARKED_FOR_DELETION_TIME),
    Fact::annotation("machine-priority", "Machine", annotations::MACHINE_PRIORITY),
    Fact::annotation("preserve", "Machine", annotations::PRESERVE),
    Fact::annotation("node-preserve", "Machine", annotations::LAST_APPLIED_NODE_PRESERVE_VALUE),
    Fact::annotation("applied-node-template", "Machine", annotations::APPLIED_NODE_TEMPLATE),
    Fact::condition("proven-vm", "Machine", machine::INSTANCE_PROVISIONED),
    Fact::condition("adopted-vm", "Machine", machine::VM_ADOPTED),
    Fact::condition("joined-node", "Machine", machine::NODE_JOINED),
    Fact::condition("health-deadline", "Machine", machine::HEALTH_TIMEOUT),
    Fact::condition("missing-vm", "Machine", machine::INSTANCE_EXISTS),
    Fact::condition("missing-class", "Machine", machine::CONFIGURATION_VALID),
    Fact::field("operation", "Machine", "status.lastOperation.description"),
    Fact::annotation("last-applied", "Node", annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS),
    Fact::annotation("virtual-capacity", "Node", annotations::LAST_APPLIED_VIRTUAL_CAPACITY),
    Fact::annotation("scale-down-disabled", "Node", annotations::SCALE_DOWN_DISABLED_BY_MCM),
    Fact::annotation("preserve-node", "Node", annotations::PRESERVE),
    Fact::condition("preserved-node", "Node", node::PRESERVED),
    Fact::annotation("update-began", "Node", annotations::UPDATE_BEGAN),
    Fact::annotation("node-class", "Node", annotations::MACHINE_CLASS),
    Fact::annotation("not-managed", "Node", annotations::NOT_MANAGED),
    Fact::annotation("node-vm-missing", "Node", annotations::VM_MISSING),
    Fact::annotation("cordoned", "Node", annotations::CORDONED),
    Fact::annotation("config-drain", "Node", annotations::CONFIG_DRAIN),
    Fact::annotation("config-given", "Node", annotations::CONFIG_GIVEN),
    Fact::annotation("disruptions", "MachineConfigPool", annotations::DISRUPTIONS),
    Fact::annotation("pool-rollout", "MachineConfigPool", annotations::POOL_ROLLOUT),
    Fact::condition("pool-target", "MachineConfigPool", machine_config_pool::RENDERED),
    Fact::annotation("render-inputs", "MachineConfig", annotations::RENDER_INPUTS),
    Fact::annotation("generated-content", "MachineConfig", annotations::GENERATED_CONTENT),
    Fact::annotation("unused-since", "MachineConfig", annotations::UNUSED_SINCE),
    Fact::field("operator-finalizer", "KubeletConfig", "metadata.finalizers"),
];
