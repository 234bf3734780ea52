//! The common parts of all commands: telemetry, the ports for operators, and a graceful stop on a signal.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use http::HeaderValue;
use nodewright_api::{machine_config::GROUP, served::Served};
use nodewright_controllers::shared::schema::Schemas;
use nodewright_observability::{metrics::Metrics, telemetry::Telemetry};
use nodewright_runtime::{
    leadership::{Clock, Leadership, boot_clock, checked_clock},
    request::Connection,
};
use nodewright_serving::{Authorization, Checks, Endpoints, Server, raise_open_files, tls_acceptor};
use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome,
    certificate::Certificate,
    clusters::Clusters,
    flags::ProcessFlags,
    preflight::{self, Startup},
};

/// Name and version, for `User-Agent`.
pub(crate) const PRODUCT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"));
/// The default of `--port`, except for `mc`.
pub(crate) const DEFAULT_PORT: u16 = 10258;
/// Maximum number of concurrent requests that authorize clients of the metrics.
const AUTHORIZATIONS: usize = 4;
/// The names of the queues in machine-controller-manager's metrics.
const QUEUE_ALIASES: &[(&str, &str)] = &[
    ("machine-deployment", "machinedeployment"),
    ("machine-set", "machineset"),
    ("machine", "machine"),
    ("machine-class", "machineclass"),
];

pub(crate) struct Process {
    pub(crate) namespace: String,
    pub(crate) telemetry: Telemetry,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Cancelled by SIGTERM and SIGINT.
    pub(crate) stop: CancellationToken,
    pub(crate) ready: Checks,
    pub(crate) startup: Startup,
    /// The authorization and the certificate of the metrics port with `--secure-metrics`.
    pub(crate) secured: Option<(Authorization, Arc<Certificate>)>,
    pub(crate) tasks: JoinSet<()>,
}

impl Process {
    /// Sets up telemetry, serves the ports for operators, and listens for signals.
    pub(crate) async fn start(flags: &ProcessFlags, default_port: u16) -> Outcome<Self> {
        let telemetry = Telemetry::start(&flags.telemetry())?;
        if let Err(error) = raise_open_files() {
            tracing::warn!(%error, "failed to raise the limit of open files; many connections may exhaust it");
        }
        let metrics = Arc::new(Metrics::new().with_queue_alias("mcm_", QUEUE_ALIASES));
        telemetry.register_metrics(&metrics);
        let secured =
            if flags.secure_metrics { Some((Authorization::default(), Certificate::create()?)) } else { None };
        let mut process = Self {
            namespace: flags.namespace.clone(),
            telemetry,
            metrics,
            clock: checked_clock(boot_clock()),
            stop: CancellationToken::new(),
            ready: Checks::default(),
            startup: Arc::new(Mutex::new(Err("the clusters are not checked yet".to_owned()))),
            secured,
            tasks: JoinSet::new(),
        };
        let startup = process.startup.clone();
        process.ready.add("start", move || startup.lock().clone());
        process.serve_operators(flags, default_port).await?;
        cancel_on_signal(process.stop.clone())?;
        Ok(process)
    }

    async fn serve_operators(&mut self, flags: &ProcessFlags, default_port: u16) -> Outcome<()> {
        let server = bind(SocketAddr::new(flags.address, flags.port.unwrap_or(default_port)), "--port").await?;
        tracing::info!(address = %server.address(), "serving metrics, health and readiness");
        let endpoints = Endpoints {
            metrics: self.metrics.clone(),
            health: Checks::default(),
            ready: self.ready.clone(),
            levels: Some(self.telemetry.levels.clone()),
            authorization: self.secured.as_ref().map(|(authorization, _)| authorization.clone()),
        };
        if let Some(port) = flags.health_probe_port {
            let server = bind(SocketAddr::new(flags.address, port), "--health-probe-port").await?;
            tracing::info!(address = %server.address(), "serving health and readiness");
            self.tasks.spawn(server.serve(None, endpoints.probes(), self.stop.clone()));
        }
        let tls = self.secured.as_ref().map(|(_, certificate)| tls_acceptor(certificate.clone())).transpose()?;
        self.tasks.spawn(server.serve(tls, endpoints.router(), self.stop.clone()));
        Ok(())
    }

    /// Has the API server of the control cluster decide who may read the metrics, if they are secured.
    pub(crate) fn connect(&self, clusters: &Clusters) {
        if let Some((authorization, _)) = &self.secured {
            let (client, metrics) = (clusters.control.clone(), self.metrics.clone());
            let connection =
                Connection::new(client, agent("metrics"), Leadership::unlimited(), AUTHORIZATIONS, metrics);
            authorization.connect(connection);
        }
    }

    /// Waits until the control cluster serves the CRDs of machines. `None` if the process is asked to stop first.
    pub(crate) async fn preflight(&self, clusters: &Clusters) -> Outcome<Option<Served>> {
        let agent = agent("preflight");
        let served = preflight::wait_for_crds(&clusters.control, &agent, &self.startup);
        let Some(served) = self.stop.run_until_cancelled(served).await.transpose()? else { return Ok(None) };
        if !served.is_complete() {
            tracing::info!(
                "the CRDs are machine-controller-manager's: MachineClasses have no status, and the scale subresource has no selector"
            );
        }
        Ok(Some(served))
    }

    /// Follows changes of the CRDs, and logs when the target cluster is unreachable.
    pub(crate) fn follow_clusters(&mut self, clusters: &Clusters, served: Option<Served>, schemas: &Schemas) {
        let agent = agent("preflight");
        if let Some(served) = served {
            self.spawn(preflight::follow_schemas(clusters.control.clone(), agent.clone(), served, schemas.clone()));
        }
        if let Some(target) = &clusters.target {
            self.spawn(preflight::log_target(target.clone(), agent));
        }
    }

    /// Whether the target cluster serves the kinds of node configuration; logs what follows. A cluster that does not answer may
    /// serve them.
    pub(crate) async fn serves_machine_config(&mut self, clusters: &Clusters) -> bool {
        let Some(target) = &clusters.target else { return false };
        let missing = preflight::missing_machine_config_kinds(target, &agent("preflight")).await;
        match missing {
            Ok(missing) if missing.is_empty() => true,
            Ok(missing) => {
                let missing = missing.join(", ");
                tracing::info!(
                    "the target cluster does not serve {missing} of {GROUP}: the controllers of node configuration stay out"
                );
                self.spawn(preflight::log_machine_config(target.clone(), agent("preflight")));
                false
            }
            Err(error) => {
                tracing::warn!("the controllers of node configuration wait: {error}");
                true
            }
        }
    }

    /// Runs a task until the process stops.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(task).await.unwrap_or(()) });
    }

    /// Stops all tasks, and flushes telemetry.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.telemetry.shutdown().await;
    }
}

/// Binds a port. Retries for a while, because a process that was just killed may still hold it.
async fn bind(address: SocketAddr, flag: &'static str) -> Outcome<Server> {
    const BIND_TIMEOUT: Duration = Duration::from_secs(2);
    let begun = tokio::time::Instant::now();
    loop {
        match Server::bind(address, flag).await {
            Err(error) if error.source.kind() == ErrorKind::AddrInUse && begun.elapsed() < BIND_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return Ok(result?),
        }
    }
}

fn cancel_on_signal(stop: CancellationToken) -> Outcome<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
            _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
        }
        stop.cancel();
    });
    Ok(())
}

/// The `User-Agent` of a part of the process.
pub(crate) fn agent(name: &str) -> HeaderValue {
    HeaderValue::try_from(format!("{PRODUCT} ({name})")).unwrap_or_else(|_| HeaderValue::from_static(PRODUCT))
}
