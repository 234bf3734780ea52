//! What a MachineSet says of itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodewright_api::{
    ConditionStatus, Machine, MachinePhase, MachineSet, MachineSetCondition, MachineSetStatus, MachineSummary,
    OperationState, conditions, reasons, selector,
};
use nodewright_runtime::{
    effect::Never,
    object::{is_deleting, name},
    plan::{FailureClass, Moment},
};

use super::{World, owned::StatusPart};

pub(super) fn status(at: &Moment<'_, Never>, world: &World, full_schema: bool) -> StatusPart {
    let set = world.set.as_ref();
    let before = set.status.clone().unwrap_or_default();
    let machines = || world.machines.iter().map(AsRef::as_ref);
    let live = || machines().filter(|machine| !is_deleting(*machine));
    let status = MachineSetStatus {
        replicas: count(machines()),
        fully_labeled_replicas: count(machines().filter(|machine| is_fully_labelled(set, machine))),
        ready_replicas: count(live().filter(|machine| *machine.phase() == MachinePhase::Running)),
        available_replicas: count(live().filter(|machine| is_available(machine))),
        observed_generation: set.metadata.generation.unwrap_or_default(),
        conditions: conditions(at, &before),
        failed_machines: live().filter_map(|machine| failed(set, machine)).collect(),
        selector: if full_schema { selector::to_text(set.spec.selector.as_ref()) } else { String::new() },
        ..before
    };
    StatusPart { status }
}

fn count<'a>(machines: impl Iterator<Item = &'a Machine>) -> i32 {
    i32::try_from(machines.count()).unwrap_or(i32::MAX)
}

fn is_available(machine: &Machine) -> bool {
    matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available)
}

fn is_fully_labelled(set: &MachineSet, machine: &Machine) -> bool {
    let wanted = set.spec.template.metadata.labels.iter().flatten();
    let labels = machine.metadata.labels.as_ref();
    wanted.into_iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn failed(set: &MachineSet, machine: &Machine) -> Option<MachineSummary> {
    let operation = &machine.status.as_ref()?.last_operation;
    (operation.state == OperationState::Failed).then(|| MachineSummary {
        name: name(machine).to_owned(),
        provider_id: machine.spec.provider_id.clone(),
        last_operation: operation.clone(),
        owner_ref: name(set).to_owned(),
    })
}

/// `ReplicaFailure` stands while the API server refuses what the set asks for; the rest is kept as it is.
fn conditions(at: &Moment<'_, Never>, before: &MachineSetStatus) -> Vec<MachineSetCondition> {
    let kept = before
        .conditions
        .iter()
        .filter(|condition| condition.condition_type != conditions::machine_set::REPLICA_FAILURE);
    let mut all: Vec<_> = kept.cloned().collect();
    let refused = at.failure.filter(|failure| matches!(failure.class, FailureClass::Invalid | FailureClass::Forbidden));
    if let Some(failure) = refused {
        let known = before
            .conditions
            .iter()
            .find(|condition| condition.condition_type == conditions::machine_set::REPLICA_FAILURE);
        let reason = if failure.step.starts_with("delete") {
            reasons::machine_set::FAILED_DELETE
        } else {
            reasons::machine_set::FAILED_CREATE
        };
        all.push(MachineSetCondition {
            condition_type: conditions::machine_set::REPLICA_FAILURE.to_owned(),
            status: ConditionStatus::True,
            last_transition_time: known.and_then(|known| known.last_transition_time.clone()).or(Some(Time(at.now))),
            reason: reason.to_owned(),
            message: failure.to_string(),
        });
    }
    all
}
