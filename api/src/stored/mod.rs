//! Facts that a controller stores in objects, and reads again later: the only memory that outlives a process.
//!
//! A later plan reads them, another version after an upgrade or a downgrade, and MCM after a hand-over. So their texts are a
//! format. Each has a type here that reads it with [`FromStr`] and writes it with [`Display`](fmt::Display), or, for
//! conditions, with `of` and `text`. Nothing else reads or writes these texts.
//!
//! `docs/reference/stored-facts.md` says who writes and who reads each fact, and what a version may change. The files below
//! `api/tests/golden` have texts of each: a line there is never changed or removed.
//!
//! # Guarantees
//! * Each text is a value or an error. No text makes a reader panic.
//! * What a type writes it reads as the same value.

mod class_identity;
mod conditions;
mod config_drain;
mod creation_round;
mod disruptions;
mod ledger;
mod node_class;
mod node_template;
mod orphans;
mod pool_rollout;
mod preservation;
mod registry;
mod removal;
mod revision_history;
mod sized_for;
mod time;
mod updating;

use std::{collections::BTreeMap, fmt, marker::PhantomData, str::FromStr};

use jiff::Timestamp;
use kube::Resource;

pub use self::{
    class_identity::{ClassIdentity, identity_value},
    conditions::{
        AdoptedVm, ConditionText, DeadlineCause, DisabledHealthTimeout, HealthDeadline, JoinedNode, MissingClass,
        MissingVm, NodeProgress, PoolTarget, ProvenVm,
    },
    config_drain::{ConfigDrain, DrainRequest},
    creation_round::CreationRound,
    disruptions::{Claim, Disruptions},
    ledger::{ALPHABET, InvalidLedger, Ledger, Ordinal, SUFFIX, base, fnv1a, set_of},
    node_class::{InvalidNodeClass, NodeClass},
    node_template::{AppliedKeys, LastApplied, VirtualCapacity},
    orphans::{SweptVms, UnexplainedVms},
    pool_rollout::{PoolRollout, RolloutInputs},
    preservation::{Preserve, PreservedNode},
    registry::{FACTS, Fact},
    removal::{Removal, Removals, is_operator_finalizer, removals},
    revision_history::RevisionHistory,
    sized_for::SizedFor,
    time::Seconds,
    updating::Updating,
};
use crate::{GoDuration, HealthTimeouts, annotations};

const LONGEST_TEXT: usize = 300;

/// The text of these types is their JSON.
macro_rules! json_text {
    ($($kind:ty),+) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
            }
        }

        impl FromStr for $kind {
            type Err = serde_json::Error;

            fn from_str(text: &str) -> Result<Self, serde_json::Error> {
                serde_json::from_str(text)
            }
        }
    )+};
}

json_text!(AppliedKeys, ClassIdentity, LastApplied, SweptVms, VirtualCapacity);

/// A text is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}")]
pub struct Malformed {
    what: &'static str,
    text: String,
}

impl Malformed {
    fn new(what: &'static str, text: &str) -> Self {
        Self { what, text: text.chars().take(LONGEST_TEXT).collect() }
    }

    /// The text, or the beginning of a long one.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// An annotation whose value is a `T`.
#[derive(Debug)]
pub struct Annotation<T> {
    /// The key of the annotation.
    pub key: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T: FromStr> Annotation<T> {
    const fn new(key: &'static str) -> Self {
        Self { key, value: PhantomData }
    }

    /// The value that an object has. `None` without the annotation, and for a text that is no such value.
    pub fn of(&self, object: &impl Resource) -> Option<T> {
        self.read(object)?.ok()
    }

    /// The value that an object has, or why its text is none. `None` without the annotation.
    ///
    /// # Errors
    /// When the text is no such value.
    pub fn read(&self, object: &impl Resource) -> Option<Result<T, T::Err>> {
        self.within(object.meta().annotations.as_ref()?)
    }

    /// The same for annotations that are yet to be written.
    ///
    /// # Errors
    /// When the text is no such value.
    pub fn within(&self, annotations: &BTreeMap<String, String>) -> Option<Result<T, T::Err>> {
        annotations.get(self.key).map(|text| text.parse())
    }
}

impl<T: fmt::Display> Annotation<T> {
    /// The key, and the text of a value.
    pub fn written(&self, value: &T) -> (&'static str, String) {
        (self.key, value.to_string())
    }

    /// Sets a value in annotations that are yet to be written.
    pub fn insert(&self, annotations: &mut BTreeMap<String, String>, value: &T) {
        annotations.insert(self.key.to_owned(), value.to_string());
    }
}

/// See [`annotations::LEDGER`].
pub const LEDGER: Annotation<Ledger> = Annotation::new(annotations::LEDGER);
/// See [`annotations::INDEX`].
pub const ORDINAL: Annotation<Ordinal> = Annotation::new(annotations::INDEX);
/// See [`annotations::UPDATING`].
pub const UPDATING: Annotation<Updating> = Annotation::new(annotations::UPDATING);
/// The class of a Node's Machine.
pub const NODE_CLASS: Annotation<NodeClass> = Annotation::new(annotations::MACHINE_CLASS);
/// See [`annotations::UPDATE_BEGAN`].
pub const UPDATE_BEGAN: Annotation<Timestamp> = Annotation::new(annotations::UPDATE_BEGAN);
/// See [`annotations::CORDONED`]: whether the controller has cordoned the Node.
pub const CORDONED: Annotation<bool> = Annotation::new(annotations::CORDONED);
/// See [`annotations::VM_MISSING`].
pub const NODE_VM_MISSING: Annotation<String> = Annotation::new(annotations::VM_MISSING);
/// See [`annotations::CONFIG_DRAIN`].
pub const CONFIG_DRAIN: Annotation<ConfigDrain> = Annotation::new(annotations::CONFIG_DRAIN);
/// See [`annotations::CONFIG_GIVEN`].
pub const CONFIG_GIVEN: Annotation<u32> = Annotation::new(annotations::CONFIG_GIVEN);
/// See [`annotations::DISRUPTIONS`].
pub const DISRUPTIONS: Annotation<Disruptions> = Annotation::new(annotations::DISRUPTIONS);
/// See [`annotations::POOL_ROLLOUT`].
pub const POOL_ROLLOUT: Annotation<PoolRollout> = Annotation::new(annotations::POOL_ROLLOUT);
/// See [`annotations::CREATION_BACKOFF`].
pub const CREATION_ROUND: Annotation<CreationRound> = Annotation::new(annotations::CREATION_BACKOFF);
/// See [`annotations::SIZED_FOR`].
pub const SIZED_FOR: Annotation<SizedFor> = Annotation::new(annotations::SIZED_FOR);
/// See [`annotations::IDENTITY`].
pub const CLASS_IDENTITY: Annotation<ClassIdentity> = Annotation::new(annotations::IDENTITY);
/// See [`annotations::UNEXPLAINED_VMS`].
pub const UNEXPLAINED_VMS: Annotation<UnexplainedVms> = Annotation::new(annotations::UNEXPLAINED_VMS);
/// See [`annotations::SWEPT_VMS`].
pub const SWEPT_VMS: Annotation<SweptVms> = Annotation::new(annotations::SWEPT_VMS);
/// See [`annotations::APPLIED_NODE_TEMPLATE`].
pub const APPLIED_NODE_TEMPLATE: Annotation<AppliedKeys> = Annotation::new(annotations::APPLIED_NODE_TEMPLATE);
/// See [`annotations::UNUSED_SINCE`].
pub const UNUSED_SINCE: Annotation<Seconds> = Annotation::new(annotations::UNUSED_SINCE);
/// See [`annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS`].
pub const LAST_APPLIED: Annotation<LastApplied> = Annotation::new(annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS);
/// See [`annotations::LAST_APPLIED_VIRTUAL_CAPACITY`].
pub const VIRTUAL_CAPACITY: Annotation<VirtualCapacity> = Annotation::new(annotations::LAST_APPLIED_VIRTUAL_CAPACITY);
/// See [`annotations::MACHINE_PRIORITY`].
pub const MACHINE_PRIORITY: Annotation<i64> = Annotation::new(annotations::MACHINE_PRIORITY);
/// See [`annotations::MARKED_FOR_DELETION_TIME`].
pub const MARKED_FOR_DELETION: Annotation<Timestamp> = Annotation::new(annotations::MARKED_FOR_DELETION_TIME);
/// See [`annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME`].
pub const SCALER_CHANGE: Annotation<Timestamp> = Annotation::new(annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME);
/// See [`annotations::PRESERVE`]. On a Machine.
pub const PRESERVE: Annotation<Preserve> = Annotation::new(annotations::PRESERVE);
/// See [`annotations::LAST_APPLIED_NODE_PRESERVE_VALUE`].
pub const NODE_PRESERVE: Annotation<Preserve> = Annotation::new(annotations::LAST_APPLIED_NODE_PRESERVE_VALUE);
/// See [`annotations::REVISION`].
pub const REVISION: Annotation<i64> = Annotation::new(annotations::REVISION);
/// See [`annotations::REVISION_HISTORY`].
pub const REVISION_HISTORY: Annotation<RevisionHistory> = Annotation::new(annotations::REVISION_HISTORY);
/// See [`annotations::DESIRED_REPLICAS`].
pub const DESIRED_REPLICAS: Annotation<i64> = Annotation::new(annotations::DESIRED_REPLICAS);
/// See [`annotations::MAX_REPLICAS`].
pub const MAX_REPLICAS: Annotation<i64> = Annotation::new(annotations::MAX_REPLICAS);

/// A setting of users: see [`annotations::HEALTH_TIMEOUTS`].
pub const HEALTH_TIMEOUTS: Annotation<HealthTimeouts> = Annotation::new(annotations::HEALTH_TIMEOUTS);
/// A setting of users: see [`annotations::EFFECTIVE_CREATION_TIMEOUT`].
pub const EFFECTIVE_CREATION_TIMEOUT: Annotation<GoDuration> = Annotation::new(annotations::EFFECTIVE_CREATION_TIMEOUT);
/// A setting of users: see [`annotations::UPDATE_PRIORITY`].
pub const UPDATE_PRIORITY: Annotation<i64> = Annotation::new(annotations::UPDATE_PRIORITY);
/// A setting of users: see [`annotations::DRAIN_TIMEOUT`].
pub const DRAIN_TIMEOUT: Annotation<GoDuration> = Annotation::new(annotations::DRAIN_TIMEOUT);
