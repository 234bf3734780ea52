//! `nodewright-control-plane`: a local control plane until Ctrl-C.

use std::process::ExitCode;

use clap::Parser;
use nodewright_e2e_lab::control_plane::command::{Arguments, run};
use nodewright_e2e_lab::process::command::{DEFAULT_FILTER, exit_code, init_logging};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging(DEFAULT_FILTER);
    exit_code(run(arguments).await)
}
