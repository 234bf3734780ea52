//! A label, and what became of it.

use super::snapshot::GuardedKind;

/// What has a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Guarded {
    /// The namespace of the installation.
    Namespace,
    /// The definition of a kind.
    Definition(GuardedKind),
}

/// A label that should be there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) on: Guarded,
    pub(super) in_use: bool,
    /// The kinds that must have no object before the label is taken off.
    pub(super) kinds: Vec<GuardedKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The label is there, or not, as was wanted.
    AsWanted,
    /// The same after a write, with a text for the log.
    Changed(String),
    /// There are objects that the caches do not show: the label stays.
    StillInUse,
    /// Another program has made the definition.
    NotOurs,
    /// The text for the log.
    Failed(String),
}
