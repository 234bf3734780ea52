//! Whether a Machine is to be preserved.

use jiff::Timestamp;
use nodewright_api::{
    Machine, MachinePhase, annotations,
    stored::{Malformed, NODE_PRESERVE, PRESERVE, Preserve},
};
use nodewright_runtime::object::annotation;

use crate::{
    machine::{health, scope::Scope},
    shared::{
        node::Node,
        preservation::{expiry_from, preserve_expiry, requested},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nobody asks for it, and it is not preserved.
    Nothing,
    /// Until then; because its set asks for it, or else a user.
    Preserve {
        until: Timestamp,
        by_set: bool,
    },
    End(End),
}

/// The end of a preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) why: &'static str,
    /// Whether the annotations go, too: else the Machine would be preserved again.
    pub(super) forgets: bool,
}

pub(super) fn decide(scope: &Scope<'_>) -> Decision {
    let (machine, node) = (scope.machine, scope.snapshot.node.as_deref());
    let has_failed = *machine.phase() == MachinePhase::Failed;
    // It is about to be Running.
    if has_failed && health::has_healthy_node(scope) {
        return Decision::Nothing;
    }
    let expiry = preserve_expiry(machine);
    let end = |why, forgets| Decision::End(End { why, forgets });
    match wanted(machine, node) {
        None | Some(Preserve::Never) if expiry.is_none() => Decision::Nothing,
        wanted if expiry.is_some_and(|expiry| expiry <= scope.now()) => {
            end("its time is over", wanted != Some(Preserve::Never))
        }
        None => end("nobody asks for it any more", false),
        Some(Preserve::Never) => end("a user has ended it", false),
        Some(Preserve::Auto) if !has_failed => end("the machine has not failed, or works again", true),
        Some(Preserve::WhenFailed) if !has_failed && expiry.is_none() => Decision::Nothing,
        Some(Preserve::WhenFailed) if !has_failed => end("the machine works again", false),
        Some(wanted) => {
            let from_now = || expiry_from(machine, scope.now(), scope.settings.preserve_timeout);
            let until = expiry.or_else(from_now).unwrap_or(Timestamp::MAX);
            Decision::Preserve { until, by_set: wanted == Preserve::Auto }
        }
    }
}

/// What is asked for. The Node counts, also if its annotation was removed since it was seen. While its value is none, what it had
/// before holds. What a Node had that is gone holds as well: machine-controller-manager would end the preservation then.
pub(in super::super) fn wanted(machine: &Machine, node: Option<&Node>) -> Option<Preserve> {
    let Some(node) = node else { return requested(machine) };
    match of_node(node) {
        None if follows_node(machine) => None,
        None => PRESERVE.of(machine),
        Some(value) => value.ok().or_else(|| requested(machine)),
    }
}

/// The annotation of the Node. An empty one is none.
fn of_node(node: &Node) -> Option<Result<Preserve, Malformed>> {
    PRESERVE.read(node).filter(|value| !value.as_ref().is_err_and(|malformed| malformed.text().is_empty()))
}

/// Whether the annotation of its Node was seen.
pub(super) fn follows_node(machine: &Machine) -> bool {
    annotation(machine, annotations::LAST_APPLIED_NODE_PRESERVE_VALUE).is_some_and(|value| !value.is_empty())
}

/// The annotation of the Node, compared with what the Machine bears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRequest {
    /// The Machine bears it, or there is none.
    Recorded,
    /// It has another value.
    Changed(Preserve),
    /// A user has removed it.
    Removed,
}

pub(super) fn node_request(machine: &Machine, node: &Node) -> NodeRequest {
    let is_recorded =
        |value| NODE_PRESERVE.of(machine) == Some(value) && annotation(machine, annotations::PRESERVE).is_none();
    match of_node(node) {
        None if follows_node(machine) => NodeRequest::Removed,
        Some(Ok(value)) if !is_recorded(value) => NodeRequest::Changed(value),
        // A value that is none changes nothing.
        None | Some(_) => NodeRequest::Recorded,
    }
}

/// The value of the Node's annotation, if it is none that has a meaning.
pub(super) fn invalid_value(node: &Node) -> Option<Malformed> {
    of_node(node)?.err()
}
