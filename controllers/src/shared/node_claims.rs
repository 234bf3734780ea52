//! Whether a Machine claims a Node.

use nodewright_api::{Machine, MachineClass, labels};
use nodewright_runtime::{
    cache::Stores,
    object::{label, name, namespace, uid},
};

use super::{
    CONTROL,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, instance_id},
    node::Node,
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

/// What a Node remembers of the class of its Machine: which lists have its VM. A class that was made again is another one.
pub(crate) fn class_of_node(class: &MachineClass) -> String {
    format!("{}/{}/{}", namespace(class), name(class), uid(class))
}
