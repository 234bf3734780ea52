//! What becomes of the rendered MachineConfigs of a pool.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    annotations::RENDER_INPUTS,
    stored::{Seconds, UNUSED_SINCE},
};
use nodewright_runtime::object::{annotation, is_deleting, name};

use crate::{machine_config_pool::snapshot::Snapshot, shared::machine_config::CachedConfig};

/// How many of the newest stay, however long they have been unused: to go back to.
const NEWEST: usize = 10;

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// All stay as they are, since it is unknown, for this reason, which are in use.
    Keep(&'a str),
    /// What becomes of each of them.
    Collect(Vec<(&'a CachedConfig, Garbage)>),
}

/// What becomes of a rendered MachineConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Garbage {
    /// A pool or a Node names it: it bears no mark.
    Unmark,
    /// Nothing names it: it is marked with the time.
    Mark,
    /// Nothing names it, and it stays until this time at least.
    KeepUntil(Timestamp),
    /// Nothing has named it for the whole retention, and it is one of the newest.
    Keep,
    /// Nothing has named it for the whole retention.
    Delete,
}

pub(super) fn decide<'a>(snapshot: &'a Snapshot, wanted: Option<&str>, now: Timestamp) -> Decision<'a> {
    match &snapshot.unknown_use {
        Some(text) => Decision::Keep(text),
        None => Decision::Collect(each(&snapshot.rendered, wanted, snapshot.rendered_retention, now)),
    }
}

/// What becomes of each rendered MachineConfig; the newest is the first. The one that is wanted, those that are being deleted, and those
/// that others have rendered are left alone.
fn each<'a>(
    rendered: &'a [(Arc<CachedConfig>, bool)],
    wanted: Option<&str>,
    retention: Duration,
    now: Timestamp,
) -> Vec<(&'a CachedConfig, Garbage)> {
    let ours = rendered.iter().filter(|(config, _)| annotation(config.as_ref(), RENDER_INPUTS).is_some());
    let mut all = vec![];
    for (place, (config, is_named)) in ours.enumerate() {
        let config = config.as_ref();
        if is_deleting(config) || wanted == Some(name(config)) {
            continue;
        }
        let garbage = if *is_named { Garbage::Unmark } else { unused(config, place, retention, now) };
        all.push((config, garbage));
    }
    all
}

/// What becomes of one that nothing names. `place`: how many are newer.
fn unused(config: &CachedConfig, place: usize, retention: Duration, now: Timestamp) -> Garbage {
    let Some(since) = unused_since(config, now) else { return Garbage::Mark };
    let retention = SignedDuration::try_from(retention).unwrap_or(SignedDuration::MAX);
    let due = since.checked_add(retention).unwrap_or(Timestamp::MAX);
    if due > now {
        Garbage::KeepUntil(due)
    } else if place < NEWEST {
        Garbage::Keep
    } else {
        Garbage::Delete
    }
}

/// Since when it has been unused, as noted. A note that is wrong, or of the future, does not count.
fn unused_since(config: &CachedConfig, now: Timestamp) -> Option<Timestamp> {
    let Seconds(since) = UNUSED_SINCE.of(config)?;
    (since <= now).then_some(since)
}

#[cfg(test)]
mod tests {
    use nodewright_testing::{ObjectBuilder, object};
    use serde_json::json;

    use super::*;
    use crate::testing::NOW;

    const HOUR: Duration = Duration::from_hours(1);

    fn rendered(name: &str) -> ObjectBuilder<CachedConfig> {
        object(name).annotation(RENDER_INPUTS, "of").with("/spec", json!({}))
    }

    fn marked(name: &str, since: &str) -> ObjectBuilder<CachedConfig> {
        rendered(name).annotation("nodewright.dev/unused-since", since)
    }

    #[test]
    fn what_nothing_names_is_marked_kept_and_deleted() {
        let now: Timestamp = NOW.parse().unwrap();
        let (hour, half) = ("2026-06-01T11:00:00Z", "2026-06-01T11:30:00Z");
        let due = "2026-06-01T12:30:00Z".parse().unwrap();
        let table = [
            ("no mark", rendered("a"), false, Some(Garbage::Mark)),
            ("a wrong mark", marked("a", "yesterday"), false, Some(Garbage::Mark)),
            ("a mark of the future", marked("a", "2026-06-01T12:00:01Z"), false, Some(Garbage::Mark)),
            ("a mark that is new", marked("a", half), false, Some(Garbage::KeepUntil(due))),
            ("a mark that is old", marked("a", hour), false, Some(Garbage::Keep)),
            ("it is named", rendered("a"), true, Some(Garbage::Unmark)),
            ("it is named again", marked("a", hour), true, Some(Garbage::Unmark)),
            ("it is wanted", marked("wanted", hour), false, None),
            ("it is being deleted", marked("a", hour).deleting(), false, None),
            ("others have rendered it", object("a").with("/spec", json!({})), false, None),
        ];
        for (what, config, is_named, expected) in table {
            let all = [(Arc::new(config.build()), is_named)];
            let garbage: Vec<_> = each(&all, Some("wanted"), HOUR, now).into_iter().map(|(_, it)| it).collect();
            assert_eq!(garbage, expected.into_iter().collect::<Vec<_>>(), "{what}");
        }
    }

    /// Also those count that are in use, or wanted.
    #[test]
    fn the_newest_ten_stay() {
        let now: Timestamp = NOW.parse().unwrap();
        let others = object::<CachedConfig>("theirs").with("/spec", json!({})).build();
        let ours = (0..13).map(|place| marked(&format!("r{place}"), "2026-01-01T00:00:00Z").build());
        let mut all: Vec<_> = ours.map(|config| (Arc::new(config), false)).collect();
        all[1].1 = true;
        all.insert(0, (Arc::new(others), false));
        let decided = each(&all, Some("r0"), HOUR, now);
        let of =
            |garbage: Garbage| decided.iter().filter(move |(_, it)| *it == garbage).map(|(config, _)| name(*config));
        assert_eq!(of(Garbage::Unmark).collect::<Vec<_>>(), ["r1"]);
        assert_eq!(of(Garbage::Keep).count(), 8);
        assert_eq!(of(Garbage::Delete).collect::<Vec<_>>(), ["r10", "r11", "r12"]);
    }
}
