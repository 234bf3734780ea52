//! The status of a pool. Of conditions we write `RenderDegraded`, `Rendered`, which notes the target, and `Degraded`, which sums up;
//! others are kept as they are.

use jiff::SignedDuration;
use nodewright_api::{
    ConditionStatus,
    conditions::machine_config_pool::{DEGRADED, PARTS, RENDER_DEGRADED},
    reasons::machine_config_pool as reasons,
    stored::PoolTarget,
};

use super::{
    decision::{Decision, SETTLING},
    memory::{Context, StatusWrite},
    snapshot::{Snapshot, noted_target},
};
use crate::shared::{
    conditions,
    status_writer::{Urgency, write_status},
};

/// A shorter wait for something that is read or made is no news.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// Whether the rendering has changed before it was stored again and again.
fn is_never_settled(context: &Context<'_>) -> bool {
    context.now.duration_since(context.waiting_since(SETTLING)) >= GRACE_PERIOD
}

pub(super) fn write(context: &Context<'_>, snapshot: &Snapshot, decision: &Decision<'_>) -> StatusWrite {
    let pool = snapshot.pool.as_ref();
    let mut wanted = pool.status.clone().unwrap_or_default();
    let finding = match decision {
        Decision::Hold(reason, text) => {
            Some((ConditionStatus::True, *reason, format!("{}: {text}", snapshot.consequence())))
        }
        Decision::Wait(text) => {
            let since = context.waiting_since(reasons::WAITING_FOR_INPUTS);
            let due = since.checked_add(GRACE_PERIOD).unwrap_or(context.now);
            let text = format!("{}: {text}", snapshot.consequence());
            let is_noted = !snapshot.has_target() || noted_target(pool) == snapshot.target_name.as_deref();
            if due > context.now && is_noted {
                return StatusWrite::Later(due);
            }
            (due <= context.now).then_some((ConditionStatus::True, reasons::WAITING_FOR_INPUTS, text))
        }
        Decision::Settle(..) if is_never_settled(context) => {
            let text = "MachineConfigs that it selects change again and again: what they render to is stored once it has stayed the \
                        same for two seconds";
            let text = format!("{}: {text}", snapshot.consequence());
            Some((ConditionStatus::True, reasons::WAITING_FOR_INPUTS, text))
        }
        _ => Some((ConditionStatus::False, reasons::RENDERED, String::new())),
    };
    if let Some(finding) = finding {
        wanted.observed_generation = pool.metadata.generation.unwrap_or_default();
        conditions::set(&mut wanted.conditions, context.now, RENDER_DEGRADED, finding);
    }
    // The note of the target does not wait.
    if let Some(target) = snapshot.target_name.as_deref().filter(|_| snapshot.has_target()) {
        let note = PoolTarget { name: target }.text();
        let finding = (ConditionStatus::True, note.reason, note.message);
        conditions::set(&mut wanted.conditions, context.now, note.kind, finding);
    }
    let part = wanted
        .conditions
        .iter()
        .find(|it| PARTS.contains(&it.condition_type.as_str()) && it.status == ConditionStatus::True);
    let (status, reason, message) = match part {
        Some(part) => (ConditionStatus::True, part.condition_type.clone(), part.message.clone()),
        None => (ConditionStatus::False, "AsExpected".to_owned(), String::new()),
    };
    conditions::set(&mut wanted.conditions, context.now, DEGRADED, (status, &reason, message));
    // A message names what has to be corrected: users who have done that, and read the old one, look in the wrong place.
    write_status(context, pool, wanted, Urgency::Now)
}
