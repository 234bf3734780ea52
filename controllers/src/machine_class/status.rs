//! The status of a class, if the schema has one.

use nodewright_api::{
    ConditionStatus, MachineClass, MachineClassStatus, conditions::machine_class as kinds, reasons::unreadable,
};
use nodewright_runtime::{cache::Lookup, object::is_deleting, plan::Context};

use super::{
    call::Validate,
    snapshot::{NamedSecret, Snapshot},
};
use crate::shared::{
    class_secrets,
    conditions::{Finding, condition},
    status_writer::{StatusWrite, Urgency, write_status},
};

const VALID: &str = "Valid";
const INVALID: &str = "Invalid";

/// The reason while the driver has not answered whether it can read the providerSpec.
pub(super) const VALIDATION_PENDING: &str = "ValidationPending";

pub(super) fn write(
    context: &Context<'_, Validate>,
    snapshot: &Snapshot,
    errors: Option<&[String]>,
    uninitialized: Option<Finding<'static>>,
) -> StatusWrite<Validate> {
    let class = snapshot.class.as_ref();
    let findings = [
        (kinds::SECRETS_FOUND, secrets_found(snapshot)),
        (kinds::PROVIDER_SPEC_VALID, provider_spec_valid(&snapshot.class, errors)),
        (kinds::IN_USE, in_use(snapshot)),
    ];
    let known = class.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let wanted = MachineClassStatus {
        observed_generation: class.metadata.generation.unwrap_or_default(),
        machines: i32::try_from(snapshot.machines).unwrap_or(i32::MAX),
        conditions: findings
            .into_iter()
            .chain(uninitialized.map(|finding| (kinds::NODES_INITIALIZED, finding)))
            .map(|(kind, finding)| condition(known, context.now, kind, finding))
            .collect(),
    };
    write_status(context, class, wanted, Urgency::Normal)
}

fn secrets_found(snapshot: &Snapshot) -> Finding<'static> {
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
    if snapshot.lacks_user_data() {
        return (ConditionStatus::False, class_secrets::USER_DATA_MISSING, class_secrets::without_user_data());
    }
    let (reason, message) = match snapshot.secrets.len() {
        0 => ("NoSecretNamed", "the class refers to no secret: its VMs get no user data".to_owned()),
        1 => ("SecretsExist", "the secret exists".to_owned()),
        count => ("SecretsExist", format!("all {count} secrets exist")),
    };
    (ConditionStatus::True, reason, message + &secrets_in_deletion(snapshot))
}

/// That somebody has deleted secrets of the class: its finalizer keeps them, and VMs get them until then.
fn secrets_in_deletion(snapshot: &Snapshot) -> String {
    let deleting =
        snapshot.secrets.iter().filter(|secret| matches!(&secret.found, Lookup::Found(it) if is_deleting(it.as_ref())));
    let deleting: Vec<_> = deleting.map(|secret| secret.key.to_string()).collect();
    match deleting.as_slice() {
        [] => String::new(),
        names => format!("; {} is being deleted, and kept while a class refers to it", names.join(", ")),
    }
}

fn provider_spec_valid(class: &MachineClass, errors: Option<&[String]>) -> Finding<'static> {
    match errors {
        Some([]) => (ConditionStatus::True, VALID, "the driver can read the providerSpec".to_owned()),
        Some(errors) => (ConditionStatus::False, INVALID, errors.join("; ")),
        None => earlier_validation(class).unwrap_or_else(|| {
            let message = "the driver has not answered whether it can read the providerSpec; it is asked again";
            (ConditionStatus::Unknown, VALIDATION_PENDING, message.to_owned())
        }),
    }
}

/// What the status says already of this generation of the class: a manager that starts has yet to ask.
fn earlier_validation(class: &MachineClass) -> Option<Finding<'static>> {
    let status = class.status.as_ref()?;
    let known = class.condition(kinds::PROVIDER_SPEC_VALID)?;
    let reason = [VALID, INVALID].into_iter().find(|reason| *reason == known.reason)?;
    let is_current = class.metadata.generation == Some(status.observed_generation);
    is_current.then(|| (known.status.clone(), reason, known.message.clone()))
}

fn in_use(snapshot: &Snapshot) -> Finding<'static> {
    if let Some(text) = snapshot.unreadable.as_ref().filter(|_| snapshot.machines == 0) {
        let message = format!("{text}; until then it may name the class");
        return (ConditionStatus::Unknown, unreadable::MACHINE, message);
    }
    let named = naming(snapshot.machines);
    match (snapshot.machines, snapshot.class.is_deleting()) {
        (0, _) => (ConditionStatus::False, "NoMachines", "no machine names the class".to_owned()),
        (_, false) => (ConditionStatus::True, "Machines", named),
        (_, true) => {
            let message = format!("{named}, which is deleted once they are gone");
            (ConditionStatus::True, "KeptForMachines", message)
        }
    }
}

/// How many Machines name the class, for people.
pub(super) fn naming(machines: usize) -> String {
    match machines {
        1 => "1 machine names the class".to_owned(),
        count => format!("{count} machines name the class"),
    }
}
