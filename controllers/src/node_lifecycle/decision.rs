//! Whether a Node goes.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{conditions, finalizers};
use nodewright_runtime::object::{created, has_finalizer, is_deleting, uid};

use super::{
    brake::{Answer, DeletionRequest, WINDOW},
    memory::Context,
    snapshot::Snapshot,
};

/// The age from which a Node that has never been ready counts as one that is not.
const YOUNG: SignedDuration = SignedDuration::from_mins(5);

/// Fewer Nodes that are not ready are no sign that a zone is cut off, as for the fleet brake and Kubernetes' node-lifecycle-controller.
const FEWEST: usize = 3;

#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// Its VM exists, or that is not known; or it is ready.
    Keep,
    /// It is evaluated again then, and why.
    Await(Timestamp, String),
    /// So many Nodes are not ready, or go, that this one is kept until then.
    Hold(Timestamp, String),
    /// It is asked whether one more Node of the zone may go.
    Ask(DeletionRequest),
    AwaitAnswer,
    Delete,
    /// It is being deleted, and nothing of its VM is left to wait for.
    Release,
    /// It loses the mark that its VM is missing.
    Unmark,
}

pub(super) fn decide(context: &Context<'_>, snapshot: &Snapshot) -> Decision {
    let node = snapshot.node.as_ref();
    if snapshot.is_mismarked {
        return Decision::Unmark;
    }
    if !snapshot.is_missing || node.is_ready() || !snapshot.cloud_manager.is_on(context) {
        return Decision::Keep;
    }
    if is_deleting(node) {
        return if has_finalizer(node, finalizers::NODE) { Decision::Release } else { Decision::Keep };
    }
    let begun = context.leader_since.max(context.connected_since);
    if let Some(at) = after(context, begun, SignedDuration::try_from(snapshot.after_start).unwrap_or_default()) {
        let text = format!("its VM is gone; this manager deletes no node before {at:.0}");
        return Decision::Await(at, text);
    }
    let is_silent = node.condition(conditions::node::READY).is_none();
    if let Some(at) = created(node).filter(|_| is_silent).and_then(|created| after(context, created, YOUNG)) {
        return Decision::Await(at, "its VM is gone; it is new, and has yet to say whether it is ready".to_owned());
    }
    let zone = &snapshot.zone;
    let permit = DeletionRequest { node_uid: uid(node).to_owned(), zone: zone.name.clone(), most: zone.most() };
    let known = context.outcomes.get(&permit);
    if known.is_some_and(|known| known.running) {
        return Decision::AwaitAnswer;
    }
    match known.and_then(|known| known.last.as_ref()) {
        // The brake has forgotten an older one.
        Some((at, Answer::Granted)) if permit.most > 0 && after(context, *at, WINDOW).is_some() => Decision::Delete,
        Some((_, Answer::Held(until))) if *until > context.now => {
            let most = context.outcomes.asked(&permit).map_or(permit.most, |asked| asked.most);
            Decision::Hold(*until, zone.hold(most))
        }
        _ => Decision::Ask(permit),
    }
}

/// The end of a time, while that is yet to come.
fn after(context: &Context<'_>, begun: Timestamp, time: SignedDuration) -> Option<Timestamp> {
    begun.checked_add(time).ok().filter(|end| *end > context.now)
}

impl super::snapshot::Zone {
    /// How many of its Nodes may go in five minutes.
    fn most(&self) -> usize {
        let is_cut_off =
            self.not_ready >= FEWEST && self.not_ready * 100 > self.nodes * usize::from(self.most_not_ready);
        if is_cut_off { 0 } else { (self.nodes / 10).max(1) }
    }

    /// Why one of its Nodes is kept, if this many may go.
    fn hold(&self, most: usize) -> String {
        let zone = self.name();
        if most == 0 {
            let percent = self.most_not_ready;
            format!("its VM is gone; it is kept while more than {percent} % of the nodes of {zone} are not ready")
        } else {
            format!("its VM is gone; {most} nodes of {zone} may go in five minutes, and have")
        }
    }

    fn name(&self) -> String {
        if self.name.is_empty() { "no zone".to_owned() } else { format!("zone {}", self.name) }
    }
}
