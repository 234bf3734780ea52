//! What a Node gets from the provider of its VM, with `--cloud-node=on` or `auto`: addresses, provider id, labels, and whether the VM runs.
//!
//! A kubelet with `--cloud-provider=external` registers a tainted Node without addresses. The addresses are written first; then, with
//! what the Machine gives its Node, the rest, and the taint goes: no Node without an address is ever untainted. Later the addresses are
//! kept up to date. Whether the VM exists is asked while the Node is unhealthy ([`health`](super::health)).
//!
//! # Guarantees
//! * An answer of the provider counts if it is about the Machine's proven VM. A failure or an empty list of addresses changes nothing.
//! * Nothing is done with `--cloud-node=off`, and for VMs that the driver does not describe.

mod decision;
mod plan;

use std::time::Duration;

pub(super) use self::plan::{Changes, changes, shown, vm_not_shown, vm_shown};
pub use crate::shared::cloud_manager::CloudNodeMode;

/// The node part of a cloud controller manager. See the flags of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloudNodeSettings {
    /// Who does it (`--cloud-node`, `--cloud-node-auto-after`).
    pub mode: CloudNodeMode,
    /// The time between two questions for the addresses of a VM (`--node-status-update-frequency`).
    pub update_frequency: Duration,
    /// The time between the two answers without a VM after which its Node is deleted (`--node-deletion-grace`).
    pub deletion_grace: Duration,
    /// How long no Node is deleted after this process began to lead, or was connected again (`--node-deletion-after-start`).
    pub deletion_after_start: Duration,
}

impl Default for CloudNodeSettings {
    fn default() -> Self {
        Self {
            mode: CloudNodeMode::Off,
            update_frequency: Duration::from_mins(5),
            deletion_grace: Duration::from_secs(30),
            deletion_after_start: Duration::from_mins(5),
        }
    }
}
