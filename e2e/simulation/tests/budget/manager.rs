//! A manager whose work is counted, and the phases of a run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nodewright_api::served::Served;
use nodewright_controllers::{
    machine::MachineSettings,
    machine_config_pool,
    orphan_vm::OrphanVmSettings,
    shared::{CONTROL, TARGET, fleet::FleetSettings, ownership::NodeProof},
    wiring::Wiring,
};
use nodewright_driver_simulated::{Options as DriverOptions, SimulatedDriver};
use nodewright_e2e_cloud::LocalCloud;
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    events::Recorder,
    leadership::{Clock, checked_clock},
    manager::{Manager, Options},
};
use nodewright_testing::{api_server::ApiServer, stand_in};
use tokio::{
    runtime::{Builder, RngSeed},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    allocations,
    counters::{self, Connection, Counters, Sent},
    table::Table,
};

/// The seed of all random choices.
pub(crate) const SEED: u64 = 1;
/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "default";
/// Without a write for so long, the cluster is quiet.
const QUIET: Duration = Duration::from_secs(30);
/// No phase takes longer.
const LONGEST: Duration = Duration::from_hours(2);

/// Executes a run in this thread, on simulated time.
pub(crate) fn simulated(run: impl Future<Output = Table>) -> Table {
    fastrand::seed(SEED);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&SEED.to_le_bytes()))
        .build()
        .expect("a runtime of one thread can be built");
    allocations::count();
    runtime.block_on(stand_in::polled(run))
}

/// A running manager, and what it did in each phase.
pub(crate) struct Counted {
    size: String,
    metrics: Arc<Metrics>,
    sent: Arc<Sent>,
    before: Counters,
    table: Table,
    _manager: AbortOnDropHandle<()>,
}

impl Counted {
    /// Starts a manager with these controllers. `size` is the name of the run in the table.
    pub(crate) fn start(
        size: String,
        server: &ApiServer,
        cloud: Option<&LocalCloud>,
        clock: Arc<dyn Clock>,
        controllers: &[&str],
    ) -> Self {
        let (sent, metrics, clock) = (Arc::<Sent>::default(), Arc::new(Metrics::new()), checked_clock(clock));
        let client = kube::Client::new(Connection { server: server.clone(), sent: sent.clone() }, NAMESPACE);
        let agent = http::HeaderValue::from_static("nodewright/0 (events)");
        let (recorder, sending) = Recorder::start(client.clone(), "nodewright", agent, metrics.clone(), clock.clone());
        let mut manager = Manager::new(Options {
            field_manager: "nodewright".to_owned(),
            clients: BTreeMap::from([(CONTROL, client.clone()), (TARGET, client.clone())]),
            clock: clock.clone(),
            seed: SEED,
            recorder,
            metrics: metrics.clone(),
            ..Options::new("nodewright", "0", CONTROL, client)
        });
        let wiring = wiring(clock, &metrics, cloud);
        for controller in controllers {
            wiring.add(&mut manager, controller).expect("the controller exists and has what it needs");
        }
        let running = async move {
            let _sending = sending;
            manager.run(vec![], CancellationToken::new()).await.expect("the manager runs on");
        };
        let manager = AbortOnDropHandle::new(tokio::spawn(running));
        Self { size, metrics, sent, before: Counters::default(), table: Table::new(), _manager: manager }
    }

    /// Waits until the cluster has the wanted state, and nothing was written for a while.
    pub(crate) async fn settle(&self, what: &str, mut is_as_wanted: impl FnMut() -> bool) {
        let (begun, mut since, mut writes) = (Instant::now(), Instant::now(), self.sent.writes());
        while since.elapsed() < QUIET {
            assert!(begun.elapsed() < LONGEST, "{}: {what} takes longer than {LONGEST:?}", self.size);
            sleep(Duration::from_secs(1)).await;
            if !is_as_wanted() || writes != self.sent.writes() {
                (since, writes) = (Instant::now(), self.sent.writes());
            }
        }
    }

    /// Begins a phase.
    pub(crate) fn begin(&mut self) {
        self.before = counters::read(&self.metrics, &self.sent);
    }

    /// Ends a phase: what the manager did since its beginning goes into the table.
    pub(crate) fn end(&mut self, phase: &str) {
        let after = counters::read(&self.metrics, &self.sent);
        let counted = counters::between(&self.before, &after).into_iter();
        let line = |count| [self.size.clone(), phase.to_owned(), count];
        self.table.extend(counted.map(|(count, value)| (line(count), value)));
    }

    /// The table of all phases.
    pub(crate) fn into_table(self) -> Table {
        self.table
    }
}

fn wiring(clock: Arc<dyn Clock>, metrics: &Arc<Metrics>, cloud: Option<&LocalCloud>) -> Wiring {
    let driver = cloud.map(|cloud| {
        let driver = SimulatedDriver::with_service(cloud.service(), &DriverOptions::new("http://cloud"));
        Arc::new(driver.expect("the address is one")) as _
    });
    Wiring {
        namespace: NAMESPACE.to_owned(),
        schemas: Served {
            missing_kinds: vec![],
            machine_class_status: true,
            machine_set_selector: true,
            machine_deployment_selector: true,
        }
        .into(),
        driver,
        settings: MachineSettings::default(),
        orphan_vms: OrphanVmSettings::default(),
        fleet: FleetSettings::default(),
        proof: NodeProof::Here,
        machine_config: machine_config_pool::PoolSettings::default(),
        machine_config_templates: None,
        clock,
        spans: Spans::disabled(),
        metrics: Arc::clone(metrics),
    }
}
