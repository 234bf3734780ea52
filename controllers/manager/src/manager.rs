//! The commands with controllers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use nodewright_api::served::Served;
use nodewright_controllers::{
    in_use::{InUseLabels, Note},
    machine::MachineSettings,
    node_lifecycle::NodeLifecycleController,
    shared::{CONTROL, TARGET, ownership::NodeProof, schema::Schemas},
    wiring::{MACHINE_CONFIG_CONTROLLERS, MACHINE_CONTROLLERS, SET_CONTROLLERS, Wiring},
};
use nodewright_driver::Driver;
use nodewright_runtime::{
    controller::Controller,
    events::Recorder,
    leadership::{Election, Leadership, LeaseConfig},
    manager::{Manager, Options},
};

use crate::{
    Outcome,
    clusters::Clusters,
    driver::{self, StartingDriver},
    flags::{ElectionFlags, ManagerFlags},
    process::{DEFAULT_PORT, PRODUCT, Process, agent},
    webhooks,
};

/// The leases of machine-controller-manager's two processes.
const SET_LEASE: &str = "machine-controller-manager";
const MACHINE_LEASE: &str = "machine-controller";
/// The lease of the controllers of node configuration.
const MACHINE_CONFIG_LEASE: &str = "nodewright-machine-config";

/// Each Lease, and the controllers that need it.
const LEASES: [(&str, &[&str]); 3] = [
    (SET_LEASE, &SET_CONTROLLERS),
    (MACHINE_LEASE, &MACHINE_CONTROLLERS),
    (MACHINE_CONFIG_LEASE, &MACHINE_CONFIG_CONTROLLERS),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    All,
    /// The controllers of machine-controller-manager's process of that name.
    Sets,
    /// The controllers of its process machine-controller.
    Machines,
    /// The controllers of node configuration.
    MachineConfig,
}

impl Role {
    fn controllers(self) -> Vec<&'static str> {
        match self {
            Self::All => [&SET_CONTROLLERS[..], &MACHINE_CONTROLLERS, &MACHINE_CONFIG_CONTROLLERS].concat(),
            Self::Sets => SET_CONTROLLERS.to_vec(),
            Self::Machines => MACHINE_CONTROLLERS.to_vec(),
            Self::MachineConfig => MACHINE_CONFIG_CONTROLLERS.to_vec(),
        }
    }

    fn default_port(self) -> u16 {
        if self == Self::Machines { 10259 } else { DEFAULT_PORT }
    }
}

/// Runs controllers, and webhooks with `--webhooks`.
pub(crate) async fn run(flags: ManagerFlags, role: Role) -> Outcome<()> {
    let mut chosen = choose(&flags.controllers, &role.controllers())?;
    driver::check(&flags.provider, &chosen)?;
    let leadership = Leadership::default();
    let mut process = Process::start(&flags.process, role.default_port()).await?;
    for name in &flags.ignored.0 {
        tracing::warn!(flag = format!("--{name}"), "the flag is accepted for compatibility and has no effect");
    }
    let clusters = Clusters::connect(&flags.process, &leadership).await?;
    // Not before: the line of an error is the last one.
    let driver = StartingDriver::start(&flags.provider, &flags.process, &leadership)?;
    process.connect(&clusters);
    let is_machine_config = |name: &&str| MACHINE_CONFIG_CONTROLLERS.contains(name);
    let has_machines = flags.webhook.webhooks || !chosen.iter().all(is_machine_config);
    let served = if has_machines { process.preflight(&clusters).await? } else { None };
    if has_machines && served.is_none() {
        process.end().await;
        return Ok(());
    }
    // Before the driver answers: while no webhook runs, the API server refuses changes of deployments and classes.
    if flags.webhook.webhooks {
        let late = driver.as_ref().map(StartingDriver::late);
        webhooks::serve(&mut process, &flags.webhook, &flags.machine_config.extensions, &clusters, late).await?;
    }
    let driver = match driver {
        None => None,
        Some(driver) => {
            *process.startup.lock() = Err("the driver has not answered yet".to_owned());
            let Some(driver) = driver.answered(&process.ready, &process.stop).await else {
                process.end().await;
                return Ok(());
            };
            Some(driver)
        }
    };
    if chosen.iter().any(is_machine_config) && !process.serves_machine_config(&clusters).await {
        chosen.retain(|name| !is_machine_config(name));
    }
    if chosen.is_empty() {
        process.end().await;
        return Err("the target cluster does not serve the kinds of the chosen controllers, see --controllers".into());
    }
    ControllerProcess { flags, chosen, driver, leadership, clusters, process }.run(served).await
}

/// A process with controllers whose clusters are ready.
struct ControllerProcess {
    flags: ManagerFlags,
    chosen: Vec<&'static str>,
    driver: Option<Arc<dyn Driver>>,
    leadership: Leadership,
    clusters: Clusters,
    process: Process,
}

impl ControllerProcess {
    async fn run(mut self, served: Option<Served>) -> Outcome<()> {
        let elections = self.elections()?;
        let (mut manager, drain) = self.manager();
        let schemas = Schemas::from(served.clone().unwrap_or_default());
        self.process.follow_clusters(&self.clusters, served, &schemas);
        self.add_controllers(&mut manager, schemas)?;
        self.process.ready.add("caches", manager.readiness());
        let (namespace, clock) = (&self.process.namespace, self.process.clock.clone());
        if let Some(labels) = InUseLabels::new(&manager, namespace, self.leadership.clone(), clock) {
            self.process.spawn(labels.run(|note| match note {
                Note::Changed(text) => tracing::info!("{text}"),
                Note::Failed(text) => tracing::warn!("{text}"),
            }));
        }
        *self.process.startup.lock() = Ok(());
        let result = manager.run(elections, self.process.stop.clone()).await;
        if result.is_ok() {
            drain.await;
        }
        self.process.end().await;
        Ok(result?)
    }

    /// Starts a recorder for both clusters: an API server that does not answer delays no events of the other one.
    fn recorder(&self) -> (Recorder, impl Future<Output = ()> + use<>) {
        let process = &self.process;
        let start = |client: &Client| {
            let (metrics, clock) = (process.metrics.clone(), process.clock.clone());
            Recorder::start(client.clone(), "nodewright", agent("events"), metrics, clock)
        };
        let (mut recorder, task) = start(&self.clusters.control);
        let mut tasks = vec![task];
        if let Some(target) = &self.clusters.target {
            let (other, task) = start(target);
            recorder = recorder.serving(TARGET, &other);
            tasks.push(task);
        }
        let drain = async move {
            for task in tasks {
                task.await;
            }
        };
        (recorder, drain)
    }

    fn manager(&self) -> (Manager, impl Future<Output = ()> + use<>) {
        let process = &self.process;
        let (recorder, drain) = self.recorder();
        let target = self.clusters.target.iter().map(|client| (TARGET, client.clone()));
        let manager = Manager::new(Options {
            home: CONTROL,
            users: self
                .flags
                .cloud_node
                .deletion_user(&process.namespace)
                .map(|user| (NodeLifecycleController::NAME, user))
                .into_iter()
                .collect(),
            product: PRODUCT.to_owned(),
            field_manager: "nodewright".to_owned(),
            clients: [(CONTROL, self.clusters.control.clone())].into_iter().chain(target).collect(),
            requests_at_once: self.flags.provider.request_concurrency.into(),
            qps: self.flags.provider.kube_api_qps,
            burst: self.flags.provider.kube_api_burst,
            evictions_at_once: self.flags.provider.evictions(),
            effects_at_once: self.flags.provider.provider_concurrency.into(),
            leadership: self.leadership.clone(),
            clock: process.clock.clone(),
            clock_events_on: Some(self.lease()),
            seed: seed(),
            recorder,
            spans: process.telemetry.spans.clone(),
            metrics: process.metrics.clone(),
        });
        (manager, drain)
    }

    /// The first Lease of this process, whether it acquires that or not.
    fn lease(&self) -> ObjectReference {
        let is_held = |names: &[&str]| names.iter().any(|name| self.chosen.contains(name));
        let held = LEASES.iter().find(|(_, names)| is_held(names)).map_or(SET_LEASE, |(name, _)| name);
        ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            name: Some(held.to_owned()),
            namespace: Some(self.process.namespace.clone()),
            ..ObjectReference::default()
        }
    }

    fn add_controllers(&self, manager: &mut Manager, schemas: Schemas) -> Outcome<()> {
        let wiring = Wiring {
            namespace: self.process.namespace.clone(),
            schemas,
            driver: self.driver.clone(),
            settings: MachineSettings {
                has_pools: self.chosen.contains(&"machine-config-pool"),
                cloud_node: self.flags.cloud_node.settings(),
                ..self.flags.machine.settings(
                    &self.flags.fleet,
                    self.flags.provider.limits(),
                    self.clusters.target.is_some(),
                )
            },
            orphan_vms: self.flags.orphans.settings(),
            fleet: self.flags.fleet.settings(self.flags.machine.machine_creation_timeout),
            proof: if self.chosen.contains(&"machine") { NodeProof::Here } else { NodeProof::Elsewhere },
            machine_config: self.flags.machine_config.settings(),
            machine_config_templates: self.flags.machine_config.machine_config_templates.as_deref().map(Into::into),
            clock: self.process.clock.clone(),
            spans: self.process.telemetry.spans.clone(),
            metrics: self.process.metrics.clone(),
        };
        for name in &self.chosen {
            wiring.add(manager, name)?;
        }
        Ok(())
    }

    /// The elections of the chosen controllers, in a fixed order.
    fn elections(&self) -> Outcome<Vec<Election>> {
        let ElectionFlags {
            leader_elect,
            leader_elect_lease_duration: lease_duration,
            leader_elect_renew_deadline: renew_deadline,
            leader_elect_retry_period: retry_period,
        } = self.flags.election;
        if !leader_elect {
            return Ok(vec![]);
        }
        let namespace = &self.process.namespace;
        let identity = LeaseConfig::new(namespace, SET_LEASE).identity;
        let needed = LEASES.into_iter().filter(|(_, names)| names.iter().any(|name| self.chosen.contains(name)));
        let configs = needed.map(|(name, _)| LeaseConfig {
            identity: identity.clone(),
            lease_duration,
            renew_deadline,
            retry_period,
            ..LeaseConfig::new(namespace, name)
        });
        let client = || Ok(self.clusters.another_control(&self.leadership)?);
        Election::on_thread(client, &agent("leases"), configs)
    }
}

/// The seed of jitter, random for each process.
fn seed() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id())
}

/// The controller of pools, and those whose work it waits for: without them no target would move.
const POOLS: &str = "machine-config-pool";
const GENERATORS: [&str; 2] = ["controller-config", "kubelet-config"];

/// The controllers of `--controllers`: `*` for all, names, and `-name` to exclude one.
fn choose(wanted: &[String], all: &[&'static str]) -> Outcome<Vec<&'static str>> {
    for name in wanted.iter().map(|name| name.trim_start_matches('-')).filter(|name| *name != "*") {
        if !all.contains(&name) {
            let all = all.join(", ");
            return Err(format!("--controllers names {name:?}, which this command does not have; it has {all}").into());
        }
    }
    let is_included = |name: &&str| wanted.iter().any(|wanted| wanted == *name || wanted == "*");
    let is_excluded = |name: &&str| wanted.iter().any(|wanted| wanted.strip_prefix('-') == Some(*name));
    let chosen: Vec<_> = all.iter().copied().filter(|name| is_included(name) && !is_excluded(name)).collect();
    if chosen.is_empty() {
        return Err("--controllers excludes all controllers".into());
    }
    let is_missing = |name: &&&str| chosen.contains(&POOLS) && all.contains(*name) && !chosen.contains(*name);
    if let Some(missing) = GENERATORS.iter().find(is_missing) {
        return Err(
            format!("--controllers has {POOLS}, and not {missing}: pools wait for what that one generates").into()
        );
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
        assert_eq!(chosen("*").unwrap().len(), 8);
        assert_eq!(chosen("machine").unwrap(), ["machine"]);
        assert_eq!(
            chosen("*,-machine,-machine-class,-machine-config-pool,-kubelet-config,-controller-config,-node-drain")
                .unwrap(),
            ["machine-deployment", "machine-set"]
        );
        assert!(chosen("node").unwrap_err().contains("it has machine-deployment, machine-set"));
        assert!(chosen("-machine").is_err());
        for wanted in ["machine-config-pool", "*,-controller-config"] {
            assert!(chosen(wanted).unwrap_err().contains("has machine-config-pool, and not controller-config"));
        }
        assert_eq!(chosen("kubelet-config").unwrap(), ["kubelet-config"]);
    }
}
