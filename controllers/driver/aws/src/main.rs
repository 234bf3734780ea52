//! The binary `nodewright-driver-aws`: the driver of Amazon EC2 in a process of its own.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use nodewright_driver_aws::{AwsDriver, Options, PROVIDER_ID_PREFIX};
use nodewright_driver_protocol::server::{self, Provider};

/// Serves VMs of Amazon EC2 over the drivers' protocol.
#[derive(Clone, Debug, Parser)]
#[command(name = "nodewright-driver-aws", version)]
struct Arguments {
    #[command(flatten)]
    server: server::Arguments,
    /// URL of EC2, such as that of a VPC endpoint; by default that of the class's region.
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL")]
    endpoint_url: Option<String>,
    /// URL of STS, for roles that are assumed; by default that of the class's region.
    #[arg(long, env = "AWS_ENDPOINT_URL_STS", value_name = "URL")]
    sts_endpoint_url: Option<String>,
    /// URL of the metadata service, for the role of this instance; by default that of EC2's instances.
    #[arg(long, env = "AWS_EC2_METADATA_SERVICE_ENDPOINT", value_name = "URL")]
    metadata_endpoint_url: Option<String>,
    /// Timeout of a request, in seconds, 0.5 to 120. A call may make five.
    #[arg(long, default_value = "20", value_parser = |text: &str| seconds(text, 0.5, 120.0), value_name = "SECONDS")]
    request_timeout: Duration,
    /// How long EC2 may hide a new VM, in seconds, up to 600.
    #[arg(long, default_value = "30", value_parser = |text: &str| seconds(text, 0.0, 600.0), value_name = "SECONDS")]
    consistency: Duration,
}

impl Arguments {
    fn options(&self) -> Options {
        let url = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
        Options {
            endpoint: url(&self.endpoint_url),
            sts_endpoint: url(&self.sts_endpoint_url),
            metadata_endpoint: url(&self.metadata_endpoint_url),
            request_timeout: self.request_timeout,
            consistency: self.consistency,
        }
    }
}

/// A number of seconds, with which the manager takes the driver.
fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (least..=most).contains(seconds)).map(Duration::from_secs_f64);
    seconds.ok_or_else(|| format!("a number of seconds from {least} to {most}, such as 15 or 0.5"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match AwsDriver::new(&arguments.options()) {
        Ok(driver) => {
            let provider = Provider { id_prefix: PROVIDER_ID_PREFIX.to_owned(), initializes: true };
            server::run(arguments.server, Arc::new(driver), provider).await
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
        let line = ["d", "--socket=/s", "--stop-with-stdin", "--request-timeout=0.5", "--endpoint-url=http://h"];
        let line = [&line[..], &["--sts-endpoint-url=", "--metadata-endpoint-url=http://[fd00:ec2::254]"]].concat();
        let read = Arguments::try_parse_from(line).unwrap();
        let options = read.options();
        assert_eq!(options.sts_endpoint, None);
        assert_eq!(options.metadata_endpoint.as_deref(), Some("http://[fd00:ec2::254]"));
        assert!(read.server.stop_with_stdin && read.request_timeout == Duration::from_millis(500));
        for wrong in [
            "--consistency=-1",
            "--consistency=NaN",
            "--consistency=soon",
            "--request-timeout=121",
            "--request-timeout=0.1",
            "--consistency=601",
        ] {
            assert!(Arguments::try_parse_from(["d", "--socket=/s", wrong]).is_err(), "{wrong}");
        }
    }
}
