//! Extended resources that a MachineClass adds to the capacity of its Nodes (`nodeTemplate.virtualCapacity`), without a rollout.
//!
//! As in machine-controller-manager, an annotation of the Node lists what was added, so that what the class drops is removed. A
//! kubelet may write that annotation. It may write the capacity as well.

use std::collections::BTreeMap;

use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    MachineClass,
    extended_resource::{is_extended, whole},
    stored::{VIRTUAL_CAPACITY, VirtualCapacity},
};
use nodewright_runtime::annotations::set;

use crate::shared::{node::Node, patch};

/// Patches, empty when the Node has what its class adds. The annotation follows the capacity: what it lists can be removed.
#[derive(Default)]
pub(super) struct CapacitySync {
    pub(super) status: Patch,
    pub(super) node: Patch,
}

pub(super) fn sync(class: Option<&MachineClass>, node: &Node) -> CapacitySync {
    // A kubelet reports a capacity first.
    let (Some(class), Some(live)) = (class, &node.status.capacity) else { return CapacitySync::default() };
    let recorded = VIRTUAL_CAPACITY.read(node);
    let is_present = recorded.is_some();
    let VirtualCapacity(before) = recorded.and_then(Result::ok).unwrap_or_default();
    let wanted = class.node_template.iter().flat_map(|template| &template.virtual_capacity);
    let wanted: BTreeMap<_, _> = wanted
        .filter(|(name, quantity)| is_extended(name) && whole(&quantity.0).is_some())
        .map(|(name, quantity)| (name.clone(), quantity.0.clone()))
        .collect();
    let status = capacity(live, &before, &wanted);
    let is_recorded = before == wanted && (is_present != wanted.is_empty());
    if !status.is_empty() || is_recorded {
        return CapacitySync { status: Patch(status), node: Patch::default() };
    }
    let text = (!wanted.is_empty()).then(|| VirtualCapacity(wanted).to_string());
    let node = set(&node.metadata, VIRTUAL_CAPACITY.key, text.as_deref());
    CapacitySync { status: Patch::default(), node }
}

type Map = BTreeMap<String, String>;

fn capacity(live: &Map, before: &Map, wanted: &Map) -> Vec<PatchOperation> {
    // The API server writes a quantity in its own form, such as 1k for 1000.
    let is_as_wanted = |name: &str, text: &str| live.get(name).is_some_and(|live| whole(live) == whole(text));
    let missing = wanted.iter().filter(|(name, text)| !is_as_wanted(name, text));
    let additions = missing.map(|(name, text)| patch::set(&["status", "capacity", name], text.as_str().into()));
    let dropped = before.keys().filter(|name| is_extended(name) && !wanted.contains_key(*name));
    let present = dropped.filter(|name| live.contains_key(*name));
    additions.chain(present.map(|name| patch::remove(&["status", "capacity", name]))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(virtual_capacity: &Value) -> MachineClass {
        serde_json::from_value(json!({"metadata": {"name": "class"}, "providerSpec": {}, "nodeTemplate": {
            "capacity": {}, "virtualCapacity": virtual_capacity, "instanceType": "a", "region": "b", "zone": "c"}}))
        .unwrap()
    }

    /// Syncs until nothing is left to do, and returns the Node.
    fn synced(class: &MachineClass, mut live: Value) -> Value {
        for _ in 0..3 {
            let node: Node = serde_json::from_value(live.clone()).unwrap();
            let sync = sync(Some(class), &node);
            assert!(sync.status.0.is_empty() || sync.node.0.is_empty(), "one after the other");
            nodewright_testing::json_patch(&mut live, &sync.status).unwrap();
            nodewright_testing::json_patch(&mut live, &sync.node).unwrap();
        }
        let node: Node = serde_json::from_value(live.clone()).unwrap();
        let rest = sync(Some(class), &node);
        assert!(rest.status.0.is_empty() && rest.node.0.is_empty(), "{live}");
        live
    }

    fn bare() -> Value {
        json!({"metadata": {"name": "n", "uid": "u"}, "status": {"capacity": {"cpu": "4", "nvidia.com/gpu": "1"}}})
    }

    #[test]
    fn a_node_gets_what_its_class_adds_and_loses_what_it_drops() {
        let live = synced(&class(&json!({"subdomain.domain.com/resource": "1234567", "a.com/b": "2"})), bare());
        let expected =
            json!({"cpu": "4", "nvidia.com/gpu": "1", "subdomain.domain.com/resource": "1234567", "a.com/b": "2"});
        assert_eq!(live["status"]["capacity"], expected);
        let key = "node.machine.sapcloud.io/last-applied-virtual-capacity";
        let recorded = live["metadata"]["annotations"][key].as_str().unwrap();
        assert_eq!(recorded, r#"{"a.com/b":"2","subdomain.domain.com/resource":"1234567"}"#);
        let live = synced(&class(&json!({"a.com/b": "3"})), live);
        assert_eq!(live["status"]["capacity"], json!({"cpu": "4", "nvidia.com/gpu": "1", "a.com/b": "3"}));
        let live = synced(&class(&json!({})), live);
        assert_eq!(live["status"]["capacity"], json!({"cpu": "4", "nvidia.com/gpu": "1"}));
        assert_eq!(live["metadata"]["annotations"].get(key), None);
        assert_eq!(synced(&class(&json!({})), bare()), bare(), "nothing is written without need");
    }

    #[test]
    fn kubernetes_own_resources_and_fractions_are_left_alone() {
        let odd = json!({"cpu": "100", "example.kubernetes.io/a": "1", "a.com/b": "0.5", "a.com/c": "100m"});
        assert_eq!(synced(&class(&odd), bare()), bare());
        let mut forged = bare();
        forged["metadata"]["annotations"] =
            json!({"node.machine.sapcloud.io/last-applied-virtual-capacity": r#"{"cpu":"4"}"#});
        assert_eq!(synced(&class(&json!({})), forged)["status"], bare()["status"]);
        let silent = json!({"metadata": {"name": "n"}, "status": {}});
        assert_eq!(synced(&class(&json!({"a.com/b": "1"})), silent.clone()), silent);
    }

    #[test]
    fn a_quantity_in_another_form_is_no_change() {
        let mut live = synced(&class(&json!({"a.com/b": "2000", "a.com/c": "2048Ki"})), bare());
        live["status"]["capacity"]["a.com/b"] = json!("2k");
        live["status"]["capacity"]["a.com/c"] = json!("2Mi");
        assert_eq!(synced(&class(&json!({"a.com/b": "2000", "a.com/c": "2048Ki"})), live.clone()), live);
    }
}
