//! What a class says of itself, where the schema lets it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, MachineClass, MachineClassCondition as Condition, MachineClassStatus,
    conditions::machine_class as kinds, reasons::unreadable,
};
use nodewright_runtime::{
    cache::Lookup,
    clip::clip,
    effect::Never,
    owned::{Owned, Part},
    plan::{Moment, Plan, Step},
};
use serde::Serialize;

use super::{NamedSecret, World};
use crate::shared::clusters::CONTROL;
use crate::shared::{class_secrets, pacing};

/// All of a class's status.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct StatusPart {
    status: MachineClassStatus,
}

impl Owned for StatusPart {
    type Of = MachineClass;
    const PART: Part = Part::Status;

    fn seen(live: &MachineClass) -> Self {
        Self { status: live.status.clone().unwrap_or_default() }
    }
}

/// Adds the write of the status: at once when it says something new, not too often while the machines come and go.
pub(super) fn tell(plan: &mut Plan<Never>, at: &Moment<'_, Never>, world: &World, problems: &[String]) {
    let class = world.class.as_ref();
    let before = class.status.clone().unwrap_or_default();
    let after = MachineClassStatus {
        observed_generation: class.metadata.generation.unwrap_or_default(),
        machines: i32::try_from(world.machines).unwrap_or(i32::MAX),
        conditions: vec![
            secrets_found(at.now, world),
            provider_spec_valid(at.now, world, problems),
            in_use(at.now, world),
        ],
    };
    let gist = |status: &MachineClassStatus| {
        let told = |it: &Condition| (it.condition_type.clone(), it.status.clone(), it.reason.clone());
        (status.observed_generation, status.conditions.iter().map(told).collect::<Vec<_>>())
    };
    let urgent = gist(&before) != gist(&after);
    let Some(step) = Step::apply(CONTROL, class, &StatusPart { status: after }) else { return };
    match pacing::due(at.now, at.status_written).filter(|_| !urgent) {
        Some(later) => drop(plan.wake_at(later)),
        None => drop(plan.beside("the status changed", step)),
    }
}

fn secrets_found(now: Timestamp, world: &World) -> Condition {
    let missing = world.secrets.iter().filter(|secret| matches!(secret.found, Lookup::Missing));
    let missing: Vec<_> = missing.map(|secret| secret.key.to_string()).collect();
    if !missing.is_empty() {
        let message =
            format!("create the secret, of type Opaque, or correct the reference: {} not found", missing.join(", "));
        let reason = class_secrets::NOT_FOUND;
        return condition(now, world, kinds::SECRETS_FOUND, ConditionStatus::False, reason, message);
    }
    for NamedSecret { key, found, .. } in &world.secrets {
        if let Lookup::Failed(why) = found {
            let message = class_secrets::not_read(&format!("Secret {key}"), why);
            let (status, reason) = (ConditionStatus::Unknown, class_secrets::NOT_READ);
            return condition(now, world, kinds::SECRETS_FOUND, status, reason, message);
        }
    }
    let (reason, message) = match world.secrets.len() {
        0 => ("NoSecretNamed", "the class refers to no secret".to_owned()),
        1 => ("SecretsExist", "the secret exists".to_owned()),
        count => ("SecretsExist", format!("all {count} secrets exist")),
    };
    condition(now, world, kinds::SECRETS_FOUND, ConditionStatus::True, reason, message)
}

fn provider_spec_valid(now: Timestamp, world: &World, problems: &[String]) -> Condition {
    let (status, reason, message) = if problems.is_empty() {
        (ConditionStatus::True, "Valid", "the driver can read the providerSpec".to_owned())
    } else {
        (ConditionStatus::False, "Invalid", problems.join("; "))
    };
    condition(now, world, kinds::PROVIDER_SPEC_VALID, status, reason, message)
}

fn in_use(now: Timestamp, world: &World) -> Condition {
    if let Some(text) = world.unreadable.as_ref().filter(|_| world.machines == 0) {
        let message = format!("{text}; until then it may name the class");
        return condition(now, world, kinds::IN_USE, ConditionStatus::Unknown, unreadable::MACHINE, message);
    }
    let (status, reason, message) = match (world.machines, world.class.is_deleting()) {
        (0, _) => (ConditionStatus::False, "NoMachines", "no machine names the class".to_owned()),
        (count, false) => (ConditionStatus::True, "Machines", format!("{count} machines name the class")),
        (count, true) => {
            let message = format!("{count} machines name the class, which is deleted once they are gone");
            (ConditionStatus::True, "KeptForMachines", message)
        }
    };
    condition(now, world, kinds::IN_USE, status, reason, message)
}

fn condition(
    now: Timestamp,
    world: &World,
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: String,
) -> Condition {
    let known = world.class.condition(kind).filter(|known| known.status == status);
    let since = known.and_then(|known| known.last_transition_time.clone());
    // Times on the wire have whole seconds; what is compared with them must have no more.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        condition_type: kind.to_owned(),
        status,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message: clip(message),
    }
}
