//! What can be chosen about a control plane.

use std::{path::PathBuf, time::Duration};

/// How a control plane is started. The default is a complete one in a temporary directory.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// Where it keeps its files. Kubeconfig, logs and audit log stay there when it ends. `None`: a temporary
    /// directory, of which nothing stays.
    pub directory: Option<PathBuf>,
    /// Does the controller manager run? Without it nothing is garbage collected, no node is ever judged, and pods are
    /// refused until somebody makes the service account `default`.
    pub controller_manager: bool,
    /// The controllers that run, as for `kube-controller-manager --controllers`.
    pub controllers: Vec<String>,
    /// How long a node may be silent until it is called unhealthy. `None`: Kubernetes' own default, 50 s.
    pub node_monitor_grace_period: Option<Duration>,
    /// Does the scheduler run? Only needed where pods find their nodes by themselves.
    pub scheduler: bool,
    /// More flags for etcd, each as `--name=value`. They win over ours.
    pub etcd_flags: Vec<String>,
    /// More flags for kube-apiserver.
    pub api_server_flags: Vec<String>,
    /// More flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
    /// More flags for kube-scheduler.
    pub scheduler_flags: Vec<String>,
    /// How long each process may take to be ready.
    pub start_timeout: Duration,
}

impl Default for PlaneOptions {
    fn default() -> Self {
        Self {
            directory: None,
            controller_manager: true,
            // The token cleaner removes expired bootstrap tokens; it is off by default.
            controllers: ["*", "token-cleaner-controller"].map(str::to_owned).into(),
            node_monitor_grace_period: None,
            scheduler: true,
            etcd_flags: Vec::new(),
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            // Ready takes three seconds; a machine that also compiles may take many times that.
            start_timeout: Duration::from_mins(2),
        }
    }
}
