//! A real control plane on this machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
//!
//! [`ControlPlane::start`] starts one within seconds, on free ports of the loopback address, with new certificates and an
//! audit log. Several can run at once. [`binaries`] finds or builds the executables. [`audit`] counts the requests of an
//! audit log. `nodewright-control-plane` is a control plane as a command.
//!
//! # Guarantees
//!
//! * When [`ControlPlane::start`] returns, API server, controller manager and scheduler report that they are ready, and the
//!   namespace `default` exists.
//! * No process and no file outlives the [`ControlPlane`] or the process that started it; see
//!   [`Supervisor`](crate::process::Supervisor).
//!
//! # Caveats
//!
//! * etcd does not flush to disk (`--unsafe-no-fsync`): the data survives a restart of etcd, not one of the computer.
//! * There is no network between pods and no kubelet: [`kwok`] or the fake cloud's kubelets stand in for nodes. With
//!   [`ControlPlaneOptions::node_network`] there is a network that real nodes join.

mod apply;
pub mod audit;
mod binaries;
mod certificates;
mod client;
pub mod command;
mod components;
mod error;
mod etcd_copy;
mod files;
mod health;
pub mod history;
mod kubeconfig;
pub mod kwok;
mod options;
mod plane;
pub mod rights;
mod start;
pub mod testing;

pub use self::{
    apply::{Kinds, apply_all, apply_file, apply_yaml, parse_manifest},
    binaries::{
        binaries, cloud_controller_manager_binaries, kubelet_binaries, machine_config_daemon,
        machine_controller_manager_binaries, machine_controller_manager_crds, openshift_api, openshift_daemon_crds,
        openshift_machine_config_crds,
    },
    client::{USER_AGENT, client},
    components::Component,
    error::ControlPlaneError,
    etcd_copy::EtcdCopy,
    options::{AuditLevel, ControlPlaneOptions},
    plane::ControlPlane,
};
