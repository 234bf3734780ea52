//! `nodewright-simulation`: managers in simulated clusters.

use std::process::ExitCode;

use clap::Parser;
use nodewright_e2e_process::command::{exit_code, init_logging};
use nodewright_e2e_simulation::command::{Arguments, run};

/// Thousands of managers log too much.
const FILTER: &str = "off";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(FILTER);
    exit_code(run(&arguments))
}
