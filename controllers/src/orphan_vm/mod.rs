//! VMs at the provider that no Machine has: this controller deletes them, late and few at a time.
//!
//! They remain when a Machine is removed by force, or when a creation whose answer was lost takes effect after all.
//!
//! ```text
//! provider ── list ─► evaluate ─► orphans, each since when ─► due? ─► sweep: read its Machine at the API server, then delete the VM
//!               │        │
//!               └────────┴─► or why orphans cannot be evaluated
//! ```
//!
//! # Guarantees
//! * A VM is deleted only if two lists, a grace apart, have shown it without a Machine, if it is old enough, and if the API server
//!   says immediately before that no Machine has its name. A Machine exists before its VM, so one that is new is found.
//! * The list is believed only if it has the VMs of all Running Machines, and at least one of a Machine: the list of another
//!   account, of another cluster, or a part of one deletes nothing.
//! * Nothing is deleted while the API server is out of reach, while a Machine cannot be decoded, and for a day after a Machine has
//!   vanished from the cache without having been deleted. Times start again after a restart, an outage, and a change of the class.
//! * A VM whose Machine is not known to have been deleted is kept for a day from when it was seen first, also when the Machine vanished
//!   while no manager ran. That time is an annotation of the class: it outlasts restarts, and starts again if it is lost.
//! * No more VMs go than the limit of a pass. The VM of another cluster, and one without the tags of a Machine, are never listed.
//! * The Node of a deleted VM is deleted once a believed list lacks the VM: the Node has exactly its id, no label of another Machine
//!   than that of its tags, and no Machine claims it. The class remembers the VM.
//! * With `--cloud-node=on` or `auto`, a Node without a Machine whose VM two believed lists lack, a grace apart, is marked
//!   ([`lost_nodes`]): [`node_lifecycle`](super::node_lifecycle) deletes it. One without a provider ID goes by the name of its Machine.
//! * Of several VMs of one Machine the one stays that the Machine has; if it has none yet, the oldest.
//!
//! # Caveats
//! * Where no Machine is left, nothing proves that the list is the right one, and the VMs stay.
//! * VMs of a class that no longer exists are not looked for, unless another class has the same cluster and credentials.
//! * If the manager may not list Machines in all namespaces, no VM is deleted: one of another namespace may have it.

mod calls;
mod decision;
mod lost_nodes;
mod memory;
mod metrics;
mod orphans;
mod plan;
mod snapshot;
mod sweep;
mod swept;
#[cfg(test)]
mod tests;
mod unexplained;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use nodewright_api::{Machine, MachineClass, MachineSet};
use nodewright_driver::Driver;
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    object::{Cluster, ObjectRef, is_deleting},
};

use self::{
    calls::Call,
    lost_nodes::LOST_BY_CLASS,
    memory::{Context, Note, Plan},
    snapshot::Snapshot,
};
pub(crate) use self::{metrics::OrphanMetrics, sweep::Caller};
use crate::shared::{
    CONTROL, TARGET,
    cloud_manager::{self, CloudNodeMode},
    driver::Provider,
    indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_CLASS, NODE_BY_INSTANCE},
    node::Node,
};

/// When orphaned VMs are deleted. See the flags of the same names.
#[derive(Clone, Debug)]
pub struct OrphanVmSettings {
    /// The pause between two lists (`--machine-safety-orphan-vms-period`).
    pub period: Duration,
    /// The time between the first list that shows an orphan and the one that confirms it (`--orphan-vms-grace`).
    pub grace: Duration,
    /// The age below which no VM is deleted; from the first list that shows it if the provider reports no age
    /// (`--orphan-vms-minimum-age`).
    pub minimum_age: Duration,
    /// For how long an orphan is kept of whose Machine no deletion is known, from when it was seen first, and all orphans after
    /// a Machine has vanished (`--orphan-vms-vanished-pause`).
    pub vanished_pause: Duration,
    /// How many VMs are deleted after one list at most (`--orphan-vms-per-pass`).
    pub per_pass: usize,
    /// Whether orphans are only reported (`--orphan-vms-dry-run`).
    pub dry_run: bool,
}

impl Default for OrphanVmSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_mins(15),
            grace: Duration::from_mins(10),
            minimum_age: Duration::from_mins(30),
            vanished_pause: Duration::from_hours(24),
            per_pass: 5,
            dry_run: false,
        }
    }
}

/// The controller of VMs without a Machine. It lists once for all classes with the same cluster and credentials.
#[derive(Clone)]
pub struct OrphanVmController {
    pub(crate) namespace: String,
    pub(crate) settings: OrphanVmSettings,
    /// Who deletes Nodes whose VM is gone (`--cloud-node`), and the time between two lists without the VM of a Node that has no Machine
    /// (`--node-deletion-grace`).
    pub(crate) cloud_node: (CloudNodeMode, Duration),
    /// For its deadlines and the fields that identify VMs. It is not called.
    pub(crate) driver: Arc<dyn Driver>,
    /// Whether there is a target cluster, with the Nodes of the VMs.
    has_target: bool,
    /// How many Machines have vanished from the cache without having been deleted.
    vanished: Arc<AtomicU64>,
}

impl OrphanVmController {
    /// A controller for the classes of a namespace.
    pub fn new(
        namespace: impl Into<String>,
        settings: OrphanVmSettings,
        cloud_node: (CloudNodeMode, Duration),
        driver: Arc<dyn Driver>,
        has_target: bool,
    ) -> Self {
        let namespace = namespace.into();
        Self { namespace, settings, cloud_node, driver, has_target, vanished: Arc::default() }
    }
}

impl Controller for OrphanVmController {
    const NAME: &'static str = "orphan-vm";
    type Primary = MachineClass;
    type Snapshot = Snapshot;
    type Effect = Call;
    type Note = Note;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary_without_status::<MachineClass>(CONTROL, &self.namespace);
        on.kind::<MachineSet>(CONTROL, &self.namespace);
        if self.has_target {
            on.kind::<Node>(TARGET, "").index(NODE_BY_INSTANCE).index(LOST_BY_CLASS);
            cloud_manager::watch(on, self.cloud_node.0);
        }
        let vanished = self.vanished.clone();
        let machines = on.kind::<Machine>(CONTROL, &self.namespace);
        let machines = machines.index(MACHINES_BY_CLASS).index(MACHINE_BY_INSTANCE).index(MACHINE_BY_NODE);
        machines.wakes(move |change, stores, wake| {
            let is_lost = |old: &Arc<Machine>| change.new.is_none() && !is_deleting(old.as_ref());
            if change.old.as_ref().is_some_and(is_lost) {
                vanished.fetch_add(1, Ordering::Relaxed);
                stores.of::<MachineClass>(CONTROL).keys().into_iter().for_each(wake);
            }
        });
    }

    /// VMs are looked for without the target cluster, too: their Nodes wait.
    fn tolerates_unavailable(&self, _: &MachineClass, cluster: Cluster, _: Timestamp) -> bool {
        cluster == TARGET
    }

    fn plans_unlisted(&self, _: &MachineClass, cluster: Cluster) -> bool {
        cluster == TARGET
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Snapshot> {
        let vanished = self.vanished.load(Ordering::Relaxed);
        let driver = self.driver.as_ref();
        let provider = (&Provider::of(driver), driver.deadline());
        Snapshot::take(stores, key, provider, (self.settings.clone(), vanished), self.cloud_node)
    }

    fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
        plan::plan(context, snapshot)
    }
}
