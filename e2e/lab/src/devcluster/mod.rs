//! A devcluster: a complete installation on this computer, of a real control plane, a fake cloud with kubelets, and the
//! manager with its driver and webhooks. In place of the fake cloud, moto's EC2 and the driver for AWS can make the VMs.
//!
//! [`Devcluster`] is one as a library. [`ManagerProcess`] is its manager, which tests kill and start again; [`McmProcesses`] is the
//! real machine-controller-manager, which can run in its place. The commands
//! `run`, `up`, `down` and `manager` (see [`commands`]) work on the devcluster of a directory, `.run/` by default:
//!
//! | file | holds |
//! |---|---|
//! | `env` | variables for a shell: `KUBECONFIG`, `NODEWRIGHT_NAMESPACE`, `NODEWRIGHT_CLOUD_URL`, `NODEWRIGHT_AUDIT_LOG`, and kubectl with its plugin in the `PATH` |
//! | `logs/PROCESS.log` | the output of a process |
//! | `pids/PROCESS` | its process id, while it runs |
//! | `audit.log` | each request to the API server |
//! | `daemon.log` | the log of the daemon, after `up` |
//!
//! ```text
//!   up ── control socket ──▶ daemon ─┬─▶ etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!   down, manager ─────────────┘     ├─▶ nodewright-cloud (with kubelets), or moto_server and nodewright-ec2 (with kubelets)
//!                                    └─▶ nodewright manager (starts its driver), or machine-controller-manager and machine-controller
//! ```
//!
//! The daemon starts all other processes. They end with it, even when it is killed. `run` is a daemon in the foreground.

mod clock_shift;
mod cloud;
mod cluster;
pub mod commands;
mod control_socket;
pub mod controllers;
mod daemon;
pub mod directory;
mod error;
pub mod etcd_restore;
mod http_get;
pub mod installation;
pub mod machines;
pub mod manager;
mod manager_options;
pub mod mcm;
mod progress;
mod screen;
pub mod table;
mod view;
mod webhook_probe;

pub use self::{
    clock_shift::shifted_clock,
    cloud::Provider,
    cluster::{Devcluster, DevclusterOptions, NAMESPACE},
    controllers::Controllers,
    error::DevclusterError,
    manager::{ManagerError, ManagerProcess},
    manager_options::{ManagerOptions, flag_value},
    mcm::{McmHalf, McmOptions, McmProcess, McmProcesses},
};
