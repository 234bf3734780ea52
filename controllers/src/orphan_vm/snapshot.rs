//! What the search for orphaned VMs may see.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use nodewright_api::{ClassIdentity, Machine, MachineClass, MachineSet, reasons::unreadable, stored::LEDGER};
use nodewright_driver::Class;
use nodewright_runtime::{
    cache::Stores,
    object::{ObjectRef, is_deleting, name, namespace, uid},
    scoped_watch::ScopedWatch,
};

use super::{OrphanVmSettings, lost_nodes, swept::Swept};
use crate::shared::{
    CONTROL, TARGET,
    class_secrets::{self, ClassSecrets},
    cloud_manager::{CloudManager, CloudNodeMode},
    driver::Provider,
    indexes::{MACHINES_BY_CLASS, NODE_BY_INSTANCE, instance_id, object_key},
    ledger::{base, set_of},
    node::Node,
    ownership::vm_id,
    usable_class::{group_of, leads, usable},
};

/// Why nothing is looked for: a reason and a message.
pub(super) type BlockedBy = (&'static str, String);

#[derive(Clone)]
pub struct Snapshot {
    pub class: Arc<MachineClass>,
    /// The class as the driver gets it; `None` if another class lists the same VMs.
    pub lister: Option<Result<Class, BlockedBy>>,
    pub scoped_watches: Vec<ScopedWatch>,
    pub fleet: NamespaceMachines,
    /// The Nodes of swept VMs, by the ids of these; `None` until the Nodes are listed.
    pub nodes_of_swept: Option<BTreeMap<String, Vec<Arc<Node>>>>,
    /// The Nodes that are not ready, or marked, and that no Machine has, of the classes that list the same VMs.
    pub lost_nodes: Vec<Arc<Node>>,
    /// How many Machines have vanished without having been deleted.
    pub vanished: u64,
    pub settings: OrphanVmSettings,
    /// The time between the two lists that mark a Node without a Machine.
    pub lost_node_grace: Duration,
    /// Who initializes Nodes, and deletes them, as far as the cluster shows it.
    pub(crate) cloud_manager: CloudManager,
    /// The deadline of the driver's calls.
    pub deadline: Duration,
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        (provider, deadline): (&Provider, Duration),
        (settings, vanished): (OrphanVmSettings, u64),
        (mode, lost_node_grace): (CloudNodeMode, Duration),
    ) -> Option<Self> {
        let class = stores.of::<MachineClass>(CONTROL).get(key)?;
        let group = group_of(stores, &class, provider);
        let is_first = leads(&group, &class);
        let lister = is_first.then(|| listing(stores, &class, provider));
        let scoped_watches = if is_first { class_secrets::scoped_watches(&class) } else { vec![] };
        let fleet = NamespaceMachines::take(stores, namespace(class.as_ref()), &group);
        let nodes_of_swept = nodes_of_swept(stores, &class);
        let lost_nodes = if is_first { lost_nodes::take(stores, &group) } else { vec![] };
        Some(Self {
            class,
            lister,
            scoped_watches,
            fleet,
            nodes_of_swept,
            lost_nodes,
            vanished,
            settings,
            lost_node_grace,
            cloud_manager: CloudManager::take(stores, mode, None),
            deadline,
        })
    }
}

fn nodes_of_swept(stores: &Stores, class: &MachineClass) -> Option<BTreeMap<String, Vec<Arc<Node>>>> {
    if !stores.is_listed::<Node>(TARGET) {
        return None;
    }
    let nodes = stores.of::<Node>(TARGET);
    let of = |id: &str| {
        let mut of_vm = nodes.by(NODE_BY_INSTANCE, instance_id(id));
        // Ids of other providers may end alike.
        of_vm.retain(|node| node.provider_id() == Some(id));
        (id.to_owned(), of_vm)
    };
    Some(Swept::recorded(class).iter().map(|(id, _)| of(id)).collect())
}

fn listing(stores: &Stores, class: &MachineClass, provider: &Provider) -> Result<Class, BlockedBy> {
    let machines = stores.of::<Machine>(CONTROL);
    if let Some(machine) = machines.unreadable().first() {
        let text = format!("{}; until then it may have any VM", machine.describe::<Machine>());
        return Err((unreadable::MACHINE, text));
    }
    let is_changed = |recorded: ClassIdentity| !recorded.changed_in(class).is_empty();
    if ClassIdentity::recorded(class).is_some_and(is_changed) {
        let text = format!("the fields of MachineClass {:?} by which its VMs are found were changed", name(class));
        return Err(("ClassIdentityChanged", text));
    }
    let secrets = ClassSecrets::of(stores, class);
    usable(&secrets, class, &provider.name).map_err(|error| (error.reason, error.message))
}

/// The Machines and MachineSets of a namespace.
#[derive(Clone, Default)]
pub struct NamespaceMachines {
    /// By name.
    machines: HashMap<String, Arc<Machine>>,
    /// By the last part of a VM's id: whether a Machine names it.
    named: HashMap<String, Arc<Machine>>,
    /// The Machines of the classes that list the same VMs.
    pub(super) listed: Vec<Arc<Machine>>,
    /// By the beginning of the names of their Machines: whether a set is about to create some.
    sets: HashMap<String, bool>,
    /// By the same, those that can be read.
    ledgers: HashMap<String, Vec<Arc<MachineSet>>>,
}

impl NamespaceMachines {
    pub(super) fn take(stores: &Stores, namespace: &str, group: &[Arc<MachineClass>]) -> Self {
        let store = stores.of::<Machine>(CONTROL);
        let mut fleet = Self::default();
        for machine in store.all() {
            let ids = [vm_id(&machine), machine.provider_id()];
            for id in ids.into_iter().flatten() {
                fleet.named.insert(instance_id(id).to_owned(), machine.clone());
            }
            fleet.machines.insert(name(machine.as_ref()).to_owned(), machine);
        }
        for class in group {
            let key = object_key(namespace, name(class.as_ref()));
            fleet.listed.extend(store.by(MACHINES_BY_CLASS, &key));
        }
        let sets = stores.of::<MachineSet>(CONTROL);
        for set in sets.all() {
            let staying =
                store.owned_by(uid(set.as_ref())).iter().filter(|machine| !is_deleting(machine.as_ref())).count();
            let lacks = !is_deleting(set.as_ref()) && i32::try_from(staying).unwrap_or(i32::MAX) < set.spec.replicas;
            let base = base(name(set.as_ref()));
            *fleet.sets.entry(base.to_owned()).or_default() |= lacks;
            fleet.ledgers.entry(base.to_owned()).or_default().push(set.clone());
        }
        for set in sets.unreadable() {
            fleet.sets.insert(base(set.name()).to_owned(), true);
        }
        fleet
    }

    pub(super) fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name).map(Arc::as_ref)
    }

    pub(super) fn names(&self, provider_id: &str) -> bool {
        self.named.contains_key(instance_id(provider_id))
    }

    /// Whether the ledger of a set has retired the name of a Machine.
    pub(super) fn has_retired(&self, machine: &str) -> bool {
        let sets = set_of(machine).and_then(|set| self.ledgers.get(set));
        sets.into_iter().flatten().any(|set| {
            let ledger = LEDGER.of(set.as_ref());
            ledger.is_some_and(|ledger| ledger.has_retired(name(set.as_ref()), machine))
        })
    }

    /// Whether a set that lacks Machines may create the one of this name again: it would take over the VM.
    pub(super) fn may_create(&self, machine: &str) -> bool {
        set_of(machine).and_then(|set| self.sets.get(set)).copied().unwrap_or_default()
    }
}
