//! How often counts are written while they move.

use jiff::{SignedDuration, Timestamp};

/// A status whose counts move is written at most so often: the cluster autoscaler writes the same objects with the
/// version that it has cached, and has to get through.
pub(crate) const PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// When a status in which only counts have moved may be written: `None` means now, also where the clock was set back
/// since the last write.
pub(crate) fn due(now: Timestamp, written: Option<Timestamp>) -> Option<Timestamp> {
    let next = written.filter(|written| *written <= now)?.checked_add(PAUSE).ok()?;
    (next > now).then_some(next)
}
