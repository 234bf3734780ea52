//! A scheduler with one rule: a pod without a Node goes to the suitable Node with the fewest pods; among equals, to the first
//! by name.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Shared, pods::key, taints};
use nodewright_e2e_cloud::request::request;

/// The pause before a retry.
const RETRY: Duration = Duration::from_secs(1);

/// Whether the default scheduler must bind the pod.
fn waits(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_ours = spec.scheduler_name.as_deref().is_none_or(|name| name == "default-scheduler");
    let is_held = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    spec.node_name.is_none() && is_ours && !is_held && pod.metadata.deletion_timestamp.is_none()
}

/// Whether the pod may run on the Node.
fn fits(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let tolerated = |taint| tolerations.iter().any(|toleration| taints::covers(toleration, taint));
    let repelled = taints::taints(node).iter().any(|taint| taint.effect != "PreferNoSchedule" && !tolerated(taint));
    let labels = node.metadata.labels.as_ref();
    let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    is_ready && !is_cordoned && !repelled && spec.node_selector.iter().flatten().all(has)
}

/// The Node for a pod; `load` is the number of pods by Node.
fn choose<'a>(pod: &Pod, nodes: &'a [Arc<Node>], load: &BTreeMap<String, usize>) -> Option<&'a str> {
    let fitting = nodes.iter().filter(|node| fits(pod, node)).filter_map(|node| node.metadata.name.as_deref());
    // The Nodes are sorted by name, and the first of equals wins.
    fitting.min_by_key(|name| load.get(*name).copied().unwrap_or(0))
}

/// Binds pods each time a pod or a Node changes.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.view.is_listed().await;
    let (mut nodes, mut pods) = (shared.view.nodes.changes(), shared.view.pods.changes());
    loop {
        nodes.mark_unchanged();
        pods.mark_unchanged();
        let is_done = round(&shared).await;
        tokio::select! {
            biased;
            changed = nodes.changed() => if changed.is_err() { return },
            changed = pods.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if !is_done => {}
        }
    }
}

/// Binds all pods that fit. Returns whether every request succeeded.
async fn round(shared: &Shared) -> bool {
    let mut is_done = true;
    let (nodes, pods) = (shared.view.nodes.all(), shared.view.pods.all());
    let mut load: BTreeMap<String, usize> = BTreeMap::new();
    for name in pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()) {
        *load.entry(name).or_default() += 1;
    }
    for pod in pods.iter().filter(|pod| waits(pod)) {
        let Some(node) = choose(pod, &nodes, &load) else { continue };
        *load.entry(node.to_owned()).or_default() += 1;
        let (namespace, name) = key(pod);
        // With the resourceVersion: a scheduler with an old view of the pod binds nothing.
        let patch = Patch::Merge(json!({
            "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version },
            "spec": { "nodeName": node },
        }));
        let api: Api<Pod> = Api::namespaced(shared.client.clone(), &namespace);
        if let Err(error) = request(api.patch(&name, &PatchParams::default(), &patch)).await {
            tracing::debug!(pod = name, namespace, node, %error, "a pod cannot be bound");
            is_done = false;
        }
    }
    is_done
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn node(name: &str, spec: &Value) -> Arc<Node> {
        let status = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        let metadata = json!({ "name": name, "labels": { "name": name } });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap())
    }

    fn pod(mut spec: Value) -> Pod {
        spec["containers"] = json!([]);
        serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
    }

    #[test]
    fn a_pod_goes_where_it_fits_and_where_the_fewest_are() {
        let taint = |effect: &str| json!({ "taints": [{ "key": "own", "effect": effect }] });
        let nodes = [
            node("a", &taint("NoSchedule")),
            node("b", &json!({ "unschedulable": true })),
            node("c", &json!({})),
            node("d", &taint("PreferNoSchedule")),
        ];
        let load = |pods: &[(&str, usize)]| pods.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let tolerant = json!({ "tolerations": [{ "operator": "Exists" }] });
        for (spec, load, expected) in [
            (json!({}), load(&[]), Some("c")),
            (json!({}), load(&[("c", 1)]), Some("d")),
            (tolerant.clone(), load(&[("c", 1)]), Some("a")),
            (tolerant, load(&[("a", 2), ("c", 1), ("d", 1)]), Some("c")),
            (json!({ "nodeSelector": { "name": "d" } }), load(&[("d", 9)]), Some("d")),
            (json!({ "nodeSelector": { "name": "b" } }), load(&[]), None),
        ] {
            assert_eq!(choose(&pod(spec.clone()), &nodes, &load), expected, "{spec}");
        }
    }

    #[test]
    fn only_pods_of_the_usual_scheduler_that_nobody_holds_wait() {
        assert!(waits(&pod(json!({}))));
        for spec in [
            json!({ "nodeName": "a" }),
            json!({ "schedulerName": "own" }),
            json!({ "schedulingGates": [{ "name": "later" }] }),
        ] {
            assert!(!waits(&pod(spec.clone())), "{spec}");
        }
    }
}
