//! The snapshot of a MachineSet, and its Machines grouped by their state in the ledger.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use nodewright_api::{Machine, MachineDeployment, MachineSet, annotations};
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    object::{Kind, ObjectRef, annotation, controller_uid, is_deleting, name, uid},
};

use crate::shared::{
    CONTROL,
    creation_backoff::CreationBackoff,
    fleet::PlanSettings,
    indexes::{DEPLOYMENT_BY_UID, MACHINES_BY_SET_NAME, ORPHAN_MACHINES},
    ledger::{Ledger, Ordinal, base},
    membership::{is_contested, matches, may_adopt, may_be_owned, selects},
};

/// The maximum number of Machines that one plan creates or deletes. The next plan checks again what is wanted.
pub(super) const BATCH: usize = 100;

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub set: Arc<MachineSet>,
    /// The deployment that controls it.
    pub deployment: Option<Arc<MachineDeployment>>,
    pub machines: Vec<Arc<Machine>>,
    /// Machines without an owner that it may adopt, by name.
    pub orphans: Vec<Arc<Machine>>,
    /// Machines without an owner that it selects but does not adopt, because another Machine has or names the same VM.
    pub contested: Vec<Arc<Machine>>,
    /// Machines that it does not control and that have a name which it could generate.
    pub namesakes: Vec<Arc<Machine>>,
    /// Existing Machines that cannot be read, by name: all of the namespace.
    pub unreadable: Vec<Arc<Unreadable>>,
    pub population: Population,
    pub settings: PlanSettings,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, key: &ObjectRef, settings: PlanSettings) -> Option<Self> {
        let set = stores.of::<MachineSet>(CONTROL).get(key)?;
        let store = stores.of::<Machine>(CONTROL);
        // The store has the last readable version of a Machine that has become unreadable; a restart loses it.
        let readable = |mut machines: Vec<Arc<Machine>>| {
            machines.retain(|machine| !store.is_unreadable(&key.namespace, name(machine.as_ref())));
            machines
        };
        let by_name = |mut machines: Vec<Arc<Machine>>| {
            machines.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
            machines
        };
        let machines = readable(store.owned_by(uid(set.as_ref())));
        let mut unreadable = store.unreadable();
        unreadable.retain(|machine| machine.namespace() == &*key.namespace);
        let mut namesakes = store.by(MACHINES_BY_SET_NAME, base(&key.name));
        namesakes.retain(|machine| controller_uid(machine.as_ref()) != Some(uid(set.as_ref())));
        let mut orphans = store.by(ORPHAN_MACHINES, &key.namespace);
        orphans.retain(|machine| may_adopt(&set, machine));
        let (namesakes, orphans) = (by_name(readable(namesakes)), by_name(readable(orphans)));
        let (contested, orphans) = orphans.into_iter().partition(|machine| is_contested(stores, machine));
        let deployment = deployment_of(stores, &set);
        let siblings = deployment.as_deref().map(|it| stores.of::<MachineSet>(CONTROL).owned_by(uid(it)));
        let siblings = siblings.unwrap_or_default();
        let population = population(&store, &set, &siblings);
        Some(Self { set, deployment, machines, orphans, contested, namesakes, unreadable, population, settings })
    }

    /// The unreadable Machines that may be the set's: it controls them, would adopt them, or their owner is unknown.
    pub(super) fn unreadable_members(&self) -> impl Iterator<Item = &Unreadable> {
        self.unreadable
            .iter()
            .map(AsRef::as_ref)
            .filter(|machine| may_be_owned(self.set.as_ref(), self.set.spec.selector.as_ref(), machine))
    }
}

/// `siblings`: the sets of the set's deployment, itself included.
fn population(machines: &Store<Machine>, set: &MachineSet, siblings: &[Arc<MachineSet>]) -> Population {
    let count = |set: &Arc<MachineSet>| machines.count_owned_by(uid(set.as_ref()));
    let deployment = siblings.iter().map(count).sum();
    let size = |other: &Arc<MachineSet>| usize::try_from(other.spec.replicas).unwrap_or(0);
    let sizes = siblings.iter().map(size).sum();
    let others = siblings.iter().filter(|other| uid(other.as_ref()) != uid(set));
    let other_sets = others.map(|other| count(other).min(size(other))).sum();
    Population { namespace: machines.len(), deployment, other_sets, sizes }
}

pub(super) fn deployment_of(stores: &Stores, set: &MachineSet) -> Option<Arc<MachineDeployment>> {
    stores.of::<MachineDeployment>(CONTROL).by(DEPLOYMENT_BY_UID, controller_uid(set)?).pop()
}

/// Whether a set selects the Machines that it would create. If not, it would release each one and create another.
pub(super) fn is_consistent(set: &MachineSet) -> bool {
    matches(set.spec.selector.as_ref(), set.spec.template.metadata.labels.as_ref())
}

/// What changes with each change of the spec of an object, and with its deletion.
pub(super) fn desired<K: Kind>(object: &K) -> (Option<i64>, bool) {
    (object.meta().generation, is_deleting(object))
}

/// Whether the deployment controller has yet to act on the spec of a deployment.
pub(super) fn is_ahead(deployment: &MachineDeployment) -> bool {
    let observed = deployment.status.as_ref().map_or(0, |status| status.observed_generation);
    deployment.metadata.generation.unwrap_or_default() > observed
}

/// How many Machines exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct Population {
    /// In the namespace, those of the set included.
    pub namespace: usize,
    /// In the set's deployment, those of the set included; 0 without a deployment.
    pub deployment: usize,
    /// In the deployment's other sets, without those above their sizes, which are about to be deleted.
    pub other_sets: usize,
    /// The sizes of the deployment's sets together.
    pub sizes: usize,
}

pub(super) struct Members<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) ledger: &'a Ledger,
    /// Neither deleting nor retired, and selected: these count as replicas.
    pub(super) staying: Vec<&'a Arc<Machine>>,
    pub(super) retired: Vec<&'a Arc<Machine>>,
    /// Neither deleting nor retired, and no longer selected.
    pub(super) unselected: Vec<&'a Arc<Machine>>,
    /// Ordinals of Machines that are being deleted, or have moved to another set, and are not retired yet: the set did not choose them.
    pub(super) leaving: Vec<Ordinal>,
    used: BTreeSet<Ordinal>,
    /// How many Machines may be the set's and cannot be read. They count only if Machines are missing.
    pub(super) unreadable: usize,
}

impl<'a> Members<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, ledger: &'a Ledger) -> Self {
        let unreadable = snapshot.unreadable_members().filter(|machine| !machine.is_deleting()).count();
        let (staying, retired, unselected, leaving, used) = Default::default();
        let mut members = Self { snapshot, ledger, staying, retired, unselected, leaving, used, unreadable };
        let is_selected = |machine: &Machine| selects(&snapshot.set, machine) || !is_consistent(&snapshot.set);
        for machine in &snapshot.machines {
            let ordinal = members.ordinal(machine);
            members.used.extend(ordinal);
            let is_retired = match ordinal {
                Some(ordinal) => ledger.is_retired(ordinal),
                None => ledger.is_noted(name(machine.as_ref())),
            };
            match (is_deleting(machine.as_ref()), is_retired) {
                (true, true) => {}
                (true, false) => members.leaving.extend(ordinal),
                (false, true) => members.retired.push(machine),
                (false, false) if is_selected(machine) => members.staying.push(machine),
                (false, false) => members.unselected.push(machine),
            }
        }
        // Their names are not to be used again once they are gone.
        let has_moved = |machine: &&Arc<Machine>| {
            controller_uid(machine.as_ref()).is_some() && annotation(machine.as_ref(), annotations::INDEX).is_none()
        };
        let moved = snapshot.namesakes.iter().filter(has_moved);
        let moved = moved.filter_map(|machine| ledger.ordinal_of(name(snapshot.set.as_ref()), name(machine.as_ref())));
        members.leaving.extend(moved.filter(|ordinal| !ledger.is_retired(*ordinal)));
        members
    }

    pub(super) fn ordinal(&self, machine: &Machine) -> Option<Ordinal> {
        let noted = annotation(machine, annotations::INDEX);
        self.ledger.ordinal(name(self.snapshot.set.as_ref()), name(machine), noted)
    }

    /// The lowest ordinal that has never been used.
    pub(super) fn next_ordinal(&self) -> Ordinal {
        self.ledger.next(&self.used)
    }

    pub(super) fn backoff(&self, now: Timestamp) -> CreationBackoff<'a> {
        let machines = self.snapshot.machines.iter().map(AsRef::as_ref);
        CreationBackoff::of(&self.snapshot.set, self.ledger, machines, now)
    }

    pub(super) fn name(&self, ordinal: Ordinal) -> String {
        self.ledger.name(name(self.snapshot.set.as_ref()), ordinal)
    }

    /// The lowest free ordinals. Names of unreadable Machines are in use, whichever set they belong to.
    pub(super) fn next_ordinals(&self, missing: usize) -> Vec<Ordinal> {
        if missing == 0 {
            return vec![];
        }
        let unreadable: BTreeSet<&str> = self.snapshot.unreadable.iter().map(|machine| machine.name()).collect();
        let mut used = self.used.clone();
        loop {
            let next = self.ledger.lowest_free(&used, missing.min(BATCH));
            let held = next.iter().filter(|ordinal| unreadable.contains(self.name(**ordinal).as_str()));
            let before = used.len();
            used.extend(held);
            if used.len() == before {
                return next;
            }
        }
    }
}
