//! The steps that mark rendered MachineConfigs, and delete them.

use jiff::Timestamp;
use nodewright_api::stored::{Seconds, UNUSED_SINCE};
use nodewright_runtime::{
    annotations,
    object::Target,
    plan::{Planned, Step},
};

use super::decision::{Decision, Garbage, decide};
use crate::{
    machine_config_pool::{call::Render, memory::Plan, snapshot::Snapshot},
    shared::{TARGET, machine_config::CachedConfig},
};

/// What is done about the rendered MachineConfigs of the pool. The one that is wanted is left alone.
pub(in super::super) fn collect(snapshot: &Snapshot, wanted: Option<&str>, now: Timestamp) -> Plan {
    let mut plan = Plan::idle();
    match decide(snapshot, wanted, now) {
        Decision::Keep(text) => {
            plan.wait("UseUnknown", format!("{text}; until then no rendered MachineConfig is deleted"));
        }
        Decision::Collect(all) => {
            plan.stage(all.iter().filter_map(|(config, garbage)| step(config, *garbage, now)));
            for (_, garbage) in all {
                if let Garbage::KeepUntil(due) = garbage {
                    plan.wake_at(due);
                }
            }
        }
    }
    plan
}

fn step(config: &CachedConfig, garbage: Garbage, now: Timestamp) -> Option<Planned<Render>> {
    match garbage {
        Garbage::Unmark => unmark(config),
        Garbage::Mark => mark(config, now),
        Garbage::KeepUntil(_) | Garbage::Keep => None,
        Garbage::Delete => {
            let why = "no pool and no node has named it for the whole retention";
            Planned::new(why, Step::Delete(Target::of(TARGET, config).if_unchanged()))
        }
    }
}

/// Removes the mark: a deletion that rests on a cache carries the version with the mark.
pub(in super::super) fn unmark(config: &CachedConfig) -> Option<Planned<Render>> {
    let unmark = annotations::set(&config.metadata, UNUSED_SINCE.key, None);
    Planned::new("it is in use", Step::edit(TARGET, config, unmark))
}

fn mark(config: &CachedConfig, now: Timestamp) -> Option<Planned<Render>> {
    let (key, text) = UNUSED_SINCE.written(&Seconds(now));
    let mark = annotations::set(&config.metadata, key, Some(&text));
    Planned::new("no pool and no node names it", Step::edit(TARGET, config, mark))
}
