//! The fake cloud of `nodewright-e2e-cloud` as a process, and its driver as a program that a test can kill.

pub mod command;
mod driver_program;
mod process;
mod real_nodes;

pub use self::{
    driver_program::{DriverProgram, DriverProgramError, simulated_driver},
    process::{BINARY, BINARY_VARIABLE, CloudProcess, CloudProcessError, CloudProcessOptions},
};
