//! Which step failed, why, and how to handle it.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    object::{Kind, ObjectRef, ResourceType},
    request::FailureClass,
};

/// What a failed step attempted, and on which object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedStep {
    /// What it attempted.
    pub verb: StepVerb,
    /// The kind of the object.
    pub kind: Cow<'static, str>,
    /// The object.
    pub key: ObjectRef,
}

impl FailedStep {
    /// A failed step on the object of kind `K` with this name.
    pub fn of<K: Kind>(verb: StepVerb, key: ObjectRef) -> Self {
        Self { verb, kind: ResourceType::of::<K>().kind, key }
    }

    /// Whether it is the creation of an object of kind `K`.
    pub fn creates<K: Kind>(&self) -> bool {
        self.verb == StepVerb::Create && self.kind == ResourceType::of::<K>().kind
    }
}

impl fmt::Display for FailedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb.as_str(), self.kind, self.key)
    }
}

/// What a step does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepVerb {
    /// Applies fields.
    Apply,
    /// Removes fields that an apply could not remove.
    Correct,
    /// Creates it.
    Create,
    /// Patches it.
    Patch,
    /// Reads it.
    Read,
    /// Compares it with the snapshot.
    Confirm,
    /// Deletes it.
    Delete,
    /// Evicts it.
    Evict,
}

impl StepVerb {
    /// The verb as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Correct => "correct",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Read => "read",
            Self::Confirm => "confirm",
            Self::Delete => "delete",
            Self::Evict => "evict",
        }
    }
}

/// The failure of a step.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When.
    pub at: Timestamp,
    /// Which step.
    pub step: FailedStep,
    /// How to handle it.
    pub class: FailureClass,
    /// The server's message.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {}: {} ({})", self.step, self.message, self.class.as_str())
    }
}

/// A request that was refused for now and will be made again. It is not a failure of the plan.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The UID of the object.
    pub uid: Arc<str>,
    /// When it was last refused.
    pub at: Timestamp,
    /// How many times in a row.
    pub times: u32,
    /// The server's message.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}
