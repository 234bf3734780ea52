//! Mutants of the scheme, each with one broken rule, to show that the search finds it.

use super::{
    product::Decision,
    state::{INDICES, Request, Set, Slot, Table},
};

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Machines are deleted first, and then their names are retired.
    DeleteBeforeRetire,
    /// The ledger is written without a version.
    UnpinnedLedger,
    /// The ledger write checks only the version of the ledger, not the current replicas.
    PinnedToLedgerAlone,
    /// New names follow the last observed one.
    NextName,
    /// Names of Machines that users delete are not retired.
    LeavingNotRetired,
    /// Machines that are being deleted count as present.
    LeavingCounted,
    /// The finalizer is dropped although the name is not retired.
    FinalizerDropped,
    /// A VM is created without a last read of the set.
    NoLastLook,
    /// Deletions have no UID precondition.
    DeleteByName,
    /// Machines are created by a plain apply.
    PlainApply,
    /// The outcome of a request is not read.
    NothingFoundOut,
    /// A planner plans before its caches show its own writes.
    OwnWritesUnseen,
}

impl Mutant {
    /// Changes a decision of the product into the mutant's decision.
    pub(super) fn change(self, decision: &mut Decision, set: Set, machines: Table) {
        let steps = &mut decision.steps;
        match self {
            Self::DeleteBeforeRetire => steps.reverse(),
            Self::UnpinnedLedger => steps.iter_mut().for_each(unpin),
            Self::NextName => {
                let used = |index: &usize| !machines[*index].is_empty() || set.has_retired(*index);
                let next = (0..INDICES).rev().find(used).map_or(0, |last| last + 1);
                let creations = steps.iter_mut().filter(|step| matches!(step, Request::Create { .. }));
                for (step, index) in creations.zip(next..) {
                    decision.is_beyond |= index >= INDICES;
                    *step = Request::Create { index: u8::try_from(index).unwrap_or(u8::MAX) };
                }
            }
            Self::LeavingCounted => {
                let present = machines.iter().filter(|slot| slot.is_live() || slot.is_leaving()).count();
                if steps.iter().all(|step| matches!(step, Request::Create { .. })) {
                    steps.truncate(usize::from(set.wanted()).saturating_sub(present));
                }
            }
            Self::LeavingNotRetired => forget_leaving(steps, set, machines),
            _ => {}
        }
    }
}

fn unpin(step: &mut Request) {
    if let Request::Retire { pinned, .. } = step {
        *pinned = false;
    }
}

fn forget_leaving(steps: &mut Vec<Request>, set: Set, machines: Table) {
    let leaving = (0..INDICES).filter(|index| machines[*index] == Slot::Leaving && !set.has_retired(*index));
    let leaving: u8 = leaving.map(|index| 1 << index).sum();
    for step in steps.iter_mut() {
        if let Request::Retire { retired, .. } = step {
            *retired &= !leaving;
        }
    }
    steps.retain(|step| !matches!(step, Request::Retire { retired, .. } if *retired == set.retired));
}
