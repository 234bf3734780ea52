//! Which failed Machines a set has preserved by itself, within `autoPreserveFailedMachineMax`.
//!
//! The newest that failed come first, as in machine-controller-manager. If there are more than that, the ones whose time is over first
//! go first: its documentation says so, while its code takes the oldest. Neither takes one that a user has asked for.

use std::sync::Arc;

use nodewright_api::{Machine, MachinePhase};
use nodewright_runtime::object::{created, name};

use super::{memory::Context, removal::is_chosen, snapshot::Members};
use crate::shared::preservation::{is_auto_preserved, preserve_expiry, requested};

#[derive(Debug, Default)]
pub(super) struct AutoPreservation<'a> {
    /// These failed and are preserved from now on.
    pub(super) begin: Vec<&'a Arc<Machine>>,
    /// There are too many: these are no longer preserved.
    pub(super) end: Vec<&'a Arc<Machine>>,
}

pub(super) fn evaluate<'a>(context: &Context<'_>, members: &Members<'a>) -> AutoPreservation<'a> {
    let set = members.snapshot.set.as_ref();
    let maximum = usize::try_from(set.spec.auto_preserve_failed_machine_max).unwrap_or(0);
    let mut preserved: Vec<_> = members.staying.iter().copied().filter(|machine| is_auto_preserved(machine)).collect();
    if preserved.len() > maximum {
        let surplus = preserved.len() - maximum;
        preserved.sort_by_cached_key(|it| (preserve_expiry(it), created(it.as_ref()), name(it.as_ref()).to_owned()));
        preserved.truncate(surplus);
        return AutoPreservation { end: preserved, ..AutoPreservation::default() };
    }
    let room = maximum - preserved.len();
    if room == 0 {
        return AutoPreservation::default();
    }
    let is_candidate = |machine: &&Arc<Machine>| {
        let is_over = preserve_expiry(machine).is_some_and(|expiry| expiry <= context.now);
        *machine.phase() == MachinePhase::Failed && requested(machine).is_none() && !is_over && !is_chosen(set, machine)
    };
    let mut begin: Vec<_> = members.staying.iter().copied().filter(is_candidate).collect();
    begin.sort_by(|a, b| {
        created(b.as_ref()).cmp(&created(a.as_ref())).then_with(|| name(a.as_ref()).cmp(name(b.as_ref())))
    });
    begin.truncate(room);
    AutoPreservation { begin, ..AutoPreservation::default() }
}
