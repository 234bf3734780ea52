//! What a Machine that is to live decides.

use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use nodewright_api::{
    Machine, MachinePhase, OperationState, OperationType, conditions, finalizers,
    reasons::{self, unreadable},
};
use nodewright_runtime::{
    events::EventKind,
    finalizers as finalizer,
    look::Look,
    object::{Cluster, has_finalizer, is_deleting, name},
    plan::{Moment, Plan, Planned, Step},
};

use super::{
    World, applied, birth, budget,
    calls::{Call, Verb},
    context::{Context, event, lasting_failure},
    health::{self, GivenUp, Health, unwell_since},
    node_sync, owned,
    ownership::{self, Vm, joined_as},
    proof::{is_unborn, prove},
    status::{StatusDraft, since},
    token, trace,
    world::{UnseenNode, node_named},
};
use crate::shared::{
    node::Node,
    ownership::{JOIN_TIMEOUT, JOINED, node_name, noted_node, vm_id},
};

/// How often the conditions of a Node that is still coming up are copied at most.
const COPY_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// Why a status is written that names a request which fails.
const FAILURE_TOLD: &str = "the machine says which request fails";
/// The reason of a wait for the replacement budget.
const HELD_BACK: &str = "ReplacementHeld";

pub(super) fn plan(at: &Moment<'_, Call>, world: &World, context: Context<'_>) -> Plan<Call> {
    let mut plan = Plan::idle();
    let machine = world.machine.as_ref();
    plan.traceparent = Some(trace::current(machine));
    if !has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
        plan.then("the machine has to outlive its VM", Step::edit(Cluster::CONTROL, machine, add));
        return plan;
    }
    if ownership::report(&mut plan, at, world) {
        return plan;
    }
    let unborn = is_unborn(machine.phase());
    let is_held = !world.claim.rivals.is_empty() || !world.claim.twins.is_empty();
    let is_open = world.claim.vm == Vm::Unproven && (is_held || (!unborn && context.settings.has_target));
    if (is_open && !prove(&mut plan, at, world, context)) || is_held {
        return plan;
    }
    if *machine.phase() == MachinePhase::Failed && !is_well(world, context) {
        plan.wait("Failed", "the machine set deletes and replaces a machine in phase Failed");
        return plan;
    }
    match vm_id(machine) {
        None => birth::create(&mut plan, at, world, context),
        Some(_) if unborn && !is_well(world, context) => birth::set_up(&mut plan, at, world, context),
        Some(_) if context.settings.has_target => watch_over(&mut plan, at, world, context),
        Some(_) => {}
    }
    plan
}

/// Whether there is a healthy Node: then nothing that went wrong before matters any more.
fn is_well(world: &World, context: Context<'_>) -> bool {
    let node = world.node.as_deref().filter(|node| !is_deleting(*node));
    node.is_some_and(|node| health::judge(&world.machine, node, context.settings) == Health::Healthy)
}

/// There is a VM that is set up: its Node joins, is well, or is not.
fn watch_over(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let machine = world.machine.as_ref();
    if let Some(text) = &world.unreadable_node {
        await_node(plan, at, machine, text);
        return;
    }
    let Some(node) = world.node.as_deref() else {
        lacks_node(plan, at, world, context);
        return;
    };
    if is_deleting(node) {
        node_deleted(plan, at, world, node, context);
        return;
    }
    // The health first: it must not depend on whether the Node can be written.
    let status = match health::judge(machine, node, context.settings) {
        Health::Healthy => well(plan, at, world, node, context),
        Health::Unhealthy(why) => unwell(plan, at, world, Some(node), &why, context),
    };
    let status = status.map(|step| Planned { why: "the node's health shows in the machine".into(), step });
    let changes = node_sync::patch(machine, node);
    let (is_in_step, is_covered) = (changes.0.is_empty(), applied::is_covered(machine));
    let sync = Step::edit(Cluster::TARGET, node, changes).filter(|_| is_covered);
    let sync = sync.map(|step| Planned { why: "the node lacks what its machine gives it".into(), step });
    // Not beside the status, which carries the Machine's version.
    let record = applied::record(machine, is_in_step).filter(|_| is_in_step || !is_covered);
    let own = Patch(record.into_iter().chain(owned::relabel(machine)).flat_map(|patch| patch.0).collect());
    let own = Step::edit(Cluster::CONTROL, machine, own).filter(|_| status.is_none());
    let own = own.map(|step| Planned { why: "the machine remembers its node, and what that gets".into(), step });
    plan.stage(status.into_iter().chain(sync).chain(own));
}

/// The contract of machine-controller-manager: who deletes a Node deletes its Machine. Our finalizer keeps the Node until
/// then. Sixty that are deleted by one mistake do not all go at once: they go through the replacement budget.
fn node_deleted(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, node: &Node, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let Err(held) = budget::permit(world, context.settings, at.now) else {
        plan.then(FAILURE_TOLD, tell_failure(at, world, Some(node)));
        plan.then("is its node really being deleted?", Step::confirm_unchanged(Cluster::TARGET, node));
        plan.then("its node is being deleted", Step::delete(Cluster::CONTROL, machine));
        return;
    };
    plan.wait(HELD_BACK, format!("node {} is being deleted; {}", name(node), held.message));
    if let Some(until) = held.until {
        plan.wake_at(until);
    }
    let text = format!("node {} is being deleted; {}", name(node), held.told);
    let draft = StatusDraft::of(machine, at.now).node_conditions(Some(node));
    let draft = draft.condition(conditions::machine::REMEDIATION_ALLOWED, false, HELD_BACK, text);
    plan.then("the machine waits for its replacement", draft.step(machine));
}

/// Of thousands that run, what was said while they were made is not kept; but when it was said, until the provider surely
/// shows what it has made.
fn forget(plan: &mut Plan<Call>, at: &Moment<'_, Call>, context: Context<'_>) {
    let hidden = SignedDuration::try_from(context.driver.consistency()).unwrap_or_default();
    match at.outcomes.latest().and_then(|latest| latest.checked_add(hidden).ok()) {
        Some(shown) if shown > at.now => drop(plan.wake_at(shown)),
        _ => plan.forgets_outcomes = true,
    }
}

fn well(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: &Node,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let draft = StatusDraft::of(machine, at.now).node_conditions(Some(node)).not_held();
    let draft = draft.without(conditions::machine::NODE_READABLE);
    if *machine.phase() == MachinePhase::Running {
        forget(plan, at, context);
        return draft.step(machine);
    }
    if *machine.phase() == MachinePhase::Pending && health::lacks_critical_components(node) {
        plan.wait(
            "CriticalComponentsNotReady",
            "the node is ready, but its critical components are not: a taint says so",
        );
        context.wake_at_deadline(plan, at.now, machine);
        return draft.step(machine);
    }
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let joins = operation.is_none_or(|operation| {
        operation.operation_type == OperationType::Create && operation.state != OperationState::Successful
    });
    let (kind, text) = if joins {
        joined(plan, at, world, node, context);
        (OperationType::Create, format!("Machine {} successfully joined the cluster", name(machine)))
    } else {
        let text = format!("node {} is healthy again", name(node));
        plan.event(event(machine, EventKind::Normal, reasons::machine::HEALTHY, text));
        (OperationType::HealthCheck, format!("Machine {} successfully re-joined the cluster", name(machine)))
    };
    draft
        .phase(MachinePhase::Running)
        .timeout_active(false)
        .operation(kind, OperationState::Successful, text, None)
        .condition(conditions::machine::NODE_JOINED, true, JOINED, joined_as(machine, node))
        .without(conditions::machine::CONFIGURATION_VALID)
        .step(machine)
}

/// Tells of a Machine whose Node is there and well for the first time, and takes its token back.
fn joined(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, node: &Node, context: Context<'_>) {
    let machine = world.machine.as_ref();
    let text = format!("node {} is ready", name(node));
    plan.event(event(machine, EventKind::Normal, reasons::machine::JOINED, text));
    let provisioned = since(machine, conditions::machine::INSTANCE_PROVISIONED).unwrap_or(at.now);
    plan.span(trace::stage(machine, "boot and join", provisioned, at.now));
    plan.span(trace::born(machine, at.now));
    if let Ok(class) = &world.class
        && token::is_used(class)
    {
        let drop = Step::Call(context.call(Verb::DropToken, world, class));
        plan.then("the node has joined: its token is of no more use", drop);
    }
}

/// A Node that exists and cannot be read says nothing of its health, neither good nor bad.
fn await_node(plan: &mut Plan<Call>, at: &Moment<'_, Call>, machine: &Machine, text: &str) {
    plan.wait(unreadable::NODE, text);
    let draft =
        StatusDraft::of(machine, at.now).condition(conditions::machine::NODE_READABLE, false, unreadable::NODE, text);
    if let Some(step) = draft.step(machine) {
        plan.then("the machine's node cannot be read", step);
        plan.event(event(machine, EventKind::Warning, unreadable::NODE, text.to_owned()));
    }
}

fn lacks_node(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World, context: Context<'_>) {
    let why = match &world.stranger {
        _ if world.claim.vm != Vm::Proven => format!("the provider knows no VM {}", world.machine.spec.provider_id),
        Some(stranger) => format!("node {} belongs to another VM", name(stranger.as_ref())),
        None => format!("there is no node with providerID {}", vm_id(&world.machine).unwrap_or_default()),
    };
    let step = unwell(plan, at, world, None, &why, context);
    plan.then("the machine has no node", step);
}

fn unwell(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    node: Option<&Node>,
    why: &str,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let held = StatusDraft::of(machine, at.now).node_conditions(node).without(conditions::machine::NODE_READABLE);
    let draft = held.clone().not_held();
    match machine.phase() {
        MachinePhase::Running => {
            if let Some(until) = node.and_then(|node| health::held_until(node, at.in_touch, at.now)) {
                await_report(plan, why, until);
                return draft.step(machine);
            }
            let timeout = health::timeout_from(machine, context.settings, at.now);
            let given_up = timeout.map(|timeout| GivenUp::of(timeout, node, at.in_touch));
            let text = given_up.map_or(why.to_owned(), |given_up| given_up.text(why));
            let text = format!("Machine {} is unhealthy - changing MachineState to Unknown. {text}", name(machine));
            plan.event(event(machine, EventKind::Warning, reasons::machine::UNHEALTHY, why.to_owned()));
            let draft = given_up.into_iter().fold(draft, StatusDraft::given_up);
            draft
                .phase(MachinePhase::Unknown)
                .timeout_active(true)
                .operation(OperationType::HealthCheck, OperationState::Processing, text, None)
                .step(machine)
        }
        MachinePhase::Unknown => give_up_when_due(plan, at, world, (node, why), held, context),
        MachinePhase::Pending => join_or_fail(plan, at, machine, draft, why, context),
        _ => draft.step(machine),
    }
}

/// Waits for a kubelet to show whether it lives: what is known of its health is from before this process was in touch.
fn await_report(plan: &mut Plan<Call>, why: &str, until: Timestamp) {
    let text = format!(
        "{why}, but that was reported before this manager led, or while an API server was away; it counts from {until:.0}, \
         or with a new report"
    );
    plan.wait_until(until, "ReportAwaited", text);
}

/// Unknown for too long is Failed, as far as the budget goes.
fn give_up_when_due(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    world: &World,
    (node, why): (Option<&Node>, &str),
    held_draft: StatusDraft,
    context: Context<'_>,
) -> Option<Step<Call>> {
    let machine = world.machine.as_ref();
    let draft = held_draft.clone().not_held();
    let Some(timeout) = health::timeout_at(machine, context.settings) else {
        plan.wait("Unhealthy", format!("{why}; its health timeout is switched off"));
        return draft.without(conditions::machine::HEALTH_TIMEOUT).step(machine);
    };
    let given_up = GivenUp::of(timeout, node, at.in_touch);
    if given_up.at > at.now {
        return announce(plan, machine, why, given_up, draft);
    }
    if let Err(held) = budget::permit(world, context.settings, at.now) {
        plan.wait(HELD_BACK, held.message);
        if let Some(until) = held.until {
            plan.wake_at(until);
        }
        let text = format!("Machine {} is unhealthy for too long; {}", name(machine), held.told);
        return held_draft
            .condition(conditions::machine::REMEDIATION_ALLOWED, false, HELD_BACK, text.as_str())
            .operation(OperationType::HealthCheck, OperationState::Processing, text, None)
            .step(machine);
    }
    if let Some(told) = tell_failure(at, world, node) {
        // Tried again beside it; the phase is written by the next plan, because each status carries the Machine's version.
        plan.then(FAILURE_TOLD, told);
        is_confirmed(plan, world, node);
        return None;
    }
    if !is_confirmed(plan, world, node) {
        return draft.step(machine);
    }
    let text = format!(
        "Machine {} health checks failing since {:.0}. {why}",
        name(machine),
        unwell_since(machine).unwrap_or(at.now)
    );
    plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED, text.clone()));
    draft
        .phase(MachinePhase::Failed)
        .timeout_active(false)
        .operation(OperationType::HealthCheck, OperationState::Failed, text, None)
        .step(machine)
}

/// Waits until the Machine is given up. The time stands in the status, which is written where the time has moved.
fn announce(
    plan: &mut Plan<Call>,
    machine: &Machine,
    why: &str,
    given_up: GivenUp,
    draft: StatusDraft,
) -> Option<Step<Call>> {
    let text = given_up.text(why);
    plan.wait_until(given_up.at, given_up.reason(), text.clone());
    if given_up.is_announced(machine) {
        return draft.step(machine);
    }
    plan.event(event(machine, EventKind::Warning, reasons::machine::UNHEALTHY, text.clone()));
    let text = format!("Machine {} is unhealthy. {text}", name(machine));
    draft.given_up(given_up).operation(OperationType::HealthCheck, OperationState::Processing, text, None).step(machine)
}

/// Says on a Machine that may be replaced which request keeps it from that. Every other time only: should the status be
/// what is refused, the replacement goes on.
fn tell_failure(at: &Moment<'_, Call>, world: &World, node: Option<&Node>) -> Option<Step<Call>> {
    let failure = lasting_failure(at).filter(|_| !at.attempt.is_multiple_of(2))?;
    let machine = world.machine.as_ref();
    let text = format!("Machine {} is to be replaced, and a request fails: {failure}", name(machine));
    let draft = StatusDraft::of(machine, at.now).node_conditions(node).not_held();
    draft.operation(OperationType::HealthCheck, OperationState::Processing, text, None).step(machine)
}

/// Whether the API server's own word stands behind what the cache says of a Machine's Node. A Node that is there is
/// read by a step of the plan, which ends the plan where the Node has changed; one that is not is looked for by its name.
fn is_confirmed(plan: &mut Plan<Call>, world: &World, node: Option<&Node>) -> bool {
    if let Some(node) = node {
        let confirm = Step::confirm_unchanged(Cluster::TARGET, node);
        plan.then("a node that has changed is judged again", confirm);
        return true;
    }
    // Of a Machine that has no VM the provider has said so.
    let Some(node) = node_name(&world.machine).filter(|_| world.claim.vm == Vm::Proven) else { return true };
    plan.look(Look::at::<Node>(Cluster::TARGET, node_named(node)));
    let text = match world.unseen_node {
        UnseenNode::None => return true,
        UnseenNode::Unknown => format!("the API server is asked whether there is a node {node}"),
        UnseenNode::Found(_) => format!("node {node} is there again, and is yet to show in the cache"),
    };
    plan.wait("LookingForNode", text);
    false
}

/// A Machine that has not joined in time is Failed.
fn join_or_fail(
    plan: &mut Plan<Call>,
    at: &Moment<'_, Call>,
    machine: &Machine,
    draft: StatusDraft,
    why: &str,
    context: Context<'_>,
) -> Option<Step<Call>> {
    if context.deadline(machine).is_some_and(|deadline| deadline <= at.now) {
        let text = format!(
            "Machine {} failed to join the cluster in {:?}. {why}",
            name(machine),
            context.creation_timeout(machine)
        );
        plan.event(event(machine, EventKind::Warning, reasons::machine::FAILED, text.clone()));
        return draft
            .phase(MachinePhase::Failed)
            .timeout_active(false)
            .operation(OperationType::Create, OperationState::Failed, text, None)
            .condition(conditions::machine::NODE_JOINED, false, JOIN_TIMEOUT, noted_node(machine).unwrap_or_default())
            .step(machine);
    }
    plan.wait("Joining", why);
    context.wake_at_deadline(plan, at.now, machine);
    // A node that comes up changes its conditions several times within a second or two: one copy tells enough.
    let step = draft.step(machine)?;
    let next = at.status_written.and_then(|written| written.checked_add(COPY_PAUSE).ok()).filter(|next| *next > at.now);
    match next {
        Some(next) => {
            plan.wake_at(next);
            None
        }
        None => Some(step),
    }
}
