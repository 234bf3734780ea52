//! What the plans of a Node that is drained remember, and which drains take too long.

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::{effect::Never, plan};

use crate::shared::{drain, machine_config::LeaseRenewal};

pub(super) type Context<'a> = plan::Context<'a, Never, Note>;
pub(super) type Plan = plan::Plan<Never, Note>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The Lease of machine-config-operator was last renewed then.
    Operator(LeaseRenewal),
    /// What the drain remembers.
    Drain(drain::Note),
    /// An event has reported that the drain that began then takes too long.
    Overdue(Overdue, Timestamp),
    /// An event has reported that this request is none.
    Invalid(String),
}

/// How much too long a drain takes, as machine-config-operator counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overdue {
    TenMinutes,
    Hour,
}

impl Overdue {
    const ALL: [Self; 2] = [Self::TenMinutes, Self::Hour];

    const fn limit(self) -> SignedDuration {
        match self {
            Self::TenMinutes => SignedDuration::from_mins(10),
            Self::Hour => SignedDuration::from_hours(1),
        }
    }

    /// All that a drain which began then has reached.
    pub(super) fn reached(since: Timestamp, now: Timestamp) -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(move |overdue| now.duration_since(since) >= overdue.limit())
    }

    /// When a drain which began then reaches the next one.
    pub(super) fn next(since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let times = Self::ALL.into_iter().filter_map(|overdue| since.checked_add(overdue.limit()).ok());
        times.filter(|at| *at > now).min()
    }
}
