//! Rendered MachineConfigs that nothing needs any more: marked with the time, and deleted after a while.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    annotations::{RENDER_INPUTS, UNUSED_SINCE},
    stored::{self, Seconds},
};
use nodewright_runtime::{
    annotations,
    object::{Target, annotation, is_deleting, name},
    plan::{Planned, Step},
};

use super::{call::Render, memory::Plan, snapshot::Snapshot};
use crate::shared::{TARGET, machine_config::CachedConfig};

/// How many of the newest stay, however long they have been unused: to go back to.
const NEWEST: usize = 10;

/// What to do about each rendered MachineConfig but the one that is wanted. Those that others have rendered are left alone.
pub(super) fn collect(snapshot: &Snapshot, wanted: Option<&str>, retention: Duration, now: Timestamp) -> Plan {
    let mut plan = Plan::idle();
    if let Some(text) = &snapshot.unknown_use {
        plan.wait("UseUnknown", format!("{text}; until then no rendered MachineConfig is deleted"));
        return plan;
    }
    let retention = SignedDuration::try_from(retention).unwrap_or(SignedDuration::MAX);
    let ours = snapshot.rendered.iter().filter(|(config, _)| annotation(config.as_ref(), RENDER_INPUTS).is_some());
    let mut steps = vec![];
    for (place, (config, is_named)) in ours.enumerate() {
        let config = config.as_ref();
        if is_deleting(config) || wanted == Some(name(config)) {
            continue;
        }
        if *is_named {
            steps.extend(unmark(config));
            continue;
        }
        let Some(since) = unused_since(config, now) else {
            steps.extend(mark(config, now));
            continue;
        };
        let due = since.checked_add(retention).unwrap_or(Timestamp::MAX);
        if due > now {
            plan.wake_at(due);
        } else if place >= NEWEST {
            let why = "no pool and no node has named it for the whole retention".into();
            steps.push(Planned { why, step: Step::Delete(Target::of(TARGET, config).if_unchanged()) });
        }
    }
    plan.stage(steps);
    plan
}

/// Removes the mark: a deletion that rests on a cache carries the version with the mark.
pub(super) fn unmark(config: &CachedConfig) -> Option<Planned<Render>> {
    Planned::new("it is in use", Step::edit(TARGET, config, annotations::set(&config.metadata, UNUSED_SINCE, None)))
}

fn mark(config: &CachedConfig, now: Timestamp) -> Option<Planned<Render>> {
    let mark = annotations::set(&config.metadata, UNUSED_SINCE, Some(&Seconds(now).to_string()));
    Planned::new("no pool and no node names it", Step::edit(TARGET, config, mark))
}

/// Since when it has been unused, as noted. A note that is wrong, or of the future, does not count.
fn unused_since(config: &CachedConfig, now: Timestamp) -> Option<Timestamp> {
    let Seconds(since) = stored::UNUSED_SINCE.of(config)?;
    (since <= now).then_some(since)
}
