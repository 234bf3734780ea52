//! When a Secret loses the finalizer.

use nodewright_api::finalizers;
use nodewright_runtime::object::{has_finalizer, is_deleting};

use super::snapshot::Snapshot;

#[derive(Debug)]
pub(super) enum Decision<'a> {
    Keep,
    /// A class that cannot be read may refer to it.
    AwaitReadable(&'a str),
    /// It is being deleted, and so many classes refer to it.
    AwaitUsers(usize),
    RemoveFinalizer,
}

pub(super) fn decide(snapshot: &Snapshot) -> Decision<'_> {
    let secret = snapshot.secret.as_ref();
    match (snapshot.users, &snapshot.unreadable) {
        (0, _) if !has_finalizer(secret, finalizers::MACHINE_CONTROLLER) => Decision::Keep,
        (0, Some(text)) => Decision::AwaitReadable(text),
        (0, None) => Decision::RemoveFinalizer,
        (users, _) if is_deleting(secret) => Decision::AwaitUsers(users),
        _ => Decision::Keep,
    }
}
