//! The Nodes without a Machine that are not initialized, although this manager does the node part of a cloud controller manager.
//!
//! No class is theirs, so each class of the namespace reports them.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{ConditionStatus, Machine, MachineClass, conditions::machine_class as kinds, taints};
use nodewright_runtime::{
    cache::{Change, Stores},
    clip::few,
    controller::Watches,
    object::{ObjectRef, created, name},
    plan::Context,
};

use super::call::Validate;
use crate::shared::{
    CONTROL, TARGET,
    cloud_manager::{self, CloudManager, CloudNodeMode, UNINITIALIZED},
    conditions::Finding,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE},
    node::Node,
    node_claims::{is_claimed, machine_name},
};

/// For so long somebody may initialize a Node, and between two looks at those that nobody has.
const PAUSE: SignedDuration = SignedDuration::from_mins(5);
/// How many Nodes the message names.
const NAMED: usize = 5;
const REASON: &str = "NodesWithoutMachine";

/// What the caches show of such Nodes.
#[derive(Clone, Debug)]
pub(crate) struct Uninitialized {
    cloud_manager: CloudManager,
    /// Whether the driver describes VMs that were not made for a Machine, so that [`unowned_node`](crate::unowned_node) initializes
    /// Nodes by their provider ids.
    is_described: bool,
    /// Names and times of creation; `None` until the Nodes are listed.
    nodes: Option<Vec<(String, Option<Timestamp>)>>,
}

impl Uninitialized {
    pub(super) fn take(stores: &Stores, mode: CloudNodeMode, is_described: bool) -> Option<Self> {
        if mode == CloudNodeMode::Off {
            return None;
        }
        let nodes = stores.is_listed::<Node>(TARGET).then(|| {
            let mut nodes = stores.of::<Node>(TARGET).by(UNINITIALIZED, "");
            // One with the label has, or had, a Machine of another namespace.
            nodes.retain(|node| machine_name(node).is_none() && !is_claimed(stores, node));
            let mut nodes: Vec<_> =
                nodes.iter().map(|node| (name(node.as_ref()).to_owned(), created(node.as_ref()))).collect();
            nodes.sort_unstable();
            nodes
        });
        Some(Self { cloud_manager: CloudManager::take(stores, mode, None), is_described, nodes })
    }
}

/// What a class reports of them, if there are any, and when to look again.
pub(super) fn finding(
    context: &Context<'_, Validate>,
    class: &MachineClass,
    uninitialized: Option<&Uninitialized>,
) -> (Option<Finding<'static>>, Option<Timestamp>) {
    let Some(uninitialized) = uninitialized else { return (None, None) };
    let Some(nodes) = &uninitialized.nodes else { return (known(class), None) };
    if nodes.is_empty() {
        return (None, None);
    }
    let end = |created: &Option<Timestamp>| created.and_then(|created| created.checked_add(PAUSE).ok());
    let (waiting, left): (Vec<_>, Vec<_>) =
        nodes.iter().partition(|(_, created)| end(created).is_some_and(|end| end > context.now));
    let again = context.now.checked_add(PAUSE).ok();
    let next = waiting.iter().filter_map(|(_, created)| end(created)).chain(again).min();
    if left.is_empty() || !uninitialized.cloud_manager.is_on(context) {
        return (None, next);
    }
    let (count, verb) =
        if left.len() == 1 { ("1 node".to_owned(), "has") } else { (format!("{} nodes", left.len()), "have") };
    let why = if uninitialized.is_described {
        "this manager does not initialize them: see their events"
    } else {
        "this manager initializes the nodes of its machines alone"
    };
    let message = format!(
        "{count} without a machine {verb} the taint {}: {}; {why}, run the provider's cloud controller manager, or start these \
         kubelets without --cloud-provider=external",
        taints::UNINITIALIZED,
        few(NAMED, left.iter().map(|(name, _)| name.as_str()))
    );
    (Some((ConditionStatus::False, REASON, message)), next)
}

/// What the class reports already.
fn known(class: &MachineClass) -> Option<Finding<'static>> {
    let known = class.condition(kinds::NODES_INITIALIZED)?;
    Some((known.status.clone(), REASON, known.message.clone()))
}

/// Wakes the classes when a Node without a Machine is uninitialized, or no more.
pub(super) fn watch(on: &mut Watches<'_>, namespace: &str, mode: CloudNodeMode) {
    if mode == CloudNodeMode::Off {
        return;
    }
    cloud_manager::watch(on, mode);
    on.kind::<Machine>(CONTROL, namespace).index(MACHINE_BY_INSTANCE).index(MACHINE_BY_NODE);
    on.kind::<Node>(TARGET, "").index(UNINITIALIZED).wakes(wake_classes);
}

fn wake_classes(change: &Change<Node>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let differs = change.differs_in(Node::is_uninitialized);
    if differs && change.sides().any(|node| node.is_uninitialized() && !is_claimed(stores, node)) {
        stores.of::<MachineClass>(CONTROL).keys().into_iter().for_each(wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use nodewright_runtime::{cache::Store, effect::Outcomes};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        shared::indexes::MACHINES_BY_CLASS,
        testing::{MachineBuilder, NOW, machine},
    };

    const ID: &str = "p:///1";

    fn node(name: &str, created: &str, change: &Value) -> Node {
        let mut node = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "spec": {"providerID": ID,
            "taints": [{"key": taints::UNINITIALIZED, "effect": "NoSchedule", "value": "true"}]}});
        json_patch::merge(&mut node, change);
        serde_json::from_value(node).unwrap()
    }

    /// What a class reports of these Nodes beside a Machine, and whether it looks again.
    fn reported(nodes: Vec<Node>, machine: MachineBuilder, mode: CloudNodeMode) -> (Option<String>, bool) {
        let stores = Stores::default();
        let machines = Store::<Machine>::new(CONTROL, "default");
        for index in [MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_CLASS] {
            machines.add_index(index);
        }
        machines.apply(machine.build());
        stores.add(Arc::new(machines));
        let store = Store::<Node>::new(TARGET, "");
        store.add_index(UNINITIALIZED);
        for node in nodes {
            store.apply(node);
        }
        stores.add(Arc::new(store));
        let uninitialized = Uninitialized::take(&stores, mode, false);
        let (now, outcomes) = (NOW.parse().unwrap(), Outcomes::default());
        let (finding, next) = finding(&Context::new(now, &outcomes), &MachineClass::default(), uninitialized.as_ref());
        (finding.map(|(.., message)| message), next.is_some())
    }

    #[test]
    fn a_class_names_the_nodes_that_have_kept_their_taint_and_have_no_machine() {
        let old = |name| node(name, "2026-06-01T11:00:00Z", &json!({}));
        let young = || node("young", "2026-06-01T11:59:00Z", &json!({}));
        let untainted = || node("n", "2026-06-01T11:00:00Z", &json!({"spec": {"taints": null}}));
        let other = || machine("m").with("/spec/providerID", "p:///9");
        let on = |nodes| reported(nodes, other(), CloudNodeMode::On);
        let (message, looks_again) = on(vec![old("b"), young(), old("a")]);
        assert!(message.unwrap().starts_with(
            "2 nodes without a machine have the taint node.cloudprovider.kubernetes.io/uninitialized: a, b; this manager"
        ));
        assert!(looks_again);
        assert_eq!(on(vec![young()]), (None, true), "somebody may initialize it yet");
        assert_eq!(on(vec![untainted()]), (None, false));
        for owner in [machine("m").with("/spec/providerID", ID), machine("m").label("node", "a")] {
            assert_eq!(reported(vec![old("a")], owner, CloudNodeMode::On), (None, false), "a machine has it");
        }
        assert_eq!(reported(vec![old("a")], other(), CloudNodeMode::Off), (None, false));
        let open = CloudNodeMode::Auto(Duration::from_hours(9));
        assert_eq!(reported(vec![old("a")], other(), open), (None, true), "another may do it");
    }
}
