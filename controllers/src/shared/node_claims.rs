//! Whether a Machine claims a Node.

use std::sync::Arc;

use nodewright_api::{
    Machine, MachineClass, labels,
    stored::{NODE_CLASS, NodeClass},
};
use nodewright_runtime::{
    cache::Stores,
    object::{label, name, namespace, uid},
};

use super::{
    CONTROL,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, instance_id},
    node::Node,
    ownership::{is_disputed, missing_vm, noted_id},
};

/// Whether any Machine of the namespace claims a Node, or may: by the id of its VM, by the name of the Node, or because the Node's label
/// names it. The cache of Machines needs their indexes by instance and by Node.
pub(crate) fn is_claimed(stores: &Stores, node: &Node) -> bool {
    let machines = stores.of::<Machine>(CONTROL);
    let by_id = node.provider_id().is_some_and(|id| machines.count(MACHINE_BY_INSTANCE, instance_id(id)) > 0);
    let by_name = machine_name(node).is_some_and(|name| {
        machines.by_name(machines.namespace(), name).is_some()
            || machines.unreadable().iter().any(|machine| machine.name() == name)
    });
    by_id || by_name || machines.count(MACHINE_BY_NODE, name(node)) > 0
}

/// The Machine that a Node's label names.
pub(crate) fn machine_name(node: &Node) -> Option<&str> {
    label(node, labels::MACHINE_NAME)
}

/// What a Node remembers of the class of its Machine.
pub(crate) fn class_of_node(class: &MachineClass) -> String {
    let [namespace, name, uid] = [namespace(class), name(class), uid(class)].map(str::to_owned);
    NodeClass { namespace, name, uid }.to_string()
}

/// Whether the Machine of a Node was of this manager's namespace: others have managers of their own. Its class may be gone.
pub(crate) fn is_of_namespace(stores: &Stores, node: &Node) -> bool {
    NODE_CLASS.of(node).is_some_and(|class| class.namespace == stores.of::<Machine>(CONTROL).namespace())
}

/// Whether the VM of a Node is missing, as its Machine says. `false` if that is not certain: another Machine claims the Node, or may.
pub(crate) fn is_missing_by_machine(stores: &Stores, node: &Node) -> bool {
    let machines = stores.of::<Machine>(CONTROL);
    let Some(id) = node.provider_id() else { return false };
    let by_id = machines.by(MACHINE_BY_INSTANCE, instance_id(id));
    let [machine] = by_id.as_slice() else { return false };
    let is_alone = |other: &Arc<Machine>| name(other.as_ref()) == name(machine.as_ref());
    missing_vm(machine).is_some_and(|missing| missing.id == id)
        && noted_id(machine) == Some(id)
        && !is_disputed(machine)
        && label(node, labels::MACHINE_NAME) == Some(name(machine.as_ref()))
        && machines.by(MACHINE_BY_NODE, name(node)).iter().all(is_alone)
}
