//! The binary `nodewright-driver-local`: serves the driver `local` to a manager.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Parser;
use nodewright_driver_local::{LocalDriver, PROVIDER_ID_PREFIX};
use nodewright_driver_protocol::server::{self, Provider};
use nodewright_runtime::leadership::Leadership;

/// Serves containers beside the nodes of a kind cluster over the drivers' protocol.
#[derive(Clone, Debug, Parser)]
#[command(name = "nodewright-driver-local", version)]
struct Arguments {
    #[command(flatten)]
    server: server::Arguments,
    /// Socket of the docker daemon whose containers are the machines.
    #[arg(long, default_value = "/var/run/docker.sock", value_name = "FILE")]
    local_docker_socket: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { server: arguments, local_docker_socket } = Arguments::parse();
    // The manager sends no call after its leadership has expired.
    let driver = LocalDriver::new(&local_docker_socket, &Leadership::unlimited());
    let provider = Provider { id_prefix: PROVIDER_ID_PREFIX.to_owned(), initializes: false };
    server::run(arguments, Arc::new(driver), provider).await
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let read = Arguments::try_parse_from(["d", "--socket=/s", "--stop-with-stdin"]).unwrap();
        assert_eq!(read.local_docker_socket, PathBuf::from("/var/run/docker.sock"));
        let read = Arguments::try_parse_from(["d", "--socket=/s", "--local-docker-socket=/d"]).unwrap();
        assert_eq!(read.local_docker_socket, PathBuf::from("/d"));
    }
}
