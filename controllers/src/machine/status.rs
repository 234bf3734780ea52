//! A Machine's status: one writer, all fields each time.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use nodewright_api::{
    Machine, MachinePhase, MachineStatus, OperationState, OperationType, conditions,
    stored::{ConditionText, HealthDeadline},
};
use nodewright_driver::Instance;
use nodewright_runtime::{clip::clip, plan::Step};

use super::calls::Call;
use crate::shared::{CONTROL, node::Node, status_writer::StatusPart};

/// The most conditions that are copied from a Node. A kubelet can write any number.
const COPIED: usize = 64;

/// A status to be written. A time moves only with the field that it dates, so writing the same again writes nothing. The status
/// is copied with the first change: most plans find none.
#[derive(Clone, Debug)]
pub(super) struct StatusDraft<'a> {
    pub(super) machine: &'a Machine,
    now: Time,
    status: Cow<'a, MachineStatus>,
}

impl<'a> StatusDraft<'a> {
    pub(super) fn of(machine: &'a Machine, now: Timestamp) -> Self {
        // As an API server stores it. With fractions of a second its answer would differ from what was sent.
        let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
        let status = machine.status.as_ref().map_or_else(|| Cow::Owned(MachineStatus::default()), Cow::Borrowed);
        Self { machine, now, status }
    }

    /// Sets the phase. `lastUpdateTime` is the start of the health timeout: it moves only when the phase does.
    pub(super) fn phase(mut self, phase: MachinePhase) -> Self {
        if self.status.current_status.phase == phase {
            return self;
        }
        let current = &mut self.status.to_mut().current_status;
        current.phase = phase;
        current.last_update_time = Some(self.now.clone());
        self.without(conditions::machine::WAITING)
    }

    pub(super) fn timeout_active(mut self, active: bool) -> Self {
        if self.status.current_status.timeout_active != active {
            self.status.to_mut().current_status.timeout_active = active;
        }
        if active { self } else { self.without(conditions::machine::HEALTH_TIMEOUT) }
    }

    pub(super) fn preserved_until(mut self, until: Timestamp) -> Self {
        self.status.to_mut().current_status.preserve_expiry_time = Some(Time(until));
        self
    }

    pub(super) fn not_preserved(mut self) -> Self {
        if self.status.current_status.preserve_expiry_time.is_some() {
            self.status.to_mut().current_status.preserve_expiry_time = None;
        }
        self
    }

    pub(super) fn operation(
        mut self,
        kind: OperationType,
        state: OperationState,
        description: impl Into<String>,
        error_code: Option<&str>,
    ) -> Self {
        let (description, error_code) = (clip(description), error_code.unwrap_or_default());
        let known = &self.status.last_operation;
        if (&known.operation_type, &known.state) == (&kind, &state)
            && (known.description.as_str(), known.error_code.as_str()) == (description.as_str(), error_code)
        {
            return self;
        }
        let operation = &mut self.status.to_mut().last_operation;
        operation.operation_type = kind;
        operation.state = state;
        operation.description = description;
        error_code.clone_into(&mut operation.error_code);
        operation.last_update_time = Some(self.now.clone());
        self.without(conditions::machine::WAITING)
    }

    pub(super) fn last_known_state(mut self, state: Option<&String>) -> Self {
        if let Some(state) = state.filter(|state| **state != self.status.last_known_state) {
            self.status.to_mut().last_known_state.clone_from(state);
        }
        self
    }

    /// Keeps the addresses of the VM and its name, each once and in order. Only for Machines without a Node, which has them.
    pub(super) fn addresses(mut self, instance: &Instance) -> Self {
        let hostname = NodeAddress { address: instance.node_name.clone(), type_: "Hostname".to_owned() };
        let mut all: Vec<_> = instance.addresses.iter().take(COPIED).cloned().collect();
        all.extend(Some(hostname).filter(|hostname| !hostname.address.is_empty()));
        all.sort_by(|a, b| (&a.type_, &a.address).cmp(&(&b.type_, &b.address)));
        all.dedup();
        if !all.is_empty() && all != self.status.addresses {
            self.status.to_mut().addresses = all;
        }
        self
    }

    /// Copies the Node's conditions; the Machine's own stay. A heartbeat alone changes nothing.
    pub(super) fn node_conditions(mut self, node: Option<&Node>) -> Self {
        let Some(node) = node else { return self };
        let theirs = || node.conditions().iter().filter(|condition| !is_own(condition)).take(COPIED);
        let before = &self.status.conditions;
        let mut known = before.iter();
        if theirs().all(|condition| known.next().is_some_and(|known| is_same(known, condition))) && known.all(is_own) {
            return self;
        }
        let copied = theirs().map(|condition| {
            let mut copy = condition.clone();
            for text in [&mut copy.reason, &mut copy.message] {
                *text = text.take().map(clip);
            }
            before.iter().find(|known| is_same(known, &copy)).cloned().unwrap_or(copy)
        });
        let mut all: Vec<_> = copied.collect();
        all.extend(before.iter().filter(|condition| is_own(condition)).cloned());
        self.status.to_mut().conditions = all;
        self
    }

    pub(super) fn condition(mut self, kind: &str, status: bool, reason: &str, message: impl Into<String>) -> Self {
        let status = if status { "True" } else { "False" };
        let message = clip(message);
        let position = self.status.conditions.iter().position(|condition| condition.type_ == kind);
        let known = position.map(|position| &self.status.conditions[position]).filter(|known| known.status == status);
        let is_known = |known: &NodeCondition| {
            known.reason.as_deref() == Some(reason)
                && known.message.as_deref() == Some(message.as_str())
                && known.last_transition_time.is_some()
                && known.last_heartbeat_time.is_none()
        };
        if known.is_some_and(is_known) {
            return self;
        }
        let since = known.and_then(|known| known.last_transition_time.clone());
        let condition = NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or_else(|| self.now.clone())),
            last_heartbeat_time: None,
        };
        let conditions = &mut self.status.to_mut().conditions;
        match position {
            Some(position) => conditions[position] = condition,
            None => conditions.push(condition),
        }
        self
    }

    /// A condition with a fact that later plans read.
    pub(super) fn fact(self, fact: ConditionText) -> Self {
        self.condition(fact.kind, fact.status, fact.reason, fact.message)
    }

    pub(super) fn not_held(self) -> Self {
        self.without(conditions::machine::REMEDIATION_ALLOWED)
    }

    pub(super) fn without(mut self, kind: &str) -> Self {
        if self.status.conditions.iter().any(|condition| condition.type_ == kind) {
            self.status.to_mut().conditions.retain(|condition| condition.type_ != kind);
        }
        self
    }

    /// The write; `None` without a change, and when nothing would be left: the API server takes an empty status for `null`, and
    /// refuses it.
    pub(super) fn step(self) -> Option<Step<Call>> {
        let Cow::Owned(status) = self.status else { return None };
        if status == MachineStatus::default() {
            return None;
        }
        Step::apply(CONTROL, self.machine, StatusPart::<Machine> { status })
    }
}

impl StatusDraft<'_> {
    /// The write, unless only texts have changed and this process has reported its own already. Another manager without leader election
    /// gets answers of its own from the provider, with other texts, and the two would overwrite each other without end.
    pub(super) fn step_unless_reported(self, is_reported: bool) -> Option<Step<Call>> {
        let differs = |known: &MachineStatus| headlines(known) != headlines(&self.status);
        let is_only_text = is_reported && !self.machine.status.as_ref().is_none_or(differs);
        if is_only_text { None } else { self.step() }
    }
}

/// A status without texts and times.
fn headlines(status: &MachineStatus) -> MachineStatus {
    let mut own = status.clone();
    own.last_operation.description.clear();
    own.last_operation.last_update_time = None;
    own.last_known_state.clear();
    own.conditions.retain(is_own);
    for condition in &mut own.conditions {
        (condition.message, condition.last_transition_time) = (None, None);
    }
    own.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    own
}

pub(super) fn since(machine: &Machine, kind: &str) -> Option<Timestamp> {
    machine.condition(kind)?.last_transition_time.as_ref().map(|time| time.0)
}

pub(super) fn true_since(machine: &Machine, kind: &str) -> Option<Timestamp> {
    since(machine, kind).filter(|_| machine.condition(kind).is_some_and(|condition| condition.status == "True"))
}

/// When the Machine fails, as its condition `HealthTimeout` says.
pub(super) fn announced_deadline(machine: &Machine) -> Option<Timestamp> {
    Some(HealthDeadline::of(machine.condition(conditions::machine::HEALTH_TIMEOUT)?)?.at)
}

fn is_own(condition: &NodeCondition) -> bool {
    conditions::machine::ALL.contains(&condition.type_.as_str())
}

fn is_same(a: &NodeCondition, b: &NodeCondition) -> bool {
    a.type_ == b.type_ && a.status == b.status && a.reason == b.reason && a.message == b.message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{MachineExt, NOW, machine};

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn node(status: &str, heartbeat: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": status, "reason": "Kubelet", "lastHeartbeatTime": heartbeat,
             "lastTransitionTime": "2026-06-01T11:00:00Z"}]}}))
        .unwrap()
    }

    #[test]
    fn a_heartbeat_alone_writes_nothing() {
        let fresh = machine("a").build();
        let first = StatusDraft::of(&fresh, now()).node_conditions(Some(&node("True", "2026-06-01T11:00:00Z")));
        let known = Machine { status: Some(first.status.clone().into_owned()), ..fresh };
        let again = StatusDraft::of(&known, now()).node_conditions(Some(&node("True", "2026-06-01T11:30:00Z")));
        assert!(again.step().is_none());
        let changed = StatusDraft::of(&known, now()).node_conditions(Some(&node("False", "2026-06-01T11:30:00Z")));
        assert!(changed.step().is_some());
    }

    #[test]
    fn mcm_defect_12_a_new_phase_keeps_the_end_of_a_preservation() {
        let machine = machine("a").phase("Running").preserved_until("2026-06-05T12:00:00Z").build();
        let expiry =
            |draft: StatusDraft<'_>| draft.status.into_owned().current_status.preserve_expiry_time.map(|time| time.0);
        let known = || StatusDraft::of(&machine, now());
        for phase in [MachinePhase::Unknown, MachinePhase::Failed, MachinePhase::InPlaceUpdating] {
            assert_eq!(expiry(known().phase(phase)), "2026-06-05T12:00:00Z".parse().ok());
        }
        assert_eq!(expiry(known().phase(MachinePhase::Terminating).not_preserved()), None);
    }

    #[test]
    fn times_move_only_with_what_they_are_the_time_of() {
        let machine = machine("a")
            .phase("Running")
            .with("/status/currentStatus/lastUpdateTime", json!("2026-01-01T00:00:00Z"))
            .build();
        assert!(StatusDraft::of(&machine, now()).phase(MachinePhase::Running).step().is_none());
        let unknown = StatusDraft::of(&machine, now()).phase(MachinePhase::Unknown);
        assert_eq!(unknown.status.current_status.last_update_time, Some(Time(now())));
    }

    fn with_all<'a>(draft: StatusDraft<'a>, node: &Node, long: &str) -> StatusDraft<'a> {
        draft
            .node_conditions(Some(node))
            .operation(OperationType::Create, OperationState::Failed, long, Some("Internal"))
            .condition(conditions::machine::INSTANCE_PROVISIONED, false, "Internal", long)
    }

    #[test]
    fn what_others_say_fits_into_the_status_and_is_not_written_twice() {
        let long = "x".repeat(30_000);
        let mut node = node("True", "2026-06-01T11:00:00Z");
        let condition = node.status.conditions.as_mut().map(|all| &mut all[0]).unwrap();
        (condition.reason, condition.message) = (Some(long.clone()), Some(long.clone()));
        let many = vec![condition.clone(); 1_000];
        node.status.conditions.as_mut().unwrap().extend(many);
        let fresh = machine("a").build();
        let status = with_all(StatusDraft::of(&fresh, now()), &node, &long).status;
        let size = serde_json::to_vec(&status).unwrap().len();
        assert!(size < 200_000, "{size} bytes");
        assert!(status.last_operation.description.contains("(30000 bytes in all)"));
        let known = Machine { status: Some(status.into_owned()), ..fresh };
        assert!(with_all(StatusDraft::of(&known, now()), &node, &long).step().is_none());
    }

    #[test]
    fn own_conditions_stand_beside_the_nodes() {
        let machine = machine("a").build();
        let draft = StatusDraft::of(&machine, now())
            .condition(conditions::machine::NODE_JOINED, true, "Joined", "")
            .node_conditions(Some(&node("True", "2026-06-01T11:00:00Z")));
        let types: Vec<_> = draft.status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!(types, ["Ready", "NodeJoined"]);
    }
}
