//! KWOK as the kubelet of chosen nodes: a second opinion beside this crate's own stand-in.

use super::{Plane, PlaneError, Process, files::write_private};

/// What KWOK does with nodes and pods.
const STAGES: &str = include_str!("kwok-stages.yaml");
/// How long a node's Lease lasts, in seconds; a kubelet's default.
const LEASE_SECONDS: u32 = 40;

/// A running KWOK. Dropping it ends it; the nodes that it played then fall silent.
#[derive(Debug)]
pub struct Kwok {
    process: Process,
}

impl Kwok {
    /// Starts KWOK as the kubelet of all nodes, present and future, that `label_selector` selects (`a=b,c=d`). They
    /// become Ready half a second after they are there, renew their Leases, and run and end the pods bound to them.
    ///
    /// Returns at once; a node that does not become Ready is what shows a KWOK that does not work, and
    /// [`Kwok::check`] tells more.
    pub fn start(plane: &Plane, label_selector: &str) -> Result<Self, PlaneError> {
        let stages = plane.directory().join("kwok-stages.yaml");
        write_private(&stages, STAGES)?;
        let kubeconfig = plane.kubeconfig_for("kwok", &["system:masters"])?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=false".to_owned(),
            format!("--manage-nodes-with-label-selector={label_selector}"),
            format!("--node-lease-duration-seconds={LEASE_SECONDS}"),
            // Without a port it serves nothing. Logs and exec are not wanted, and it would listen on all addresses.
            "--node-port=0".to_owned(),
        ];
        let mut process = plane.process("kwok", plane.binaries().join("kwok"), arguments);
        process.start()?;
        Ok(Self { process })
    }

    /// An error with the end of its log if KWOK has ended by itself.
    pub fn check(&mut self) -> Result<(), PlaneError> {
        self.process.check()
    }
}
