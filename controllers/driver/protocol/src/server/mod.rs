//! Serves a [`Driver`] over the drivers' protocol. The `main` of a driver:
//!
//! ```no_run
//! # use std::{process::ExitCode, sync::Arc};
//! use clap::Parser;
//! use nodewright_driver::Driver;
//! use nodewright_driver_protocol::server::{self, Arguments, Provider};
//!
//! # fn my_cloud() -> Arc<dyn Driver> { unimplemented!() }
//! #[tokio::main]
//! async fn main() -> ExitCode {
//!     let provider = Provider { id_prefix: "mycloud:///".to_owned(), initializes: false };
//!     server::run(Arguments::parse(), my_cloud(), provider).await
//! }
//! ```
//!
//! # Guarantees
//! * A call ends at the deadline of its caller, and at [`Driver::deadline`]. Then it is dropped, as when the caller has gone.
//! * A call that fails, panics or hangs harms no other call.
//! * The socket is the user's alone (mode 0600) from its first moment. A socket that an earlier process has left is replaced; one
//!   that another process serves is not.

mod service;
mod socket;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use nodewright_driver::{Driver, panics};
use nodewright_observability::telemetry::{LogFormat, Telemetry, TelemetryConfig, TelemetryError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use self::service::Service;
pub use self::socket::{BindError, Socket};
use crate::{MESSAGE_LIMIT, OTLP_ENDPOINT, v1::driver_server::DriverServer};

/// How many calls may be under way on one connection. Those of machines that hang must leave room for the others.
const CALLS: u32 = 4_096;
/// How long calls may go on when the process is asked to stop.
const GRACE: Duration = Duration::from_secs(5);

/// What the contract of drivers leaves to the driver's process to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The beginning of each provider id, such as `aws:///`. Answers with others are refused.
    pub id_prefix: String,
    /// Whether [`Driver::initialize`] is to be called.
    pub initializes: bool,
}

/// The arguments of a driver's process, as Nodewright's `--driver` gives them.
///
/// The last one of a flag counts, also of those that a driver adds.
#[derive(Clone, Debug, Parser)]
#[command(args_override_self = true)]
#[group(skip)]
pub struct Arguments {
    /// Path of the Unix socket to serve.
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// Stop when the standard input ends, as it does with the process that started this one.
    #[arg(long)]
    pub stop_with_stdin: bool,
    /// URL of a collector of OpenTelemetry for spans of the calls that the manager traces, such as `http://collector:4317`.
    #[arg(long, env = OTLP_ENDPOINT, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl Arguments {
    /// Logs and traces. A collector that this program cannot use is no reason to make no machines.
    fn telemetry(&self, driver: &str) -> Result<Telemetry, TelemetryError> {
        let config = TelemetryConfig {
            service: format!("nodewright-driver-{driver}"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: LogFormat::Untimed,
            endpoint: self.otlp_endpoint.clone().filter(|endpoint| !endpoint.is_empty()),
            // Only calls that belong to the trace of a machine have spans.
            ratio: 0.0,
            ..TelemetryConfig::default()
        };
        Telemetry::start(&config).or_else(|error| {
            let telemetry = Telemetry::start(&TelemetryConfig { endpoint: None, ..config })?;
            tracing::warn!("without traces: {error}");
            Ok(telemetry)
        })
    }
}

/// Serves the driver until SIGTERM, SIGINT, or the end of the standard input if the arguments say so. Sets up the log, to which panics
/// do not print [what they quote](panics).
pub async fn run(arguments: Arguments, driver: Arc<dyn Driver>, provider: Provider) -> ExitCode {
    panics::withhold_messages();
    let telemetry = match arguments.telemetry(driver.name()) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let orphaned = CancellationToken::new();
    let stop = orphaned.child_token();
    if arguments.stop_with_stdin {
        cancel_with_stdin(orphaned.clone());
    }
    let served = async {
        cancel_on_signal(stop.clone())?;
        let socket = Socket::bind(&arguments.socket)?;
        tracing::info!(provider = driver.name(), socket = %arguments.socket.display(), "serving");
        serve(driver, provider, socket, stop).await
    };
    let served = served.await;
    telemetry.shutdown().await;
    if orphaned.is_cancelled() {
        // A manager that was killed has left the folder of the socket. It is empty now, or not the manager's.
        let _ = arguments.socket.parent().map(std::fs::remove_dir);
    }
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the driver on a socket until the token is cancelled. Calls may then go on for some seconds.
pub async fn serve(
    driver: Arc<dyn Driver>,
    provider: Provider,
    socket: Socket,
    stop: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let longest = driver.deadline();
    let service = DriverServer::new(Service { driver, provider })
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<DriverServer<Service>>().await;
    let (listener, _file) = socket.into_parts();
    let server = Server::builder()
        .timeout(longest)
        .max_concurrent_streams(CALLS)
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = server => Ok(result?),
        () = overdue => Ok(()),
    }
}

fn cancel_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

/// A thread of its own: a read of the standard input cannot be ended.
fn cancel_with_stdin(stop: CancellationToken) {
    std::thread::spawn(move || {
        // An error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        stop.cancel();
    });
}
