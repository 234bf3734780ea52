//! `nodewright-e2e`: the local control plane, the fake cloud and the running set, each as a command.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use nodewright_e2e::running_set::{commands, fleet, hostile, soak, steady, writes};
use tracing_subscriber::EnvFilter;

/// What every command answers: nothing, or why it failed.
type CommandResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Used unless `RUST_LOG` says otherwise. kube reports each failed request as an error, although whoever made it is told;
/// while a server starts these are many.
const DEFAULT_FILTER: &str = "info,kube_client=off";

/// The parts of Nodewright's end-to-end tests, to be run by hand.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cloud(nodewright_e2e::cloud::command::Arguments),
    Plane(nodewright_e2e::plane::command::Arguments),
    Run(commands::RunArguments),
    Up(commands::UpArguments),
    Down(commands::DownArguments),
    Manager(commands::ManagerArguments),
    Writes(writes::WritesArguments),
    Steady(steady::SteadyArguments),
    Soak(soak::SoakArguments),
    Fleet(fleet::FleetArguments),
    Hostile(hostile::HostileArguments),
    Simulate(nodewright_e2e::simulation::command::Arguments),
    #[command(hide = true)]
    Keep(commands::KeepArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Managers by the thousand have too much to say.
    let usual = if matches!(arguments.command, Command::Simulate(_)) { "off" } else { DEFAULT_FILTER };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    match run(arguments.command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> CommandResult {
    match command {
        Command::Cloud(arguments) => Ok(nodewright_e2e::cloud::command::run(arguments).await?),
        Command::Plane(arguments) => Ok(nodewright_e2e::plane::command::run(arguments).await?),
        Command::Run(arguments) => Ok(commands::run(arguments).await?),
        Command::Up(arguments) => Ok(commands::up(arguments).await?),
        Command::Down(arguments) => Ok(commands::down(arguments).await?),
        Command::Manager(arguments) => Ok(commands::manager(arguments).await?),
        Command::Writes(arguments) => Ok(writes::run(arguments).await?),
        Command::Steady(arguments) => Ok(steady::run(arguments).await?),
        Command::Soak(arguments) => Ok(soak::run(arguments).await?),
        Command::Fleet(arguments) => Ok(fleet::run(arguments).await?),
        Command::Hostile(arguments) => Ok(hostile::run(arguments).await?),
        // It has runtimes of its own, and none may be within another.
        Command::Simulate(arguments) => {
            Ok(tokio::task::spawn_blocking(move || nodewright_e2e::simulation::command::run(&arguments)).await??)
        }
        Command::Keep(arguments) => Ok(commands::keep_up(arguments).await?),
    }
}

/// Prints an error with all its causes, one on each line.
fn report(error: &dyn std::error::Error) {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  caused by: {error}");
        cause = error.source();
    }
}
