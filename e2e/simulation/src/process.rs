//! Managers, run as in their processes, one after the other: a killed manager is started again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::HeaderValue;
use nodewright_api::served::Served;
use nodewright_controllers::{
    machine::{CloudNodeMode, CloudNodeSettings, MachineSettings},
    wiring::{MACHINE_CONTROLLERS, SET_CONTROLLERS, Wiring},
};
use nodewright_driver_simulated::{Options as DriverOptions, SimulatedDriver};
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    events::Recorder,
    leadership::{Clock, Election, LeaseConfig, checked_clock},
    manager::{Manager, Options},
};
use nodewright_testing::api_server::ApiServer;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    adversary::Adversary,
    calls::Calls,
    clock::JumpingClock,
    limits::Limits,
    lost,
    names::{LEASES, NAMESPACE, prefix},
    pools, preservation,
    purity::Transcribing,
};
use nodewright_controllers::shared::{CONTROL, TARGET, ownership::NodeProof};
use nodewright_e2e_cloud::LocalCloud;

/// The time until an ended process is running again.
const RESTART: Duration = Duration::from_secs(2);
/// How often a lease is renewed: half as often as by default, because renewals dominate idle hours.
const RENEWAL: Duration = Duration::from_secs(4);

/// The parts of the cluster that a manager needs.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) server: ApiServer,
    pub(super) cloud: LocalCloud,
    pub(super) clock: Arc<JumpingClock>,
    pub(super) adversary: Adversary,
    pub(super) seed: u64,
    /// Whether managers acquire leases before they write.
    pub(super) elects: bool,
    /// The limit for a manager's concurrent calls to the cloud, if any.
    pub(super) calls_at_once: Option<usize>,
    /// The limits that protect the fleet.
    pub(super) limits: Limits,
    /// Whether managers do the node part of a cloud controller manager.
    pub(super) cloud_nodes: bool,
    /// The controllers of node configuration that managers run.
    pub(super) pool_controllers: &'static [&'static str],
}

/// A manager that is started again each time it ends. Dropping the slot kills it.
pub(super) struct Slot {
    name: &'static str,
    adversary: Adversary,
    _supervisor: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

impl Slot {
    /// Starts the first manager of a slot.
    pub(super) fn start(name: &'static str, around: &Surroundings) -> Self {
        let (stop, adversary) = (CancellationToken::new(), around.adversary.clone());
        let supervisor = AbortOnDropHandle::new(tokio::spawn(supervise(name, around.clone(), stop.clone())));
        Self { name, adversary, _supervisor: supervisor, stop }
    }

    /// Kills the running manager. Another one follows.
    pub(super) fn crash(&self) {
        self.adversary.kill_slot(self.name);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.adversary.kill_slot(self.name);
        self.stop.cancel();
    }
}

/// The name of the n-th manager in a slot, for `User-Agent` and leases.
fn incarnation(slot: &str, number: u32) -> String {
    format!("{}{number}", prefix(slot))
}

async fn supervise(slot: &'static str, around: Surroundings, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        let name = incarnation(slot, number);
        let death = around.adversary.born(&name);
        let end = stop.child_token();
        let mut running = tokio::spawn(run(name.clone(), around.clone(), end.clone()));
        tokio::select! {
            biased;
            () = death.notified() => {
                // The adversary discards everything that it still sends. The cancellation lets it release its memory.
                end.cancel();
            }
            _ = &mut running => around.adversary.kill(&name),
        }
        number += 1;
        sleep(RESTART).await;
    }
}

/// One process, from start to end.
async fn run(name: String, around: Surroundings, stop: CancellationToken) {
    let Ok(wiring) = wire(&name, &around) else { return };
    let agent = |part: &str| HeaderValue::try_from(format!("{name}/0 ({part})")).ok();
    let (Some(events), Some(leases)) = (agent("events"), agent("leases")) else { return };
    let (client, clock) = (around.server.client(), checked_clock(around.clock.clone()));
    let wiring = Wiring { clock: clock.clone(), ..wiring };
    let (recorder, _sending) =
        Recorder::start(client.clone(), "nodewright", events, wiring.metrics.clone(), clock.clone());
    let clients = BTreeMap::from([(CONTROL, client.clone()), (TARGET, client.clone())]);
    let options = Options::new(&name, "0", CONTROL, client.clone());
    let mut manager = Manager::new(Options {
        field_manager: "nodewright".to_owned(),
        clients,
        effects_at_once: around.calls_at_once.unwrap_or(options.effects_at_once),
        clock: clock.clone(),
        seed: around.seed,
        recorder,
        metrics: wiring.metrics.clone(),
        ..options
    });
    for controller in [&SET_CONTROLLERS[..], &MACHINE_CONTROLLERS, around.pool_controllers].concat() {
        if wiring.add(&mut Transcribing(&mut manager), controller).is_err() {
            return;
        }
    }
    let wanted = if around.elects { &LEASES[..] } else { &[] };
    let elect = |lease: &&str| {
        let config =
            LeaseConfig { identity: name.clone(), retry_period: RENEWAL, ..LeaseConfig::new(NAMESPACE, *lease) };
        Election::new(client.clone(), leases.clone(), config).ok()
    };
    let elections = wanted.iter().filter_map(elect).collect();
    // The slot starts the manager again however it ended.
    let _ = manager.run(elections, stop).await;
}

fn wire(name: &str, around: &Surroundings) -> Result<Wiring, Box<dyn std::error::Error + Send + Sync>> {
    let calls = Calls { cloud: around.cloud.service(), adversary: around.adversary.clone(), name: name.to_owned() };
    let driver = SimulatedDriver::with_service(calls, &DriverOptions::new("http://cloud"))?;
    let clock: Arc<dyn Clock> = around.clock.clone();
    Ok(Wiring {
        namespace: NAMESPACE.to_owned(),
        schemas: Served {
            missing_kinds: vec![],
            machine_class_status: true,
            machine_set_selector: true,
            machine_deployment_selector: true,
        }
        .into(),
        driver: Some(Arc::new(driver)),
        settings: MachineSettings {
            brake: around.limits.brake(),
            preserve_timeout: preservation::TIMEOUT,
            cloud_node: CloudNodeSettings {
                mode: if around.cloud_nodes { CloudNodeMode::On } else { CloudNodeMode::Off },
                ..CloudNodeSettings::default()
            },
            ..MachineSettings::default()
        },
        orphan_vms: lost::settings(),
        fleet: around.limits.fleet(),
        proof: NodeProof::Here,
        machine_config: pools::settings(),
        machine_config_templates: None,
        clock,
        spans: Spans::disabled(),
        metrics: Arc::new(Metrics::new()),
    })
}
