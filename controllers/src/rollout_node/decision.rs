//! Which marks a Node has to have.

use super::snapshot::Snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// No Machine that a deployment keeps is known to be the Node's.
    Leave,
    /// A rollout replaces its Machine.
    Mark,
    /// No rollout replaces its Machine.
    Unmark,
}

pub(super) fn decide(snapshot: &Snapshot) -> Decision {
    match snapshot.is_old {
        None => Decision::Leave,
        Some(true) => Decision::Mark,
        Some(false) => Decision::Unmark,
    }
}
