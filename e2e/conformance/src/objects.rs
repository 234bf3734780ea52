//! The tested kinds, and a typical object of each.

use nodewright_api::API_VERSION;
use serde_json::{Value, json};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ConfigMap,
    Lease,
    Machine,
    MachineClass,
    MachineDeployment,
    MachineSet,
    Node,
    Pod,
    PodDisruptionBudget,
    Secret,
}

/// One core kind and one custom kind: they are stored and patched by different code.
pub(super) const KINDS: [Kind; 2] = [Kind::ConfigMap, Kind::Machine];

/// Only the case itself removes it.
pub(super) const FINALIZER: &str = "conformance.nodewright.dev/held";
pub(super) const WRONG_UID: &str = "00000000-0000-0000-0000-000000000000";

impl Kind {
    fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Node | Self::Pod | Self::Secret => "v1",
            Self::Lease => "coordination.k8s.io/v1",
            Self::Machine | Self::MachineClass | Self::MachineDeployment | Self::MachineSet => API_VERSION,
            Self::PodDisruptionBudget => "policy/v1",
        }
    }

    fn plural(self) -> String {
        match self {
            Self::MachineClass => "machineclasses".to_owned(),
            kind => format!("{kind:?}s").to_lowercase(),
        }
    }

    pub(super) fn is_namespaced(self) -> bool {
        self != Self::Node
    }

    /// The path of its objects, over all namespaces.
    pub(super) fn everywhere(self) -> String {
        let version = self.api_version();
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/{}", self.plural())
    }

    /// The path of its objects in a namespace, if it has any.
    pub(super) fn collection(self, namespace: &str) -> String {
        if !self.is_namespaced() {
            return self.everywhere();
        }
        let version = self.api_version();
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{namespace}/{}", self.plural())
    }

    /// An object with one label, `first`. A server adds nothing to it, except for its metadata.
    pub(super) fn object(self, name: &str) -> Value {
        let mut object = json!({"apiVersion": self.api_version(), "kind": format!("{self:?}"),
            "metadata": {"name": name, "labels": {"first": "1"}}});
        let class = json!({"kind": "MachineClass", "name": "a"});
        let template = json!({"metadata": {"labels": {"set": name}}, "spec": {"class": class}});
        match self {
            Self::ConfigMap => object["data"] = json!({"key": "value"}),
            Self::Lease => object["spec"] = json!({"holderIdentity": "me", "leaseDurationSeconds": 15}),
            Self::Machine => object["spec"] = json!({"class": class}),
            Self::MachineDeployment | Self::MachineSet => {
                let selector = json!({"matchLabels": {"set": name}});
                object["spec"] = json!({"replicas": 2, "selector": selector, "template": template});
            }
            Self::MachineClass => {
                object["provider"] = "simulated".into();
                object["secretRef"] = json!({"name": "a", "namespace": "a"});
                object["providerSpec"] = json!({});
            }
            Self::Node => object["spec"] = json!({"providerID": "cloud:///1"}),
            Self::Pod => object["spec"] = pod_spec(),
            Self::PodDisruptionBudget => {
                object["spec"] = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}});
            }
            Self::Secret => {
                object["type"] = "Opaque".into();
                object["data"] = json!({"key": "dmFsdWU="});
            }
        }
        object
    }
}

/// The Pod is on a Node that does not exist, so no kubelet starts or ends it. It has all fields that a server would default.
fn pod_spec() -> Value {
    json!({
        "nodeName": "nowhere",
        "automountServiceAccountToken": false,
        "containers": [{"name": "a", "image": "a", "imagePullPolicy": "Always", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": true,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    })
}

/// The same object with a finalizer.
pub(super) fn held(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!([FINALIZER]);
    object
}

/// The same object with a changed field, given by its pointer. Missing parents are created.
pub(super) fn with(mut object: Value, pointer: &str, value: impl Into<Value>) -> Value {
    let tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
    let place = tokens.fold(&mut object, |place, token| &mut place[token.as_str()]);
    *place = value.into();
    object
}

/// The same object without a field.
pub(super) fn without(mut object: Value, parent: &str, field: &str) -> Value {
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.remove(field);
    }
    object
}
