//! Adds the controllers to a manager, for a process and for a simulation of it.

use std::{future::ready, path::Path, sync::Arc};

use nodewright_driver::Driver;
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    controller::Controller,
    effect::{Effect, Never},
    leadership::Clock,
    manager::Manager,
};
use parking_lot::Mutex;

use crate::{
    controller_config::{ControllerConfigController, Generator},
    kubelet_config::{self, KubeletConfigController},
    machine::{Caller, CloudNodeMode, MachineController, MachineMetrics, MachineSettings, register_brake},
    machine_class::{self, MachineClassController, Refused, Validator},
    machine_class_secret::MachineClassSecretController,
    machine_config_pool::{self, MachineConfigPoolController, Renderer},
    machine_deployment::{self, MachineDeploymentController},
    machine_set::{self, MachineSetController, StaleMachines},
    node_drain::{self, NodeDrainController},
    node_lifecycle::{Brake, Counters, NodeLifecycleController},
    orphan_node::{OrphanNodeController, look_up},
    orphan_vm::{self, OrphanMetrics, OrphanVmController, OrphanVmSettings},
    rollout_node::RolloutNodeController,
    shared::{
        CONTROL, TARGET,
        drain::PodView,
        fleet::FleetSettings,
        frozen_metric::FrozenCollector,
        machine_config::CachedConfig,
        mcm_metrics::{DriverCalls, register_provider_requests},
        node::Node,
        ownership::NodeProof,
        schema::Schemas,
    },
    unowned_node::{Describer, UnownedNodeController},
};

/// The controllers of sets, as in the process `machine-controller-manager`.
pub const SET_CONTROLLERS: [&str; 2] = ["machine-deployment", "machine-set"];
/// The controllers of machines, as in machine-controller-manager's process `machine-controller`.
pub const MACHINE_CONTROLLERS: [&str; 2] = ["machine", "machine-class"];

/// The controllers of node configuration.
pub const MACHINE_CONFIG_CONTROLLERS: [&str; 4] =
    ["controller-config", "kubelet-config", "machine-config-pool", "node-drain"];

/// The sizes in bytes of the objects in the caches whose types are not those of the API, by the names of the types: a count of
/// allocations recognises the objects by them.
pub const CACHED_SIZES: [(&str, usize); 3] =
    [("CachedConfig", size_of::<CachedConfig>()), ("Node", size_of::<Node>()), ("PodView", size_of::<PodView>())];

/// The common options of the controllers of one process.
pub struct Wiring {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// The served schemas. The process that runs the manager keeps them up to date.
    pub schemas: Schemas,
    /// Creates VMs. [`MACHINE_CONTROLLERS`] need it.
    pub driver: Option<Arc<dyn Driver>>,
    /// Timeouts and periods of machines.
    pub settings: MachineSettings,
    /// When orphaned VMs are deleted.
    pub orphan_vms: OrphanVmSettings,
    /// Limits and times of deployments and sets.
    pub fleet: FleetSettings,
    /// Whether the same process proves which Nodes are Machines'.
    pub proof: NodeProof,
    /// What concerns node configuration.
    pub machine_config: machine_config_pool::PoolSettings,
    /// The folder of the templates of MachineConfigs, if there is one.
    pub machine_config_templates: Option<Arc<Path>>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Records spans.
    pub spans: Spans,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// A controller could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WiringError {
    /// There is no controller with this name.
    #[error("there is no controller {0:?}")]
    Unknown(String),
    /// The manager has no control cluster.
    #[error("there is no control cluster")]
    NoControlCluster,
    /// The controller needs a driver.
    #[error("there is no driver")]
    NoDriver,
}

/// What controllers are added to: a manager, or what a test puts around one.
pub trait AddControllers {
    /// The manager, for its caches and connections.
    fn manager(&self) -> &Manager;
    /// See [`Manager::add_with`].
    fn add_with<C: Controller, F>(&mut self, controller: C, perform: impl Fn(C::Effect) -> F + Send + Sync + 'static)
    where
        F: Future<Output = <C::Effect as Effect>::Outcome> + Send + 'static;
    /// See [`Manager::add`].
    fn add(&mut self, controller: impl Controller<Effect = Never>) {
        self.add_with(controller, |effect| async move { match effect {} });
    }
}

impl AddControllers for Manager {
    fn manager(&self) -> &Manager {
        self
    }

    fn add_with<C: Controller, F>(&mut self, controller: C, perform: impl Fn(C::Effect) -> F + Send + Sync + 'static)
    where
        F: Future<Output = <C::Effect as Effect>::Outcome> + Send + 'static,
    {
        Self::add_with(self, controller, perform);
    }
}

impl Wiring {
    /// Adds a controller by its name, with the metrics and helpers that belong to it.
    pub fn add(&self, manager: &mut impl AddControllers, name: &str) -> Result<(), WiringError> {
        let (namespace, full_schema) = (self.namespace.clone(), self.schemas.set.clone());
        match name {
            "machine-deployment" => self.add_machine_deployment(manager),
            "machine-set" => {
                machine_set::register_metrics(&self.metrics, manager.manager().stores(), self.clock.clone());
                let stale = StaleMachines::register(&self.metrics, manager.manager().stores());
                manager.add(MachineSetController { namespace, full_schema, fleet: self.fleet.clone(), stale });
            }
            "machine" => self.add_machine(manager)?,
            "machine-class" => self.add_machine_class(manager)?,
            "controller-config" => self.add_controller_config(manager),
            "kubelet-config" => self.add_kubelet_config(manager),
            "machine-config-pool" => self.add_machine_config_pool(manager),
            "node-drain" => {
                node_drain::register_metrics(&self.metrics, manager.manager().stores(), self.clock.clone());
                manager.add(NodeDrainController { traces: self.spans.are_exported() });
            }
            other => return Err(WiringError::Unknown(other.to_owned())),
        }
        Ok(())
    }

    fn add_machine_deployment(&self, manager: &mut impl AddControllers) {
        let (namespace, full_schema) = (self.namespace.clone(), self.schemas.deployment.clone());
        let (fleet, nodes) = (self.fleet.clone(), self.settings.has_target.then_some(self.proof));
        let has_pools = self.settings.has_pools;
        machine_deployment::register_metrics(&self.metrics, manager.manager().stores());
        manager.add(MachineDeploymentController { namespace, full_schema, fleet, nodes, has_pools });
        if let Some(proof) = nodes {
            let (namespace, annotates) = (self.namespace.clone(), self.fleet.annotates_nodes_in_rollouts);
            manager.add(RolloutNodeController { namespace, annotates, proof, has_pools });
        }
    }

    fn add_machine(&self, manager: &mut impl AddControllers) -> Result<(), WiringError> {
        let control = manager.manager().connection(CONTROL, "machine").ok_or(WiringError::NoControlCluster)?;
        let target = manager.manager().connection(TARGET, "machine");
        let lookups = control.clone();
        let driver = self.driver.clone().ok_or(WiringError::NoDriver)?;
        let calls = DriverCalls::register(&self.metrics, driver.name());
        let counted = driver.clone();
        register_provider_requests(&self.metrics, driver.name(), move || counted.requests());
        let orphans = Arc::new(orphan_vm::Caller {
            driver: driver.clone(),
            control: control.clone(),
            clock: self.clock.clone(),
            calls: calls.clone(),
            metrics: OrphanMetrics::register(&self.metrics, manager.manager().stores(), driver.as_ref()),
        });
        let machine_metrics = MachineMetrics::register(&self.metrics, &manager.manager().stores(), calls.clone());
        let caller = Arc::new(Caller {
            driver: driver.clone(),
            control,
            target,
            bootstrap_groups: self.settings.bootstrap_groups.clone(),
            clock: self.clock.clone(),
            spans: self.spans.clone(),
            metrics: machine_metrics.clone(),
            reads: Mutex::default(),
        });
        let cloud_node = &self.settings.cloud_node;
        let cloud_node = (cloud_node.mode, cloud_node.deletion_grace);
        let (orphan_vms, has_target) = (self.orphan_vms.clone(), self.settings.has_target);
        let orphan_vms = OrphanVmController::new(&self.namespace, orphan_vms, cloud_node, driver.clone(), has_target);
        manager.add_with(orphan_vms, move |call| orphans.clone().perform(call));
        register_brake(&self.metrics, manager.manager().stores(), self.settings.brake);
        let frozen = FrozenCollector { stores: manager.manager().stores(), has_target: self.settings.has_target };
        self.metrics.register(|registry| registry.register_collector(Box::new(frozen)));
        let (namespace, settings) = (self.namespace.clone(), Arc::new(self.settings.clone()));
        let unowned = driver.clone();
        let machines = MachineController { namespace, settings, driver, metrics: machine_metrics };
        manager.add_with(machines, move |call| caller.clone().perform(call));
        if self.settings.has_target {
            let (namespace, grace) = (self.namespace.clone(), self.settings.orphaned_node_grace);
            manager.add_with(OrphanNodeController { namespace, grace }, move |lookup| look_up(lookups.clone(), lookup));
        }
        if self.settings.has_target && self.settings.cloud_node.mode != CloudNodeMode::Off {
            self.add_node_lifecycle(manager);
            self.add_unowned_node(manager, unowned, calls);
        }
        Ok(())
    }

    fn add_unowned_node(&self, manager: &mut impl AddControllers, driver: Arc<dyn Driver>, calls: DriverCalls) {
        let describer = Arc::new(Describer { driver: driver.clone(), clock: self.clock.clone(), calls });
        let (namespace, mode) = (self.namespace.clone(), self.settings.cloud_node.mode);
        let controller = UnownedNodeController { namespace, mode, driver };
        manager.add_with(controller, move |call| describer.clone().perform(call));
    }

    fn add_node_lifecycle(&self, manager: &mut impl AddControllers) {
        let brake = Arc::new(Brake::register(&self.metrics, self.clock.clone()));
        let counters = Counters::register(&self.metrics);
        let (namespace, settings) = (self.namespace.clone(), &self.settings.cloud_node);
        let (mode, after_start) = (settings.mode, settings.deletion_after_start);
        let most_not_ready = self.settings.brake.zone_percent;
        let controller = NodeLifecycleController { namespace, mode, after_start, most_not_ready, counters };
        manager.add_with(controller, move |permit| ready(brake.perform(&permit)));
    }

    fn add_machine_class(&self, manager: &mut impl AddControllers) -> Result<(), WiringError> {
        let driver = self.driver.clone().ok_or(WiringError::NoDriver)?;
        let refused = Refused::default();
        machine_class::register_metrics(&self.metrics, manager.manager().stores(), refused.clone());
        let (namespace, full_schema) = (self.namespace.clone(), self.schemas.class.clone());
        let validator = Arc::new(Validator { driver: driver.clone(), refused });
        let mode = if self.settings.has_target { self.settings.cloud_node.mode } else { CloudNodeMode::Off };
        let controller = MachineClassController { namespace, full_schema, driver, mode };
        manager.add_with(controller, move |call| validator.clone().perform(call));
        manager.add(MachineClassSecretController { namespace: self.namespace.clone() });
        Ok(())
    }

    fn add_controller_config(&self, manager: &mut impl AddControllers) {
        let generator = Arc::new(Generator::default());
        let templates = self.machine_config_templates.clone();
        manager.add_with(ControllerConfigController { templates }, move |call| generator.clone().perform(call));
    }

    fn add_kubelet_config(&self, manager: &mut impl AddControllers) {
        let extensions = self.machine_config.extensions.clone();
        manager.add_with(KubeletConfigController { extensions }, kubelet_config::perform);
    }

    fn add_machine_config_pool(&self, manager: &mut impl AddControllers) {
        let renderer = Renderer::default();
        self.metrics.register(|registry| renderer.register(registry));
        machine_config_pool::register_metrics(&self.metrics, manager.manager().stores());
        let traces = self.spans.are_exported();
        let settings = machine_config_pool::PoolSettings { traces, ..self.machine_config.clone() };
        let controller = MachineConfigPoolController { settings };
        manager.add_with(controller, move |call| renderer.perform(call));
    }
}
