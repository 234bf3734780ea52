//! A whole installation on this machine: control plane, fake cloud with kubelets, and the manager with its webhooks.
//!
//! [`RunningSet`] is one as a library; [`ManagerProcess`] its manager, which tests kill and start again. The commands
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

mod binary;
mod command_line;
pub mod commands;
mod costs;
mod directory;
mod error;
pub mod fleet;
pub mod hostile;
mod http_get;
mod interruptions;
mod journal;
mod keeper;
pub mod machines;
pub mod manager;
mod measure;
mod orders;
mod screen;
mod set;
pub mod soak;
pub mod steady;
mod table;
mod usage;
mod view;
mod webhooks;
pub mod writes;

pub use self::{
    binary::BinaryError,
    directory::DirectoryArgument,
    error::SetError,
    manager::{ManagerError, ManagerOptions, ManagerProcess},
    set::{NAMESPACE, RunningSet, SetOptions},
};
