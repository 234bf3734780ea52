//! The status of a MachineSet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, Machine, MachinePhase, MachineSet, MachineSetCondition, MachineSetStatus, annotations,
    conditions::machine_set as kinds,
    reasons::{self, unreadable},
    selector,
};
use nodewright_runtime::{
    clip::clip,
    effect::Never,
    object::{annotation, is_deleting},
    plan::{Context, FailureClass, StepVerb},
};

use super::Snapshot;
use crate::shared::{
    ledger::Ledger,
    status_writer::{FailedMachines, StatusWrite, count, write_status},
};

pub(super) fn write(context: &Context<'_, Never>, snapshot: &Snapshot, full_schema: bool) -> StatusWrite<Never> {
    let set = snapshot.set.as_ref();
    let wanted = status(context, snapshot, full_schema);
    let is_settled = wanted.replicas == set.spec.replicas && wanted.available_replicas == wanted.replicas;
    let is_urgent = is_settled || wanted.replicas == 0;
    write_status(context, set, wanted, is_urgent)
}

fn status(context: &Context<'_, Never>, snapshot: &Snapshot, full_schema: bool) -> MachineSetStatus {
    let set = snapshot.set.as_ref();
    let before = set.status.clone().unwrap_or_default();
    let machines = || snapshot.machines.iter().map(AsRef::as_ref);
    let live = || machines().filter(|machine| !is_deleting(*machine));
    let failed = FailedMachines::of(live().map(|machine| (machine, set)));
    MachineSetStatus {
        replicas: count(machines()),
        fully_labeled_replicas: count(machines().filter(|machine| is_fully_labelled(set, machine))),
        ready_replicas: count(live().filter(|machine| *machine.phase() == MachinePhase::Running)),
        available_replicas: count(live().filter(|machine| is_available(machine))),
        observed_generation: set.metadata.generation.unwrap_or_default(),
        conditions: conditions(context, snapshot, &before, &failed),
        failed_machines: failed.listed,
        selector: if full_schema { selector::to_text(set.spec.selector.as_ref()) } else { String::new() },
        ..before
    }
}

fn is_available(machine: &Machine) -> bool {
    matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available)
}

fn is_fully_labelled(set: &MachineSet, machine: &Machine) -> bool {
    let wanted = set.spec.template.metadata.labels.iter().flatten();
    let labels = machine.metadata.labels.as_ref();
    wanted.into_iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

pub(super) fn invalid_ledger_text(set: &MachineSet) -> Option<String> {
    let key = annotations::LEDGER;
    let error = annotation(set, key)?.parse::<Ledger>().err()?;
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
    context: &Context<'_, Never>,
    snapshot: &Snapshot,
    before: &MachineSetStatus,
    failed: &FailedMachines,
) -> Vec<MachineSetCondition> {
    let ours = [kinds::REPLICA_FAILURE, kinds::FAILED_MACHINES_TRUNCATED];
    let stays = |condition: &&MachineSetCondition| match condition.condition_type.as_str() {
        kinds::FROZEN => snapshot.set.is_frozen(),
        kind => !ours.contains(&kind),
    };
    let mut all: Vec<_> = before.conditions.iter().filter(stays).cloned().collect();
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
    all.extend(failed.truncation().map(|text| holds(kinds::FAILED_MACHINES_TRUNCATED, "TooManyToList", text)));
    let refused =
        context.failure.filter(|failure| matches!(failure.class, FailureClass::Invalid | FailureClass::Forbidden));
    if let Some(text) = invalid_ledger_text(&snapshot.set) {
        all.push(holds(kinds::REPLICA_FAILURE, unreadable::LEDGER, text));
    } else if let Some(failure) = refused {
        let reason = if failure.verb == StepVerb::Delete {
            reasons::machine_set::FAILED_DELETE
        } else {
            reasons::machine_set::FAILED_CREATE
        };
        all.push(holds(kinds::REPLICA_FAILURE, reason, failure.to_string()));
    } else if let Some(text) = unreadable_text(snapshot) {
        all.push(holds(kinds::REPLICA_FAILURE, unreadable::MACHINE, text));
    }
    all
}
