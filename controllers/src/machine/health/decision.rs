//! What becomes of a Machine by the health of its Node. An `Unknown` Machine becomes `Failed` here ([`Unknown::Fail`]).

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{MachinePhase, OperationState, OperationType, stored::NODE_VM_MISSING};
use nodewright_runtime::object::{is_deleting, name};

use super::{
    deadline::Deadline,
    node::{ignored_until, lacks_critical_components, unhealthy_because},
    vm::{self, Probe},
};
use crate::{
    machine::{
        budget::{self, Held},
        claim::Vm,
        memory::Note,
        scope::Scope,
    },
    shared::{node::Node, ownership::vm_id},
};

/// How long a Node may be unhealthy before the Machine says so: most troubles pass, and each would cost two writes of the
/// Machine. Less if the health timeout is short.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(10);

pub(super) enum Decision<'a> {
    /// A Node that exists and cannot be read says nothing about its health.
    Unreadable(&'a str),
    /// To delete a Node is to delete its Machine, as in machine-controller-manager.
    Delete(&'a Node),
    /// The same, once the replacement budget permits it. The Node's finalizer keeps it until then.
    AwaitDeletion(&'a Node, Held),
    Report(Option<&'a Node>, Health<'a>),
}

/// What the Machine's status says then.
pub(super) enum Health<'a> {
    /// The Node is healthy, and the Machine is Running.
    Running,
    /// The Node is healthy for the first time.
    Joined,
    /// The Node is healthy again.
    Recovered,
    /// The Machine has a phase that does not follow the Node.
    Unaffected,
    /// A Pending Machine waits for its Node.
    Joining {
        reason: &'static str,
        why: String,
    },
    /// The creation timeout of a Pending Machine is over: it becomes Failed.
    JoinTimedOut {
        why: String,
    },
    /// The VM of a Pending Machine came up under the name of an older Node of another VM: the Machine becomes Failed.
    NodeNameTaken(&'a Node),
    /// The report that the Node is unhealthy is older than our connection: it counts from then on.
    ReportAwaited {
        until: Timestamp,
        why: String,
    },
    /// The trouble may pass until then.
    GracePeriod {
        until: Timestamp,
        why: String,
    },
    /// A Machine that was in use becomes Unknown. Without a deadline its health timeout is switched off.
    BecomesUnknown {
        deadline: Option<Deadline>,
        why: String,
    },
    /// An Unknown Machine stays so: its health timeout is switched off.
    NoTimeout {
        probe: Probe,
        why: String,
    },
    Unknown {
        probe: Probe,
        deadline: Deadline,
        next: Unknown,
        why: String,
    },
}

/// What follows for an Unknown Machine.
pub(super) enum Unknown {
    /// Its status names another deadline, or none.
    Announce,
    Await(Timestamp),
    /// The deadline is over, and the replacement budget permits no replacement yet.
    AwaitReplacement(Held),
    /// The deadline is over: the Machine becomes Failed, and its set replaces it. Before the phase is written, the API server
    /// confirms what the cache shows of the Node, and a request that fails is reported.
    Fail,
}

pub(super) fn decide<'a>(scope: &Scope<'a>) -> Decision<'a> {
    let snapshot = scope.snapshot;
    if let Some(text) = &snapshot.unreadable_node {
        return Decision::Unreadable(text);
    }
    let Some(node) = snapshot.node.as_deref() else { return Decision::Report(None, without_node(scope)) };
    if is_deleting(node) {
        return match budget::permit(scope) {
            Ok(()) => Decision::Delete(node),
            Err(held) => Decision::AwaitDeletion(node, held),
        };
    }
    let health = match unhealthy_because(scope, node) {
        None => healthy(scope, node),
        Some(why) => unhealthy(scope, Some(node), why),
    };
    Decision::Report(Some(node), health)
}

fn without_node<'a>(scope: &Scope<'a>) -> Health<'a> {
    let why = match scope.snapshot.foreign_node.as_deref() {
        _ if scope.snapshot.claim.vm != Vm::Proven => {
            format!("the provider knows no VM {}", scope.machine.spec.provider_id)
        }
        Some(foreign) if is_stale(scope, foreign) => return Health::NodeNameTaken(foreign),
        Some(foreign) => format!("node {} belongs to another VM", name(foreign)),
        None => format!("there is no node with providerID {}", vm_id(scope.machine).unwrap_or_default()),
    };
    unhealthy(scope, None, why)
}

/// Whether a new VM came up under the name of a Node that was there before: its kubelet reports on that Node, whose providerID
/// stays the other VM's, so that it would never be the Machine's. One that is about to go is waited for.
///
/// machine-controller-manager, too, leaves out a Node with the Machine's own name.
fn is_stale(scope: &Scope<'_>, foreign: &Node) -> bool {
    let machine = scope.machine;
    // One whose VM others have deleted goes by a brake, which may take long.
    let is_held = NODE_VM_MISSING.of(foreign).is_some();
    let is_going = is_deleting(foreign) || foreign.is_terminating() && !is_held;
    *machine.phase() == MachinePhase::Pending
        && !is_going
        && name(foreign) != name(machine)
        && foreign.metadata.creation_timestamp < machine.metadata.creation_timestamp
}

fn healthy<'a>(scope: &Scope<'a>, node: &Node) -> Health<'a> {
    match scope.machine.phase() {
        MachinePhase::Running => return Health::Running,
        MachinePhase::Pending if lacks_critical_components(node) => {
            let text = "the node is ready, but its critical components are not (taint critical-components-not-ready)";
            return pending(scope, "CriticalComponentsNotReady", text.to_owned());
        }
        MachinePhase::Pending if node.is_uninitialized() && scope.awaits_initialization() => {
            let text = "the node is ready, and has yet to get its addresses and labels";
            return pending(scope, "NodeUninitialized", text.to_owned());
        }
        _ => {}
    }
    let operation = scope.machine.status.as_ref().map(|status| &status.last_operation);
    let is_first = operation.is_none_or(|operation| {
        operation.operation_type == OperationType::Create && operation.state != OperationState::Successful
    });
    if is_first { Health::Joined } else { Health::Recovered }
}

fn unhealthy<'a>(scope: &Scope<'a>, node: Option<&Node>, why: String) -> Health<'a> {
    match scope.machine.phase() {
        // A Machine of another manager, or of one without a target cluster, was in use as well.
        // So was one whose update in place is over, or was taken back.
        MachinePhase::Running
        | MachinePhase::Available
        | MachinePhase::Terminating
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful => in_use(scope, node, why),
        MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed => unknown(scope, node, why),
        MachinePhase::Pending => pending(scope, "Joining", why),
        _ => Health::Unaffected,
    }
}

fn pending<'a>(scope: &Scope<'a>, reason: &'static str, why: String) -> Health<'a> {
    if scope.is_creation_overdue() { Health::JoinTimedOut { why } } else { Health::Joining { reason, why } }
}

/// A Running Machine becomes Unknown, unless the report is older than our connection, or young.
fn in_use<'a>(scope: &Scope<'a>, node: Option<&Node>, why: String) -> Health<'a> {
    let (now, connected) = (scope.now(), scope.context.connected_since);
    if let Some(until) = node.and_then(|node| ignored_until(node, connected, now)) {
        return Health::ReportAwaited { until, why };
    }
    match grace_period(scope, node) {
        Some(until) => Health::GracePeriod { until, why },
        None => Health::BecomesUnknown { deadline: Deadline::of(scope, node, now, None), why },
    }
}

/// Until when the trouble of a Node may pass without a report. A process that starts does not know when it began, and waits again.
fn grace_period(scope: &Scope<'_>, node: Option<&Node>) -> Option<Timestamp> {
    let (now, machine) = (scope.now(), scope.machine);
    let begun = node.map(|_| scope.context.noted_since(&Note::Unhealthy).unwrap_or(now))?;
    let timeout = scope.settings.health_deadline(machine, now).map(|end| end.duration_since(now));
    let period = timeout.map_or(GRACE_PERIOD, |timeout| GRACE_PERIOD.min(timeout / 10));
    begun.checked_add(period).ok().filter(|until| *until > now)
}

/// An Unknown Machine becomes Failed once its health timeout is over, if the replacement budget permits it.
fn unknown<'a>(scope: &Scope<'a>, node: Option<&Node>, why: String) -> Health<'a> {
    let since = scope.machine.phase_since();
    let deadline = |since, gone| Deadline::of(scope, node, since, gone);
    let Some((since, timeout)) = since.and_then(|since| Some((since, deadline(since, None)?))) else {
        // Its Node goes with its VM all the same.
        return Health::NoTimeout { probe: vm::probe(scope, scope.initializes_nodes()), why };
    };
    let probe = vm::probe(scope, timeout.at > scope.now() || scope.initializes_nodes());
    let deadline = probe.gone.and_then(|_| deadline(since, probe.gone)).unwrap_or(timeout);
    let next = match deadline.announced(scope, since) {
        None => Unknown::Announce,
        Some(at) if at > scope.now() => Unknown::Await(at),
        Some(_) => budget::permit(scope).map_or_else(Unknown::AwaitReplacement, |()| Unknown::Fail),
    };
    Health::Unknown { probe, deadline, next, why }
}
