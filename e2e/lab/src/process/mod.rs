//! Child processes for the end-to-end tests, and shared code for the main functions of the e2e commands.
//!
//! A [`Process`] is an executable with its arguments and its log. A [`Supervisor`] kills processes and removes files when
//! its owner ends, however the owner ends. [`executable`] and [`executables`] find what the workspace builds, [`free_ports`] finds ports.
//! [`command`] has the logging, the signals and the error report of a command.

mod child;
pub mod command;
mod error;
mod executable;
mod files;
mod ports;
pub mod supervisor;

pub use self::{
    child::Process,
    error::{ProcessError, with_causes},
    executable::{executable, executables, repository},
    files::write_private,
    ports::free_ports,
    supervisor::Supervisor,
};
