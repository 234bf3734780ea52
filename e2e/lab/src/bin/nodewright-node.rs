//! `nodewright-node`: the processes of real nodes. Other commands start it; nobody needs to call it.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use nodewright_e2e_lab::node::{NodeError, guest, launch, switch};
use nodewright_e2e_lab::process::command::{DEFAULT_FILTER, exit_code, init_logging};

/// Processes of VMs made of namespaces, and of their network. Started by the fake cloud and the control plane.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set up the network of the nodes in the present network namespace, which is new, and serve its sockets
    Network { directory: PathBuf, port: u16 },
    /// Enter the cgroup of a VM, and start its first process in new namespaces
    Launch { nodes: PathBuf, id: String },
    /// Be the first process of a VM
    Guest { nodes: PathBuf, id: String },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(DEFAULT_FILTER);
    exit_code(match arguments.command {
        Command::Network { directory, port } => serve(&directory, port),
        Command::Launch { nodes, id } => launch(&nodes, &id),
        Command::Guest { nodes, id } => guest::run(&nodes, &id),
    })
}

fn serve(directory: &std::path::Path, port: u16) -> Result<(), NodeError> {
    // One thread moves some kilobytes per second.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(NodeError::runtime)?.block_on(switch::run(directory, port))
}
