//! The configuration of nodes: `machineconfiguration.openshift.io/v1`, as OpenShift's machine-config-operator (MCO) has it.
//!
//! All kinds are cluster-scoped. Configs that others interpret stay text: [`RawJson`](crate::RawJson).

mod config;
mod controller;
mod kubelet;
mod pool;

pub use config::{KernelType, MachineConfig, MachineConfigSpec};
pub use controller::{
    ControllerCertificate, ControllerConfig, ControllerConfigSpec, ControllerConfigStatus, RegistryBundle,
};
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

/// Label of a MachineConfig, by which pools select it: the role of its nodes, such as `worker`.
pub const ROLE: &str = "machineconfiguration.openshift.io/role";
/// The value of [`ROLE`] whose MachineConfigs come first, as other roles build on them.
pub const WORKER: &str = "worker";
/// Annotation of a MachineConfig that a controller has made: the version of the controller.
pub const GENERATED_BY: &str = "machineconfiguration.openshift.io/generated-by-controller-version";
