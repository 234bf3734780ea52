//! Why a machine does not run, or is not gone.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{
    Code, Machine, MachinePhase, OperationType,
    conditions::machine::{
        CONFIGURATION_VALID, DRAINED, HEALTH_TIMEOUT, INSTANCE_PROVISIONED, INSTANCE_TERMINATED, NODE_DELETED,
        NODE_READABLE, REMEDIATION_ALLOWED, VOLUMES_DETACHED, WAITING,
    },
    reasons,
    stored::{CREATION_ROUND, EFFECTIVE_CREATION_TIMEOUT, HealthDeadline},
};
use nodewright_runtime::object::{controller, created, name};

use super::{
    explanation::{Finding, Link},
    kept_by_others, node_state, remedies,
};
use crate::{
    names::{Target, TargetKind},
    output::State,
    snapshot::{Snapshot, event_time, node_name},
};

/// How long a machine may be unknown to its controller before that means something, in seconds.
const UNSEEN: i64 = 60;

pub(crate) fn subject(machine: &Machine) -> String {
    Target::new(TargetKind::Machine, name(machine)).to_string()
}

/// What keeps a machine from running or, if it is being deleted, from its end.
pub(crate) fn finding(snapshot: &Snapshot, machine: &Machine) -> Finding {
    let found = if machine.is_deleting() { terminating(machine) } else { living(snapshot, machine) };
    let found = named(found.also(without_set(snapshot, machine)), machine);
    let kept = preserved(machine).filter(|_| found.reason != reasons::machine::PRESERVED);
    let kept = kept.map(|text| Link::new("kept", text));
    let links = [Some(described(snapshot, machine)), node_link(snapshot, machine), kept];
    found.below(links.into_iter().flatten())
}

/// Until when a machine is preserved, and what ends that.
pub(crate) fn preserved(machine: &Machine) -> Option<String> {
    let until = machine.status.as_ref()?.current_status.preserve_expiry_time.as_ref()?.0;
    let text = format!("preserved until {until:.0}: kubectl nodewright release {} ends that", name(machine));
    Some(text).filter(|_| !machine.is_deleting())
}

/// Phase, VM and class in a line.
fn described(snapshot: &Snapshot, machine: &Machine) -> Link {
    let phase = match machine.phase() {
        MachinePhase::Unset => "without a phase",
        phase => phase.as_str(),
    };
    let vm = machine.provider_id().map_or("no VM yet".to_owned(), |id| format!("VM {id}"));
    let zone = snapshot.class_of(machine).and_then(|class| class.node_template.as_ref()).map(|it| it.zone.as_str());
    let zone = zone.filter(|zone| !zone.is_empty()).map(|zone| format!(" in zone {zone}")).unwrap_or_default();
    let text = format!("{} is {phase}; {vm}; class {}{zone}", subject(machine), machine.class_name());
    Link::new("machine", text).since(machine.phase_since())
}

fn node_link(snapshot: &Snapshot, machine: &Machine) -> Option<Link> {
    let node = snapshot.node_of(machine)?;
    let (text, since) = node_state::described(node);
    Some(Link::new("node", text).since(since))
}

fn without_set(snapshot: &Snapshot, machine: &Machine) -> Option<String> {
    if machine.is_deleting() || snapshot.set_of(machine).is_some() {
        return None;
    }
    Some(match controller(machine) {
        None => "it has no MachineSet, as its labels match no selector: nothing replaces it if it fails".to_owned(),
        Some(owner) => format!("its owner {} {} is gone, or in another namespace", owner.kind, owner.name),
    })
}

fn living(snapshot: &Snapshot, machine: &Machine) -> Finding {
    let questions = [
        configuration,
        provision,
        unreadable_node,
        replacement_held,
        health,
        failed,
        update_in_place,
        waiting,
        pending,
    ];
    let found = questions.into_iter().find_map(|question| question(snapshot, machine));
    found.unwrap_or_else(|| match machine.phase() {
        MachinePhase::Running | MachinePhase::Available => running(snapshot, machine),
        _ => unseen(snapshot, machine),
    })
}

fn is_false<'a>(machine: &'a Machine, kind: &str) -> Option<&'a NodeCondition> {
    machine.condition(kind).filter(|condition| condition.status == "False")
}

fn reason(condition: &NodeCondition) -> &str {
    condition.reason.as_deref().unwrap_or_default()
}

fn message(condition: &NodeCondition) -> &str {
    condition.message.as_deref().unwrap_or_default()
}

fn since(condition: &NodeCondition) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|time| time.0)
}

fn of_condition(state: State, machine: &Machine, condition: &NodeCondition, cause: String) -> Finding {
    let finding = match state {
        State::Waiting => Finding::waiting(subject(machine), reason(condition), cause),
        _ => Finding::blocked(subject(machine), reason(condition), cause),
    };
    finding.since(since(condition)).changed_by_all(remedies::of(reason(condition)))
}

/// Commands for this machine.
fn named(mut found: Finding, machine: &Machine) -> Finding {
    for change in &mut found.changes {
        *change = change.replace(" MACHINE:", &format!(" {}:", name(machine)));
    }
    found
}

fn configuration(_: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = is_false(machine, CONFIGURATION_VALID)?;
    Some(of_condition(State::Blocked, machine, condition, message(condition).to_owned()))
}

fn provision(_: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = is_false(machine, INSTANCE_PROVISIONED)?;
    let Some(code) = Code::from_name(reason(condition)) else {
        return Some(of_condition(State::Blocked, machine, condition, message(condition).to_owned()));
    };
    let cause = match code {
        Code::NotFound => message(condition).to_owned(),
        code => format!("no VM is made ({code}): {}", message(condition)),
    };
    let state = if is_passing(code) { State::Waiting } else { State::Blocked };
    Some(of_condition(state, machine, condition, cause))
}

/// Whether a retry alone may help.
fn is_passing(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Canceled | Code::NotFound)
}

fn unreadable_node(_: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = is_false(machine, NODE_READABLE)?;
    Some(of_condition(State::Blocked, machine, condition, message(condition).to_owned()))
}

fn replacement_held(snapshot: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = is_false(machine, REMEDIATION_ALLOWED)?;
    let brake = snapshot.set_of(machine).and_then(|set| {
        let event = snapshot.events.iter().rev().find(|event| {
            event.reason.as_deref() == Some(reasons::machine_set::FLEET_BRAKE)
                && event.involved_object.name.as_deref() == Some(name(set))
        });
        event.and_then(event_time)
    });
    let finding = of_condition(State::Blocked, machine, condition, message(condition).to_owned());
    Some(finding.also(brake.map(|at| format!("the event FleetBrake of its set is of {at:.0}"))))
}

fn health(snapshot: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = machine.condition(HEALTH_TIMEOUT)?;
    let why = node_state::unhealthy(snapshot, machine).unwrap_or_else(|| operation(machine).to_owned());
    let text = match HealthDeadline::of(condition) {
        Some(deadline) => format!("{why}; it fails at {:.0}, and is replaced then", deadline.at),
        None => format!("{why}; {}", message(condition)),
    };
    let mut found = of_condition(State::Waiting, machine, condition, text);
    found.since = machine.phase_since().or(found.since);
    Some(found)
}

fn failed(snapshot: &Snapshot, machine: &Machine) -> Option<Finding> {
    if *machine.phase() != MachinePhase::Failed {
        return None;
    }
    let kept = machine.condition(WAITING).filter(|it| reason(it) == reasons::machine::PRESERVED);
    if let Some(kept) = kept {
        let text = format!("{}: {}", operation(machine), message(kept));
        return Some(of_condition(State::Waiting, machine, kept, text).since(machine.phase_since()));
    }
    let set = snapshot.set_of(machine);
    let never_joined =
        machine.status.as_ref().is_some_and(|it| it.last_operation.operation_type == OperationType::Create);
    let round = set.and_then(|set| CREATION_ROUND.of(set)).filter(|_| never_joined);
    let finding = match (set, round) {
        (Some(_), Some(round)) => {
            let times = round.rounds.saturating_add(1);
            let operation = operation(machine);
            let text = format!("{operation}; its replacement waits, as machines did not join {times} times in a row");
            let of = reasons::machine_set::CREATION_BACKOFF;
            Finding::blocked(subject(machine), of, text).changed_by_all(remedies::of(of))
        }
        (Some(_), None) => {
            let text = format!("{}; its set deletes and replaces it", operation(machine));
            Finding::waiting(subject(machine), "Failed", text).changed_by_all(remedies::of("Failed"))
        }
        (None, _) => {
            let text = format!("{}; it has no set that would replace it: delete it", operation(machine));
            Finding::blocked(subject(machine), "Failed", text)
        }
    };
    Some(finding.since(machine.phase_since()))
}

fn update_in_place(_: &Snapshot, machine: &Machine) -> Option<Finding> {
    let since = machine.phase_since();
    let found = match machine.phase() {
        MachinePhase::InPlaceUpdateFailed => {
            Finding::blocked(subject(machine), reasons::machine::IN_PLACE_UPDATE_FAILED, operation(machine))
        }
        MachinePhase::InPlaceUpdating => {
            let text = "its node is drained, and the program on the node has yet to answer by the label \
                node.machine.sapcloud.io/update-result";
            let message = machine.condition(WAITING).map_or(text, message);
            Finding::waiting(subject(machine), reasons::machine::IN_PLACE_UPDATING, message)
        }
        _ => return None,
    };
    let changes = remedies::of(&found.reason);
    Some(found.since(since).changed_by_all(changes))
}

fn waiting(snapshot: &Snapshot, machine: &Machine) -> Option<Finding> {
    let condition = machine.condition(WAITING).filter(|it| it.status == "True")?;
    if reason(condition) == "Joining" {
        return Some(joining(snapshot, machine, Some(condition)));
    }
    Some(of_condition(State::Waiting, machine, condition, message(condition).to_owned()))
}

fn pending(snapshot: &Snapshot, machine: &Machine) -> Option<Finding> {
    let is_pending = *machine.phase() == MachinePhase::Pending;
    is_pending.then(|| joining(snapshot, machine, machine.condition(WAITING)))
}

/// The VM runs, and its kubelet has yet to join.
fn joining(snapshot: &Snapshot, machine: &Machine, condition: Option<&NodeCondition>) -> Finding {
    let end = deadline(machine).map(|at| format!("; without a healthy node it fails at {at:.0}")).unwrap_or_default();
    let why = if snapshot.node_of(machine).is_some() {
        node_state::unhealthy(snapshot, machine).unwrap_or_else(|| "its node is about to be ready".to_owned())
    } else {
        let named = node_name(machine).map(|name| format!(" as node {name}")).unwrap_or_default();
        let id = machine.provider_id().unwrap_or_default();
        format!("its VM exists, and its kubelet has not joined{named}: no node has the provider ID {id}")
    };
    let found = Finding::waiting(subject(machine), "Joining", format!("{why}{end}"));
    let reported = condition.and_then(since).filter(|_| machine.phase_since().is_none());
    found.since(machine.phase_since().or(reported)).changed_by_all(remedies::of("Joining"))
}

/// When a machine that does not join fails, if its own object has the timeout.
fn deadline(machine: &Machine) -> Option<Timestamp> {
    let own = EFFECTIVE_CREATION_TIMEOUT.of(machine).or(machine.spec.creation_timeout)?;
    created(machine)?.checked_add(own.to_signed()).ok()
}

fn running(snapshot: &Snapshot, machine: &Machine) -> Finding {
    if snapshot.nodes.is_empty() {
        return Finding::done(subject(machine), "it runs");
    }
    if let Some(why) = node_state::unhealthy(snapshot, machine) {
        let text = format!("{why}; it becomes Unknown if that lasts for ten seconds");
        return Finding::waiting(subject(machine), "Unhealthy", text);
    }
    let named = node_name(machine).map(|name| format!(" {name}")).unwrap_or_default();
    Finding::done(subject(machine), format!("it runs, and its node{named} is ready"))
}

/// A machine of which no condition says anything.
fn unseen(snapshot: &Snapshot, machine: &Machine) -> Finding {
    let created = created(machine);
    let warning = snapshot.warning("Machine", name(machine));
    if let Some(event) = warning {
        let text = event.message.as_deref().unwrap_or_default();
        let reason = event.reason.as_deref().unwrap_or_default();
        let found = Finding::blocked(subject(machine), reason, text).since(event_time(event));
        return found.changed_by_all(remedies::of(reason));
    }
    let is_old = created.is_some_and(|created| snapshot.now.duration_since(created).as_secs() >= UNSEEN);
    match operation(machine) {
        "" if is_old => {
            let text = "no manager has seen it: the controller of machines does not run for this namespace, or may not \
                write its status";
            Finding::blocked(subject(machine), "NotSeen", text).since(created).changed_by_all(remedies::of("NotSeen"))
        }
        "" => {
            let text = "no status was written yet: the call of the driver that makes its VM may be under way";
            let found = Finding::waiting(subject(machine), "NoStatus", text).since(created);
            found.changed_by("the driver's timeout of a call: for AWS --request-timeout of the driver, of each request")
        }
        said => {
            let text = said.to_owned();
            Finding::waiting(subject(machine), machine.phase().as_str(), text).since(machine.phase_since().or(created))
        }
    }
}

fn operation(machine: &Machine) -> &str {
    machine.status.as_ref().map_or("", |status| status.last_operation.description.as_str())
}

/// The stages of a deletion in their order, and how one that lasts is described.
const STAGES: [(&str, &str); 4] = [
    (DRAINED, "its node is not drained"),
    (VOLUMES_DETACHED, "volumes are attached to its node"),
    (INSTANCE_TERMINATED, "its VM is not gone"),
    (NODE_DELETED, "its Node object is not gone"),
];
/// Reasons of stages that end by themselves, or with the turn of others.
const PASSING: [&str; 6] =
    ["PodsLeft", "Attached", "Removing", "Confirming", "CallingProvider", "AwaitingDisruptionBudget"];

fn terminating(machine: &Machine) -> Finding {
    let begun = machine.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let text = "VM and node are gone, and finalizers of others keep the Machine";
    if let Some(found) = kept_by_others(machine, subject(machine), text) {
        return found;
    }
    if let Some((condition, what)) = STAGES.into_iter().find_map(|(kind, what)| Some((is_false(machine, kind)?, what)))
    {
        let state = if PASSING.contains(&reason(condition)) { State::Waiting } else { State::Blocked };
        let text = format!("{what}: {}", message(condition));
        let mut found = of_condition(state, machine, condition, text);
        if Code::from_name(reason(condition)).is_some() {
            // A class cannot be corrected for a VM that exists.
            found.changes = remedies::of("FailedTermination");
        }
        return found;
    }
    if let Some(condition) = is_false(machine, CONFIGURATION_VALID) {
        return of_condition(State::Blocked, machine, condition, message(condition).to_owned());
    }
    if let Some(condition) = machine.condition(WAITING).filter(|it| it.status == "True") {
        return of_condition(State::Waiting, machine, condition, message(condition).to_owned());
    }
    let text = match operation(machine) {
        "" => "it is being deleted",
        said => said,
    };
    Finding::waiting(subject(machine), "Terminating", format!("it is being deleted: {text}")).since(begun)
}
