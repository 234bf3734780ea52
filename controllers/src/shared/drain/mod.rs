//! Empties a Node: evicts its Pods, and waits until their volumes are detached. Any controller can use it: it knows no Machines.
//!
//! ```text
//! caches ── view ─► Drain ─┬─ evictions ─► which Pods leave now, and what keeps the others? ─┐
//!                          └─ detachment ─► which volumes are still attached?                ├─► DrainProgress
//! ```
//!
//! A drain is not a task. Whenever something changes, the caller asks what is to be done now. So a restart, another deadline
//! or a force takes effect at once, and a drain that waits costs nothing.
//!
//! # Rules
//! * Mirror Pods and Pods of DaemonSets stay, as in `kubectl drain`. So does a Pod whose time has run out on a Node that does
//!   not answer: nothing is there to end it.
//! * Pods without attached volumes leave at the same time. Pods with attached volumes leave one after the other, the highest
//!   priority first: the next one waits until the volumes are detached here and attached elsewhere, each for a limited time.
//!   So does machine-controller-manager, because providers throttle such requests.
//! * A volume counts if there is a `VolumeAttachment` for it: without one nothing attaches or detaches it. Volumes of Pods that
//!   stay do not count, and neither do those that are known to be another provider's ([`Owners`]): this one's does not throttle them.
//! * A refused eviction is made again after a pause, and soon if the disruption budget has room. Once it has been refused for
//!   longer than [`Rules::grace_period`], the Pod is deleted, unless its budget can never allow a disruption.
//! * A forced drain deletes Pods without grace and waits at most [`FORCED_LIMIT`] for that, whatever the API server says.

mod budgets;
mod departures;
mod evictions;
mod pods;
pub(crate) mod preview;
#[cfg(test)]
mod tests;
mod view;
mod volumes;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::reasons::unreadable;
use nodewright_runtime::{
    clip::clip_list,
    object::Target,
    plan::{Refusal, Step},
    scoped_watch::ScopedWatch,
};

#[cfg(test)]
pub(crate) use self::view::{Attached, Volumes};
pub(crate) use self::{
    departures::{Departure, HeldBack, Leaver},
    pods::PodView,
    view::{BudgetView, View},
};
use super::node::Node;

/// How long a forced drain waits until the API server has deleted the Pods, as in machine-controller-manager.
pub(crate) const FORCED_LIMIT: SignedDuration = SignedDuration::from_mins(1);
/// Limit of the text about one blocker, in bytes.
const LONGEST_BLOCKER: usize = 300;
/// How many blockers a text names.
const NAMED: usize = 3;

/// What a drain remembers from one plan to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The drain is forced.
    Forced,
    /// An event has reported that the Pod of this UID is deleted.
    Deleting(Arc<str>),
    /// Volumes are watched. Kubernetes may take a volume off the Node's status before its Pod is seen to be gone.
    WatchingVolumes,
    /// The volume is being detached.
    Detaching(Volume),
    /// The volume, which was detached, is yet to be attached elsewhere.
    Attaching(Volume),
    /// The end of the wait for volumes is reported.
    DetachmentReported,
    /// The Pod is leaving, and has to be reported when it has left.
    Leaving(Arc<Leaver>),
    /// What holds back the Pod of this UID, or did last.
    HeldBack(Arc<HeldBack>),
    /// How many Pods are or were reported, and how many others there were at once, at most.
    Leavers { reported: usize, others: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volume {
    Named(Arc<str>),
    /// Those without a `VolumeAttachment`, whose names on the Node do not show which Pods use them.
    OfNode,
}

/// Whose the volumes are that are attached to the Node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owners<'a> {
    /// Nobody can say, or has said: each volume counts.
    Unknown,
    /// The provider can say, and has yet to be asked about some of them.
    Unasked,
    /// The provider has been asked. Pods with volumes wait for its answer, until then at the latest.
    Asked(Timestamp),
    /// These volumes are not the provider's.
    Foreign(&'a BTreeSet<String>),
}

/// What a drain may know.
pub(crate) struct Drain<'a> {
    pub(crate) node: &'a Node,
    pub(crate) view: &'a View,
    pub(crate) owners: Owners<'a>,
    pub(crate) rules: Rules,
    /// The evictions that were refused.
    pub(crate) refusals: &'a [Refusal],
    /// The notes of the last [`DrainProgress`].
    pub(crate) notes: BTreeMap<Note, Timestamp>,
    /// Whether what ends is reported, for spans.
    pub(crate) traces: bool,
    pub(crate) now: Timestamp,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Why Pods are deleted instead of evicted, once they are.
    pub(crate) force: Option<&'static str>,
    /// For how long the evictions of a Pod may be refused.
    pub(crate) grace_period: SignedDuration,
    /// The pause after a refused eviction.
    pub(crate) retry: SignedDuration,
    /// How long a volume may take to be detached.
    pub(crate) detach_timeout: SignedDuration,
    /// How long a detached volume may take to be attached elsewhere.
    pub(crate) reattach_timeout: SignedDuration,
}

/// What is to be done now, and what is waited for.
#[derive(Debug, Default)]
pub(crate) struct DrainProgress {
    pub(crate) removals: Vec<Removal>,
    /// The Pods that are deleted now instead of evicted, each named once.
    pub(crate) forced: Option<Forced>,
    /// The volumes of which the drain has to know whose they are; none if it need not ask.
    pub(crate) question: BTreeSet<String>,
    /// What has to be watched until the next plan.
    pub(crate) watches: Vec<ScopedWatch>,
    /// To be given to the next plan.
    pub(crate) notes: Vec<Note>,
    /// What keeps the drain from its end; the ones that need somebody's attention first.
    pub(crate) blockers: Vec<Blocker>,
    /// When to look again at the latest.
    pub(crate) wake: Option<Timestamp>,
    pub(crate) end: Option<End>,
    /// The Pods that have left since the last plan, if that is reported.
    pub(crate) departures: Vec<Departure>,
    /// The wait for volumes that has ended, likewise.
    pub(crate) detachment: Option<Detachment>,
}

/// A wait until volumes were detached, which has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Detachment {
    pub(crate) since: Timestamp,
    /// The first volumes, and the number of the others.
    pub(crate) volumes: String,
    /// Whether it ended before they were.
    pub(crate) is_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// A forced drain has waited long enough.
    TimedOut,
}

/// A request that removes an object.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    pub(crate) why: &'static str,
    pub(crate) how: How,
    pub(crate) target: Target,
}

/// Pods that did not leave, and that are deleted ignoring disruption budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forced {
    pub(crate) why: &'static str,
    pub(crate) pods: Vec<String>,
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::OfNode => f.write_str("of the node"),
        }
    }
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, count, names) = (self.why, self.pods.len(), first(self.pods.iter().cloned(), ", "));
        let noun = if count == 1 { "pod" } else { "pods" };
        write!(f, "{why}: deleting without grace, ignoring disruption budgets, {count} {noun}: {names}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Evict,
    Delete,
    DeleteNow,
}

impl Removal {
    pub(crate) fn step<E>(self) -> Step<E> {
        match self.how {
            How::Evict => Step::Evict(self.target),
            How::Delete => Step::Delete(self.target),
            How::DeleteNow => Step::DeleteNow(self.target),
        }
    }
}

/// Something that keeps a drain from its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blocker {
    /// An eviction is refused: the Pod, since when, and why.
    Refused { pod: String, since: Timestamp, why: String },
    /// An object cannot be read: what to say about it.
    Unreadable(String),
    /// The API server does not list volumes: what it said. The drain goes on.
    VolumesUnknown(Arc<str>),
    /// A Pod is being deleted, and should be gone since then; its finalizers may keep it.
    Overdue { pod: String, since: Timestamp, finalizers: Vec<String> },
    /// A volume is being detached since then.
    Detaching { volume: String, since: Timestamp },
    /// A volume is being attached to another Node since then.
    Attaching { volume: String, since: Timestamp },
    /// A Pod with volumes waits for its turn.
    Queued { pod: String },
    /// A Pod is being deleted, and has time.
    Leaving { pod: String },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Not since when: that is known to this process alone, and another manager would name another time.
            Self::Refused { pod, why, .. } => write!(f, "pod {pod} is not evicted: {why}"),
            Self::Unreadable(text) => f.write_str(text),
            Self::Overdue { pod, since, finalizers } => {
                write!(f, "pod {pod} should have ended at {since:.0}")?;
                if !finalizers.is_empty() {
                    let names = first(finalizers.iter().cloned(), ", ");
                    write!(f, ", and stays until its finalizers are removed: {names}")?;
                }
                Ok(())
            }
            Self::Detaching { volume, .. } => write!(f, "volume {volume} is being detached"),
            Self::Attaching { volume, .. } => write!(f, "volume {volume} has yet to be attached to another node"),
            Self::Queued { pod } => write!(f, "pod {pod} waits for its turn: pods with volumes leave one by one"),
            Self::Leaving { pod } => write!(f, "pod {pod} is ending"),
            Self::VolumesUnknown(why) => {
                write!(
                    f,
                    "volumes are not waited for: persistentvolumeclaims and volumeattachments are not listed: {why}"
                )
            }
        }
    }
}

/// What a drain waits for that has not ended.
pub(crate) enum Wait {
    Listing,
    Unreadable(String),
    Refused(String),
    Left(String),
}

impl Wait {
    pub(crate) fn of(blockers: &[Blocker]) -> Self {
        let message = describe(blockers);
        match blockers.first() {
            None => Self::Listing,
            Some(Blocker::Unreadable(_)) => Self::Unreadable(message),
            Some(Blocker::Refused { .. }) => Self::Refused(message),
            Some(_) => Self::Left(message),
        }
    }

    /// The reason and the message; `left` is the reason if it waits for what it has asked to leave.
    pub(crate) fn text(self, left: &'static str) -> (&'static str, String) {
        match self {
            Self::Listing => ("Listing", "the pods of the node and their volumes are being listed".to_owned()),
            Self::Unreadable(message) => (unreadable::POD, message),
            Self::Refused(message) => ("EvictionRefused", message),
            Self::Left(message) => (left, message),
        }
    }
}

/// Names the first blockers and counts the others.
fn describe(blockers: &[Blocker]) -> String {
    first(blockers.iter().map(Blocker::to_string), "; ")
}

/// The first texts, and the number of the others.
fn first(texts: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    clip_list(NAMED, LONGEST_BLOCKER, texts, separator)
}

impl DrainProgress {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = self.wake.into_iter().chain([at]).min();
    }
}

impl Drain<'_> {
    /// When a forced drain ends, whatever is left. Its time begins with the first plan that is forced: each Pod is asked for.
    fn abandoned_at(&self) -> Option<Timestamp> {
        self.rules.force?;
        self.forced_since().checked_add(FORCED_LIMIT).ok()
    }

    /// Since when this has been noted.
    fn since(&self, note: &Note) -> Option<Timestamp> {
        self.notes.get(note).copied()
    }

    fn forced_since(&self) -> Timestamp {
        self.since(&Note::Forced).unwrap_or(self.now)
    }

    /// The end of a span of time that began then, while that end is yet to come.
    fn pending(&self, begun: Timestamp, span: SignedDuration) -> Option<Timestamp> {
        begun.checked_add(span).ok().filter(|end| *end > self.now)
    }
}
