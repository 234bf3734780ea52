//! What a Node says of itself: whether it is ready, and how far it is with its configuration.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use nodewright_api::{
    Machine, annotations,
    conditions::node::{DEFAULT_UNHEALTHY, READY, TERMINATING},
    machine_config::{
        CURRENT_CONFIG, DEGRADED, DESIRED_CONFIG, DESIRED_DRAIN, DONE, DrainVerb, LAST_APPLIED_DRAIN, STATE,
        UNRECONCILABLE,
    },
    taints,
};
use nodewright_runtime::object::{annotation, is_deleting, name};

use crate::{
    names::{Target, TargetKind},
    output::State,
    snapshot::{Snapshot, node_name},
};

pub(super) fn subject(node: &str) -> String {
    Target::new(TargetKind::Node, node).to_string()
}

/// A Node in a line, and since when it is so.
pub(crate) fn described(node: &Node) -> (String, Option<Timestamp>) {
    let text = format!("{} is {}", subject(name(node)), state_words(node));
    (text, condition(node, READY).and_then(since))
}

/// Whether it is ready, and what else there is to know.
pub(crate) fn state_words(node: &Node) -> String {
    let mut words = vec![match condition(node, READY) {
        Some(ready) if ready.status == "True" => "Ready".to_owned(),
        Some(ready) => format!("not Ready ({})", ready.reason.as_deref().unwrap_or("no reason")),
        None => "without a condition Ready".to_owned(),
    }];
    let is = |yes: bool, word: &str| yes.then(|| word.to_owned());
    words.extend(is(is_cordoned(node), "cordoned"));
    words.extend(is(condition(node, TERMINATING).is_some_and(|it| it.status == "True"), "about to be deleted"));
    words.extend(is(is_deleting(node), "being deleted"));
    words.join(", ")
}

pub(super) fn since(condition: &NodeCondition) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|time| time.0)
}

pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

/// What is wrong with the Node of a machine.
pub(crate) fn unhealthy(snapshot: &Snapshot, machine: &Machine) -> Option<String> {
    let Some(node) = snapshot.node_of(machine) else {
        let named = node_name(machine).map(|name| format!(" (it was {name})")).unwrap_or_default();
        return Some(format!("there is no node with the provider ID {}{named}", machine.provider_id()?));
    };
    if !has_ready(node) {
        return Some(format!("its node {} has no condition Ready", name(node)));
    }
    let own = machine.spec.node_conditions.as_deref().map(|list| list.split(',').map(str::trim).collect::<Vec<_>>());
    let kinds = own.unwrap_or_else(|| DEFAULT_UNHEALTHY.to_vec());
    let unhealthy = |kind: &&str| condition(node, kind).filter(|it| it.status != "False");
    let unhealthy = not_ready(node).or_else(|| kinds.iter().find_map(unhealthy));
    if let Some(condition) = unhealthy {
        return Some(format!("its node {}", sentence(node, condition)));
    }
    let lacks = |taint: &k8s_openapi::api::core::v1::Taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY;
    let is_lacking = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_some_and(|all| all.iter().any(lacks));
    is_lacking.then(|| format!("its node {} has the taint {}", name(node), taints::CRITICAL_COMPONENTS_NOT_READY))
}

pub(super) fn not_ready(node: &Node) -> Option<&NodeCondition> {
    condition(node, READY).filter(|ready| ready.status != "True")
}

/// Whether its condition Ready is known.
pub(super) fn has_ready(node: &Node) -> bool {
    condition(node, READY).is_some()
}

pub(super) fn sentence(node: &Node, condition: &NodeCondition) -> String {
    let (reason, message) =
        (condition.reason.as_deref().unwrap_or_default(), condition.message.as_deref().unwrap_or_default());
    let what = if condition.type_ == READY { "is not ready".to_owned() } else { format!("has {}", condition.type_) };
    format!("{} {what}: {reason}: {message}", name(node))
}

pub(super) fn non_empty<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    annotation(node, key).filter(|text| !text.is_empty())
}

/// How far a Node is with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    Failed,
    Draining,
    Updating,
    Behind,
    NoAgent,
    Updated,
}

impl Progress {
    pub(crate) fn of(node: &Node, target: &str) -> Self {
        let (current, desired) = (non_empty(node, CURRENT_CONFIG), non_empty(node, DESIRED_CONFIG));
        let asked = non_empty(node, DESIRED_DRAIN).filter(|asked| non_empty(node, LAST_APPLIED_DRAIN) != Some(*asked));
        match non_empty(node, STATE) {
            _ if current.is_none() => Self::NoAgent,
            Some(DEGRADED | UNRECONCILABLE) => Self::Failed,
            _ if asked.and_then(DrainVerb::of) == Some(DrainVerb::Drain) => Self::Draining,
            Some(DONE) if current == desired && desired == Some(target) => Self::Updated,
            Some(DONE) if current == desired => Self::Behind,
            _ => Self::Updating,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Failed => "Degraded",
            Self::Draining => "Draining",
            Self::Updating => "Updating",
            Self::Behind => "Behind",
            Self::NoAgent => "NoAgent",
            Self::Updated => "Updated",
        }
    }

    pub(crate) fn state(self) -> State {
        match self {
            Self::Failed => State::Blocked,
            Self::Updated | Self::NoAgent => State::Done,
            _ => State::Waiting,
        }
    }
}

/// Whether a Node is ready and takes Pods.
pub(crate) fn is_ready(node: &Node) -> bool {
    not_ready(node).is_none() && has_ready(node)
}

/// Whether somebody repairs the Node.
pub(crate) fn has_no_health_timeout(node: &Node) -> bool {
    annotation(node, annotations::DISABLE_HEALTH_TIMEOUT) == Some(annotations::DISABLE_HEALTH_TIMEOUT_VALUE)
}
