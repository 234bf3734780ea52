//! The options of a control plane.

use std::{path::PathBuf, time::Duration};

/// What the audit log holds of each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditLevel {
    /// User, verb, object and response code.
    #[default]
    Metadata,
    /// For writes, the body as well. A log of a fleet becomes several times as large.
    Request,
}

/// How a control plane is started. The default is a complete one in a temporary directory.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    /// The directory of its files. Kubeconfig, logs and audit log stay there when it ends. `None`: a temporary directory,
    /// which is removed.
    pub directory: Option<PathBuf>,
    /// Whether the controller manager runs. Without it, there is no garbage collection and no node health, and the API
    /// server rejects pods until the service account `default` exists.
    pub controller_manager: bool,
    /// The value of `kube-controller-manager --controllers`.
    pub controllers: Vec<String>,
    /// How long a node may be silent until it counts as unhealthy. `None`: the default of Kubernetes, 50 s.
    pub node_monitor_grace_period: Option<Duration>,
    /// Whether the scheduler runs.
    pub scheduler: bool,
    /// Whether there is a network for real nodes, which join by bootstrap tokens. Needs root and some packages, see
    /// [`crate::node::requirements`].
    pub node_network: bool,
    /// More flags for etcd, each as `--name=value`. They override the default ones.
    pub etcd_flags: Vec<String>,
    /// More flags for kube-apiserver.
    pub api_server_flags: Vec<String>,
    /// More flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
    /// More flags for kube-scheduler.
    pub scheduler_flags: Vec<String>,
    /// What the audit log holds of each request.
    pub audit_level: AuditLevel,
    /// How long each process may take to be ready.
    pub start_timeout: Duration,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self {
            directory: None,
            controller_manager: true,
            // The controllers of bootstrap tokens are off by default. The cleaner removes expired ones.
            controllers: ["*", "bootstrap-signer-controller", "token-cleaner-controller"].map(str::to_owned).into(),
            node_monitor_grace_period: None,
            scheduler: true,
            node_network: false,
            etcd_flags: Vec::new(),
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            audit_level: AuditLevel::default(),
            // It takes three seconds, and many times that on a computer that also compiles.
            start_timeout: Duration::from_mins(2),
        }
    }
}
