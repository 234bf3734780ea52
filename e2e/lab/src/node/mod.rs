//! Virtual machines made of namespaces, whose real kubelets join a local control plane.
//!
//! A [`Vm`] is a set of namespaces (network, mounts, processes, host name, IPC, cgroups) with a containerd, a kubelet and a
//! kube-proxy of its own. It learns from its user data how to join the cluster, as cloud-init would: nothing else tells it. To
//! kill its first process is to switch the power off. Its disk, a directory, stays until it is deleted.
//!
//! ```text
//!   the host                                │ the network of the nodes      │ a VM
//!   kube-apiserver ◀── api.sock ◀───────────│── 10.64.0.254 ◀───────────────│── kubelet, kube-proxy, pods
//!   kube-apiserver ──▶ egress.sock ─────────│─────────▶ bridge ─────────────│─▶ kubelet: logs, exec; pods: webhooks
//! ```
//!
//! The first process of a VM is ours, or the host's systemd ([`VmSpec::image`]) for agents that write units and reboot: such a VM
//! has a writable layer over all of the host's files, and a boot id of its own. When it reboots, its first process ends; somebody
//! has to notice that ([`Vm::has_ended`]), and apply it again.
//!
//! A [`Network`] is a network namespace with a bridge. It has no way to the host's network but two Unix sockets: one leads
//! the nodes to the API server, the other one leads the API server to nodes and pods.
//!
//! # Guarantees
//!
//! * Nothing in the host's network namespace changes, and nothing listens there.
//! * The host's files are read-only in a VM, except its disk. Kernel parameters that a kubelet wants to set are files of its own.
//! * All processes end with the [`Supervisor`](crate::process::Supervisor) of the network. What a kill may leave,
//!   empty cgroups, is removed by the next start, or by [`clean`].
//!
//! # Assumptions
//!
//! * Linux, root, and some packages: [`requirements::missing`] says what is not there.
//! * The directories of VMs and executables are not below `/etc`, `/run`, `/var/lib` or `/var/log`, which a VM has its own of,
//!   and on a file system that overlayfs can write to.
//!
//! # Caveats
//!
//! * The kernel is the host's: VMs see all its processors and memory, and the kubelet of each reports them.
//! * The kernel may load modules for iptables and overlayfs, which stay loaded.
//! * systemd starts a kubelet that is stopped from the outside again: [`Desired::kubelet_stopped`] is for VMs without it.
//! * With cgroup v2, controllers are enabled for the children of the root cgroup, and stay enabled.

mod cgroup;
mod command;
mod error;
pub mod guest;
mod image;
mod network;
pub mod requirements;
pub mod switch;
mod user_data;
mod vm;
mod wait;

pub use nodewright_e2e_cloud::address;

pub use self::{
    error::NodeError,
    image::BUSYBOX,
    network::{Network, clean, delete_vms, egress_socket},
    user_data::user_data,
    vm::{Desired, Vm, VmSpec, launch},
};

/// The name of the executable that makes VMs, and is their first process.
pub const BINARY: &str = "nodewright-node";
/// The environment variable that overrides its path.
pub const BINARY_VARIABLE: &str = "NODEWRIGHT_NODE_BIN";
