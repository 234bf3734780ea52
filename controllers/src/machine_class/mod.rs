//! `MachineClass`: kept while Machines need it; its Secrets are kept while it exists.
//!
//! * **Class.** It has a finalizer while any Machine names it, so that VMs can still be deleted after a user has deleted their
//!   class. The finalizer is added once all Secrets of the class exist, or one of its Machines has a VM; no VM is created
//!   without it. So Machines of a class that was never usable can be deleted without it.
//! * **Identity.** Then an annotation records the fields that identify its VMs. So a change of these that no webhook reviewed
//!   can be reverted, and no VM is created until then.
//! * **Secrets.** A Secret has a finalizer of its own while any class refers to it, including a class that is being deleted.
//!   The first of these classes adds it; [`crate::machine_class_secret`] removes it.
//! * **Nodes** that nobody initializes ([`uninitialized`]) are reported by all classes, with `--cloud-node=on` or `auto`.
//! * **Status.** Only if the schema has one. A providerSpec that the driver cannot read has an event and a metric as well.
//!
//! # Guarantees
//! * Of the Secrets with the finalizer the metadata is watched, so that none keeps it without a class.
//! * A missing Secret is reported only after the API server has confirmed it.
//! * A Secret of a type that belongs to another program gets no finalizer; it counts as not found.
//!
//! # Caveats
//! A reference into another namespace than the watched one counts as not found.

mod call;
mod decision;
mod metrics;
mod plan;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod uninitialized;
mod validation;

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{Machine, MachineClass};
use nodewright_driver::Driver;
use nodewright_runtime::{
    cache::{Change, Stores},
    controller::{Controller, Watches},
    effect::Never,
    object::{Cluster, ObjectRef},
    plan::{Context, Plan},
};

use self::{call::Validate, snapshot::Snapshot};
pub(crate) use self::{
    call::{Refused, Validator},
    metrics::register_metrics,
};
use crate::shared::{
    CONTROL, TARGET, class_secrets,
    cloud_manager::CloudNodeMode,
    driver::Provider,
    indexes::{CLASSES_BY_CREDENTIALS, CLASSES_BY_SECRET, MACHINES_BY_CLASS},
    schema::FullSchema,
    wake_all, wake_namespace,
};

/// The controller of MachineClasses.
#[derive(Clone)]
pub struct MachineClassController {
    /// The namespace of the custom resources.
    pub namespace: String,
    /// Whether the served schema is ours, with a status, or machine-controller-manager's, without.
    pub full_schema: FullSchema,
    /// For its properties. It is not called.
    pub driver: Arc<dyn Driver>,
    /// Who initializes Nodes (`--cloud-node`); nobody without a target cluster.
    pub(crate) mode: CloudNodeMode,
}

impl Controller for MachineClassController {
    const NAME: &'static str = "machine-class";
    type Primary = MachineClass;
    type Snapshot = Snapshot;
    type Effect = Validate;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<MachineClass>(CONTROL, &self.namespace)
            .index(CLASSES_BY_SECRET)
            .index(CLASSES_BY_CREDENTIALS)
            .wakes(wake_users);
        uninitialized::watch(on, &self.namespace, self.mode);
        on.kind::<Machine>(CONTROL, &self.namespace)
            .index(MACHINES_BY_CLASS)
            .wakes_unreadable(wake_namespace::<MachineClass>)
            .wakes(|change, _, wake| {
                if change.differs_in(|machine| machine.class_name().to_owned()) {
                    let class = |machine: &Machine| ObjectRef::of(CONTROL, machine).sibling(machine.class_name());
                    change.sides().for_each(|machine| wake(class(machine)));
                }
            });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let driver = self.driver.as_ref();
        let (provider, cloud_node) =
            ((Provider::of(driver), driver.session()), (self.mode, driver.describes_unowned()));
        Snapshot::take(stores, key, provider, self.full_schema.get(), cloud_node)
    }

    /// Of the target cluster a class has only a report.
    fn tolerates_unavailable(&self, _: &MachineClass, cluster: Cluster, _: Timestamp) -> bool {
        cluster == TARGET
    }

    fn plans_unlisted(&self, _: &MachineClass, cluster: Cluster) -> bool {
        cluster == TARGET
    }

    fn plan(context: &Context<'_, Validate>, snapshot: &Snapshot) -> Plan<Validate> {
        plan::plan(context, snapshot)
    }
}

/// When the Secrets of a class change, another class may become the first of those that refer to them.
fn wake_users(change: &Change<MachineClass>, stores: &Stores, wake: &mut dyn FnMut(ObjectRef)) {
    let secrets = |class: &MachineClass| -> Vec<ObjectRef> {
        class.secret_names().map(|(namespace, name)| ObjectRef::new(CONTROL, namespace, name)).collect()
    };
    if change.differs_in(secrets) {
        let named = change.sides().flat_map(|class| secrets(class));
        wake_all(named.flat_map(|secret| class_secrets::users(stores, &secret)), wake);
    }
}

/// Whether a class is one of a provider. A class that names none is.
fn is_of(class: &MachineClass, provider: &str) -> bool {
    class.provider.is_empty() || class.provider.eq_ignore_ascii_case(provider)
}

/// The driver's validation errors of a class, by JSON paths below `providerSpec`; none for classes of other providers. `None` if
/// the driver has not answered within some seconds.
pub async fn validation_errors(driver: &dyn Driver, class: &MachineClass) -> Option<Vec<(String, String)>> {
    if is_of(class, driver.name()) { driver.validate(&class.provider_spec).await } else { Some(vec![]) }
}

/// The fields below `providerSpec` by which the driver finds the VMs of a class; none for classes of other providers, and for
/// those with validation errors: no VM can be created.
pub fn identity(driver: &dyn Driver, class: &MachineClass, errors: &[(String, String)]) -> Vec<String> {
    let is_usable = is_of(class, driver.name()) && errors.is_empty();
    let fields = if is_usable { driver.identity() } else { vec![] };
    fields.into_iter().map(str::to_owned).collect()
}
