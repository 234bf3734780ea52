//! The binary `nodewright-driver-simulated`: serves the driver `simulated` to a manager.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use nodewright_driver_protocol::server::{self, Provider};
use nodewright_driver_simulated::{Options, PROVIDER_ID_PREFIX, SimulatedDriver};
use nodewright_runtime::leadership::Leadership;

/// Serves VMs of the simulated cloud over the drivers' protocol.
#[derive(Clone, Debug, Parser)]
#[command(name = "nodewright-driver-simulated", version)]
struct Arguments {
    #[command(flatten)]
    server: server::Arguments,
    /// URL of the simulated cloud.
    #[arg(long, default_value = "http://127.0.0.1:8080", env = "NODEWRIGHT_CLOUD_URL", value_name = "URL")]
    simulated_cloud_url: String,
    /// Timeout of a request to the cloud, in seconds. A call may make two.
    #[arg(long, default_value = "15", value_parser = seconds, value_name = "SECONDS")]
    call_timeout: Duration,
    /// How long the cloud may hide a new VM, in seconds.
    #[arg(long, default_value = "5", value_parser = seconds, value_name = "SECONDS")]
    consistency: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds that is not negative, such as 15 or 0.5".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { simulated_cloud_url: url, call_timeout, consistency, server: arguments } = Arguments::parse();
    // The manager sends nothing any more when its leadership has expired.
    let driver = SimulatedDriver::new(&Options { url, call_timeout, consistency }, &Leadership::unlimited());
    match driver {
        Ok(driver) => {
            let provider = Provider { id_prefix: PROVIDER_ID_PREFIX.to_owned(), initializes: false };
            server::run(arguments, Arc::new(driver), provider).await
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let line = ["d", "--socket=/s", "--stop-with-stdin", "--call-timeout=0.5"];
        let read = Arguments::try_parse_from(line).unwrap();
        assert!(read.server.stop_with_stdin && read.call_timeout == Duration::from_millis(500));
        for wrong in ["--consistency=-1", "--consistency=NaN", "--consistency=soon", "--call-timeout=1e30"] {
            assert!(Arguments::try_parse_from(["d", "--socket=/s", wrong]).is_err(), "{wrong}");
        }
    }
}
