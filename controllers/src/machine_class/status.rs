//! The status of a class, if the schema has one.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, MachineClass, MachineClassCondition as Condition, MachineClassStatus,
    conditions::machine_class as kinds, reasons::unreadable,
};
use nodewright_runtime::{cache::Lookup, clip::clip, effect::Never, plan::Context};

use super::{NamedSecret, Snapshot};
use crate::shared::{
    class_secrets,
    status_writer::{StatusWrite, write_status},
};

/// Status, reason and message of a condition.
type Finding = (ConditionStatus, &'static str, String);

pub(super) fn write(context: &Context<'_, Never>, snapshot: &Snapshot, problems: &[String]) -> StatusWrite<Never> {
    let class = snapshot.class.as_ref();
    let findings = [
        (kinds::SECRETS_FOUND, secrets_found(snapshot)),
        (kinds::PROVIDER_SPEC_VALID, provider_spec_valid(problems)),
        (kinds::IN_USE, in_use(snapshot)),
    ];
    let wanted = MachineClassStatus {
        observed_generation: class.metadata.generation.unwrap_or_default(),
        machines: i32::try_from(snapshot.machines).unwrap_or(i32::MAX),
        conditions: findings.map(|(kind, finding)| condition(class, context.now, kind, finding)).into(),
    };
    write_status(context, class, wanted, false)
}

fn secrets_found(snapshot: &Snapshot) -> Finding {
    let missing = snapshot.secrets.iter().filter(|secret| matches!(secret.found, Lookup::Missing));
    let missing: Vec<_> = missing.map(|secret| secret.key.to_string()).collect();
    if !missing.is_empty() {
        let message =
            format!("create the secret, of type Opaque, or correct the reference: {} not found", missing.join(", "));
        return (ConditionStatus::False, class_secrets::NOT_FOUND, message);
    }
    for NamedSecret { key, found, .. } in &snapshot.secrets {
        if let Lookup::Failed(why) = found {
            let message = class_secrets::not_read(&format!("Secret {key}"), why);
            return (ConditionStatus::Unknown, class_secrets::NOT_READ, message);
        }
    }
    let (reason, message) = match snapshot.secrets.len() {
        0 => ("NoSecretNamed", "the class refers to no secret".to_owned()),
        1 => ("SecretsExist", "the secret exists".to_owned()),
        count => ("SecretsExist", format!("all {count} secrets exist")),
    };
    (ConditionStatus::True, reason, message)
}

fn provider_spec_valid(problems: &[String]) -> Finding {
    if problems.is_empty() {
        return (ConditionStatus::True, "Valid", "the driver can read the providerSpec".to_owned());
    }
    (ConditionStatus::False, "Invalid", problems.join("; "))
}

fn in_use(snapshot: &Snapshot) -> Finding {
    if let Some(text) = snapshot.unreadable.as_ref().filter(|_| snapshot.machines == 0) {
        let message = format!("{text}; until then it may name the class");
        return (ConditionStatus::Unknown, unreadable::MACHINE, message);
    }
    match (snapshot.machines, snapshot.class.is_deleting()) {
        (0, _) => (ConditionStatus::False, "NoMachines", "no machine names the class".to_owned()),
        (count, false) => (ConditionStatus::True, "Machines", format!("{count} machines name the class")),
        (count, true) => {
            let message = format!("{count} machines name the class, which is deleted once they are gone");
            (ConditionStatus::True, "KeptForMachines", message)
        }
    }
}

fn condition(class: &MachineClass, now: Timestamp, kind: &str, (status, reason, message): Finding) -> Condition {
    let known = class.condition(kind).filter(|known| known.status == status);
    let since = known.and_then(|known| known.last_transition_time.clone());
    // Times on the wire have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        condition_type: kind.to_owned(),
        status,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        reason: reason.to_owned(),
        message: clip(message),
    }
}
