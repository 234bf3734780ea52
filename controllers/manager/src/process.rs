//! A process: clients, endpoints, webhooks, controllers, and its end.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use http::HeaderValue;
use nodewright_api::{
    field::{FieldError, FieldPath},
    served::Served,
};
use nodewright_controllers::{
    shared::schema::Schemas,
    wiring::{MACHINE_CONTROLLERS, SET_CONTROLLERS, Wiring, complaints, identity},
};
use nodewright_driver::Driver;
use nodewright_driver_simulated::{Options as SimulatedOptions, PROVIDER, SimulatedDriver};
use nodewright_observability::{metrics::Metrics, telemetry::Telemetry};
use nodewright_runtime::{
    events::EventTask,
    leadership::{BootClock, Clock, Election, Leading, LeaseConfig, Term},
    manager::{Manager, Options},
    object::Cluster,
    request::Connection,
};
use nodewright_serving::{Authorization, Checks, Endpoints, ListenError, Server, raise_open_files};
use nodewright_webhooks::{
    CertificateSource, Installation, Limits, Options as WebhookOptions, Registration, WebhookServer,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificate::Certificate,
    clusters::Clusters,
    flags::{ElectionFlags, ManagerFlags, ProcessFlags, ProviderFlags, WebhookFlags, WebhookOnlyFlags},
    preflight::{self, Awaited},
};
use nodewright_controllers::shared::clusters::{CONTROL, TARGET};

/// What every fallible step of a process comes to: a message in one line.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Name and version, for `User-Agent`.
const PRODUCT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"));
/// The leases of machine-controller-manager's two processes.
const SET_LEASE: &str = "machine-controller-manager";
const MACHINE_LEASE: &str = "machine-controller";
/// How many reviews of those who ask for metrics are sent at once.
const REVIEWS_AT_ONCE: usize = 4;

/// Which of machine-controller-manager's processes this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both.
    All,
    /// machine-controller-manager.
    Sets,
    /// machine-controller.
    Machines,
}

impl Role {
    fn controllers(self) -> Vec<&'static str> {
        match self {
            Self::All => [SET_CONTROLLERS, MACHINE_CONTROLLERS].concat(),
            Self::Sets => SET_CONTROLLERS.to_vec(),
            Self::Machines => MACHINE_CONTROLLERS.to_vec(),
        }
    }

    fn port(self) -> u16 {
        if self == Self::Machines { 10259 } else { 10258 }
    }
}

/// What all processes have: telemetry is set up, signals are heard.
struct Base {
    telemetry: Telemetry,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    ready: Checks,
    awaited: Awaited,
    secured: Option<Secured>,
    tasks: JoinSet<()>,
}

/// Metrics for those who may read them.
struct Secured {
    authorization: Authorization,
    certificate: Certificate,
}

impl Secured {
    fn new() -> Outcome<Self> {
        Ok(Self { authorization: Authorization::new(), certificate: Certificate::create()? })
    }
}

impl Base {
    async fn start(flags: &ProcessFlags, port: u16) -> Outcome<Self> {
        let telemetry = Telemetry::start(&flags.telemetry())?;
        if let Err(error) = raise_open_files() {
            tracing::warn!(%error, "failed to raise the limit of open files; too many connections may use them up");
        }
        let metrics = Arc::new(Metrics::new().with_queue_alias(
            "mcm",
            &[
                ("machine-deployment", "machinedeployment"),
                ("machine-set", "machineset"),
                ("machine", "machine"),
                ("machine-class", "machineclass"),
            ],
        ));
        let stop = CancellationToken::new();
        let (ready, awaited, mut tasks) = (Checks::new(), Awaited::new(), JoinSet::new());
        let probed = awaited.clone();
        ready.add("start", move || probed.check());
        let server = bind(SocketAddr::new(flags.address, flags.port.unwrap_or(port)), "--port").await?;
        tracing::info!(address = %server.address(), "serving metrics, health and readiness");
        let secured = flags.secure_metrics.then(Secured::new).transpose()?;
        let endpoints = Endpoints {
            metrics: metrics.clone(),
            health: Checks::new(),
            ready: ready.clone(),
            levels: Some(telemetry.levels().clone()),
            authorization: secured.as_ref().map(|secured| secured.authorization.clone()),
        };
        if let Some(port) = flags.health_probe_port {
            let server = bind(SocketAddr::new(flags.address, port), "--health-probe-port").await?;
            tracing::info!(address = %server.address(), "serving health and readiness");
            tasks.spawn(server.serve(endpoints.probes(), stop.clone()));
        }
        match &secured {
            Some(Secured { certificate, .. }) => {
                tasks.spawn(server.serve_with(certificate.acceptor()?, endpoints.router(), stop.clone()))
            }
            None => tasks.spawn(server.serve(endpoints.router(), stop.clone())),
        };
        listen_for_signals(stop.clone())?;
        Ok(Self { telemetry, metrics, clock: Arc::new(BootClock), stop, ready, awaited, secured, tasks })
    }

    /// From now on the control cluster is asked who may read metrics.
    fn connect(&self, clusters: &Clusters) {
        if let Some(secured) = &self.secured {
            let (client, metrics) = (clusters.control.clone(), self.metrics.clone());
            secured.authorization.connect(Connection::new(
                client,
                agent("metrics"),
                Term::unlimited(),
                REVIEWS_AT_ONCE,
                metrics,
            ));
        }
    }

    /// Follows what may change while the process runs: the CRDs, and whether the target cluster is there.
    fn follow(&mut self, clusters: &Clusters, served: Served, schemas: &Schemas) {
        let (stop, agent) = (self.stop.clone(), agent("preflight"));
        let following = preflight::follow_schemas(clusters.control.clone(), agent.clone(), served, schemas.clone());
        let until = stop.clone();
        self.tasks.spawn(async move {
            let _: Option<()> = until.run_until_cancelled(following).await;
        });
        if let Some(target) = &clusters.target {
            let telling = preflight::tell_of_target(target.clone(), agent);
            self.tasks.spawn(async move {
                let _: Option<()> = stop.run_until_cancelled(telling).await;
            });
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.telemetry.shutdown().await;
    }
}

/// Listens, and gives a process that was killed just now a moment to let go of the port.
async fn bind(address: SocketAddr, flag: &'static str) -> Outcome<Server> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = tokio::time::Instant::now();
    loop {
        match Server::bind(address, flag).await {
            Err(ListenError::InUse { .. }) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return Ok(result?),
        }
    }
}

fn listen_for_signals(stop: CancellationToken) -> Outcome<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("asked to stop (SIGTERM)"),
            _ = interrupt.recv() => tracing::info!("asked to stop (SIGINT)"),
        }
        stop.cancel();
    });
    Ok(())
}

/// Runs controllers, and webhooks if asked for.
pub(crate) async fn manager(flags: ManagerFlags, role: Role) -> Outcome<()> {
    let chosen = choose(&flags.controllers, &role.controllers())?;
    let leading = Leading::default();
    let driver = driver(&flags.provider, &leading)?;
    let base = Base::start(&flags.process, role.port()).await?;
    for flag in flags.ignored.given() {
        tracing::warn!(flag, "accepted for compatibility, and without effect");
    }
    run_manager(&flags, &chosen, driver, leading, base).await
}

async fn run_manager(
    flags: &ManagerFlags,
    chosen: &[&'static str],
    driver: Arc<dyn Driver>,
    leading: Leading,
    mut base: Base,
) -> Outcome<()> {
    let clusters = Clusters::connect(&flags.process, &leading).await?;
    base.connect(&clusters);
    let Some(served) = look(&clusters, &base).await? else {
        base.end().await;
        return Ok(());
    };
    let agent = agent("leases");
    let elections = elections(&flags.election, &flags.process.namespace, chosen, &clusters, &base, &agent)?;
    let (recorder, events) = EventTask::start(
        clusters.control.clone(),
        "nodewright",
        self::agent("events"),
        base.metrics.clone(),
        base.clock.clone(),
    );
    let mut manager = Manager::new(Options {
        home: CONTROL,
        product: PRODUCT.to_owned(),
        field_manager: "nodewright".to_owned(),
        clients: clients(&clusters),
        requests_at_once: flags.provider.request_concurrency.into(),
        request_rate: flags.provider.request_rate(),
        effects_at_once: flags.provider.provider_concurrency,
        leading,
        clock: base.clock.clone(),
        seed: seed(),
        recorder,
        spans: base.telemetry.spans().clone(),
        metrics: base.metrics.clone(),
    });
    let schemas = Schemas::from(served.clone());
    base.follow(&clusters, served, &schemas);
    let wiring = Wiring {
        namespace: flags.process.namespace.clone(),
        schemas,
        driver: driver.clone(),
        settings: flags.machine.settings(clusters.target.is_some()),
        clock: base.clock.clone(),
        spans: base.telemetry.spans().clone(),
        metrics: base.metrics.clone(),
    };
    for name in chosen {
        wiring.add(&mut manager, name)?;
    }
    base.ready.add("caches", manager.readiness());
    base.awaited.end();
    if flags.webhook.webhooks {
        let connection = manager.connection(CONTROL, "webhook").ok_or("there is no control cluster")?;
        // Webhooks are served by processes that stand by as well.
        let connection = connection.within(Term::unlimited());
        // Not a check of this pod's readiness: the autoscaler asks whether this pod is ready.
        let _ = serve_webhooks(&flags.webhook, &flags.process.namespace, connection, driver, &mut base).await?;
    }
    let result = manager.run(elections, base.stop.clone()).await;
    if result.is_ok() {
        events.drain().await;
    }
    base.end().await;
    Ok(result?)
}

/// Runs the webhooks alone.
pub(crate) async fn webhook(flags: WebhookOnlyFlags) -> Outcome<()> {
    // Webhooks have no term.
    let leading = Leading::default();
    let driver = driver(&flags.provider, &leading)?;
    let mut base = Base::start(&flags.process, Role::All.port()).await?;
    let clusters = Clusters::connect(&flags.process, &leading).await?;
    base.connect(&clusters);
    if look(&clusters, &base).await?.is_none() {
        base.end().await;
        return Ok(());
    }
    let connection = Connection::new(clusters.control, agent("webhook"), Term::unlimited(), 8, base.metrics.clone());
    let readiness = serve_webhooks(&flags.webhook, &flags.process.namespace, connection, driver, &mut base).await?;
    base.ready.add("webhooks", move || readiness.check());
    base.awaited.end();
    base.stop.cancelled().await;
    base.end().await;
    Ok(())
}

/// Waits until the control cluster serves what is needed; `None` when told to stop before.
async fn look(clusters: &Clusters, base: &Base) -> Outcome<Option<Served>> {
    let agent = agent("preflight");
    let looked = preflight::look(&clusters.control, &agent, &base.awaited);
    let Some(served) = base.stop.run_until_cancelled(looked).await.transpose()? else { return Ok(None) };
    if !served.is_complete() {
        tracing::info!(
            "the CRDs are machine-controller-manager's: MachineClasses have no status, and the scale subresource has no selector"
        );
    }
    Ok(Some(served))
}

fn clients(clusters: &Clusters) -> BTreeMap<Cluster, kube::Client> {
    let target = clusters.target.iter().map(|client| (TARGET, client.clone()));
    [(CONTROL, clusters.control.clone())].into_iter().chain(target).collect()
}

fn agent(name: &str) -> HeaderValue {
    HeaderValue::try_from(format!("{PRODUCT} ({name})")).unwrap_or_else(|_| HeaderValue::from_static(PRODUCT))
}

/// What jitter is drawn from: another one in each process.
fn seed() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id())
}

/// The leases of the chosen controllers, in a fixed order.
fn elections(
    flags: &ElectionFlags,
    namespace: &str,
    chosen: &[&'static str],
    clusters: &Clusters,
    base: &Base,
    agent: &HeaderValue,
) -> Outcome<Vec<Election>> {
    if !flags.leader_elect {
        return Ok(vec![]);
    }
    let needed = [(SET_LEASE, SET_CONTROLLERS), (MACHINE_LEASE, MACHINE_CONTROLLERS)];
    let needed = needed.into_iter().filter(|(_, controllers)| controllers.iter().any(|name| chosen.contains(name)));
    let identity = LeaseConfig::new(namespace, SET_LEASE).identity;
    needed
        .map(|(name, _)| {
            let config = LeaseConfig {
                identity: identity.clone(),
                lease_duration: flags.leader_elect_lease_duration,
                renew_deadline: flags.leader_elect_renew_deadline,
                retry_period: flags.leader_elect_retry_period,
                ..LeaseConfig::new(namespace, name)
            };
            let election = Election::new(clusters.control.clone(), agent.clone(), config)?;
            Ok(election.with_metrics(base.metrics.clone()))
        })
        .collect()
}

async fn serve_webhooks(
    flags: &WebhookFlags,
    namespace: &str,
    connection: Connection,
    driver: Arc<dyn Driver>,
    base: &mut Base,
) -> Outcome<nodewright_webhooks::Readiness> {
    let installation = Installation { namespace: namespace.to_owned() };
    let namespace = flags.webhook_namespace.clone().unwrap_or_else(|| namespace.to_owned());
    let service = &flags.webhook_service;
    let certificates = if let Some(folder) = &flags.webhook_cert_dir {
        CertificateSource::Directory(folder.clone())
    } else {
        let mut hosts = vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
        hosts.extend(Some(flags.webhook_host.clone()).filter(|host| !host.is_empty()));
        CertificateSource::Secret { namespace, name: "nodewright-webhook-certificate".to_owned(), hosts }
    };
    let registration = match (flags.webhook_host.as_str(), &flags.webhook_cert_dir) {
        ("", Some(_)) => Registration::None,
        ("", None) => Registration::Bundle,
        (host, _) => Registration::Whole { host: host.to_owned() },
    };
    let identity: nodewright_webhooks::IdentityFields = {
        let driver = driver.clone();
        Arc::new(move |class| identity(driver.as_ref(), class))
    };
    let provider_specs: nodewright_webhooks::ProviderSpecCheck = Arc::new(move |class| {
        let spec: serde_json::Value = serde_json::from_str(class.provider_spec.text()).unwrap_or_default();
        complaints(driver.as_ref(), class).into_iter().map(|(path, what)| complaint(&spec, &path, what)).collect()
    });
    let server = WebhookServer::bind(WebhookOptions {
        listen: SocketAddr::new(flags.webhook_address, flags.webhook_port),
        certificates,
        registration,
        installation,
        connection,
        provider_specs,
        identity,
        spans: base.telemetry.spans().clone(),
        clock: base.clock.clone(),
        limits: Limits::default(),
    })
    .await?;
    tracing::info!(address = %server.address(), "serving webhooks");
    let readiness = server.readiness();
    if let Some(secured) = &base.secured {
        secured.certificate.prefer(server.certificate());
    }
    let stop = base.stop.clone();
    base.tasks.spawn(async move { server.run(stop.cancelled_owned()).await });
    Ok(readiness)
}

/// A driver's complaint about a field, as Kubernetes words it.
fn complaint(spec: &serde_json::Value, path: &str, what: String) -> FieldError {
    let parts = || path.split('.').filter(|part| !part.is_empty());
    let at = parts().fold(FieldPath::new("providerSpec"), |at, part| at.child(part));
    match parts().try_fold(spec, |value, part| value.get(part)) {
        Some(value) => FieldError::confidential(at, value, what),
        // What stands below a field of its own is there, under a name that cannot be followed.
        None if parts().count() > 1 || path.ends_with('…') => FieldError::confidential(at, spec, what),
        None => FieldError::required(at, what),
    }
}

/// The driver that the flags name.
fn driver(flags: &ProviderFlags, leading: &Leading) -> Outcome<Arc<dyn Driver>> {
    debug_assert_eq!(flags.cloud_provider, PROVIDER);
    let options = SimulatedOptions::new(&flags.simulated_cloud_url);
    Ok(Arc::new(SimulatedDriver::new(&options, leading)?))
}

/// The controllers that `--controllers` names: `*`, names, and `-name` for all but that one.
fn choose(wanted: &[String], all: &[&'static str]) -> Outcome<Vec<&'static str>> {
    for name in wanted.iter().map(|name| name.trim_start_matches('-')).filter(|name| *name != "*") {
        if !all.contains(&name) {
            return Err(format!(
                "--controllers names {name:?}, which this command does not have; it has {}",
                all.join(", ")
            )
            .into());
        }
    }
    let named = |name: &&str| wanted.iter().any(|wanted| wanted == *name || wanted == "*");
    let left_out = |name: &&str| wanted.iter().any(|wanted| wanted.strip_prefix('-') == Some(*name));
    let chosen: Vec<_> = all.iter().copied().filter(|name| named(name) && !left_out(name)).collect();
    if chosen.is_empty() {
        return Err("--controllers leaves no controller to run".into());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Result<Vec<&'static str>, String> {
        let wanted: Vec<String> = list.split(',').map(str::to_owned).collect();
        choose(&wanted, &Role::All.controllers()).map_err(|error| error.to_string())
    }

    #[test]
    fn controllers_are_chosen_as_kube_controller_manager_does() {
        assert_eq!(chosen("*").unwrap().len(), 4);
        assert_eq!(chosen("machine").unwrap(), ["machine"]);
        assert_eq!(chosen("*,-machine,-machine-class").unwrap(), ["machine-deployment", "machine-set"]);
        assert!(chosen("node").unwrap_err().contains("it has machine-deployment, machine-set"));
        assert!(chosen("-machine").is_err());
    }
}
