//! Shared code for the main functions of the e2e commands: logging, signals, the error report.

use std::{
    error::Error,
    io::{self, IsTerminal},
    process::ExitCode,
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::process::{ProcessError, error::causes};

/// The log filter of most commands. kube logs each failed request as an error, even if the caller handles it: there are
/// many of them while a server starts.
pub const DEFAULT_FILTER: &str = "info,kube_client=off";

/// Logs to standard error. `RUST_LOG` overrides the filter.
pub fn init_logging(default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}

/// The exit code for a result. Prints an error and its causes to standard error, one per line.
pub fn exit_code<E: Error>(result: Result<(), E>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    for cause in causes(&error) {
        eprintln!("  caused by: {cause}");
    }
    ExitCode::FAILURE
}

/// Signals that ask the command to end: SIGINT, SIGTERM and SIGHUP.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Cancelled by the first signal: end in order.
    pub graceful: CancellationToken,
    /// Cancelled by the second signal: end at once.
    pub immediate: CancellationToken,
}

impl Shutdown {
    /// Listens for signals from now on, until the process ends. Needs a tokio runtime.
    pub fn listen() -> Result<Self, ProcessError> {
        Self::start().map_err(ProcessError::file("listen to signals of", "this process"))
    }

    fn start() -> io::Result<Self> {
        let shutdown = Self::default();
        let (mut interrupt, mut terminate, mut hangup) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        let Self { graceful, immediate } = shutdown.clone();
        tokio::spawn(async move {
            for token in [graceful, immediate] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(shutdown)
    }
}
