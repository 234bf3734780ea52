//! The objects of a workload.

use nodewright_e2e_cloud::kubelet::TERMINATION_ANNOTATION;
use serde_json::{Value, json};

use super::{App, Budget, Ending, Storage};
use crate::names::NAMESPACE;

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
pub(super) const VOLUMES: &str = "/api/v1/persistentvolumes";
pub(super) const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
pub(super) const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
pub(super) const OWNERS: [(&str, &str); 3] = [
    ("ReplicaSet", "/apis/apps/v1/namespaces/default/replicasets"),
    ("StatefulSet", "/apis/apps/v1/namespaces/default/statefulsets"),
    ("DaemonSet", "/apis/apps/v1/namespaces/default/daemonsets"),
];

/// The CSI driver of the machines' provider.
pub(crate) const PROVIDER: &str = nodewright_driver_simulated::CSI_DRIVER;
const OTHER: &str = "csi.other.example.com";
/// The DaemonSet.
pub(super) const AGENT: &str = "agent";
/// The volume of a pod.
pub(super) const DATA: &str = "data";
/// The grace period of pods, in seconds.
const GRACE: u32 = 20;

/// The name of an app.
pub(super) fn app_name(number: usize) -> String {
    format!("app{number}")
}

/// The name of a budget of an app.
pub(super) fn budget_name(app: &str, place: usize) -> String {
    format!("{app}-{place}")
}

/// The owner of pods. `serves`: the number of pods that it wants.
pub(super) fn owner(kind: &str, name: &str, serves: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": serves, "selector": {"matchLabels": {"app": name}}}})
}

pub(super) fn owner_reference(owner: &Value) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": owner["kind"] != "Node"})
}

/// A pod without a Node. The scheduler of the control plane leaves it alone.
pub(super) fn pod(name: &str, app: &App, owner: &Value) -> Value {
    let takes = match app.ends {
        Ending::Soon => "1",
        Ending::Killed => "600",
        Ending::Never => "never",
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": owner["metadata"]["name"]},
            "annotations": {TERMINATION_ANNOTATION: takes}, "ownerReferences": [owner_reference(owner)]},
        "spec": {"schedulerName": "simulation", "terminationGracePeriodSeconds": GRACE,
            "containers": [{"name": "app", "image": "app"}],
            "volumes": if app.volume.is_some() { json!([claimed(name)]) } else { json!([]) }},
        "status": {"phase": "Pending"},
    })
}

fn claimed(pod: &str) -> Value {
    json!({"name": DATA, "persistentVolumeClaim": {"claimName": claim_name(pod)}})
}

/// The name of the claim of a pod. That of an ephemeral volume is given by Kubernetes.
pub(super) fn claim_name(pod: &str) -> String {
    format!("{pod}-{DATA}")
}

/// The pod of the DaemonSet on a Node, with an ephemeral volume.
pub(super) fn daemon_pod(name: &str, node: &str, owner: &Value) -> Value {
    let mut pod = pod(name, &App::default(), owner);
    pod["spec"]["nodeName"] = node.into();
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod["spec"]["volumes"] = json!([{"name": DATA, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
    pod
}

/// A static pod as its kubelet shows it.
pub(super) fn mirror_pod(name: &str, node: &Value) -> Value {
    let mut pod = pod(name, &App::default(), node);
    pod["metadata"]["labels"] = json!({"app": "proxy"});
    pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "0123".into();
    pod["spec"]["nodeName"] = node["metadata"]["name"].clone();
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod
}

pub(super) fn claim(name: &str, volume: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": volume}, "status": {"phase": "Bound"}})
}

pub(super) fn volume(name: &str, storage: Storage) -> Value {
    let csi = |driver: &str| json!({"driver": driver, "volumeHandle": name});
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Bound"}});
    let (field, source) = match storage {
        Storage::Provider => ("csi", csi(PROVIDER)),
        Storage::Other => ("csi", csi(OTHER)),
        Storage::Network => ("nfs", json!({"server": "files.example.com", "path": name})),
    };
    volume["spec"][field] = source;
    volume
}

/// An attachment that has yet to be made. The attacher's finalizer keeps it until the volume is detached.
pub(super) fn attachment(volume: &str, driver: &Value, node: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": attachment_name(volume, node), "finalizers": ["external-attacher/simulation"]},
        "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
        "status": {"attached": false}})
}

pub(super) fn attachment_name(volume: &str, node: &str) -> String {
    format!("csi-{volume}-{node}")
}

/// How a Node names an attached volume.
pub(super) fn attached_name(driver: &str, volume: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{volume}")
}

pub(super) fn budget(name: &str, app: &str, budget: Budget) -> Value {
    let spec = match budget {
        Budget::MaxUnavailable(pods) => json!({"maxUnavailable": pods}),
        Budget::MinAvailable(pods) => json!({"minAvailable": pods}),
    };
    let mut object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    object["spec"]["selector"] = json!({"matchLabels": {"app": app}});
    object
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The condition Ready of a pod or a Node.
pub(super) fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

pub(super) fn is_finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// The name of a pod's Node; empty while it has none.
pub(super) fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

/// The claims of a pod.
pub(super) fn claims_of(pod: &Value) -> impl Iterator<Item = String> {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.into_iter().flatten().filter_map(|volume| match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(claim) => Some(claim.to_owned()),
        None => volume.get("ephemeral").map(|_| claim_name(name(pod))),
    })
}
