//! The binary `nodewright`: controllers, webhooks, and a few tools.

mod certificate;
mod clusters;
mod flags;
mod preflight;
mod process;

use std::process::ExitCode;

use clap::Parser;

use crate::{
    clusters::one_line,
    flags::{Arguments, Command},
    process::{Outcome, Role},
};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Manager(flags) => process::manager(*flags, Role::All).await,
        Command::Mcm(flags) => process::manager(*flags, Role::Sets).await,
        Command::Mc(flags) => process::manager(*flags, Role::Machines).await,
        Command::Webhook(flags) => process::webhook(*flags).await,
        Command::Crds => crds(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever it is: it is what people see in `kubectl logs` of a pod that does not come up.
            eprintln!("error: {}", one_line(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn crds() -> Outcome<()> {
    for crd in nodewright_api::crd::all() {
        println!("---\n{}", serde_json::to_string_pretty(&crd)?);
    }
    Ok(())
}
