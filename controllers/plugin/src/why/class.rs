//! Why a class cannot be used, or is not gone.

use nodewright_api::{
    ConditionStatus, MachineClass, MachineClassCondition,
    conditions::machine_class::{IN_USE, PROVIDER_SPEC_VALID, SECRETS_FOUND},
};
use nodewright_runtime::object::name;

use super::{
    explanation::{Finding, Link},
    remedies,
};
use crate::{
    names::{Target, TargetKind},
    output::counted,
    snapshot::{Snapshot, event_time},
};

/// What is wrong with a class.
pub(crate) fn finding(snapshot: &Snapshot, class: &MachineClass) -> Finding {
    let subject = || Target::new(TargetKind::Class, name(class)).to_string();
    let secrets = class.secret_names().map(|(namespace, name)| format!("{namespace}/{name}")).collect::<Vec<_>>();
    let users = snapshot.machines.iter().filter(|machine| machine.class_name() == name(class)).count();
    let secrets = if secrets.is_empty() { "no Secret".to_owned() } else { format!("Secret {}", secrets.join(", ")) };
    let provider = if class.provider.is_empty() { "the provider of the manager" } else { &class.provider };
    let link = Link::new(
        "class",
        format!(
            "{secrets}; {provider}; {} {} it",
            counted(users, "machine"),
            if users == 1 { "names" } else { "name" }
        ),
    );
    let is_in_use = || class.condition(IN_USE).filter(|it| it.status != ConditionStatus::False);
    let found = wrong(class, SECRETS_FOUND)
        .or_else(|| wrong(class, PROVIDER_SPEC_VALID))
        .or_else(|| is_in_use().filter(|_| class.is_deleting()));
    let found = match found {
        Some(condition) => {
            let is_open = condition.status == ConditionStatus::Unknown || condition.condition_type == IN_USE;
            let new = if is_open { Finding::waiting } else { Finding::blocked };
            let found = new(subject(), &condition.reason, condition.message.clone());
            let changed = condition.last_transition_time.as_ref().map(|time| time.0);
            // That it is in use began before the deletion that waits for that.
            let deleted = class.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            let since = if condition.condition_type == IN_USE { deleted } else { changed };
            found.since(since).changed_by_all(remedies::of(&condition.reason))
        }
        None => match snapshot.warning("MachineClass", name(class)) {
            // With machine-controller-manager's CRD a class has no status.
            Some(event) if class.status.is_none() => {
                let reason = event.reason.as_deref().unwrap_or_default();
                let text = event.message.clone().unwrap_or_default();
                let found = Finding::blocked(subject(), reason, text).since(event_time(event));
                found.changed_by_all(remedies::of(reason))
            }
            _ if class.is_deleting() => {
                let begun = class.metadata.deletion_timestamp.as_ref().map(|time| time.0);
                Finding::waiting(subject(), "Deleting", "it is being deleted").since(begun)
            }
            _ if class.status.is_none() => Finding::done(subject(), "nothing is known to be wrong; it has no status"),
            _ => {
                // What the manager knows of them: the plugin reads no Secret.
                let secrets = class.condition(SECRETS_FOUND).map_or("its Secrets exist", |it| it.message.as_str());
                Finding::done(subject(), format!("{secrets}; the driver can read its providerSpec"))
            }
        },
    };
    found.below([link])
}

fn wrong<'a>(class: &'a MachineClass, kind: &str) -> Option<&'a MachineClassCondition> {
    class.condition(kind).filter(|condition| condition.status != ConditionStatus::True)
}
