//! The status of a KubeletConfig: `Accepted`, and the older `Success` and `Failure` of machine-config-operator.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, MachineClassCondition as Condition, machine_config::KubeletConfigStatus, selector,
};
use nodewright_runtime::{clip::clip, effect::Never, plan::Context};

use super::snapshot::{Problem, Snapshot};
use crate::shared::{
    TARGET,
    status_writer::{StatusWrite, Urgency, write_status_in},
};

pub(super) fn of(context: &Context<'_, Never>, snapshot: &Snapshot) -> StatusWrite<Never> {
    let object = snapshot.object.as_ref();
    let problems = problems(snapshot);
    let (is_accepted, message) = match problems.as_slice() {
        [] => (true, "Success".to_owned()),
        problems => (false, format!("Error: {}", problems.join("; "))),
    };
    let known = object.status.iter().flat_map(|status| &status.conditions).cloned().collect::<Vec<_>>();
    let condition = |kind: &str, holds: bool| condition(&known, context.now, kind, holds, &message);
    let wanted = KubeletConfigStatus {
        observed_generation: object.metadata.generation.unwrap_or_default(),
        conditions: vec![
            condition("Accepted", is_accepted),
            condition("Success", is_accepted),
            condition("Failure", !is_accepted),
        ],
    };
    write_status_in(TARGET, context, object, wanted, Urgency::Now)
}

fn problems(snapshot: &Snapshot) -> Vec<String> {
    if selector::is_empty(snapshot.object.spec.machine_config_pool_selector.as_ref()) {
        return vec!["spec.machineConfigPoolSelector: Required value: an empty selector selects no pool".to_owned()];
    }
    if snapshot.pools.is_empty() {
        let text = "spec.machineConfigPoolSelector: Invalid value: no MachineConfigPool has these labels";
        return vec![snapshot.unreadable.clone().unwrap_or_else(|| text.to_owned())];
    }
    let problem = |problem: &Problem| match problem {
        Problem::Refused(text) => text.clone(),
        Problem::Taken(first) => format!("KubeletConfig {first} has the pool: merge the two"),
    };
    let problems = snapshot.pools.iter().filter_map(|part| Some((part, part.wanted.as_ref().err()?)));
    problems.map(|(part, it)| format!("pool {}: {}", part.pool, problem(it))).collect()
}

fn condition(known: &[Condition], now: Timestamp, kind: &str, holds: bool, message: &str) -> Condition {
    let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
    let same = known.iter().find(|known| known.condition_type == kind && known.status == status);
    let since = same.and_then(|known| known.last_transition_time.clone());
    // Times on the wire have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        condition_type: kind.to_owned(),
        status,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: String::new(),
        message: clip(message),
    }
}
