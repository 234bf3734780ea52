//! The status of a pool. Of conditions we write `RenderDegraded`, `Rendered`, which notes the target, those of the Nodes
//! ([`progress`]), and `Degraded`, which sums up; others are kept as they are.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    ConditionStatus,
    conditions::machine_config_pool::{DEGRADED, PARTS, RENDER_DEGRADED},
    machine_config::MachineConfigPoolStatus,
    reasons::machine_config_pool as reasons,
    stored::PoolTarget,
};

use super::{
    decision::{Decision, SETTLING},
    memory::{Context, StatusWrite},
    progress::{self, PoolView},
    snapshot::{Snapshot, noted_target},
};
use crate::shared::{
    conditions::{self, Finding},
    status_writer::{Urgency, write_status},
};

/// A shorter wait for something that is read or made is no news.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// Whether the rendering has changed before it was stored again and again.
fn is_never_settled(context: &Context<'_>) -> bool {
    context.now.duration_since(context.waiting_since(SETTLING)) >= GRACE_PERIOD
}

/// The status as it is to be, and what is written of it now.
pub(super) struct Report {
    pub(super) status: MachineConfigPoolStatus,
    pub(super) write: StatusWrite,
    /// When to look again.
    pub(super) wake: Option<Timestamp>,
}

pub(super) fn report(
    context: &Context<'_>,
    snapshot: &Snapshot,
    decision: &Decision<'_>,
    progress: &PoolView<'_>,
) -> Report {
    let pool = snapshot.pool.as_ref();
    let mut wanted = pool.status.clone().unwrap_or_default();
    let before = message(&wanted, RENDER_DEGRADED);
    let (finding, wake) = rendered(context, snapshot, decision);
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
    progress::report(&mut wanted, context.now, snapshot, progress);
    let (status, reason, text) = sum(&wanted);
    conditions::set(&mut wanted.conditions, context.now, DEGRADED, (status, &reason, text));
    // A message names what has to be corrected: users who have done that, and read the old one, look in the wrong place.
    let urgency = if before == message(&wanted, RENDER_DEGRADED) { Urgency::Normal } else { Urgency::Now };
    let write = match wake {
        // Its first status says something about what it selects.
        Some(_) if wanted.observed_generation == 0 => StatusWrite::Never,
        _ => write_status(context, pool, wanted.clone(), urgency),
    };
    Report { status: wanted, write, wake }
}

/// `RenderDegraded`, unless that is yet to be seen, and when it will be.
fn rendered<'a>(
    context: &Context<'_>,
    snapshot: &Snapshot,
    decision: &Decision<'_>,
) -> (Option<Finding<'a>>, Option<Timestamp>) {
    let held =
        |reason, text: &str| Some((ConditionStatus::True, reason, format!("{}: {text}", snapshot.consequence())));
    match decision {
        Decision::Hold(reason, text) => (held(*reason, text), None),
        Decision::Wait(text) => {
            let since = context.waiting_since(reasons::WAITING_FOR_INPUTS);
            let due = since.checked_add(GRACE_PERIOD).unwrap_or(context.now);
            if due <= context.now {
                return (held(reasons::WAITING_FOR_INPUTS, text), None);
            }
            let is_noted = !snapshot.has_target() || noted_target(&snapshot.pool) == snapshot.target_name.as_deref();
            (None, is_noted.then_some(due))
        }
        Decision::Settle(..) if is_never_settled(context) => {
            let text = "MachineConfigs that it selects change again and again: what they render to is stored once it has stayed the \
                        same for two seconds";
            (held(reasons::WAITING_FOR_INPUTS, text), None)
        }
        _ => (Some((ConditionStatus::False, reasons::RENDERED, String::new())), None),
    }
}

/// `Degraded`, which sums up.
fn sum(status: &MachineConfigPoolStatus) -> (ConditionStatus, String, String) {
    let mut parts = status.conditions.iter().filter(|it| PARTS.contains(&it.condition_type.as_str()));
    match parts.find(|it| it.status == ConditionStatus::True) {
        Some(part) => (ConditionStatus::True, part.condition_type.clone(), part.message.clone()),
        None => (ConditionStatus::False, reasons::AS_EXPECTED.to_owned(), String::new()),
    }
}

fn message(status: &MachineConfigPoolStatus, kind: &str) -> Option<String> {
    status.conditions.iter().find(|it| it.condition_type == kind).map(|it| it.message.clone())
}
