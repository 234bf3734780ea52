//! A whole installation on this machine: control plane, fake cloud with kubelets, and the manager with its webhooks.
//!
//! [`Devcluster`] is one as a library; [`ManagerProcess`] its manager, which tests kill and start again. The commands
//! `run`, `up`, `down` and `manager` (see [`commands`]) work on the set of a directory, `.run/` by default:
//!
//! | file | holds |
//! |---|---|
//! | `env` | what to source: `KUBECONFIG`, `NODEWRIGHT_NAMESPACE`, `NODEWRIGHT_CLOUD_URL`, `NODEWRIGHT_AUDIT_LOG`, and kubectl in the `PATH` |
//! | `logs/PROCESS.log` | what a process says |
//! | `pids/PROCESS` | its process id, while it runs |
//! | `audit.log` | each request to the API server |
//! | `keeper.log` | what happens to the set as a whole, after `up` |
//!
//! One process, the keeper, starts the others and takes orders over a socket: so a manager that is started later ends
//! with the set like all others, even when the keeper is killed.
//!
//! `writes`, `steady`, `soak` and `fleet` measure, and `hostile` attacks, each on a set of its own in a temporary directory.

pub mod command_line;
pub mod commands;
mod control_socket;
mod devcluster;
pub mod directory;
mod error;
mod http_get;
mod journal;
mod keeper;
pub mod machines;
pub mod manager;
mod screen;
pub mod table;
mod view;
mod webhooks;

pub use self::{
    devcluster::{Devcluster, DevclusterOptions, NAMESPACE},
    error::DevclusterError,
    manager::{ManagerError, ManagerOptions, ManagerProcess},
};
