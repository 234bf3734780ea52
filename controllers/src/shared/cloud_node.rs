//! What a Node gets from the provider of its VM where no cloud controller manager runs: addresses, provider id and labels.
//!
//! The rules are those of Kubernetes' cloud-node-controller (`k8s.io/cloud-provider`, `controllers/node`). `docs/tasks/cloud-node.md`
//! names what differs.

use std::{collections::BTreeMap, net::IpAddr};

use json_patch::Patch;
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{annotations, labels, validation::is_label};
use nodewright_driver::InstanceMetadata;
use nodewright_runtime::object::annotation;
use serde_json::{Value, json};

use super::{node::Node, patch};

type Map = BTreeMap<String, String>;

const HOSTNAME: &str = "Hostname";
/// The most addresses of a Node.
const MOST: usize = 64;

/// The addresses of a Node. None if they cannot be read.
pub(crate) fn live_addresses(node: &Node) -> Vec<NodeAddress> {
    node.status.addresses.as_ref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The addresses that a Node is to have, from those of its VM. The IPs that its kubelet was given come first, in their order, and
/// displace others of their type; the name that the kubelet has reported stays if the VM has none.
///
/// # Errors
/// When the kubelet was given what is no IP, or is none of the VM's.
pub(crate) fn addresses(node: &Node, of_vm: &[NodeAddress]) -> Result<Vec<NodeAddress>, String> {
    let given = annotation(node, annotations::PROVIDED_NODE_IP).into_iter().flat_map(|ips| ips.split(','));
    let mut first: Vec<NodeAddress> = vec![];
    for text in given.map(str::trim).filter(|text| !text.is_empty()) {
        let matching = text.parse().ok().map(|ip: IpAddr| of_vm.iter().filter(move |it| it.address.parse() == Ok(ip)));
        let before = first.len();
        first.extend(matching.into_iter().flatten().cloned());
        if first.len() == before {
            return Err(format!("the kubelet was started with --node-ip {text}, which is no address of its VM"));
        }
    }
    let is_displaced = |it: &NodeAddress| first.iter().any(|known| known.type_ == it.type_);
    let others: Vec<_> = of_vm.iter().filter(|it| !is_displaced(it)).cloned().collect();
    let mut all = [first, others].concat();
    if all.iter().all(|it| it.type_ != HOSTNAME) {
        all.extend(live_addresses(node).into_iter().filter(|it| it.type_ == HOSTNAME));
    }
    all.truncate(MOST);
    Ok(all)
}

/// The patch of the status that sets these addresses; empty if the Node has them.
pub(crate) fn address_patch(node: &Node, wanted: &[NodeAddress]) -> Patch {
    let live = live_addresses(node);
    if live == wanted {
        return Patch::default();
    }
    let seen = node.status.addresses.as_ref().and_then(|text| text.parse().ok()).unwrap_or(Value::Null);
    let path = ["status", "addresses"];
    Patch(vec![patch::test(&path, seen), patch::set(&path, json!(wanted))])
}

/// The labels of a Node that follow from its VM. Other labels of the provider never replace one, and are not Kubernetes' own.
pub(crate) fn initial_labels(node: &Node, metadata: &InstanceMetadata) -> Map {
    let InstanceMetadata { instance_type, zone, region, labels: others } = metadata;
    let known = labels::OF_CLOUD.into_iter().zip([instance_type, zone, region]);
    let known = known.filter_map(|((key, beta), value)| Some((key, beta, value.as_ref()?)));
    let mut all: Map = known.flat_map(|(key, beta, value)| [(key, value), (beta, value)]).map(owned).collect();
    let is_free = |key: &str| node.metadata.labels.as_ref().is_none_or(|live| !live.contains_key(key));
    all.extend(others.iter().filter(|(key, _)| is_free(key) && !is_kubernetes(key)).map(owned));
    all.retain(|key, value| is_label(key, value));
    all
}

fn owned<K: ToString + ?Sized>((key, value): (&K, &String)) -> (String, String) {
    (key.to_string(), value.clone())
}

/// Whether a key is of `kubernetes.io`, of `k8s.io`, or of a domain below.
fn is_kubernetes(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"]
        .into_iter()
        .any(|domain| prefix.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.')))
}

/// The labels that differ from their deprecated twins: these are the source.
pub(crate) fn labels_behind_twins(node: &Node) -> Map {
    let Some(live) = node.metadata.labels.as_ref() else { return Map::new() };
    let behind = labels::OF_CLOUD.into_iter().filter_map(|(key, beta)| Some((key, live.get(beta)?)));
    behind.filter(|(key, value)| live.get(*key) != Some(*value)).map(owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kubernetes_own_labels_are_refused() {
        for key in ["kubernetes.io/a", "k8s.io/a", "x.kubernetes.io/a", "topology.k8s.io/a"] {
            assert!(is_kubernetes(key), "{key}");
        }
        for key in ["k8snio/a", "app.k8snio/a", "notkubernetes.io/a", "topology.k8s.cp/a", "k8s.io"] {
            assert!(!is_kubernetes(key), "{key}");
        }
    }
}
