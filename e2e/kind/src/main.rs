//! `nodewright-kind`: installs Nodewright in a kind cluster as users do, lets it make nodes there, and checks both.
//!
//! | module | content |
//! |---|---|
//! | [`cluster`] | the cluster: a new one, or the one of `KUBECONFIG` |
//! | [`installation`] | the manager's Pods, leader and logs |
//! | [`pool`] | a MachineDeployment of the driver `local`, and the Pods on its Nodes |
//! | [`checks`] | what is checked, one line for each |
//! | [`forward`] | requests to a Pod |
//! | [`program`] | programs that are run: kind, docker, kubectl |

mod checks;
mod cluster;
mod forward;
mod installation;
mod pool;
mod program;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use nodewright_e2e_lab::{
    control_plane::testing::{Failure, TestResult},
    process::command::init_logging,
};

use crate::{cluster::Cluster, program::Program};

/// Check Nodewright in a kind cluster. Prints one line for each check, and fails at the first that fails.
///
/// The cluster is that of KUBECONFIG, or a new one, which is deleted at the end. Needs docker and kubectl.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Archive with an image: that of the manager and that of the driver `local`, see hack/image.sh.
    #[arg(long = "image", value_name = "FILE", required = true)]
    images: Vec<PathBuf>,
    /// Path of kind.
    #[arg(long, default_value = "kind", value_name = "FILE")]
    kind: PathBuf,
    /// Node image of a new cluster. [default: the one of the kind release]
    #[arg(long, value_name = "IMAGE")]
    node_image: Option<String>,
    /// Checks whose names contain this text. Those that install and uninstall are always made.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
    /// Leave the cluster and Nodewright as they are at the end.
    #[arg(long)]
    keep: bool,
    /// A command to run while Nodewright is installed, with KUBECONFIG.
    #[arg(last = true)]
    command: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_logging("warn,kube_client=off");
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> TestResult {
    let cluster = Cluster::open(&arguments.kind, arguments.node_image.as_deref()).await?;
    let result = check(&cluster, arguments).await;
    if arguments.keep {
        println!("the cluster stays: export KUBECONFIG={}", cluster.keep().display());
        return result;
    }
    result.and(cluster.close().await)
}

async fn check(cluster: &Cluster, arguments: &Arguments) -> TestResult {
    for image in &arguments.images {
        cluster.load(image).await?;
    }
    checks::install(cluster).await?;
    checks::run(cluster, &arguments.only).await?;
    if let [program, rest @ ..] = arguments.command.as_slice() {
        let command = Program::new(program).arguments(rest).environment("KUBECONFIG", cluster.kubeconfig());
        command.environment("NODEWRIGHT_E2E", "external").attached().await.map_err(Failure::from)?;
    }
    if arguments.keep { Ok(()) } else { checks::uninstall(cluster).await }
}
