//! What the plans of a class remember of its VMs.

use std::sync::Arc;

use nodewright_runtime::plan;

use super::calls::Call;

pub(super) type Context<'a> = plan::Context<'a, Call, Note>;
pub(super) type Plan = plan::Plan<Call, Note>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// So many Machines have vanished.
    Vanished(u64),
    /// The VM of this id is an orphan.
    Orphan(Arc<str>),
    /// An event has named the orphan.
    Reported(Arc<str>),
    /// A list has lacked the VM of the Node with this UID, which has no Machine.
    LostNode(Arc<str>),
    /// A sweep has left the VM, because a Machine has it or may have it: of another namespace, mostly.
    Kept(Arc<str>),
    /// An event has reported for this reason why no VM is deleted.
    Blocked(&'static str),
}
