//! Pods of the scenarios.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use nodewright_e2e_lab::node::BUSYBOX;
use nodewright_e2e_scenarios::{Environment, History, TestResult, objects::ENVIRONMENT_LABEL};
use serde_json::{Value, json};

/// A web server that says who it is, notes in its log that it is asked to end, and serves for three more seconds: until then
/// all nodes know that it ends.
const SERVER: &str = "mkdir -p /www; hostname >/www/index.html; httpd -f -p 8080 -h /www & server=$!
trap 'echo asked to end; sleep 3; kill $server; echo ended; exit 0' TERM
echo serving; while :; do sleep 1 & wait $!; done";

/// A Deployment of web servers, a Service and a disruption budget that lets one of them go at a time.
pub(crate) fn web(env: &Environment, replicas: u32) -> Value {
    let labels = json!({"app": "web"});
    let container = json!({
        "name": "web", "image": BUSYBOX, "command": ["sh", "-c", SERVER],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
    });
    let spread = json!({
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    });
    let pod = json!({"containers": [container], "nodeSelector": nodes_of(env), "topologySpreadConstraints": [spread]});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "selector": labels, "ports": [{"port": 80, "targetPort": 8080}],
        }},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": {
            "maxUnavailable": 1, "selector": {"matchLabels": labels},
        }},
    ]})
}

/// Selects the nodes of a scenario: one that failed may have left others.
pub(crate) fn nodes_of(env: &Environment) -> Value {
    json!({ENVIRONMENT_LABEL: env.namespace()})
}

/// A pod that runs a shell script, on the node with this name or anywhere.
pub(crate) fn script(env: &Environment, name: &str, node: Option<&str>, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "nodeName": node,
        "nodeSelector": nodes_of(env),
        "terminationGracePeriodSeconds": 10,
        "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}],
    }})
}

/// The pods of the scenario from now on.
pub(crate) async fn record_pods(env: &Environment) -> TestResult<History<Pod>> {
    History::record(Api::namespaced(env.target_client(), env.namespace()), "").await
}

/// Waits until this many pods of an app are ready.
pub(crate) async fn wait_for_ready(env: &Environment, pods: &History<Pod>, app: &str, count: usize) -> TestResult {
    env.wait_for(&format!("{count} ready pods of {app}"), async || Ok(ready(pods, app).len() == count)).await
}

/// The pods of an app that are ready and not being deleted.
pub(crate) fn ready(pods: &History<Pod>, app: &str) -> Vec<String> {
    pods.current().values().filter(|pod| is_of(pod, app) && is_ready(pod)).map(|pod| pod.name_any()).collect()
}

pub(crate) fn is_of(pod: &Pod, app: &str) -> bool {
    pod.labels().get("app").is_some_and(|label| label == app)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// The node of a pod.
pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}
