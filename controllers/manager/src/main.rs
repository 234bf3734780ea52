//! The binary `nodewright`.
//!
//! ```text
//! flags ──▶ process: telemetry, ports, signals ──▶ clusters ──▶ preflight ──▶ manager: controllers, elections
//!                                                                        └──▶ webhooks
//! flags ──▶ render: files ──▶ configuration of nodes
//! flags ──▶ plan: objects of a cluster, files ──▶ which nodes would move
//! ```

mod certificate;
mod clusters;
mod driver;
mod extensions;
mod flags;
mod manager;
mod plan;
mod preflight;
mod process;
#[cfg(test)]
mod reference;
mod render;
mod webhooks;

use std::process::ExitCode;

use clap::Parser;
use nodewright_driver::panics;
use nodewright_runtime::error::one_line;

use crate::{
    flags::{Arguments, Command},
    manager::Role,
};

/// A result whose error is a message for the user.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    panics::withhold_messages();
    let result = match Arguments::parse().command {
        Command::Manager(flags) => manager::run(*flags, Role::All).await,
        Command::Mcm(flags) => manager::run(*flags, Role::Sets).await,
        Command::Mc(flags) => manager::run(*flags, Role::Machines).await,
        Command::MachineConfig(flags) => manager::run(*flags, Role::MachineConfig).await,
        Command::Webhook(flags) => webhooks::run(*flags).await,
        Command::Crds => {
            for crd in CRDS {
                print!("---\n{crd}");
            }
            Ok(())
        }
        Command::Render(flags) => return render::run(&flags),
        Command::Plan(command) => return plan::run(&command).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, the last one, for `kubectl logs` of a Pod that does not start: to return would end the tasks one after
            // the other, and those that are left may log what they miss.
            eprintln!("error: {}", one_line(error.as_ref()));
            std::process::exit(1)
        }
    }
}

/// The definitions as `make crds` has written them: to make them again takes the generators of all their schemas.
const CRDS: [&str; 4] = [
    include_str!("../../../config/crd/bases/machine.sapcloud.io_machineclasses.yaml"),
    include_str!("../../../config/crd/bases/machine.sapcloud.io_machinedeployments.yaml"),
    include_str!("../../../config/crd/bases/machine.sapcloud.io_machines.yaml"),
    include_str!("../../../config/crd/bases/machine.sapcloud.io_machinesets.yaml"),
];
