//! What the plans of a Machine remember.

use jiff::Timestamp;
use nodewright_runtime::plan;

use super::calls::Call;
use crate::shared::drain;

pub(super) type Context<'a> = plan::Context<'a, Call, Note>;
pub(super) type Plan = plan::Plan<Call, Note>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The Node is unhealthy, and the Machine's phase does not say so yet.
    Unhealthy,
    /// The provider knows no VM of a Machine that has been Unknown since then. The time distinguishes one episode from a later one.
    NoVm(Timestamp),
    /// An event has reported that the annotation `preserve` of the Node has this value, which is none.
    InvalidPreserveValue(String),
    /// An event has reported why an eviction of this drain is refused.
    EvictionRefused,
    /// The Node is deleted, which the cache showed: it need not be looked for afterwards.
    NodeDeleted,
    /// The provider has described the VM of a healthy Machine then.
    Described(Timestamp),
    /// What the drain remembers.
    Drain(drain::Note),
}
