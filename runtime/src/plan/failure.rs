//! Which step failed, why, and how to handle it.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    object::{Kind, ObjectRef, ResourceType},
    request::FailureClass,
};

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
    /// What the step attempted.
    pub verb: StepVerb,
    /// The kind of its object.
    pub kind: Cow<'static, str>,
    /// Its object.
    pub key: ObjectRef,
    /// How to handle the failure.
    pub class: FailureClass,
    /// The server's message.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// The failure of a step on the object of kind `K` with this name.
    pub fn of<K: Kind>(verb: StepVerb, key: ObjectRef, class: FailureClass, message: impl Into<String>) -> Self {
        let (kind, message) = (ResourceType::of::<K>().kind, message.into());
        Self { verb, kind, key, class, message, retry_after: None }
    }

    /// Whether the step was one on an object of kind `K`.
    pub fn is_of<K: Kind>(&self) -> bool {
        self.kind == ResourceType::of::<K>().kind
    }

    /// Whether the step was the creation of an object of kind `K`.
    pub fn creates<K: Kind>(&self) -> bool {
        self.verb == StepVerb::Create && self.is_of::<K>()
    }

    /// Whether another writer was faster. That is normal, and the next plan sees the change.
    pub fn is_passing(&self) -> bool {
        matches!(self.class, FailureClass::Conflict | FailureClass::AlreadyExists | FailureClass::Expired)
    }

    /// Whether the server has refused this request as it is, so that it fails again until somebody changes something. A server that does
    /// not answer, is overloaded, or does not know who asks, refuses nothing.
    pub fn is_refusal(&self) -> bool {
        matches!(self.class, FailureClass::Invalid | FailureClass::Forbidden)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, kind, key, class, message, .. } = self;
        write!(f, "failed to {} {kind} {key}: {message} ({})", verb.as_str(), class.as_str())
    }
}

/// A request that was refused for now and will be made again. It is not a failure of the plan.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The UID of the object.
    pub uid: Arc<str>,
    /// Since when it has been refused each time.
    pub since: Timestamp,
    /// When it was last refused.
    pub at: Timestamp,
    /// Of which class it was the last time: a disruption budget refuses with [`FailureClass::TooManyRequests`].
    pub class: FailureClass,
    /// The server's message.
    pub message: String,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// The refusal for the object with this UID.
    pub fn of<'a>(refusals: &'a [Self], uid: &str) -> Option<&'a Self> {
        refusals.iter().find(|refusal| &*refusal.uid == uid)
    }
}
