//! The status of a MachineSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, Machine, MachineSet, MachineSetCondition, MachineSetStatus,
    conditions::machine_set as kinds,
    reasons::{self, unreadable},
    selector,
    stored::LEDGER,
};
use nodewright_runtime::{
    clip::clip,
    object::is_deleting,
    plan::{Failure, FailureClass, StepVerb},
};

use super::{
    Snapshot,
    ceiling::{ceiling, lacking},
    memory::{Context, Note, StatusWrite},
    overshoot::frozen_text,
    retired,
};
use crate::shared::{
    availability::{Availability, is_ready},
    creation_backoff,
    fleet::{FleetSettings, PlanSettings},
    preservation::{is_auto_preserved, is_preserved_failed},
    status_writer::{FailedMachines, Health, Urgency, count, unknown, write_status},
};

pub(super) fn write(context: &Context<'_>, snapshot: &Snapshot) -> StatusWrite {
    let set = snapshot.set.as_ref();
    let wanted = status(context, snapshot);
    let is_settled = wanted.replicas == set.spec.replicas && wanted.available_replicas == wanted.replicas;
    let before = health(&set.status.clone().unwrap_or_default());
    let urgency = if is_settled || wanted.replicas == 0 {
        Urgency::Now
    } else if health(&wanted).is_dip(before, unknown(snapshot.machines.iter().map(AsRef::as_ref))) {
        Urgency::MayPass(Note::Unhealthy)
    } else {
        Urgency::Normal
    };
    write_status(context, set, wanted, urgency)
}

fn status(context: &Context<'_>, snapshot: &Snapshot) -> MachineSetStatus {
    let PlanSettings { fleet, full_schema } = &snapshot.settings;
    let set = snapshot.set.as_ref();
    let before = set.status.clone().unwrap_or_default();
    let machines = || snapshot.machines.iter().map(AsRef::as_ref);
    let live = || machines().filter(|machine| !is_deleting(*machine));
    let rule = Availability::new(context.now, set.spec.min_ready_seconds, fleet);
    // Preserved ones are not replaced: Gardener waits until no machine is listed as failed.
    let failed = FailedMachines::of(live().filter(|it| !is_preserved_failed(it)).map(|machine| (machine, set)));
    MachineSetStatus {
        replicas: count(machines()),
        fully_labeled_replicas: count(machines().filter(|machine| is_fully_labelled(set, machine))),
        ready_replicas: count(live().filter(|machine| is_ready(machine))),
        available_replicas: count(live().filter(|machine| rule.is_available(machine))),
        observed_generation: set.metadata.generation.unwrap_or_default(),
        preserved_failed_replicas: count(live().filter(|machine| is_preserved_failed(machine))),
        auto_preserve_failed_machine_count: count(live().filter(|machine| is_auto_preserved(machine))),
        conditions: conditions(context, snapshot, &before, &failed, fleet),
        failed_machines: failed.listed,
        selector: if *full_schema { selector::to_text(set.spec.selector.as_ref()) } else { String::new() },
        ..before
    }
}

fn health(status: &MachineSetStatus) -> Health {
    Health {
        generation: status.observed_generation,
        replicas: status.replicas,
        updated: status.fully_labeled_replicas,
        ready: status.ready_replicas,
        available: status.available_replicas,
    }
}

fn is_fully_labelled(set: &MachineSet, machine: &Machine) -> bool {
    let wanted = set.spec.template.metadata.labels.iter().flatten();
    let labels = machine.metadata.labels.as_ref();
    wanted.into_iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

pub(super) fn invalid_ledger_text(set: &MachineSet) -> Option<String> {
    let key = LEDGER.key;
    let error = match LEDGER.read(set)? {
        Err(error) => error.to_string(),
        Ok(ledger) if ledger.is_used_up() && !is_deleting(set) => {
            format!("`{ledger}` retires all ordinals, so that no name is left for a machine")
        }
        Ok(_) => return None,
    };
    Some(format!(
        "annotation {key}: {error}; until it is restored no machine of the set is created or deleted: restore it, or \
         delete the machines of the set and remove the annotation"
    ))
}

pub(super) fn unreadable_text(snapshot: &Snapshot) -> Option<String> {
    let all: Vec<_> = snapshot.unreadable_members().collect();
    let text = all.first()?.describe::<Machine>();
    let more = if all.len() > 1 { format!(" (and {} more)", all.len() - 1) } else { String::new() };
    Some(format!("{text}{more}; until then it counts as one of the set's, and is neither replaced nor deleted"))
}

/// Ours are True while they are there. The condition of a freeze stays as long as the label. Conditions of other types stay as
/// they are.
fn conditions(
    context: &Context<'_>,
    snapshot: &Snapshot,
    before: &MachineSetStatus,
    failed: &FailedMachines,
    settings: &FleetSettings,
) -> Vec<MachineSetCondition> {
    let ours = [kinds::REPLICA_FAILURE, kinds::FAILED_MACHINES_TRUNCATED];
    let stays = |condition: &&MachineSetCondition| match condition.condition_type.as_str() {
        kinds::FROZEN => snapshot.set.is_frozen(),
        kind => !ours.contains(&kind),
    };
    let mut all: Vec<_> = before.conditions.iter().filter(stays).cloned().collect();
    let is_unreported = snapshot.set.is_frozen() && all.iter().all(|known| known.condition_type != kinds::FROZEN);
    let holds = |kind: &str, reason: &str, message: String| {
        let since = snapshot.set.condition(kind).and_then(|known| known.last_transition_time.clone());
        MachineSetCondition {
            condition_type: kind.to_owned(),
            status: ConditionStatus::True,
            last_transition_time: since.or(Some(Time(context.now))),
            reason: reason.to_owned(),
            message: clip(message),
        }
    };
    all.extend(is_unreported.then(|| {
        let text = frozen_text(snapshot, &settings.overshoot);
        holds(kinds::FROZEN, reasons::machine_set::OVERSHOOTING_REPLICA_COUNT, text)
    }));
    all.extend(failed.truncation().map(|text| holds(kinds::FAILED_MACHINES_TRUNCATED, "TooManyToList", text)));
    all.extend(
        replica_failure(context, snapshot, settings).map(|(reason, text)| holds(kinds::REPLICA_FAILURE, reason, text)),
    );
    all
}

/// Why the set has not the Machines that it should have: reason and message.
fn replica_failure(
    context: &Context<'_>,
    snapshot: &Snapshot,
    settings: &FleetSettings,
) -> Option<(&'static str, String)> {
    if let Some(text) = invalid_ledger_text(&snapshot.set) {
        return Some((unreadable::LEDGER, text));
    }
    if let Some(failure) = context.failure.filter(|failure| is_lasting(failure, context.attempt)) {
        return Some((refusal_reason(failure), failure.to_string()));
    }
    if let Some(text) = retired::report(context, snapshot, settings) {
        return Some((unreadable::LEDGER, text));
    }
    if let Some(text) = unreadable_text(snapshot) {
        return Some((unreadable::MACHINE, text));
    }
    let ceiling = ceiling(snapshot, settings, lacking(&snapshot.set, snapshot));
    let machines = snapshot.machines.iter().map(AsRef::as_ref);
    let backoff = || creation_backoff::report(&snapshot.set, machines, context.now);
    let backoff = || backoff().map(|text| (reasons::machine_set::CREATION_BACKOFF, text));
    ceiling.map(|ceiling| (ceiling.reason, ceiling.text)).or_else(backoff)
}

/// How many runs have to fail in a row before a failure that may pass by itself counts as a refusal.
const IN_A_ROW: u32 = 3;

/// Whether a refusal is worth a condition: at once if a retry does not help, else when several retries have not.
fn is_lasting(failure: &Failure, attempt: u32) -> bool {
    match failure.class {
        FailureClass::Invalid | FailureClass::Forbidden => true,
        FailureClass::TooManyRequests | FailureClass::Unknown => failure.is_of::<Machine>() && attempt >= IN_A_ROW,
        // Another writer was faster, or nothing can be written, nor could the condition.
        FailureClass::Conflict
        | FailureClass::AlreadyExists
        | FailureClass::Unreachable
        | FailureClass::Unauthorized
        | FailureClass::Expired => false,
    }
}

fn refusal_reason(failure: &Failure) -> &'static str {
    match failure.verb {
        StepVerb::Delete => reasons::machine_set::FAILED_DELETE,
        StepVerb::Create => reasons::machine_set::FAILED_CREATE,
        _ => reasons::machine_set::FAILED_UPDATE,
    }
}
