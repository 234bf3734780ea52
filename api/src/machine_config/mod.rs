//! The configuration of nodes: `machineconfiguration.openshift.io/v1`, as OpenShift's machine-config-operator (MCO) has it.
//!
//! All kinds are cluster-scoped. Configs that others interpret stay text: [`RawJson`](crate::RawJson).

use serde_json::Value;

mod config;
mod controller;
mod drain;
mod kubelet;
mod pool;

pub use config::{KernelType, MachineConfig, MachineConfigSpec};
pub use controller::{
    ControllerCertificate, ControllerConfig, ControllerConfigSpec, ControllerConfigStatus, RegistryBundle,
};
pub use drain::DrainVerb;
pub use kubelet::{KubeletConfig, KubeletConfigSpec, KubeletConfigStatus};
pub use pool::{
    CertExpiry, MachineConfigPool, MachineConfigPoolSpec, MachineConfigPoolStatus, Named, PoolConfiguration,
    PoolSynchronizerStatus,
};

/// The API group.
pub const GROUP: &str = "machineconfiguration.openshift.io";
/// The version of [`GROUP`].
pub const VERSION: &str = "v1";
/// The `apiVersion` of all kinds.
pub const API_VERSION: &str = "machineconfiguration.openshift.io/v1";

/// The kinds that the controllers of node configuration need.
pub const KINDS: [&str; 4] = ["ControllerConfig", "KubeletConfig", "MachineConfig", "MachineConfigPool"];
/// The path of the API server's list of the resources of [`GROUP`]. Every authenticated client may read it.
pub const DISCOVERY_PATH: &str = "/apis/machineconfiguration.openshift.io/v1";
/// The name of the ControllerConfig that counts.
pub const CONTROLLER_CONFIG: &str = "machine-config-controller";

/// Annotation of a Node: the name of the rendered MachineConfig that it runs.
pub const CURRENT_CONFIG: &str = "machineconfiguration.openshift.io/currentConfig";
/// Annotation of a Node: the name of the rendered MachineConfig that it is to run.
pub const DESIRED_CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";

/// Annotation of a Node: [`DONE`], [`WORKING`], [`DEGRADED`] or [`UNRECONCILABLE`].
pub const STATE: &str = "machineconfiguration.openshift.io/state";
/// Value of [`STATE`]: the Node runs what it is to run.
pub const DONE: &str = "Done";
/// Value of [`STATE`]: an update is in progress.
pub const WORKING: &str = "Working";
/// Value of [`STATE`]: an update has failed, or the Node no longer is what it was updated to.
pub const DEGRADED: &str = "Degraded";
/// Value of [`STATE`]: no running Node can get to what it is to run.
pub const UNRECONCILABLE: &str = "Unreconcilable";
/// Annotation of a Node: why its [`STATE`] is not [`DONE`].
pub const REASON: &str = "machineconfiguration.openshift.io/reason";
/// Annotation of a Node: the image of the operating system that it runs, if it runs one of its own.
pub const CURRENT_IMAGE: &str = "machineconfiguration.openshift.io/currentImage";
/// Annotation of a Node: the image of the operating system that it is to run.
pub const DESIRED_IMAGE: &str = "machineconfiguration.openshift.io/desiredImage";
/// Annotation of a Node: what its agent asks for, `drain-<configuration>` or `uncordon-<configuration>`. See [`DrainVerb`].
pub const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
/// Annotation of a Node: the value of [`DESIRED_DRAIN`] that was done last.
pub const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";

/// The kinds of [`KINDS`] that are missing in the document at [`DISCOVERY_PATH`].
pub fn missing_kinds(discovery: &Value) -> Vec<&'static str> {
    let resources = discovery["resources"].as_array();
    let is_served = |kind: &&str| resources.into_iter().flatten().any(|resource| resource["kind"] == **kind);
    KINDS.into_iter().filter(|kind| !is_served(kind)).collect()
}

/// Label of a MachineConfig, by which pools select it: the role of its nodes, such as `worker`.
pub const ROLE: &str = "machineconfiguration.openshift.io/role";
/// The value of [`ROLE`] whose MachineConfigs come first, as other roles build on them.
pub const WORKER: &str = "worker";
/// Annotation of a MachineConfig that a controller has made: the version of the controller.
pub const GENERATED_BY: &str = "machineconfiguration.openshift.io/generated-by-controller-version";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kind_that_is_not_served_is_named() {
        let resource = |kind: &str| json!({"name": kind.to_lowercase(), "kind": kind, "verbs": ["list"]});
        let all = json!({"resources": KINDS.map(resource)});
        assert!(missing_kinds(&all).is_empty());
        let some = json!({"resources": [resource("MachineConfig"), resource("ControllerConfig")]});
        assert_eq!(missing_kinds(&some), ["KubeletConfig", "MachineConfigPool"]);
        assert_eq!(missing_kinds(&Value::Null), KINDS);
    }
}
