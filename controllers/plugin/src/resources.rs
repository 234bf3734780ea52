//! The kinds of objects that are read or changed.

use nodewright_api::{GROUP, machine_config};

/// A kind of objects, and where the API server has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
}

macro_rules! resources {
    ($( $name:ident = $group:expr, $version:literal, $kind:literal, $plural:literal, $namespaced:literal; )+) => {
        $( pub(crate) const $name: Resource = Resource {
            group: $group, version: $version, kind: $kind, plural: $plural, namespaced: $namespaced,
        }; )+
    };
}

resources! {
    DEPLOYMENTS = GROUP, "v1alpha1", "MachineDeployment", "machinedeployments", true;
    SETS = GROUP, "v1alpha1", "MachineSet", "machinesets", true;
    MACHINES = GROUP, "v1alpha1", "Machine", "machines", true;
    CLASSES = GROUP, "v1alpha1", "MachineClass", "machineclasses", true;
    POOLS = machine_config::GROUP, "v1", "MachineConfigPool", "machineconfigpools", false;
    MACHINE_CONFIGS = machine_config::GROUP, "v1", "MachineConfig", "machineconfigs", false;
    KUBELET_CONFIGS = machine_config::GROUP, "v1", "KubeletConfig", "kubeletconfigs", false;
    CONTROLLER_CONFIGS = machine_config::GROUP, "v1", "ControllerConfig", "controllerconfigs", false;
    NODES = "", "v1", "Node", "nodes", false;
    NAMESPACES = "", "v1", "Namespace", "namespaces", false;
    EVENTS = "", "v1", "Event", "events", true;
    LEASES = "coordination.k8s.io", "v1", "Lease", "leases", true;
    PODS = "", "v1", "Pod", "pods", true;
    SERVICE_ACCOUNTS = "", "v1", "ServiceAccount", "serviceaccounts", true;
    CLAIMS = "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true;
    ATTACHMENTS = "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false;
    BUDGETS = "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true;
    APPS = "apps", "v1", "Deployment", "deployments", true;
    ENDPOINTS = "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true;
    VALIDATING = "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations", false;
    MUTATING = "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations", false;
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The name that a rule of RBAC and `kubectl auth can-i` know it by.
    pub(crate) fn full_name(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// How its definition gets into a cluster.
    pub(crate) fn installation(&self) -> &'static str {
        match self.group {
            machine_config::GROUP => {
                "install the CRDs of node configuration first (kubectl apply --server-side -k config/crd/machine-config)"
            }
            _ => "install the CRDs first (kubectl apply --server-side -k config/crd)",
        }
    }

    /// The path of its objects, in all namespaces without one.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let scope = namespace.filter(|_| self.namespaced).map(|it| format!("namespaces/{it}/")).unwrap_or_default();
        format!("{root}/{}/{scope}{}", self.api_version(), self.plural)
    }
}
