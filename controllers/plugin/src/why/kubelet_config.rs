//! Why a KubeletConfig has no effect.

use nodewright_api::{
    ConditionStatus, conditions::controller_config::FAILING, conditions::kubelet_config::ACCEPTED,
    machine_config::KubeletConfig,
};
use nodewright_runtime::object::name;

use super::{
    explanation::{Finding, Link},
    pool, remedies, set,
};
use crate::{
    names::{Target, TargetKind},
    output::State,
    snapshot::Snapshot,
};

/// What keeps a KubeletConfig from the nodes of its pools.
pub(crate) fn finding(snapshot: &Snapshot, config: &KubeletConfig) -> Finding {
    let subject = Target::new(TargetKind::KubeletConfig, name(config)).to_string();
    let status = config.status.as_ref();
    let accepted = status.and_then(|it| it.conditions.iter().find(|it| it.condition_type == ACCEPTED));
    let is_seen = status.is_some_and(|it| config.metadata.generation.is_none_or(|now| now <= it.observed_generation));
    let Some(accepted) = accepted.filter(|_| is_seen) else { return set::unseen(subject) };
    let since = accepted.last_transition_time.as_ref().map(|time| time.0);
    if accepted.status != ConditionStatus::True {
        // The message begins so for machine-config-operator's clients.
        let text = accepted.message.trim_start_matches("Error: ").to_owned();
        return Finding::blocked(subject, "NotAccepted", text).since(since).changed_by_all(remedies::of("NotAccepted"));
    }
    let selector = config.spec.machine_config_pool_selector.as_ref();
    let is_selected = |labels| nodewright_api::selector::matches(selector, labels);
    let pools: Vec<_> = snapshot.pools.iter().filter(|pool| is_selected(pool.metadata.labels.as_ref())).collect();
    let names = pools.iter().map(|pool| name(*pool)).collect::<Vec<_>>().join(", ");
    let link = Link::new("pools", if names.is_empty() { "none".to_owned() } else { names });
    let open = pools.iter().map(|it| pool::finding(snapshot, it)).find(|found| found.state != State::Done);
    let found = open.or_else(|| failing(snapshot));
    let done = || Finding::done(subject, "it is accepted, and its pools run their targets");
    found.unwrap_or_else(done).below([link])
}

/// A ControllerConfig whose templates fail holds all pools.
fn failing(snapshot: &Snapshot) -> Option<Finding> {
    snapshot.controller_configs.iter().find_map(|config| {
        let status = config.status.as_ref()?;
        let is_failing = |it: &&nodewright_api::common::Condition| {
            it.condition_type == FAILING && it.status == ConditionStatus::True
        };
        let failing = status.conditions.iter().find(is_failing)?;
        let subject = format!("controllerconfig/{}", name(config));
        let found = Finding::blocked(subject, FAILING, failing.message.clone());
        Some(found.since(failing.last_transition_time.as_ref().map(|time| time.0)))
    })
}
