//! Why the nodes of a pool do not run its target.

use jiff::Timestamp;
use nodewright_api::{
    ConditionStatus,
    conditions::machine_config_pool::{NODE_DEGRADED, RENDER_DEGRADED, STALLED, UPDATED, UPDATING},
    machine_config::MachineConfigPool,
    reasons::machine_config_pool as reasons,
};
use nodewright_runtime::object::name;

use super::{
    explanation::{Finding, Link},
    remedies,
};
use crate::{
    names::{Target, TargetKind},
    snapshot::{Snapshot, event_time},
};

type Condition = nodewright_api::common::Condition;

pub(crate) fn subject(pool: &MachineConfigPool) -> String {
    Target::new(TargetKind::Pool, name(pool)).to_string()
}

pub(crate) fn condition<'a>(pool: &'a MachineConfigPool, kind: &str) -> Option<&'a Condition> {
    pool.status.as_ref()?.conditions.iter().find(|condition| condition.condition_type == kind)
}

fn since(condition: &Condition) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// What keeps a pool from its target.
pub(crate) fn finding(snapshot: &Snapshot, pool: &MachineConfigPool) -> Finding {
    let is_true = |kind| condition(pool, kind).filter(|it| it.status == ConditionStatus::True);
    let of = |found: Finding, condition: &Condition| {
        let found = found.since(since(condition));
        found.changed_by_all(remedies::of(&condition.reason))
    };
    let blocked = |it: &Condition| of(Finding::blocked(subject(pool), &it.reason, it.message.clone()), it);
    let paused = || condition(pool, UPDATING).filter(|it| it.reason == reasons::PAUSED);
    let no_agent = || condition(pool, UPDATED).filter(|it| it.reason == reasons::NO_AGENT);
    let found = operator_runs(snapshot, pool)
        .or_else(|| is_true(RENDER_DEGRADED).map(blocked))
        .or_else(|| is_true(STALLED).map(blocked))
        .or_else(|| is_true(NODE_DEGRADED).map(blocked))
        .or_else(|| paused().map(blocked))
        .or_else(|| is_true(UPDATING).map(|it| of(Finding::waiting(subject(pool), &it.reason, it.message.clone()), it)))
        .or_else(|| no_agent().map(blocked));
    let found = found.unwrap_or_else(|| match (is_true(UPDATED), &pool.status) {
        (Some(updated), _) => Finding::done(subject(pool), updated.message.clone()),
        (None, None) => super::set::unseen(subject(pool)),
        (None, Some(_)) => Finding::waiting(subject(pool), "NoTarget", "it has no target yet"),
    });
    found.below([desired(pool)])
}

fn desired(pool: &MachineConfigPool) -> Link {
    let status = pool.status.clone().unwrap_or_default();
    let target = pool.spec.configuration.name.as_deref().unwrap_or("no target");
    let paused = if pool.spec.paused { "; paused" } else { "" };
    let text = format!(
        "{target} on {} nodes; {} run it, {} unavailable, {} degraded{paused}",
        status.machine_count,
        status.updated_machine_count,
        status.unavailable_machine_count,
        status.degraded_machine_count
    );
    Link::new("desired", text)
}

/// While machine-config-operator runs, Nodewright writes no status.
fn operator_runs(snapshot: &Snapshot, pool: &MachineConfigPool) -> Option<Finding> {
    let reason = reasons::MACHINE_CONFIG_OPERATOR_RUNS;
    let event = snapshot.warning("MachineConfigPool", name(pool)).filter(|it| it.reason.as_deref() == Some(reason))?;
    let text = event.message.clone().unwrap_or_default();
    let found = Finding::blocked(subject(pool), reason, text).since(event_time(event));
    Some(found.changed_by_all(remedies::of(reason)))
}
