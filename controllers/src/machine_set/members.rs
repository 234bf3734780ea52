//! The Machines of a set, grouped by their state in the ledger.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{Machine, annotations};
use nodewright_runtime::object::{annotation, is_deleting, name};

use super::Snapshot;
use crate::shared::ledger::{Ledger, Ordinal};

/// The maximum number of Machines that one plan creates or deletes. The next plan checks again what is wanted.
pub(super) const BATCH: usize = 100;

pub(super) struct Members<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) ledger: &'a Ledger,
    /// Neither deleting nor retired: these count as replicas.
    pub(super) staying: Vec<&'a Arc<Machine>>,
    /// Retired, and not yet deleted.
    pub(super) doomed: Vec<&'a Arc<Machine>>,
    /// Ordinals of Machines that are being deleted and are not retired yet: the set did not choose them.
    pub(super) leaving: Vec<Ordinal>,
    /// Ordinals in use.
    used: BTreeSet<Ordinal>,
    /// The number of Machines that may be the set's, are not being deleted, and cannot be read. They count if Machines are
    /// missing, and do not count if there are too many.
    pub(super) unreadable: usize,
}

impl<'a> Members<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, ledger: &'a Ledger) -> Self {
        let unreadable = snapshot.unreadable_members().filter(|machine| !machine.is_deleting()).count();
        let (staying, doomed, leaving, used) = Default::default();
        let mut members = Self { snapshot, ledger, staying, doomed, leaving, used, unreadable };
        for machine in &snapshot.machines {
            let ordinal = members.ordinal(machine);
            members.used.extend(ordinal);
            let retired = match ordinal {
                Some(ordinal) => ledger.is_retired(ordinal),
                None => ledger.is_noted(name(machine.as_ref())),
            };
            match (is_deleting(machine.as_ref()), retired) {
                (true, true) => {}
                (true, false) => members.leaving.extend(ordinal),
                (false, true) => members.doomed.push(machine),
                (false, false) => members.staying.push(machine),
            }
        }
        members
    }

    /// The ordinal of a Machine, if it has one in the set's ledger.
    pub(super) fn ordinal(&self, machine: &Machine) -> Option<Ordinal> {
        let claim = annotation(machine, annotations::INDEX);
        self.ledger.ordinal(name(self.snapshot.set.as_ref()), name(machine), claim)
    }

    /// The name of the Machine with an ordinal.
    pub(super) fn name(&self, ordinal: Ordinal) -> String {
        self.ledger.name(name(self.snapshot.set.as_ref()), ordinal)
    }

    /// The ordinals of the next Machines to create: the lowest that are free. Names of unreadable Machines are in use,
    /// whichever set they belong to.
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
