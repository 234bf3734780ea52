//! The VM and the Node of a Machine, according to its object.
//!
//! `spec.providerID` is a claim that any client may write. The status records what the provider has proven: the condition
//! `InstanceProvisioned` is True and its message is the id; the message of `NodeJoined` is the Node's name.

use nodewright_api::{
    Machine, MachinePhase, conditions, reasons,
    stored::{AdoptedVm, JoinedNode, MissingVm, NodeProgress, ProvenVm},
};
use nodewright_runtime::object::name;

use crate::shared::node::Node;

/// The VM that the status records.
pub(crate) fn proven_vm(machine: &Machine) -> Option<ProvenVm<'_>> {
    ProvenVm::of(machine.condition(conditions::machine::INSTANCE_PROVISIONED)?)
}

/// The VM that the provider has twice reported not to know, as the status records.
pub(crate) fn missing_vm(machine: &Machine) -> Option<MissingVm<'_>> {
    MissingVm::of(machine.condition(conditions::machine::INSTANCE_EXISTS)?)
}

pub(crate) fn noted_id(machine: &Machine) -> Option<&str> {
    Some(proven_vm(machine)?.id)
}

/// The UID of the former Machine whose VM this one has adopted.
pub(crate) fn adopted_uid(machine: &Machine) -> Option<&str> {
    Some(AdoptedVm::of(machine.condition(conditions::machine::VM_ADOPTED)?)?.uid)
}

/// The id of the VM that the controller acts on: the recorded id, else the claimed id.
pub(crate) fn vm_id(machine: &Machine) -> Option<&str> {
    noted_id(machine).or(machine.provider_id())
}

/// The name that the driver gave the Node, as recorded in the status.
pub(crate) fn noted_node(machine: &Machine) -> Option<&str> {
    Some(JoinedNode::of(machine.condition(conditions::machine::NODE_JOINED)?)?.name)
}

pub(crate) fn node_name(machine: &Machine) -> Option<&str> {
    noted_node(machine).or(machine.node_name())
}

/// Whether a Node of the Machine may have joined: its status does not say that it is awaited, or that it did not come in time.
pub(crate) fn may_have_joined(machine: &Machine) -> bool {
    let progress = machine.condition(conditions::machine::NODE_JOINED).and_then(NodeProgress::of);
    !matches!(progress, Some(NodeProgress::Awaited | NodeProgress::TimedOut))
}

/// Whether a Machine reports a conflict that forbids actions: several Machines name its VM, or several Nodes do.
pub(crate) fn is_disputed(machine: &Machine) -> bool {
    let disputes = [reasons::machine::PROVIDER_ID_NOT_UNIQUE, reasons::machine::SEVERAL_NODES];
    let valid = machine.condition(conditions::machine::CONFIGURATION_VALID);
    valid.and_then(|valid| valid.reason.as_deref()).is_some_and(|reason| disputes.contains(&reason))
}

/// Whether a Node belongs to a Machine's proven VM, according to both objects.
pub(crate) fn is_node_of(machine: &Machine, node: &Node) -> bool {
    let is_named = noted_node(machine).is_none_or(|named| named == name(node));
    is_named && noted_id(machine).is_some() && noted_id(machine) == node.provider_id()
}

/// Whether a Node is a Machine's, for the controllers of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProof {
    /// The Machine controller of the same process proves VMs.
    Here,
    /// The Machine controller is one of another process, which may be machine-controller-manager's: that records no proof, and the
    /// label and the claim of a Machine that it has provisioned count.
    Elsewhere,
}

impl NodeProof {
    pub(crate) fn is_node_of(self, machine: &Machine, node: &Node) -> bool {
        let is_theirs = || {
            let claimed = self.claimed_elsewhere(machine);
            claimed.is_some_and(|(id, named)| Some(id) == node.provider_id() && named == Some(name(node)))
        };
        is_node_of(machine, node) || is_theirs()
    }

    /// The VM and the name of the Node by which a Node is a Machine's; `None` while none can be.
    pub(crate) fn claim(self, machine: &Machine) -> Option<(&str, Option<&str>)> {
        let proven = noted_id(machine).map(|id| (id, node_name(machine)));
        proven.or_else(|| self.claimed_elsewhere(machine))
    }

    fn claimed_elsewhere(self, machine: &Machine) -> Option<(&str, Option<&str>)> {
        let is_provisioned = machine.condition(conditions::machine::INSTANCE_PROVISIONED).is_none()
            && !matches!(machine.phase(), MachinePhase::Unset | MachinePhase::CrashLoopBackOff);
        let is_claimed = self == Self::Elsewhere && is_provisioned;
        is_claimed.then(|| machine.provider_id()).flatten().map(|id| (id, machine.node_name()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::machine;

    #[test]
    fn a_node_is_a_machines_by_the_proven_id_unless_the_driver_has_named_another() {
        let of = |noted: Option<&str>, named: Option<&str>, id: Option<&str>| {
            let vm = noted.map(
                |id| json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": id}),
            );
            let node =
                named.map(|name| json!({"type": "NodeJoined", "status": "True", "reason": "Joined", "message": name}));
            let conditions: Vec<_> = vm.into_iter().chain(node).collect();
            let machine = machine("m").with("/status/conditions", json!(conditions)).build();
            let node = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"providerID": id}})).unwrap();
            is_node_of(&machine, &node)
        };
        let table = [
            (Some("p:///1"), None, Some("p:///1"), true),
            (Some("p:///1"), Some("n"), Some("p:///1"), true),
            (Some("p:///1"), Some("x"), Some("p:///1"), false),
            (Some("p:///1"), Some("n"), Some("p:///2"), false),
            (Some("p:///1"), Some("n"), None, false),
            (None, Some("n"), None, false),
        ];
        for (noted, named, id, expected) in table {
            assert_eq!(of(noted, named, id), expected, "{noted:?} {named:?} {id:?}");
        }
    }
}
