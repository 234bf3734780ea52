//! The steps that follow from the health of a Machine's Node.

use jiff::SignedDuration;
use nodewright_api::{
    MachinePhase, OperationState, OperationType, conditions,
    reasons::{self, unreadable},
    stored::{DisabledHealthTimeout, JoinedNode, NodeProgress},
};
use nodewright_runtime::{
    cache::Lookup,
    object::name,
    plan::{Notes, Step},
    scoped_watch::ScopedWatch,
};

use super::{
    deadline::Deadline,
    decision::{Decision, Health, Unknown, decide},
    node::disables_health_timeout,
};
use crate::{
    machine::{
        budget::{self, Held},
        calls::{Call, Verb},
        claim::{Vm, joined_as},
        cloud::{self, Changes},
        memory::Note,
        node_sync,
        partial_plan::PartialPlan,
        provider::Provider,
        scope::Scope,
        snapshot::node_named,
        status::StatusDraft,
        token, trace, virtual_capacity,
    },
    shared::{
        CONTROL, TARGET,
        node::Node,
        ownership::{node_name, noted_node},
    },
};

/// How often the conditions of a Node that is still starting are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
const FAILURE_REPORTED: &str = "the machine reports which request fails";
const REPLACEMENT_BLOCKED: &str = "ReplacementBlocked";

/// Part of a plan, and a write of the status.
type Parts = (PartialPlan, Option<Step<Call>>);

pub(in super::super) fn checked(scope: &Scope<'_>) -> PartialPlan {
    match decide(scope) {
        Decision::Unreadable(text) => unreadable(scope, text),
        Decision::Delete(node) => delete(scope, node),
        Decision::AwaitDeletion(node, held) => await_deletion(scope, node, held),
        Decision::Report(None, health) => {
            let (part, status) = report(scope, None, health);
            part.then("the machine has no node", status)
        }
        Decision::Report(Some(node), health) => {
            let (part, status) = report(scope, Some(node), health);
            with_node_sync(part, scope, node, status)
        }
    }
}

fn unreadable(scope: &Scope<'_>, text: &str) -> PartialPlan {
    let (kind, reason) = (conditions::machine::NODE_READABLE, unreadable::NODE);
    let step = scope.status().condition(kind, false, reason, text).step();
    PartialPlan::reporting("the machine's node cannot be read", step, scope.warning(reason, text))
        .and_wait(reason, text)
}

fn delete(scope: &Scope<'_>, node: &Node) -> PartialPlan {
    PartialPlan::step(FAILURE_REPORTED, failure_status(scope, Some(node)))
        .then("confirm that the node is being deleted", Step::confirm_unchanged(TARGET, node))
        .then("its node is being deleted", Step::delete(CONTROL, scope.machine))
        .event(scope.normal(reasons::machine::NODE_DELETED, format!("node {} was deleted", name(node))))
}

fn await_deletion(scope: &Scope<'_>, node: &Node, held: Held) -> PartialPlan {
    let text = |why: String| format!("node {} is being deleted; {why}", name(node));
    let (kind, status) = (conditions::machine::REMEDIATION_ALLOWED, text(held.status));
    let draft = scope.status().node_conditions(Some(node)).condition(kind, false, REPLACEMENT_BLOCKED, status);
    PartialPlan::step("the machine waits for its replacement", draft.step())
        .and_wait(REPLACEMENT_BLOCKED, text(held.message))
        .waking_at(held.until)
}

/// Brings Node and Machine in step, beside the status, which must not depend on whether the Node can be written.
fn with_node_sync(part: PartialPlan, scope: &Scope<'_>, node: &Node, status: Option<Step<Call>>) -> PartialPlan {
    let machine = scope.machine;
    let Changes { part: asked, keeps_outcomes, addresses, marks } = cloud::changes(scope, node);
    let sync = node_sync::sync(machine, node, &marks);
    let capacity = virtual_capacity::sync(scope.snapshot.machine_class.as_deref(), node);
    let to_node = if sync.node.0.is_empty() { capacity.node } else { sync.node };
    // Not beside the status, which carries the Machine's version.
    let own = Step::edit(CONTROL, machine, sync.machine).filter(|_| status.is_none());
    let mut part = PartialPlan { is_over: part.is_over, ..part.and(asked) };
    part.plan.forgets_outcomes &= !keeps_outcomes;
    // The marks come after the addresses: a node is not untainted without.
    let (status, part) = match addresses {
        Some(addresses) => {
            let first =
                [("the node's health shows in the machine", status), ("the VM has these addresses", Some(addresses))];
            (None, part.side_by_side(first))
        }
        None => (status, part),
    };
    part.side_by_side([
        ("the node's health shows in the machine", status),
        ("the node lacks what its machine gives it", Step::edit(TARGET, node, to_node)),
        ("the node lacks capacity that its class adds", Step::edit_status(TARGET, node, capacity.status)),
        ("the machine remembers its node, and what that gets", own),
    ])
}

fn report(scope: &Scope<'_>, node: Option<&Node>, health: Health<'_>) -> Parts {
    let idle = PartialPlan::default();
    match health {
        Health::Running => (running(scope), healthy_status(scope, node).step()),
        Health::Joined => (joined(scope, node), now_running(scope, node, OperationType::Create, "joined")),
        Health::Recovered => {
            let event = scope.normal(reasons::machine::HEALTHY, format!("node {} is healthy again", shown(node)));
            let part = idle.event(event).span(trace::unhealthy(scope, None));
            (part, now_running(scope, node, OperationType::HealthCheck, "re-joined"))
        }
        Health::Unaffected => (idle, unhealthy_status(scope, node).not_held().step()),
        Health::Joining { reason, why } => joining(scope, node, reason, &why),
        Health::JoinTimedOut { why } => join_timed_out(scope, node, &why),
        Health::NodeNameTaken(foreign) => node_name_taken(scope, foreign),
        Health::ReportAwaited { until, why } => {
            let text = format!(
                "{why}, but that was reported before this manager led, or while an API server was away; it counts from \
                 {until:.0}, or with a new report"
            );
            let part = PartialPlan::waiting_until(until, "ReportAwaited", text).noting(Note::Unhealthy);
            (part, unhealthy_status(scope, node).not_held().step())
        }
        Health::GracePeriod { until, why } => {
            (PartialPlan::waiting_until(until, "Unhealthy", why).noting(Note::Unhealthy), None)
        }
        Health::BecomesUnknown { deadline, why } => {
            let text = deadline.map_or(why.clone(), |deadline| deadline.text(&why));
            let text =
                format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(scope.machine));
            let draft = unhealthy_status(scope, node).not_held();
            let draft = match deadline {
                Some(deadline) => draft.health_deadline(deadline),
                None => without_timeout(draft, node),
            };
            let draft = checking(draft.phase(MachinePhase::Unknown).timeout_active(true), text);
            (idle.event(scope.warning(reasons::machine::UNHEALTHY, why)), draft.step())
        }
        Health::NoTimeout { probe, why } => {
            let draft = without_timeout(unhealthy_status(scope, node).not_held(), node);
            let text = format!("{why}; its health timeout is switched off");
            (probe.plan(scope).and(PartialPlan::waiting("Unhealthy", text)), draft.step())
        }
        Health::Unknown { probe, deadline, next, why } => {
            let (part, status) = unknown(scope, node, &why, deadline, next);
            (probe.plan(scope).and(part), status)
        }
    }
}

fn shown(node: Option<&Node>) -> &str {
    node.map_or("", name)
}

fn healthy_status<'a>(scope: &Scope<'a>, node: Option<&Node>) -> StatusDraft<'a> {
    let draft = scope.status().node_conditions(node).not_held().without(conditions::machine::NODE_READABLE);
    cloud::shown(scope, node, cloud::vm_not_shown(draft))
}

fn unhealthy_status<'a>(scope: &Scope<'a>, node: Option<&Node>) -> StatusDraft<'a> {
    let draft = scope.status().node_conditions(node).without(conditions::machine::NODE_READABLE);
    cloud::shown(scope, node, cloud::vm_shown(scope, draft))
}

fn without_timeout<'a>(draft: StatusDraft<'a>, node: Option<&Node>) -> StatusDraft<'a> {
    if node.is_some_and(disables_health_timeout) {
        draft.fact(DisabledHealthTimeout.text())
    } else {
        draft.without(conditions::machine::HEALTH_TIMEOUT)
    }
}

fn running(scope: &Scope<'_>) -> PartialPlan {
    // When the provider shows all that it has created.
    let latest = scope.context.outcomes.latest();
    let consistent = latest.and_then(|latest| scope.pause_end(latest, scope.driver.consistency));
    let mut part = PartialPlan::default().waking_at(consistent);
    part.plan.notes.extend(Notes::Clear);
    // Drop the outcomes of the calls that created thousands of Running machines, to bound memory.
    part.plan.forgets_outcomes = consistent.is_none();
    part
}

fn now_running(scope: &Scope<'_>, node: Option<&Node>, kind: OperationType, verb: &str) -> Option<Step<Call>> {
    let machine = scope.machine;
    let text = format!("Machine {} successfully {verb} the cluster", name(machine));
    let joined_as = node.map(|node| joined_as(machine, node)).unwrap_or_default();
    healthy_status(scope, node)
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .fact(JoinedNode { name: &joined_as, progress: NodeProgress::Joined }.text())
        .without(conditions::machine::CONFIGURATION_VALID)
        .step()
}

fn joined(scope: &Scope<'_>, node: Option<&Node>) -> PartialPlan {
    let class = scope.snapshot.class.as_ref().ok().filter(|class| token::is_used(class));
    let drop = class.map(|class| Step::Call(Provider::of(scope, class).call(Verb::DropToken)));
    let event = scope.normal(reasons::machine::JOINED, format!("node {} is ready", shown(node))).routine();
    let mut part = PartialPlan::step("the node has joined: its token is of no more use", drop).event(event);
    if scope.context.traces {
        part.plan.spans = trace::joined(scope.machine, scope.now());
    }
    part
}

/// A Pending Machine waits for its Node until its creation timeout is over.
fn joining(scope: &Scope<'_>, node: Option<&Node>, reason: &'static str, why: &str) -> Parts {
    let step = unhealthy_status(scope, node).not_held().step();
    // A Node that starts changes its conditions several times within a second or two: one copy is enough.
    let next = scope.context.status_written.and_then(|written| scope.pause_end(written, COPY_PAUSE));
    let next = next.filter(|_| step.is_some());
    let deadline = scope.creation_deadline();
    let text = deadline.map_or(why.to_owned(), |at| format!("{why}; without a healthy node it fails at {at:.0}"));
    let part = PartialPlan::waiting(reason, text).waking_at(deadline).waking_at(next);
    (part, step.filter(|_| next.is_none()))
}

fn join_timed_out(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> Parts {
    let machine = scope.machine;
    let timeout = scope.settings.creation_timeout_of(machine);
    let text = format!("Machine {} failed to join the cluster in {timeout:?}. {why}", name(machine));
    let part = PartialPlan::default().event(scope.warning(reasons::machine::FAILED, text.as_str()));
    let node_name = noted_node(machine).unwrap_or_default();
    let draft = unhealthy_status(scope, node).not_held();
    let draft = draft.fact(JoinedNode { name: node_name, progress: NodeProgress::TimedOut }.text());
    (part, failed(draft, OperationType::Create, text).step())
}

/// The Machine is replaced at once: another VM has another name, or, once this one is gone, the stale Node goes, too.
fn node_name_taken(scope: &Scope<'_>, foreign: &Node) -> Parts {
    let id = foreign.provider_id().unwrap_or_default();
    let text = format!(
        "VM using old node obj: node {} is older than machine {}, and belongs to VM {id}",
        name(foreign),
        name(scope.machine)
    );
    let part = PartialPlan::step("confirm that the older node still exists", Step::confirm_unchanged(TARGET, foreign));
    let draft = unhealthy_status(scope, None).not_held();
    let event = scope.warning(reasons::machine::FAILED, text.as_str());
    (part.event(event), failed(draft, OperationType::Create, text).step())
}

fn unknown(scope: &Scope<'_>, node: Option<&Node>, why: &str, deadline: Deadline, next: Unknown) -> Parts {
    let (machine, draft, text) = (scope.machine, unhealthy_status(scope, node), deadline.text(why));
    match next {
        Unknown::Announce => {
            let event = scope.warning(reasons::machine::UNHEALTHY, text.as_str());
            let part = PartialPlan::waiting_until(deadline.at, deadline.reason(), text.as_str()).event(event);
            let text = format!("Machine {} is unhealthy. {text}", name(machine));
            (part, checking(draft.not_held().health_deadline(deadline), text).step())
        }
        Unknown::Await(at) => (PartialPlan::waiting_until(at, deadline.reason(), text), draft.not_held().step()),
        Unknown::AwaitReplacement(held) => {
            let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.status);
            let draft =
                draft.condition(conditions::machine::REMEDIATION_ALLOWED, false, REPLACEMENT_BLOCKED, text.as_str());
            let step = checking(draft, text).step();
            let event = budget::brake_event(scope).filter(|_| step.is_some());
            let part = PartialPlan::waiting(REPLACEMENT_BLOCKED, held.message).waking_at(held.until);
            (part.event(event), step)
        }
        Unknown::Fail => fail(scope, node, why),
    }
}

fn fail(scope: &Scope<'_>, node: Option<&Node>, why: &str) -> Parts {
    let (machine, draft) = (scope.machine, unhealthy_status(scope, node).not_held());
    let failure = failure_status(scope, node);
    let is_reported = failure.is_some();
    let part = PartialPlan::step(FAILURE_REPORTED, failure).and(confirmed(scope, node));
    // The phase is written by the next plan, because each status carries the Machine's version.
    if is_reported {
        return (part, None);
    }
    if !part.is_over {
        return (part, draft.step());
    }
    let since = machine.phase_since().unwrap_or(scope.now());
    let text = format!("Machine {} health checks failing since {since:.0}. {why}", name(machine));
    let event = scope.warning(reasons::machine::FAILED, text.as_str());
    let part = part.event(event).event(budget::brake_timeout_event(scope)).span(trace::unhealthy(scope, Some(why)));
    (part, failed(draft, OperationType::HealthCheck, text).step())
}

fn checking(draft: StatusDraft<'_>, text: String) -> StatusDraft<'_> {
    draft.operation(OperationType::HealthCheck, OperationState::Processing, text, None)
}

fn failed(draft: StatusDraft<'_>, kind: OperationType, text: String) -> StatusDraft<'_> {
    draft.phase(MachinePhase::Failed).timeout_active(false).operation(kind, OperationState::Failed, text, None)
}

fn failure_status(scope: &Scope<'_>, node: Option<&Node>) -> Option<Step<Call>> {
    let failure = scope.failure_to_report()?;
    let text = format!("Machine {} is to be replaced, and a request fails: {failure}", name(scope.machine));
    checking(scope.status().node_conditions(node).not_held(), text).step()
}

/// The API server itself confirms what the cache shows of the Node of a Machine that is about to fail.
fn confirmed(scope: &Scope<'_>, node: Option<&Node>) -> PartialPlan {
    if let Some(node) = node {
        let confirm = Step::confirm_unchanged(TARGET, node);
        return PartialPlan::over().then("a node that has changed is evaluated again", confirm);
    }
    // If the VM is not proven, the provider has said that there is none.
    let name = node_name(scope.machine).filter(|_| scope.snapshot.claim.vm == Vm::Proven);
    let Some(name) = name else { return PartialPlan::over() };
    let text = match scope.snapshot.unseen_node {
        Lookup::Missing => None,
        Lookup::Found(_) => Some(format!("node {name} is there again, and is yet to show in the cache")),
        _ => Some(format!("the API server is asked whether there is a node {name}")),
    };
    let part = text.map_or_else(PartialPlan::over, |text| PartialPlan::waiting("LookingForNode", text));
    part.scoped_watch(ScopedWatch::at::<Node>(TARGET, node_named(name)))
}
