//! Is a Machine healthy, and when is it given up?
//!
//! An unhealthy Machine becomes `Unknown` and, after its health timeout, `Failed`; then its MachineSet replaces it. Reports
//! about its Node that are older than our connection to the API servers prove nothing at first: the servers may have been
//! away, so that no kubelet could report. A live kubelet reports within six minutes.
//!
//! # Guarantees
//! * A Machine is Failed at the time that its condition `HealthTimeout` and its last operation name. That is the end of its
//!   health timeout; or, if that is later, six minutes after this process began to lead or was connected again, unless its
//!   Node was reported on since. If that moves the time, status, event and log say so.
//! * So all outages and changes of leaders together cost at most six minutes after the last of them. An outage is a time of
//!   more than a minute in which an API server does not answer; an idle server is asked ([`Context::connected_since`]).
//! * Before a Machine is Failed because of its Node, the Node is read from the API server. If it has changed, the Machine is
//!   judged again.
//!
//! # Caveats
//! * If its watch is a dead connection, a Node's report is seen up to four minutes late.
//! * The replacement budget may hold a Machine back for longer ([`budget`](super::budget)); its status says so.
//!
//! [`Context::connected_since`]: nodewright_runtime::plan::Context::connected_since

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeCondition;
use nodewright_api::{Machine, MachinePhase, OperationState, OperationType, conditions, taints};
use nodewright_runtime::{
    clip::clip_to,
    object::{is_deleting, name},
    plan::Step,
    scoped_watch::ScopedWatch,
};

use super::{
    budget::{self, Held},
    claim::Vm,
    scope::Scope,
    snapshot::{UnseenNode, node_named},
    stage::Stage,
    status::{StatusDraft, own_condition, phase_since},
};
use crate::shared::{
    clusters::TARGET,
    node::Node,
    ownership::{node_name, vm_id},
};

/// Within this time a live kubelet has reported, whatever was before: it posts its status at least every five minutes
/// (`nodeStatusReportFrequency`), and at once when the API server shows another status than it knows.
const REPORTS_WITHIN: SignedDuration = SignedDuration::from_mins(6);
/// A time that moves by no more is not written again.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(5);
/// The most bytes of what a Node says about its health: more follows it in statuses.
const LONGEST_CAUSE: usize = 512;

/// What is decided about the health of a Machine whose VM is initialized.
pub(super) enum Health<'a> {
    /// Its Node exists and cannot be read. That says nothing about its health.
    Unreadable(&'a str),
    /// Somebody deletes its Node. So the Machine is deleted, if the budget permits.
    NodeDeleted(&'a Node, Result<(), Held>),
    Healthy(&'a Node, Recovery),
    Unhealthy(Problem<'a>, Remedy),
}

/// Why a Machine is unhealthy.
pub(super) struct Problem<'a> {
    pub(super) node: Option<&'a Node>,
    pub(super) why: String,
}

/// What follows from a healthy Node.
pub(super) enum Recovery {
    /// The Machine was Running before. The provider shows all that it has created: now, or from this time on.
    None(Option<Timestamp>),
    /// A taint says that components without which no workload may run have yet to start.
    ComponentsAwaited,
    /// The Machine becomes Running: for the first time, or again.
    Joined,
    Rejoined,
}

/// What follows from an unhealthy or missing Node.
pub(super) enum Remedy {
    None,
    /// Ignore the report until then: it is older than our connection.
    AwaitReport(Timestamp),
    MarkUnknown(Option<Deadline>),
    /// What becomes of an Unknown Machine.
    Unknown(GiveUp),
    AwaitJoin,
    /// The creation timeout is over, so a Pending Machine becomes Failed.
    JoinTimeout,
}

/// When an Unknown Machine is given up: it becomes Failed.
pub(super) enum GiveUp {
    /// Its health timeout is switched off.
    Never,
    Later(Deadline),
    /// It is due, and the replacement budget does not permit it.
    Held(Held),
    Now,
}

pub(super) fn check<'a>(scope: &Scope<'a>) -> Health<'a> {
    let snapshot = scope.snapshot;
    if let Some(text) = &snapshot.unreadable_node {
        return Health::Unreadable(text);
    }
    let Some(node) = snapshot.node.as_deref() else {
        let why = match &snapshot.stranger {
            _ if snapshot.claim.vm != Vm::Proven => {
                format!("the provider knows no VM {}", scope.machine.spec.provider_id)
            }
            Some(stranger) => format!("node {} belongs to another VM", name(stranger.as_ref())),
            None => format!("there is no node with providerID {}", vm_id(scope.machine).unwrap_or_default()),
        };
        return Health::Unhealthy(Problem { node: None, why }, remedy(scope, None));
    };
    if is_deleting(node) {
        return Health::NodeDeleted(node, budget::permit(scope));
    }
    match unhealthy_because(scope, node) {
        None => Health::Healthy(node, recovery(scope, node)),
        Some(why) => Health::Unhealthy(Problem { node: Some(node), why }, remedy(scope, Some(node))),
    }
}

/// Whether the Machine has a healthy Node: then nothing that went wrong before matters.
pub(super) fn has_healthy_node(scope: &Scope<'_>) -> bool {
    scope.snapshot.node.as_deref().is_some_and(|node| !is_deleting(node) && unhealthy_because(scope, node).is_none())
}

/// Why a Node is unhealthy, if it is. As in machine-controller-manager, Ready has to be True, and each listed condition that
/// the Node has has to be False; Unknown counts as unhealthy.
pub(super) fn unhealthy_because(scope: &Scope<'_>, node: &Node) -> Option<String> {
    let describe = |condition: &NodeCondition| {
        let reason = condition.reason.as_deref().unwrap_or_default();
        clip_to(LONGEST_CAUSE, format!("node condition {} is {} ({reason})", condition.type_, condition.status))
    };
    let Some(ready) = ready(node) else {
        return Some("the node has no condition Ready yet".to_owned());
    };
    if ready.status != "True" {
        return Some(describe(ready));
    }
    let is_listed = |condition: &&NodeCondition| match &scope.machine.spec.node_conditions {
        Some(list) => list.split(',').any(|kind| kind.trim() == condition.type_),
        None => scope.settings.node_conditions.contains(&condition.type_),
    };
    node.conditions().iter().filter(is_listed).find(|condition| condition.status != "False").map(describe)
}

/// Since when a Node has not been ready, if it is not.
pub(super) fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let ready = ready(node)?;
    ready.last_transition_time.as_ref().filter(|_| ready.status != "True").map(|time| time.0)
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.conditions().iter().find(|condition| condition.type_ == conditions::node::READY)
}

fn recovery(scope: &Scope<'_>, node: &Node) -> Recovery {
    let machine = scope.machine;
    if *machine.phase() == MachinePhase::Running {
        let latest = scope.context.outcomes.latest();
        let consistent = latest.and_then(|latest| latest.checked_add(scope.driver.consistency()).ok());
        return Recovery::None(consistent.filter(|at| *at > scope.now()));
    }
    if *machine.phase() == MachinePhase::Pending && lacks_critical_components(node) {
        return Recovery::ComponentsAwaited;
    }
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let joins = operation.is_none_or(|operation| {
        operation.operation_type == OperationType::Create && operation.state != OperationState::Successful
    });
    if joins { Recovery::Joined } else { Recovery::Rejoined }
}

fn lacks_critical_components(node: &Node) -> bool {
    let all = node.taints();
    all.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY && taint.effect == "NoSchedule")
}

fn remedy(scope: &Scope<'_>, node: Option<&Node>) -> Remedy {
    let (machine, now, connected) = (scope.machine, scope.now(), scope.context.connected_since);
    match machine.phase() {
        MachinePhase::Running => {
            if let Some(until) = node.and_then(|node| ignored_until(node, connected, now)) {
                return Remedy::AwaitReport(until);
            }
            let timeout = scope.settings.health_deadline(machine, now);
            Remedy::MarkUnknown(timeout.map(|timeout| Deadline::of(timeout, node, connected)))
        }
        MachinePhase::Unknown => Remedy::Unknown(give_up(scope, node)),
        MachinePhase::Pending if scope.is_creation_overdue() => Remedy::JoinTimeout,
        MachinePhase::Pending => Remedy::AwaitJoin,
        _ => Remedy::None,
    }
}

fn give_up(scope: &Scope<'_>, node: Option<&Node>) -> GiveUp {
    let timeout = phase_since(scope.machine).and_then(|since| scope.settings.health_deadline(scope.machine, since));
    let Some(timeout) = timeout else { return GiveUp::Never };
    let deadline = Deadline::of(timeout, node, scope.context.connected_since);
    if deadline.at > scope.now() {
        return GiveUp::Later(deadline);
    }
    budget::permit(scope).map_or_else(GiveUp::Held, |()| GiveUp::Now)
}

/// The API server itself confirms what the cache says about the Node of a Machine that is given up. A Node is read by a step
/// that ends the plan if the Node has changed; if there is none, the API server is asked for one of its name.
pub(super) fn confirmed(scope: &Scope<'_>, node: Option<&Node>) -> Stage {
    if let Some(node) = node {
        let confirm = Step::confirm_unchanged(TARGET, node);
        return Stage::over().then("a node that has changed is judged again", confirm);
    }
    // If the VM is not proven, the provider has said that there is none.
    let name = node_name(scope.machine).filter(|_| scope.snapshot.claim.vm == Vm::Proven);
    let Some(name) = name else { return Stage::over() };
    let text = match scope.snapshot.unseen_node {
        UnseenNode::None => None,
        UnseenNode::Unknown => Some(format!("the API server is asked whether there is a node {name}")),
        UnseenNode::Found(_) => Some(format!("node {name} is there again, and is yet to show in the cache")),
    };
    let stage = text.map_or_else(Stage::over, |text| Stage::waiting("LookingForNode", text));
    stage.looking_at(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}

/// Whether a Node's kubelet, or the controller that watches it, has reported on its health since then.
///
/// Reports from before this process was connected prove nothing to it: the API server may have been away, so that no kubelet
/// could report.
fn is_reported_since(node: &Node, since: Timestamp) -> bool {
    let ready = ready(node);
    let told = ready.and_then(|it| it.last_heartbeat_time.as_ref().max(it.last_transition_time.as_ref()));
    told.is_some_and(|told| told.0 > since)
}

/// Ignore an unhealthy report that is older than our connection, until this time; `None` once it is over.
fn ignored_until(node: &Node, connected: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let until = connected.checked_add(REPORTS_WITHIN).ok()?;
    (now < until && !is_reported_since(node, connected)).then_some(until)
}

/// When a Machine is given up, and whether that is later than the end of its health timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) at: Timestamp,
    is_extended: bool,
}

impl Deadline {
    /// For a Machine with this timeout. While all reports on its Node are older than our connection, a live kubelet gets the
    /// time to report.
    fn of(timeout: Timestamp, node: Option<&Node>, connected: Timestamp) -> Self {
        if node.is_some_and(|node| is_reported_since(node, connected)) {
            return Self { at: timeout, is_extended: false };
        }
        let at = timeout.max(connected.saturating_add(REPORTS_WITHIN).unwrap_or(timeout));
        Self { at, is_extended: at > timeout }
    }

    pub(super) fn reason(self) -> &'static str {
        if self.is_extended { "ReportAwaited" } else { "Unhealthy" }
    }

    pub(super) fn text(self, why: &str) -> String {
        let (at, outdated) = (self.at, "that was reported before this manager led, or while an API server was away");
        if self.is_extended {
            format!("{why}; {outdated}: without a new report it is given up at {at:.0}")
        } else {
            format!("{why}; it is given up at {at:.0}")
        }
    }

    /// Whether the status of a Machine names this time already. Clocks differ a little, so a few seconds do not count.
    pub(super) fn is_announced(self, machine: &Machine) -> bool {
        let noted = own_condition(machine, conditions::machine::HEALTH_TIMEOUT);
        let noted: Option<Timestamp> = noted.and_then(|noted| noted.message.as_deref()?.parse().ok());
        noted.is_some_and(|noted| noted.duration_since(self.at).abs() <= SAME_TIME)
    }
}

impl StatusDraft {
    pub(super) fn health_deadline(self, deadline: Deadline) -> Self {
        self.condition(conditions::machine::HEALTH_TIMEOUT, true, deadline.reason(), format!("{:.0}", deadline.at))
    }
}
