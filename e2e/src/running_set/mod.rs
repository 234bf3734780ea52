//! A whole installation on this machine: control plane, fake cloud, manager.

mod binary;
mod command_line;
mod http_get;
pub mod manager;
mod webhooks;

pub use self::{
    binary::BinaryError,
    manager::{ManagerError, ManagerOptions, ManagerProcess},
};
