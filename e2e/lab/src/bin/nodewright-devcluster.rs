//! `nodewright-devcluster`: a complete local installation as a command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nodewright_e2e_lab::devcluster::commands;
use nodewright_e2e_lab::process::command::{DEFAULT_FILTER, exit_code, init_logging};

/// Run a devcluster: a real Kubernetes control plane, a fake cloud with kubelets, and the manager with its webhooks.
///
/// All commands work on the devcluster of a directory, .run by default. `. .run/env` gives a shell KUBECONFIG, kubectl in the
/// PATH, and the URL of the cloud. Flags after `--` go to the manager: up -- --log-level=debug
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::RunArguments),
    Up(commands::UpArguments),
    Down(commands::DownArguments),
    Manager(commands::ManagerArguments),
    #[command(hide = true)]
    Daemon(commands::DaemonArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(DEFAULT_FILTER);
    exit_code(match arguments.command {
        Command::Run(arguments) => commands::run(arguments).await,
        Command::Up(arguments) => commands::up(arguments).await,
        Command::Down(arguments) => commands::down(arguments).await,
        Command::Manager(arguments) => commands::manager(arguments).await,
        Command::Daemon(arguments) => commands::daemon(arguments).await,
    })
}
