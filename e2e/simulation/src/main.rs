//! `nodewright-simulation`: managers in simulated clusters.

use std::process::ExitCode;

use clap::Parser;
use nodewright_e2e_process::command::{exit_code, init_logging};
use nodewright_e2e_simulation::command::{Arguments, run};

/// The logs of thousands of managers are too long.
const FILTER: &str = "off";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(FILTER);
    exit_code(run(&arguments))
}
