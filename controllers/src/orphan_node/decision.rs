//! When a Node without a Machine loses the finalizer, and is marked as one that is not managed.

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::{
    object::{is_deleting, uid},
    plan::Context,
};

use super::{
    lookup::{Found, MachineSearch},
    snapshot::{Snapshot, is_abandoned, is_marked},
};
use crate::shared::node_claims::machine_name;

/// How long a Node that is not being deleted keeps the finalizer after the first lookup has found no Machine.
const GRACE: SignedDuration = SignedDuration::from_hours(1);
const PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The wait after a lookup that has found a Machine of another namespace: its own manager keeps the Node.
const FOREIGN_PAUSE: SignedDuration = SignedDuration::from_hours(1);

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// It has a Machine, or is marked already.
    Keep,
    /// It has a Machine again, and loses the mark.
    Unmark,
    /// A Machine that cannot be read may be the Node's.
    AwaitReadable(&'a str),
    /// The API server is asked whether there is a Machine.
    LookUp(MachineSearch),
    /// The API server has been asked, and has not answered.
    AwaitLookup,
    /// It is asked again then: a Machine exists elsewhere, or the lookup failed.
    LookUpAgain(Timestamp, String),
    /// No Machine claims the Node: it is abandoned then, unless one does meanwhile.
    Grace(Timestamp),
    /// It loses the finalizer, and is marked.
    Abandon,
}

pub(super) fn decide<'a>(context: &Context<'_, MachineSearch>, snapshot: &'a Snapshot) -> Decision<'a> {
    let node = snapshot.node.as_ref();
    let machine = match machine_name(node) {
        _ if snapshot.is_claimed && is_marked(node) => return Decision::Unmark,
        Some(machine) if !snapshot.is_claimed && !is_abandoned(node) => machine,
        _ => return Decision::Keep,
    };
    if let Some(text) = &snapshot.unreadable {
        return Decision::AwaitReadable(text);
    }
    let lookup = |is_second| MachineSearch { is_second, node_uid: uid(node).to_owned(), machine: machine.to_owned() };
    let first = match absent_since(context, lookup(false), None) {
        Ok(since) => since,
        Err(decided) => return decided,
    };
    let due = first.checked_add(if is_deleting(node) { snapshot.grace } else { GRACE }).unwrap_or(Timestamp::MAX);
    if due > context.now {
        return Decision::Grace(due);
    }
    absent_since(context, lookup(true), Some(due)).map_or_else(|decided| decided, |_| Decision::Abandon)
}

/// When a lookup, which ended at `not_before` or later, has found no Machine.
fn absent_since<'a>(
    context: &Context<'_, MachineSearch>,
    lookup: MachineSearch,
    not_before: Option<Timestamp>,
) -> Result<Timestamp, Decision<'a>> {
    let known = context.outcomes.get(&lookup);
    if known.is_some_and(|known| known.running) {
        return Err(Decision::AwaitLookup);
    }
    let last = known.and_then(|known| known.last.as_ref());
    let again = match last.filter(|(ended, _)| not_before.is_none_or(|due| *ended >= due)) {
        None => None,
        Some((ended, Found::None)) => return Ok(*ended),
        Some((ended, Found::Machine)) => {
            let text = format!("a machine {} exists, of which nothing is known here", lookup.machine);
            Some((ended, FOREIGN_PAUSE, text))
        }
        Some((ended, Found::Failed(text))) => Some((ended, PAUSE, text.clone())),
    };
    let again = again.and_then(|(ended, pause, text)| Some((ended.checked_add(pause).ok()?, text)));
    Err(match again.filter(|(at, _)| *at > context.now) {
        Some((at, text)) => Decision::LookUpAgain(at, text),
        None => Decision::LookUp(lookup),
    })
}
