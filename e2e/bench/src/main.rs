//! `nodewright-bench`: measures and attacks devclusters. Each command starts a devcluster of its own in a temporary
//! directory, and fails if a goal is missed.
//!
//! | module | content |
//! |---|---|
//! | [`writes`], [`steady`] | requests per machine; requests of a fleet at rest |
//! | [`fleet`] | time, CPU, memory and requests of many machines |
//! | [`restart`] | a manager that starts beside a large fleet: time until it decides, writes, memory |
//! | [`collector`] | the same without traces, and with collectors of traces that are good, away, slow or hang |
//! | [`floor`] | the same requests without a manager: the time that none can beat, and what each costs the API server |
//! | [`instructions`] | the instructions of a manager in a simulated cluster, by crate and controller |
//! | [`hot_functions`] | which functions a manager has run, for the linker |
//! | [`pools`], [`pool_rollout`] | renderings and writes of pools at rest; CPU to move the nodes of a small and of a large pool |
//! | [`drain`] | all nodes of a pool drained at once |
//! | [`soak`] | deadlines and counts over a long time |
//! | [`hostile`] | attacks |
//! | [`measure`], [`costs`], [`usage`], [`callgrind`] | shared: a devcluster with its audit log, requests by kind, the kernel's numbers, a profile |

mod callgrind;
mod collector;
mod costs;
mod drain;
mod error;
mod fleet;
mod floor;
mod hostile;
mod hot_functions;
mod instructions;
mod measure;
mod pool_rollout;
mod pools;
mod preserve_and_update;
mod restart;
mod soak;
mod steady;
mod usage;
mod writes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nodewright_e2e_lab::process::command::{DEFAULT_FILTER, exit_code, init_logging};

/// Measure or attack a devcluster: a real control plane, a fake cloud and the manager in a temporary directory.
///
/// Each command prints what it measured, and fails if a goal is missed. Flags after `--` go to the manager.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Writes(writes::WritesArguments),
    Steady(steady::SteadyArguments),
    Pools(pools::PoolsArguments),
    PoolRollout(pool_rollout::PoolRolloutArguments),
    Soak(soak::SoakArguments),
    Fleet(fleet::FleetArguments),
    Restart(restart::RestartArguments),
    Collector(collector::CollectorArguments),
    Floor(floor::FloorArguments),
    Instructions(instructions::InstructionsArguments),
    HotFunctions(hot_functions::HotFunctionsArguments),
    Drain(drain::DrainArguments),
    Hostile(hostile::HostileArguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(DEFAULT_FILTER);
    exit_code(match arguments.command {
        Command::Writes(arguments) => writes::run(arguments).await,
        Command::Steady(arguments) => steady::run(arguments).await,
        Command::Pools(arguments) => pools::run(arguments).await,
        Command::PoolRollout(arguments) => pool_rollout::run(arguments).await,
        Command::Soak(arguments) => soak::run(arguments).await,
        Command::Fleet(arguments) => fleet::run(arguments).await,
        Command::Restart(arguments) => restart::run(arguments).await,
        Command::Collector(arguments) => collector::run(arguments).await,
        Command::Floor(arguments) => floor::run(arguments).await,
        Command::Instructions(arguments) => instructions::run(arguments).await,
        Command::HotFunctions(arguments) => hot_functions::run(&arguments),
        Command::Drain(arguments) => drain::run(arguments).await,
        Command::Hostile(arguments) => hostile::run(arguments).await,
    })
}
