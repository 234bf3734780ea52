//! KWOK as the kubelet of selected nodes: a second stand-in for kubelets, in addition to the fake cloud's.

use crate::{
    control_plane::{ControlPlane, ControlPlaneError},
    process::{Process, write_private},
};

/// The behavior of nodes and pods in KWOK.
const STAGES: &str = include_str!("kwok-stages.yaml");
/// How long a node's Lease lasts, in seconds: a kubelet's default.
const LEASE_SECONDS: u32 = 40;

/// A running KWOK. Dropping it ends KWOK; its nodes then stop reporting.
#[derive(Debug)]
pub struct Kwok {
    process: Process,
}

impl Kwok {
    /// Starts KWOK as the kubelet of all nodes, present and future, that `label_selector` selects (`a=b,c=d`). They
    /// become Ready half a second after their creation, renew their Leases, and run and end their pods.
    ///
    /// Returns at once. If a node does not become Ready, [`Kwok::check`] may say why.
    pub fn start(plane: &ControlPlane, label_selector: &str) -> Result<Self, ControlPlaneError> {
        let stages = plane.directory().join("kwok-stages.yaml");
        write_private(&stages, STAGES)?;
        let kubeconfig = plane.kubeconfig_for("kwok", &["system:masters"])?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=false".to_owned(),
            format!("--manage-nodes-with-label-selector={label_selector}"),
            format!("--node-lease-duration-seconds={LEASE_SECONDS}"),
            // No server for logs and exec: it would listen on all addresses.
            "--node-port=0".to_owned(),
        ];
        let mut process = plane.process("kwok", plane.binaries().join("kwok"), arguments);
        process.start()?;
        Ok(Self { process })
    }

    /// An error, with the end of the log, if KWOK ended by itself.
    pub fn check(&mut self) -> Result<(), ControlPlaneError> {
        Ok(self.process.check()?)
    }
}
