//! Which Machines a set adopts or creates, and with which names.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::{Machine, labels};
use nodewright_runtime::{
    effect::Never,
    object::{label, name},
    plan::{Context, FailureClass, Planned, Step},
};

use super::{members::Members, template::MachinePart};
use crate::shared::clusters::CONTROL;
use crate::shared::ledger::Ordinal;

/// The adoption of up to `count` orphans, before any Machine is created: after a restore they are the fleet. A set also adopts
/// surplus Machines, and then deletes them; but not before the set has its size.
pub(super) fn adoptions(members: &Members<'_>, count: usize) -> Vec<Planned<Never>> {
    let adopt = |machine: &Arc<Machine>| {
        let part = MachinePart::of(&members.snapshot.set, members.ordinal(machine)).adopting(machine);
        let step = Step::apply_if_unchanged(CONTROL, machine.as_ref(), &part)?;
        Some(Planned { why: "nobody owns the machine, and the set selects it".into(), step })
    };
    members.snapshot.orphans.iter().take(count).filter_map(adopt).collect()
}

/// Those of the next ordinals whose names are taken: by a Machine of another owner, or by one of the set's own without this
/// ordinal in the ledger.
pub(super) fn taken(context: &Context<'_, Never>, members: &Members<'_>, next: &[Ordinal]) -> Vec<Ordinal> {
    let snapshot = members.snapshot;
    let unnumbered = snapshot.machines.iter().filter(|machine| members.ordinal(machine).is_none());
    let held: BTreeSet<&str> =
        snapshot.namesakes.iter().chain(unnumbered).map(|machine| name(machine.as_ref())).collect();
    // The cache has caught up with the server since. If it does not show the Machine with this name, that one is gone.
    let refused = context.failure.filter(|failure| failure.class == FailureClass::AlreadyExists);
    let refused = refused.map(|failure| &*failure.key.name);
    let is_taken = |ordinal: &&Ordinal| {
        let name = members.name(**ordinal);
        held.contains(name.as_str()) || refused == Some(name.as_str())
    };
    next.iter().filter(is_taken).copied().collect()
}

/// The Machines to create for these ordinals; or the reason and text of a wait.
pub(super) fn creations(
    members: &Members<'_>,
    ordinals: Vec<Ordinal>,
) -> Result<Vec<Machine>, (&'static str, &'static str)> {
    let set = members.snapshot.set.as_ref();
    if ordinals.is_empty() {
        return Ok(vec![]);
    }
    if set.is_frozen() {
        return Err(("Frozen", "the set is frozen: no machine is created until the label `freeze` is removed"));
    }
    if label(set, labels::SCALE_UP_DISABLED) == Some(labels::SCALE_UP_DISABLED_VALUE) {
        return Err(("ScaleUpDisabled", "machines are being moved to another set: none is created here"));
    }
    let create = |ordinal: Ordinal| MachinePart::of(set, Some(ordinal)).machine(set, members.name(ordinal));
    Ok(ordinals.into_iter().map(create).collect())
}
