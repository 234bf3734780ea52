//! What a cloud controller manager does to Nodes, or Nodewright in its place.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::taints;

use crate::{Environment, TestResult, ensure};

/// The addresses of a Node, by type.
pub fn addresses(node: &Node) -> BTreeMap<String, String> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    all.map(|it| (it.type_.clone(), it.address.clone())).collect()
}

/// Whether a Node has a taint of this key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    let all = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    all.into_iter().any(|taint| taint.key == key)
}

/// Whether a Node has its addresses, its provider id, and no longer the taint.
pub fn is_initialized(node: &Node) -> bool {
    let has_id = node.spec.as_ref().is_some_and(|spec| spec.provider_id.is_some());
    has_id && !has_taint(node, taints::UNINITIALIZED) && addresses(node).contains_key("InternalIP")
}

/// Checks that no Node has ever lost the taint without an address.
pub fn check_untainted(env: &Environment) -> TestResult {
    for change in env.nodes().changes()? {
        let node = &change.object;
        ensure(has_taint(node, taints::UNINITIALIZED) || addresses(node).contains_key("InternalIP"), || {
            format!("node {} was untainted without an address", node.name_any())
        })?;
    }
    Ok(())
}

/// Checks by the audit log that each Node was written at most so often, and its addresses before all that takes the taint from it.
pub async fn check_writes(env: &Environment, most: usize) -> TestResult {
    let requests = env.requests().await?;
    let writes = requests.writes_for_machines();
    let nodes = env.nodes().current();
    ensure(!nodes.is_empty(), || "there are no nodes".to_owned())?;
    for name in nodes.into_keys() {
        let of_node = writes.iter().filter(|it| it.resource == "nodes" && it.name == name && it.code < 300);
        let subresources: Vec<_> = of_node.map(|it| it.subresource.as_str()).collect();
        let are_right = subresources.len() <= most && subresources.ends_with(&["status", ""]);
        ensure(are_right, || format!("writes of node {name}: {subresources:?}"))?;
    }
    Ok(())
}
