//! Adds the controllers to a manager, for a process and for a simulation of it.

use std::{fmt, sync::Arc};

use nodewright_api::MachineClass;
use nodewright_driver::Driver;
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{leadership::Clock, manager::Manager};

use crate::shared::clusters::{CONTROL, TARGET};
use crate::{
    machine::{Caller, MachineController, Settings},
    machine_class::{
        IdentityFields, InvalidClasses, MachineClassController, MachineClassSecretController, ProviderSpecCheck,
    },
    machine_deployment::MachineDeploymentController,
    machine_set::MachineSetController,
    orphan_node::{OrphanNodeController, look_up},
    shared::schema::Schemas,
};

/// The controllers of sets, as in the process `machine-controller-manager`.
pub const SET_CONTROLLERS: [&str; 2] = ["machine-deployment", "machine-set"];
/// The controllers of machines, as in machine-controller-manager's process `machine-controller`.
pub const MACHINE_CONTROLLERS: [&str; 2] = ["machine", "machine-class"];

/// The common options of the controllers of one process.
pub struct Wiring {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// The served schemas. The process that runs the manager keeps them up to date.
    pub schemas: Schemas,
    /// Creates VMs.
    pub driver: Arc<dyn Driver>,
    /// Timeouts and periods of machines.
    pub settings: Settings,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Records the spans of machines.
    pub spans: Spans,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wiring")
            .field("namespace", &self.namespace)
            .field("schemas", &self.schemas)
            .finish_non_exhaustive()
    }
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
}

impl Wiring {
    /// Adds a controller by its name, with the metrics and helpers that belong to it.
    pub fn add(&self, manager: &mut Manager, name: &str) -> Result<(), WiringError> {
        match name {
            "machine-deployment" => {
                let (namespace, full_schema) = (self.namespace.clone(), self.schemas.deployment.clone());
                manager.add(MachineDeploymentController { namespace, full_schema });
            }
            "machine-set" => {
                let (namespace, full_schema) = (self.namespace.clone(), self.schemas.set.clone());
                manager.add(MachineSetController { namespace, full_schema });
            }
            "machine" => self.add_machine(manager)?,
            "machine-class" => self.add_machine_class(manager),
            other => return Err(WiringError::Unknown(other.to_owned())),
        }
        Ok(())
    }

    fn add_machine(&self, manager: &mut Manager) -> Result<(), WiringError> {
        let control = manager.connection(CONTROL, "machine").ok_or(WiringError::NoControlCluster)?;
        let target = manager.connection(TARGET, "machine");
        let lookups = control.clone();
        let (driver, groups) = (self.driver.clone(), self.settings.bootstrap_groups.clone());
        let caller = Caller::new(driver.clone(), control, target, groups, self.clock.clone(), self.spans.clone());
        let (namespace, settings) = (self.namespace.clone(), self.settings.clone());
        manager.add_with(MachineController { namespace, settings, driver }, move |call| caller.perform(call));
        if self.settings.has_target {
            let (namespace, grace) = (self.namespace.clone(), self.settings.orphaned_node_grace);
            manager.add_with(OrphanNodeController { namespace, grace }, move |lookup| look_up(lookups.clone(), lookup));
        }
        Ok(())
    }

    fn add_machine_class(&self, manager: &mut Manager) {
        let invalid = InvalidClasses::new(manager.stores(), own_class_check(&self.driver));
        self.metrics.register(|registry| registry.register_collector(Box::new(invalid)));
        let (namespace, full_schema) = (self.namespace.clone(), self.schemas.class.clone());
        let (check, driver) = (class_check(&self.driver), self.driver.clone());
        let identity: IdentityFields = Arc::new(move |class| identity(driver.as_ref(), class));
        manager.add(MachineClassController { namespace, full_schema, check, identity });
        manager.add(MachineClassSecretController { namespace: self.namespace.clone() });
    }
}

/// Whether a class belongs to the driver. A class without a provider does.
fn is_ours(driver: &dyn Driver, class: &MachineClass) -> bool {
    class.provider.is_empty() || class.provider.eq_ignore_ascii_case(driver.name())
}

/// The driver's validation errors of a class, by JSON paths below `providerSpec`; none for classes of other providers.
pub fn complaints(driver: &dyn Driver, class: &MachineClass) -> Vec<(String, String)> {
    if is_ours(driver, class) { driver.validate(&class.provider_spec) } else { vec![] }
}

/// The fields below `providerSpec` by which the driver finds the VMs of a class; none for classes of other providers, and for
/// those from which it cannot create a VM.
pub fn identity(driver: &dyn Driver, class: &MachineClass) -> Vec<String> {
    let is_usable = is_ours(driver, class) && complaints(driver, class).is_empty();
    let fields = if is_usable { driver.identity() } else { &[] };
    fields.iter().map(|field| (*field).to_owned()).collect()
}

/// The errors of a class's providerSpec, for its status.
fn class_check(driver: &Arc<dyn Driver>) -> ProviderSpecCheck {
    let driver = driver.clone();
    Arc::new(move |class| {
        if !is_ours(driver.as_ref(), class) {
            return vec![format!("provider: this manager runs {:?} and not {:?}", driver.name(), class.provider)];
        }
        let path =
            |path: &str| if path.is_empty() { "providerSpec".to_owned() } else { format!("providerSpec.{path}") };
        complaints(driver.as_ref(), class).into_iter().map(|(at, what)| format!("{}: {what}", path(&at))).collect()
    })
}

/// The same for this driver's classes only: a class of another provider is no error.
fn own_class_check(driver: &Arc<dyn Driver>) -> ProviderSpecCheck {
    let driver = driver.clone();
    Arc::new(move |class| complaints(driver.as_ref(), class).into_iter().map(|(_, what)| what).collect())
}
