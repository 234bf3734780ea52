//! The driver of a process: the program of `--driver`, or what serves the socket of `--driver-socket`.

use std::sync::{Arc, OnceLock};

use nodewright_controllers::wiring::MACHINE_CONTROLLERS;
use nodewright_driver::Driver;
use nodewright_driver_remote::{OTLP_ENDPOINT, Program, Remote, Source};
use nodewright_runtime::leadership::Leadership;
use nodewright_serving::Checks;
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome,
    flags::{ProcessFlags, ProviderFlags},
};

/// The error of a process whose controllers need a driver, and that has none.
const NO_DRIVER: &str = "the controllers of machines need a driver: give --driver=PROGRAM, which this process starts, or \
    --driver-socket=FILE, which another process serves (in a cluster, add a component such as config/components/driver-aws); \
    the programs are nodewright-driver-aws, nodewright-driver-local for kind, nodewright-driver-simulated for tests, and \
    machine-controller-manager's providers, such as nodewright-driver-azure; --cloud-provider names none; see \
    docs/tasks/driver-process.md";

/// A driver, once it has answered.
pub(crate) type LateDriver = Arc<OnceLock<Arc<dyn Driver>>>;

/// A driver that may not have answered yet.
pub(crate) struct StartingDriver {
    remote: Remote,
    late: LateDriver,
}

impl StartingDriver {
    /// Starts the driver of `--driver`, or connects to that of `--driver-socket`. `None` without either.
    pub(crate) fn start(
        flags: &ProviderFlags,
        process: &ProcessFlags,
        leadership: &Leadership,
    ) -> Outcome<Option<Self>> {
        // The driver's spans go where those of this process go.
        let collector = process.telemetry().endpoint;
        let environment: Vec<_> = collector.map(|endpoint| (OTLP_ENDPOINT, endpoint)).into_iter().collect();
        let program = flags.driver.as_ref().map(|path| Source::Program(Program { environment, ..Program::at(path) }));
        let Some(source) = program.or_else(|| flags.driver_socket.clone().map(Source::Socket)) else { return Ok(None) };
        Ok(Some(Self { remote: Remote::start(source, leadership)?, late: LateDriver::default() }))
    }

    /// The driver for those that begin before it answers.
    pub(crate) fn late(&self) -> LateDriver {
        self.late.clone()
    }

    /// Waits until the driver answers. Readiness follows its health from then on. `None` if the process stops first.
    pub(crate) async fn answered(self, ready: &Checks, stop: &CancellationToken) -> Option<Arc<dyn Driver>> {
        ready.add("driver", self.remote.readiness());
        let driver = stop.run_until_cancelled(self.remote.driver()).await?;
        Some(self.late.get_or_init(|| Arc::new(driver)).clone())
    }
}

/// Fails if one of these controllers needs a driver, and there is none.
pub(crate) fn check(flags: &ProviderFlags, controllers: &[&str]) -> Outcome<()> {
    let has_driver = flags.driver.is_some() || flags.driver_socket.is_some();
    let needs_driver = controllers.iter().any(|name| MACHINE_CONTROLLERS.contains(name));
    if needs_driver && !has_driver { Err(NO_DRIVER.into()) } else { Ok(()) }
}
