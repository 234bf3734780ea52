//! Whether a Machine is to be preserved.

use jiff::Timestamp;
use nodewright_api::{
    Machine, MachinePhase, annotations,
    stored::{NODE_PRESERVE, PRESERVE, Preserve},
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
    match annotation(node, annotations::PRESERVE) {
        None | Some("") if follows_node(machine) => None,
        None | Some("") => PRESERVE.of(machine),
        Some(value) => value.parse().ok().or_else(|| requested(machine)),
    }
}

/// Whether the annotation of its Node was seen.
pub(super) fn follows_node(machine: &Machine) -> bool {
    annotation(machine, annotations::LAST_APPLIED_NODE_PRESERVE_VALUE).is_some_and(|value| !value.is_empty())
}

/// The value of its Node that the Machine has yet to bear: `None` if it bears it, and `Some(None)` if the Node has none any more.
pub(super) fn unseen_value(machine: &Machine, node: &Node) -> Option<Option<Preserve>> {
    let value = annotation(node, annotations::PRESERVE).filter(|value| !value.is_empty());
    let parsed = match value {
        None if !follows_node(machine) => return None,
        None => None,
        // A value that is none changes nothing.
        Some(value) => Some(value.parse().ok()?),
    };
    let is_borne = NODE_PRESERVE.of(machine) == parsed && annotation(machine, annotations::PRESERVE).is_none();
    (!is_borne).then_some(parsed)
}

/// The value of the Node's annotation, if it is none that has a meaning.
pub(super) fn invalid_value(node: &Node) -> Option<&str> {
    let value = annotation(node, annotations::PRESERVE).filter(|value| !value.is_empty())?;
    value.parse::<Preserve>().is_err().then_some(value)
}
