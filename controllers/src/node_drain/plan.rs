//! The plan of a Node whose agent asks for a drain or an uncordon.

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use nodewright_api::{
    annotations::CONFIG_DRAIN,
    machine_config::{DESIRED_DRAIN, LAST_APPLIED_DRAIN},
    reasons::node_drain as reasons,
    stored::{self, ConfigDrain},
};
use nodewright_runtime::{
    annotations,
    clip::clip_to,
    effect::Never,
    events::Event,
    object::annotation,
    plan::{Notes, Step, reference},
};

use super::{
    decision::{Decision, Draining, decide},
    memory::{Context, Note, Overdue, Plan},
    snapshot::{Request, Snapshot},
    trace,
};
use crate::shared::{
    TARGET,
    drain::{DrainProgress, Wait},
    machine_config::Operator,
    node::{self, Node},
    patch,
};

/// The limit of a request in texts, in bytes.
const LONGEST_REQUEST: usize = 200;
const UNSCHEDULABLE: [&str; 2] = ["spec", "unschedulable"];

pub(super) fn plan(context: &Context<'_>, snapshot: &Snapshot) -> Plan {
    let (node, mut plan) = (snapshot.node.as_ref(), Plan::idle());
    let Some(request) = &snapshot.request else {
        plan.notes = Notes::Clear;
        return plan;
    };
    plan.scoped_watch(Operator::watch());
    if request.operator.blocks(context, Note::Operator, &mut plan) {
        return plan;
    }
    let decision = decide(context, node, request);
    trace::follow(context, snapshot, &decision, &mut plan);
    match decision {
        Decision::Cordon(record) => {
            plan.then("its agent asks for a drain", edit(node, cordon(node, request, &record)));
        }
        Decision::Drain(draining) => drain(context, (node, request), *draining, &mut plan),
        Decision::Uncordon { opens } => {
            plan.notes.extend(Notes::Clear);
            plan.then("its agent asks for an uncordon", edit(node, uncordon(node, request, opens)));
        }
        Decision::Reject => reject(context, node, request, &mut plan),
    }
    plan
}

fn edit(node: &Node, operations: Vec<PatchOperation>) -> Option<Step<Never>> {
    Step::edit(TARGET, node, Patch(operations))
}

/// Closes the Node, and records for which request and by whom, if all that this depends on is as it was read.
fn cordon(node: &Node, request: &Request, record: &ConfigDrain) -> Vec<PatchOperation> {
    let acknowledged = ["metadata", "annotations", LAST_APPLIED_DRAIN];
    let mut operations = vec![
        still_asked(request),
        patch::test(&acknowledged, annotation(node, LAST_APPLIED_DRAIN).into()),
        patch::test(&UNSCHEDULABLE, node.spec.unschedulable.into()),
    ];
    if !node.is_cordoned() {
        operations.push(patch::set(&UNSCHEDULABLE, true.into()));
    }
    operations.extend(annotations::set(&node.metadata, CONFIG_DRAIN, Some(&record.to_string())).0);
    operations
}

fn drain(context: &Context<'_>, (node, request): (&Node, &Request), draining: Draining, plan: &mut Plan) {
    let Draining { since, progress, forced_at } = draining;
    let DrainProgress { removals, forced, watches, notes, blockers, wake, end, .. } = progress;
    plan.notes.extend(notes.into_iter().map(Note::Drain).collect());
    for removal in removals {
        plan.beside(removal.why, removal.step());
    }
    for watch in watches {
        plan.scoped_watch(watch);
    }
    plan.wake_at(wake);
    plan.event(forced.map(|forced| warning(node, reasons::DRAIN_FORCED, forced.to_string()).logged()));
    if end.is_some() {
        plan.then("its pods have left", edit(node, drained(context, node, request)));
        return;
    }
    let (reason, message) = Wait::of(&blockers).text(reasons::PODS_LEFT);
    plan.wake_at(forced_at);
    report_overdue(context, (node, request), since, &message, plan);
    plan.wait(reason, message);
}

/// Says once that a drain takes too long, and once more when it has failed by machine-config-operator's count. It goes on.
fn report_overdue(
    context: &Context<'_>,
    (node, request): (&Node, &Request),
    since: Timestamp,
    message: &str,
    plan: &mut Plan,
) {
    plan.wake_at(Overdue::next(since, context.now));
    let asked = clip_to(LONGEST_REQUEST, request.asked.as_str());
    let worst = Overdue::reached(since, context.now).next_back();
    let event = worst.filter(|worst| context.noted_since(&Note::Overdue(*worst, since)).is_none()).map(|worst| {
        let (reason, span) = match worst {
            Overdue::TenMinutes => (reasons::DRAIN_THRESHOLD_EXCEEDED, "ten minutes"),
            Overdue::Hour => (reasons::DRAIN_FAILED, "an hour"),
        };
        warning(node, reason, format!("{asked} takes longer than {span}; it continues: {message}")).logged()
    });
    plan.event(event);
    let reported = Overdue::reached(since, context.now).map(|overdue| Note::Overdue(overdue, since));
    plan.notes.extend(reported.collect());
}

/// Tells the agent that the Node is empty, unless it was uncordoned meanwhile. The time of the record is that of the agent's start.
fn drained(context: &Context<'_>, node: &Node, request: &Request) -> Vec<PatchOperation> {
    let mut operations = acknowledge(node, request);
    let record = stored::CONFIG_DRAIN.of(node).map(|record| record.at(context.now).to_string());
    operations.extend(annotations::set(&node.metadata, CONFIG_DRAIN, record.as_deref()).0);
    operations.push(patch::test(&UNSCHEDULABLE, true.into()));
    operations
}

/// Tells the agent that it may go on. The record goes with the last drain that it is about.
fn uncordon(node: &Node, request: &Request, opens: bool) -> Vec<PatchOperation> {
    let mut operations = acknowledge(node, request);
    operations.extend(patch::unannotate(&node.metadata, [CONFIG_DRAIN]));
    if opens {
        operations.extend(node::uncordon(node));
    }
    operations
}

fn acknowledge(node: &Node, request: &Request) -> Vec<PatchOperation> {
    let mut operations = annotations::set(&node.metadata, LAST_APPLIED_DRAIN, Some(&request.asked)).0;
    operations.insert(0, still_asked(request));
    operations
}

fn still_asked(request: &Request) -> PatchOperation {
    patch::test(&["metadata", "annotations", DESIRED_DRAIN], request.asked.as_str().into())
}

/// Says once that the request is none.
fn reject(context: &Context<'_>, node: &Node, request: &Request, plan: &mut Plan) {
    let asked = clip_to(LONGEST_REQUEST, request.asked.as_str());
    let text = format!("{DESIRED_DRAIN} is {asked:?}: it may be drain-<configuration> or uncordon-<configuration>");
    let reported = Note::Invalid(asked);
    let is_reported = context.noted_since(&reported).is_some();
    plan.event((!is_reported).then(|| warning(node, reasons::INVALID_DRAIN_REQUEST, text.clone())));
    plan.notes.add(reported);
    plan.wait(reasons::INVALID_DRAIN_REQUEST, text);
}

fn warning(node: &Node, reason: &'static str, text: String) -> Event {
    Event::warning(reference(node), reason, text).of(TARGET)
}
