//! Facts in conditions: the message is the fact, and the reason says how it is known.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use super::Seconds;
use crate::{
    annotations,
    conditions::{
        machine::{
            CONFIGURATION_VALID, HEALTH_TIMEOUT, INSTANCE_EXISTS, INSTANCE_PROVISIONED, NODE_JOINED, VM_ADOPTED,
        },
        machine_config_pool::RENDERED,
    },
    reasons,
};

/// A condition that has a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionText {
    /// The type of the condition.
    pub kind: &'static str,
    /// Whether it is True, or else False.
    pub status: bool,
    /// Its reason.
    pub reason: &'static str,
    /// Its message: the fact.
    pub message: String,
}

impl ConditionText {
    fn new(kind: &'static str, status: bool, reason: &'static str, message: &str) -> Self {
        Self { kind, status, reason, message: message.to_owned() }
    }
}

fn message(condition: &NodeCondition) -> Option<&str> {
    condition.message.as_deref().filter(|message| !message.is_empty())
}

/// The VM of a Machine, in its condition `InstanceProvisioned`, while that is True.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenVm<'a> {
    /// The id at the provider.
    pub id: &'a str,
    /// Whether the driver has proven that the VM is the Machine's; else it does not report owners, and the Machine's claim is trusted.
    pub is_verified: bool,
}

impl<'a> ProvenVm<'a> {
    const VERIFIED: &'static str = "Provisioned";
    const TRUSTED: &'static str = "Unverified";

    /// Reads it from the condition. An unknown reason is one of a claim that is trusted.
    pub fn of(condition: &'a NodeCondition) -> Option<Self> {
        let is_verified = condition.reason.as_deref() == Some(Self::VERIFIED);
        let id = message(condition).filter(|_| condition.status == "True")?;
        Some(Self { id, is_verified })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        let reason = if self.is_verified { Self::VERIFIED } else { Self::TRUSTED };
        ConditionText::new(INSTANCE_PROVISIONED, true, reason, self.id)
    }
}

/// The former Machine whose VM a Machine has adopted, in its condition `VMAdopted`, while that is True.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedVm<'a> {
    /// The UID of the former Machine.
    pub uid: &'a str,
}

impl<'a> AdoptedVm<'a> {
    /// Reads it from the condition.
    pub fn of(condition: &'a NodeCondition) -> Option<Self> {
        message(condition).filter(|_| condition.status == "True").map(|uid| Self { uid })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        ConditionText::new(VM_ADOPTED, true, reasons::machine::VM_ADOPTED, self.uid)
    }
}

/// Whether the Node of a Machine has joined: the reason of its condition `NodeJoined`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProgress {
    /// It has yet to join.
    Awaited,
    /// It has joined.
    Joined,
    /// It did not join in time.
    TimedOut,
}

impl NodeProgress {
    const ALL: [Self; 3] = [Self::Awaited, Self::Joined, Self::TimedOut];

    fn reason(self) -> &'static str {
        match self {
            Self::Awaited => "NodeAwaited",
            Self::Joined => "Joined",
            Self::TimedOut => "Timeout",
        }
    }

    /// Reads it from the condition. `None` for an unknown reason.
    pub fn of(condition: &NodeCondition) -> Option<Self> {
        Self::ALL.into_iter().find(|progress| condition.reason.as_deref() == Some(progress.reason()))
    }
}

/// The Node of a Machine, in its condition `NodeJoined`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedNode<'a> {
    /// Its name as the driver gave it, else its own. Empty if there was none before the time was over.
    pub name: &'a str,
    /// Whether it has joined.
    pub progress: NodeProgress,
}

impl<'a> JoinedNode<'a> {
    /// Reads it from the condition. The message of an unknown reason is no name.
    pub fn of(condition: &'a NodeCondition) -> Option<Self> {
        Some(Self { progress: NodeProgress::of(condition)?, name: message(condition)? })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        let has_joined = self.progress == NodeProgress::Joined;
        ConditionText::new(NODE_JOINED, has_joined, self.progress.reason(), self.name)
    }
}

/// What the deadline of an unhealthy Machine follows from: the reason of its condition `HealthTimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineCause {
    /// The health timeout.
    Timeout,
    /// Later: all reports on the Node are older than the connection of the controller.
    ReportAwaited,
    /// Later: the agent of the Node applies a configuration, and the Node may reboot.
    NodeUpdating,
    /// Earlier: the provider knows no VM any more.
    VmGone,
}

impl DeadlineCause {
    /// The reason of the condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Timeout => "Unhealthy",
            Self::ReportAwaited => "ReportAwaited",
            Self::NodeUpdating => "NodeUpdating",
            Self::VmGone => "VMNotFound",
        }
    }

    /// Reads it from the condition. An unknown reason is one of the health timeout.
    pub fn of(condition: &NodeCondition) -> Self {
        let known = [Self::ReportAwaited, Self::NodeUpdating, Self::VmGone];
        known.into_iter().find(|it| condition.reason.as_deref() == Some(it.reason())).unwrap_or(Self::Timeout)
    }
}

/// When an unhealthy Machine fails, in its condition `HealthTimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthDeadline {
    /// When it fails.
    pub at: Timestamp,
    /// What that follows from.
    pub cause: DeadlineCause,
}

impl HealthDeadline {
    /// Reads it from the condition. `None` if the message is no time.
    pub fn of(condition: &NodeCondition) -> Option<Self> {
        let Seconds(at) = message(condition).filter(|_| condition.status == "True")?.parse().ok()?;
        Some(Self { at, cause: DeadlineCause::of(condition) })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        ConditionText::new(HEALTH_TIMEOUT, true, self.cause.reason(), &Seconds(self.at).to_string())
    }
}

/// That an unhealthy Machine does not fail, because its Node has the annotation [`annotations::DISABLE_HEALTH_TIMEOUT`]: in its
/// condition `HealthTimeout`, while that is False.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisabledHealthTimeout;

impl DisabledHealthTimeout {
    /// Reads it from the condition.
    pub fn of(condition: &NodeCondition) -> Option<Self> {
        (condition.status == "False").then_some(Self)
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        let (key, value) = (annotations::DISABLE_HEALTH_TIMEOUT, annotations::DISABLE_HEALTH_TIMEOUT_VALUE);
        let message = format!("the node has the annotation {key}: {value}");
        ConditionText::new(HEALTH_TIMEOUT, false, "Disabled", &message)
    }
}

/// The VM of a Machine that the provider has said twice not to know, in its condition `InstanceExists`, while that is False.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingVm<'a> {
    /// The id at the provider.
    pub id: &'a str,
}

impl<'a> MissingVm<'a> {
    /// Reads it from the condition.
    pub fn of(condition: &'a NodeCondition) -> Option<Self> {
        let is_missing = condition.reason.as_deref() == Some(reasons::machine::VM_NOT_FOUND);
        message(condition).filter(|_| condition.status == "False" && is_missing).map(|id| Self { id })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        ConditionText::new(INSTANCE_EXISTS, false, reasons::machine::VM_NOT_FOUND, self.id)
    }
}

/// That the MachineClass of a Machine did not exist, in its condition `ConfigurationValid`, while that is False. A Machine of which this is
/// known and no VM never had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingClass<'a> {
    /// Which class, for people.
    pub text: &'a str,
}

impl<'a> MissingClass<'a> {
    /// The reason of the condition.
    pub const REASON: &'static str = "ClassNotFound";

    /// Reads it from the condition.
    pub fn of(condition: &'a NodeCondition) -> Option<Self> {
        let is_missing = condition.status == "False" && condition.reason.as_deref() == Some(Self::REASON);
        is_missing.then(|| Self { text: message(condition).unwrap_or_default() })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        ConditionText::new(CONFIGURATION_VALID, false, Self::REASON, self.text)
    }
}

/// The last target of a MachineConfigPool that was seen to exist, in its condition `Rendered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTarget<'a> {
    /// The name of a rendered MachineConfig.
    pub name: &'a str,
}

impl<'a> PoolTarget<'a> {
    /// Reads it from the message of the condition.
    pub fn of(message: &'a str) -> Option<Self> {
        (!message.is_empty()).then_some(Self { name: message })
    }

    /// The condition.
    pub fn text(self) -> ConditionText {
        ConditionText::new(RENDERED, true, reasons::machine_config_pool::RENDERED, self.name)
    }
}
