//! Which labels are to be set, taken off or confirmed now.

use std::time::Duration;

use super::{
    mark::{Guarded, Mark},
    memory::Memory,
    snapshot::{GuardedKind, Snapshot},
};
use crate::shared::CONTROL;

/// A namespace gets its label first: with it the rights are safe, too. It loses it last: a namespace that is being deleted then takes the
/// manager's rights along, and nobody would take the labels off the definitions.
pub(super) fn plan(now: Duration, snapshot: &Snapshot, memory: &Memory) -> Vec<Mark> {
    let definitions: Vec<_> = snapshot.kinds.iter().filter_map(definition).collect();
    let namespace = namespace(snapshot).filter(|mark| {
        mark.in_use || definitions.iter().all(|definition| definition.in_use || memory.is_done(definition))
    });
    let marks = namespace.into_iter().chain(definitions);
    marks.filter(|mark| memory.is_due(now, mark)).collect()
}

fn definition((kind, has_objects): &(GuardedKind, Option<bool>)) -> Option<Mark> {
    Some(Mark { on: Guarded::Definition(kind.clone()), in_use: (*has_objects)?, kinds: vec![kind.clone()] })
}

fn namespace(snapshot: &Snapshot) -> Option<Mark> {
    let of_machines: Vec<_> = snapshot.kinds.iter().filter(|(kind, _)| kind.cluster == CONTROL).collect();
    let is_any = |wanted: bool| of_machines.iter().any(|(_, has_objects)| *has_objects == Some(wanted));
    let in_use = is_any(true) || snapshot.holds_secrets;
    // Kinds that this process does not watch are asked for before the label goes.
    let kinds = of_machines.iter().map(|(kind, _)| kind.clone()).collect();
    (in_use || is_any(false)).then_some(Mark { on: Guarded::Namespace, in_use, kinds })
}
