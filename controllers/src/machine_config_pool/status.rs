//! The status of a pool. Of conditions we write `RenderDegraded`, and `Degraded`, which sums up; others are kept as they are.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, MachineClassCondition as Condition,
    conditions::machine_config_pool::{DEGRADED, PARTS, RENDER_DEGRADED},
    machine_config::MachineConfigPoolStatus,
    reasons::machine_config_pool as reasons,
};
use nodewright_runtime::{clip::clip, effect::Never, plan::Context};

use super::{decision::Decision, snapshot::Snapshot};
use crate::shared::{
    TARGET,
    status_writer::{StatusWrite, Urgency, write_status_in},
};

/// A shorter wait for something that is read or made is no news.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

pub(super) fn write(context: &Context<'_, Never>, snapshot: &Snapshot, decision: &Decision<'_>) -> StatusWrite<Never> {
    let pool = snapshot.pool.as_ref();
    let mut wanted = pool.status.clone().unwrap_or_default();
    wanted.observed_generation = pool.metadata.generation.unwrap_or_default();
    let (status, reason, message) = match decision {
        Decision::Hold(reason, text) => (ConditionStatus::True, *reason, format!("the target stays: {text}")),
        Decision::Wait(text) => {
            let since = context.waiting_since(reasons::WAITING_FOR_INPUTS);
            let due = since.checked_add(PATIENCE).unwrap_or(context.now);
            if due > context.now {
                return StatusWrite::Later(due);
            }
            (ConditionStatus::True, reasons::WAITING_FOR_INPUTS, format!("the target stays: {text}"))
        }
        _ => (ConditionStatus::False, reasons::RENDERED, String::new()),
    };
    set(&mut wanted, context.now, RENDER_DEGRADED, status, reason, message);
    let part = wanted
        .conditions
        .iter()
        .find(|it| PARTS.contains(&it.condition_type.as_str()) && it.status == ConditionStatus::True);
    let (status, reason, message) = match part {
        Some(part) => (ConditionStatus::True, part.condition_type.clone(), part.message.clone()),
        None => (ConditionStatus::False, "AsExpected".to_owned(), String::new()),
    };
    set(&mut wanted, context.now, DEGRADED, status, &reason, message);
    write_status_in(TARGET, context, pool, wanted, Urgency::Normal)
}

fn set(
    status: &mut MachineConfigPoolStatus,
    now: Timestamp,
    kind: &str,
    value: ConditionStatus,
    reason: &str,
    message: String,
) {
    let known = status.conditions.iter().position(|it| it.condition_type == kind);
    let since = known.map(|place| &status.conditions[place]).filter(|known| known.status == value);
    let since = since.and_then(|known| known.last_transition_time.clone());
    // Times on the wire have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let condition = Condition {
        condition_type: kind.to_owned(),
        status: value,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message: clip(message),
    };
    match known {
        Some(place) => status.conditions[place] = condition,
        None => status.conditions.push(condition),
    }
}
