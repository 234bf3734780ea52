//! `nodewright-simulation`: managers in simulated clusters.

use std::process::ExitCode;

use clap::Parser;
use nodewright_e2e_simulation::command::{Arguments, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The logs of thousands of managers are too long: there are none unless RUST_LOG asks for them.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
