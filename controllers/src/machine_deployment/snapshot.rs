//! The snapshot of a MachineDeployment, and what else all decisions may know.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use nodewright_api::{
    Machine, MachineDeployment, MachineSet, StrategyType, labels,
    machine_config::MachineConfigPool,
    stored::{DISRUPTIONS, REVISION, SIZED_FOR},
};
use nodewright_runtime::{
    cache::{Stores, Unreadable},
    object::{ObjectRef, created, is_deleting, label, name, uid},
};

use super::{
    memory::Context,
    rollout::{Goal, Size},
};
use crate::shared::{
    CONTROL, TARGET,
    availability::Availability,
    fleet::PlanSettings,
    indexes::{ORPHAN_MACHINES, ORPHAN_SETS},
    membership::{is_sized, matches, may_be_owned, will_adopt},
    node::Node,
    ownership::{NodeProof, node_name, vm_id},
    preservation::{is_auto_preserved, is_preserved_failed},
    template,
};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub deployment: Arc<MachineDeployment>,
    /// Oldest first.
    pub sets: Vec<SetView>,
    pub orphans: Vec<Arc<MachineSet>>,
    pub unreadable: Vec<Arc<Unreadable>>,
    /// The set with the name that the set of the present template would have.
    pub namesake: Option<Arc<MachineSet>>,
    /// Whether the API server of the target cluster answers; `None` in a process that asks it nothing.
    pub target: Option<bool>,
    /// The Nodes of its Machines, by the names of these, if they are updated in place. `None` while they are not listed.
    pub nodes: Option<BTreeMap<String, Arc<Node>>>,
    /// Whether there is a target cluster, without which no Machine has a Node.
    pub has_target: bool,
    pub settings: PlanSettings,
}

#[derive(Clone, Debug)]
pub struct SetView {
    pub set: Arc<MachineSet>,
    pub machines: Vec<Arc<Machine>>,
    /// Machines without an owner that it will adopt: after a restore they are its Machines.
    pub orphans: Vec<Arc<Machine>>,
    /// The number of existing Machines that may be the set's and cannot be read.
    pub unreadable: usize,
    /// When its Machines are available. The plan sets it.
    pub availability: Availability,
    /// The Nodes that MachineConfigPools have claimed to give them a configuration.
    pub configured: Arc<BTreeSet<String>>,
}

pub(super) struct Scope<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) deployment: &'a MachineDeployment,
    pub(super) goal: Goal,
}

impl Snapshot {
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        proof: Option<NodeProof>,
        settings: PlanSettings,
    ) -> Option<Self> {
        let deployment = stores.of::<MachineDeployment>(CONTROL).get(key)?;
        let store = stores.of::<MachineSet>(CONTROL);
        let machines = stores.of::<Machine>(CONTROL);
        let mut sets = store.owned_by(uid(deployment.as_ref()));
        sets.sort_by_cached_key(|set| age(set));
        let unread = machines.unreadable();
        let unowned = machines.by(ORPHAN_MACHINES, &key.namespace);
        let sets = sets.into_iter().map(|set| {
            let orphans = unowned.iter().filter(|machine| will_adopt(stores, &set, machine)).cloned().collect();
            let mut own = machines.owned_by(uid(set.as_ref()));
            own.retain(|machine| !machines.is_unreadable(&key.namespace, name(machine.as_ref())));
            let unreadable =
                unread.iter().filter(|machine| may_be_owned(set.as_ref(), set.spec.selector.as_ref(), machine)).count();
            let (availability, configured) = (Availability::default(), Arc::default());
            SetView { machines: own, orphans, unreadable, set, availability, configured }
        });
        let mut orphans = store.by(ORPHAN_SETS, &key.namespace);
        orphans.retain(|set| may_adopt(&deployment, set));
        orphans.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        let mut unreadable = store.unreadable();
        unreadable.retain(|set| may_be_owned(deployment.as_ref(), deployment.spec.selector.as_ref(), set));
        let namesake = store.get(&key.sibling(template::set_name(&deployment)));
        let (sets, target) = (sets.collect::<Vec<_>>(), stores.contact(TARGET));
        let nodes = proof.filter(|_| is_in_place(&deployment)).and_then(|proof| nodes(stores, &sets, proof));
        let has_target = proof.is_some();
        Some(Self { deployment, sets, orphans, unreadable, namesake, target, nodes, has_target, settings })
    }

    /// The same, where Nodes are not available that pools give a configuration.
    pub(super) fn with_pools(mut self, stores: &Stores) -> Self {
        if self.sets.len() > 1 {
            let pools = stores.of::<MachineConfigPool>(TARGET).all();
            let configured: Arc<BTreeSet<_>> = Arc::new(pools.iter().flat_map(|pool| configured_nodes(pool)).collect());
            self.sets.iter_mut().for_each(|view| view.configured = Arc::clone(&configured));
        }
        self
    }

    /// The same, where Machines are available only after the deployment's `minReadySeconds`.
    pub(super) fn at(&self, now: Timestamp) -> Cow<'_, Self> {
        let settings = &self.settings.fleet;
        if !settings.honor_min_ready_seconds {
            return Cow::Borrowed(self);
        }
        let mut own = self.clone();
        let availability = Availability::new(now, self.deployment.spec.min_ready_seconds, settings);
        own.sets.iter_mut().for_each(|view| view.availability = availability);
        Cow::Owned(own)
    }

    /// How many failed Machines a set may preserve by itself. Together the sets have the number of their deployment: those of former
    /// templates what they preserve already, newest first, and the present one the rest. MCM gives each the whole number.
    pub(super) fn auto_preserve_share(&self, set: &MachineSet) -> i32 {
        let mut rest = self.deployment.spec.auto_preserve_failed_machine_max.max(0);
        for view in self.old().rev() {
            let share = view.auto_preserved().min(rest);
            if uid(view.set.as_ref()) == uid(set) {
                return share;
            }
            rest -= share;
        }
        rest
    }

    /// When the next Machine becomes available by the passing of time.
    pub(super) fn next_available(&self) -> Option<Timestamp> {
        let next = |view: &SetView| view.availability.next(view.machines.iter().map(AsRef::as_ref));
        self.sets.iter().filter_map(next).min()
    }

    pub(super) fn available(&self) -> usize {
        let of = |view: &SetView| view.machines.iter().filter(|it| view.availability.is_available(it)).count();
        self.sets.iter().map(of).sum()
    }

    /// Whether its Machines are updated in place.
    pub(super) fn is_in_place(&self) -> bool {
        is_in_place(&self.deployment)
    }

    /// The set of the present template: if there are several the oldest, as in Kubernetes.
    pub(super) fn current(&self) -> Option<&SetView> {
        let template = &self.deployment.spec.template;
        self.staying().find(|view| template::is_same(&view.set.spec.template, template))
    }

    pub(super) fn is_current(&self, set: &MachineSet) -> bool {
        self.current().is_some_and(|current| uid(current.set.as_ref()) == uid(set))
    }

    /// The generation for which one of the sets was sized, if it is newer than the one in this snapshot.
    pub(super) fn newer_generation(&self) -> Option<i64> {
        let newest = self.sets.iter().filter_map(|view| self.sized_for(view)).max()?;
        (newest > self.deployment.metadata.generation.unwrap_or_default()).then_some(newest)
    }

    /// Whether a set was sized for a generation that is newer than the one in this snapshot.
    pub(super) fn is_sized_for_newer(&self, view: &SetView) -> bool {
        self.sized_for(view) > Some(self.deployment.metadata.generation.unwrap_or_default())
    }

    /// The generation of this deployment for which a set was sized.
    fn sized_for(&self, view: &SetView) -> Option<i64> {
        let sized = SIZED_FOR.of(view.set.as_ref())?;
        (sized.uid == uid(self.deployment.as_ref())).then_some(sized.generation)
    }

    pub(super) fn staying(&self) -> impl DoubleEndedIterator<Item = &SetView> {
        self.sets.iter().filter(|view| !view.set.is_deleting())
    }

    /// The sets of former templates that are not being deleted, oldest first.
    pub(super) fn old(&self) -> impl DoubleEndedIterator<Item = &SetView> {
        let current = self.current().map(|view| uid(view.set.as_ref()));
        self.staying().filter(move |view| Some(uid(view.set.as_ref())) != current)
    }

    pub(super) fn machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.sets.iter().flat_map(|view| &view.machines)
    }
}

fn is_in_place(deployment: &MachineDeployment) -> bool {
    deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate
}

/// The Nodes that a pool has claimed to give them a configuration.
pub(super) fn configured_nodes(pool: &MachineConfigPool) -> impl Iterator<Item = String> + use<> {
    let claims = DISRUPTIONS.of(pool).unwrap_or_default().0;
    claims.into_iter().filter(|(_, claim)| !claim.is_of_machine()).map(|(node, _)| node)
}

fn nodes(stores: &Stores, sets: &[SetView], proof: NodeProof) -> Option<BTreeMap<String, Arc<Node>>> {
    if !stores.is_listed::<Node>(TARGET) {
        return None;
    }
    let nodes = stores.of::<Node>(TARGET);
    let of_machine = |machine: &Arc<Machine>| {
        let node = nodes.by_name("", node_name(machine)?).filter(|node| proof.is_node_of(machine, node))?;
        Some((name(machine.as_ref()).to_owned(), node))
    };
    Some(sets.iter().flat_map(|view| &view.machines).filter_map(of_machine).collect())
}

/// The sort key of sets. Names break ties, so that every process decides alike.
fn age(set: &MachineSet) -> (Option<jiff::Timestamp>, String) {
    (created(set), name(set).to_owned())
}

/// Whether a set without an owner belongs to the deployment. One that a user created, and that happens to match, does not.
pub(super) fn may_adopt(deployment: &MachineDeployment, set: &MachineSet) -> bool {
    let is_alike = label(set, labels::MACHINE_TEMPLATE_HASH).is_some()
        || template::is_same(&set.spec.template, &deployment.spec.template);
    matches(deployment.spec.selector.as_ref(), set.metadata.labels.as_ref()) && is_alike && !is_deleting(set)
}

impl SetView {
    pub(super) fn size(&self) -> Size {
        let deleting = count(self.machines.iter().filter(|machine| is_deleting(machine.as_ref())));
        let staying = || self.machines.iter().filter(|machine| !is_deleting(machine.as_ref()));
        // They exist. Their availability is known only after their adoption.
        let orphans = count(self.orphans.iter());
        let generation = self.set.metadata.generation.unwrap_or_default();
        let observed = self.set.status.as_ref().map_or(0, |status| status.observed_generation);
        Size {
            // A set that is being deleted no longer creates Machines.
            replicas: if self.set.is_deleting() { 0 } else { i64::from(self.set.spec.replicas.max(0)) },
            live: count(self.machines.iter()) - deleting + orphans + i64::try_from(self.unreadable).unwrap_or(i64::MAX),
            deleting,
            available: if self.set.is_deleting() {
                0
            } else {
                count(self.machines.iter().filter(|it| self.is_available(it)))
            },
            without_vm: count(staying().filter(|it| vm_id(it).is_none() && !is_preserved_failed(it))),
            preserved: count(staying().filter(|it| is_preserved_failed(it))),
            observed: observed >= generation,
        }
    }

    /// Whether a Machine counts as available in a rollout: its Node is not being given a configuration.
    pub(super) fn is_available(&self, machine: &Machine) -> bool {
        let is_configured = || node_name(machine).is_some_and(|node| self.configured.contains(node));
        self.availability.is_available(machine) && (self.configured.is_empty() || !is_configured())
    }

    /// How many of its Machines are preserved because the set has asked for it.
    fn auto_preserved(&self) -> i32 {
        let staying = self.machines.iter().filter(|machine| !is_deleting(machine.as_ref()));
        let own = staying.filter(|machine| is_auto_preserved(machine)).count();
        i32::try_from(own).unwrap_or(i32::MAX)
    }

    /// The size that a set without a size needs to adopt its orphans.
    pub(super) fn unclaimed(&self) -> Option<i64> {
        let waits = !is_sized(&self.set) && self.set.spec.replicas == 0;
        (waits && !self.orphans.is_empty()).then(|| count(self.orphans.iter()))
    }

    pub(super) fn revision(&self) -> i64 {
        REVISION.of(self.set.as_ref()).unwrap_or_default()
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> i64 {
    i64::try_from(items.count()).unwrap_or(i64::MAX)
}
