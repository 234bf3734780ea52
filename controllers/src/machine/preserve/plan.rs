//! The steps of a preservation.

use jiff::Timestamp;
use json_patch::Patch;
use nodewright_api::{MachinePhase, annotations, conditions, reasons};
use nodewright_runtime::{
    annotations as annotation_patch,
    object::{ObjectRef, is_deleting, name},
    plan::Step,
};

use super::{
    decision::{Decision, End, NodeRequest, decide, follows_node, invalid_value, node_request},
    node::{self, Marks, needs_drain},
};
use crate::{
    machine::{calls::Call, drain, memory::Note, partial_plan::PartialPlan, scope::Scope, snapshot::Owner},
    shared::{
        CONTROL, TARGET,
        node::{Node, set_condition},
        preservation::preserve_expiry,
    },
};

/// What the Machine itself records: the value of its Node's annotation, and until when it is preserved. Nothing else is decided
/// before. Neither the target cluster nor the provider can delay it.
pub(in super::super) fn recorded(scope: &Scope<'_>) -> PartialPlan {
    let decision = decide(scope);
    match decision {
        // What the Node has comes off first: with its annotation, it would be preserved again.
        Decision::End(_) if !marks(scope, decision).is_empty() => PartialPlan::over(),
        Decision::End(end) => {
            let part = PartialPlan::step("its preservation ends", forgotten(scope, end));
            if part.plan.is_idle() { part.and(ended(scope, end)).over_if_idle() } else { part }
        }
        Decision::Nothing => followed(scope).over_if_idle(),
        Decision::Preserve { until, .. } => {
            let part = followed(scope);
            if !part.plan.is_idle() || preserve_expiry(scope.machine).is_some() {
                return part.over_if_idle();
            }
            begun(scope, until)
        }
    }
}

fn begun(scope: &Scope<'_>, until: Timestamp) -> PartialPlan {
    let draft = scope.status().preserved_until(until);
    let (draft, text) = if *scope.machine.phase() == MachinePhase::Failed {
        let text = kept_text(scope, until);
        (draft.condition(conditions::machine::WAITING, true, reasons::machine::PRESERVED, text.as_str()), text)
    } else {
        (draft, format!("the machine is preserved until {until:.0}: its set deletes it last"))
    };
    let event = scope.normal(reasons::machine::PRESERVED, text);
    PartialPlan::step("it is asked for that the machine is preserved", draft.step()).event(event)
}

fn ended(scope: &Scope<'_>, end: End) -> PartialPlan {
    if preserve_expiry(scope.machine).is_none() {
        return PartialPlan::default();
    }
    let draft = scope.status().not_preserved().without(conditions::machine::WAITING);
    let draft = draft.node_conditions(scope.snapshot.node.as_deref());
    let text = format!("the machine is no longer preserved: {}", end.why);
    PartialPlan::step("its preservation has ended", draft.step())
        .event(scope.normal(reasons::machine::PRESERVATION_ENDED, text))
}

/// The Machine bears what its Node asks for, for its set, and in case that the annotation is removed from the Node while nobody looks.
fn followed(scope: &Scope<'_>) -> PartialPlan {
    let Some(node) = scope.snapshot.node.as_deref() else { return PartialPlan::default() };
    let part = match invalid_value(node) {
        Some(value) => invalid(scope, node, value.text()),
        None => PartialPlan::default(),
    };
    let value = match node_request(scope.machine, node) {
        NodeRequest::Recorded => return part,
        NodeRequest::Changed(value) => Some(value.as_str()),
        NodeRequest::Removed => None,
    };
    let meta = &scope.machine.metadata;
    let applied = annotations::LAST_APPLIED_NODE_PRESERVE_VALUE;
    let mut patch = annotation_patch::set(meta, applied, value);
    patch.0.extend(annotation_patch::set(meta, annotations::PRESERVE, None).0);
    part.then("the annotation of the node counts", Step::edit(CONTROL, scope.machine, patch))
}

fn invalid(scope: &Scope<'_>, node: &Node, value: &str) -> PartialPlan {
    let known = Note::InvalidPreserveValue(value.chars().take(63).collect());
    let text = format!(
        "node {}, annotation {}: {value:?} has no effect; valid values are {}",
        name(node),
        annotations::PRESERVE,
        annotations::PRESERVE_VALUES.join(", ")
    );
    let is_reported = scope.context.noted_since(&known).is_some();
    let part = PartialPlan::default().noting(known);
    if is_reported { part } else { part.event(scope.warning(reasons::machine::INVALID_PRESERVE_VALUE, text)) }
}

fn forgotten(scope: &Scope<'_>, end: End) -> Option<Step<Call>> {
    let follows = |node| follows_node(scope.machine) && node_request(scope.machine, node) != NodeRequest::Recorded;
    let follows = scope.snapshot.node.as_deref().is_some_and(follows);
    if !end.forgets && !follows {
        return None;
    }
    let meta = &scope.machine.metadata;
    let keys = [annotations::PRESERVE, annotations::LAST_APPLIED_NODE_PRESERVE_VALUE];
    let patches = keys.map(|key| annotation_patch::set(meta, key, None).0);
    Step::edit(CONTROL, scope.machine, Patch(patches.concat()))
}

fn marks(scope: &Scope<'_>, decision: Decision) -> Marks {
    let node = scope.snapshot.node.as_deref().filter(|node| !is_deleting(*node));
    let Some(node) = node else { return Marks::default() };
    let (phase, now) = (scope.machine.phase(), scope.now());
    let has_failed = *phase == MachinePhase::Failed;
    match decision {
        Decision::Preserve { until, by_set } => node::mark(node, has_failed, (until, by_set), now),
        Decision::End(end) => {
            let was_preserved = preserve_expiry(scope.machine).is_some();
            node::unmark(node, has_failed, Some(end), was_preserved, now)
        }
        // The expiry time was lost: with a removed status, in a restore, or by another manager.
        Decision::Nothing if !has_failed && node::is_marked(node) => node::unmark(node, false, None, false, now),
        Decision::Nothing if *phase == MachinePhase::Running => node::open(node),
        Decision::Nothing => Marks::default(),
    }
}

/// The plan of a Machine, with the marks that its Node lacks or has too many of, beside everything else: what refuses them delays
/// nothing. They wait while the plan writes the Node.
pub(in super::super) fn marked(scope: &Scope<'_>, part: PartialPlan) -> PartialPlan {
    let decision = decide(scope);
    let part = match decision {
        Decision::Preserve { until, .. } => part.waking_at(until),
        _ => part,
    };
    let marks = marks(scope, decision);
    let Some(node) = scope.snapshot.node.as_deref().filter(|_| !marks.is_empty()) else { return part };
    let key = ObjectRef::of(TARGET, node);
    let is_of_node = |step: &Step<Call>| matches!(step, Step::Edit { at, .. } if *at.key() == key);
    if part.plan.steps().any(|planned| is_of_node(&planned.step)) {
        return part;
    }
    part.beside("whether the machine is preserved shows on its node", Step::edit(TARGET, node, marks.spec))
        .beside("whether the machine is preserved shows on its node", Step::edit_status(TARGET, node, marks.status))
}

/// A failed Machine that is kept for diagnosis: its set neither deletes nor replaces it, and its Pods leave.
pub(in super::super) fn kept(scope: &Scope<'_>, until: Timestamp) -> PartialPlan {
    let part = PartialPlan::waiting_until(until, reasons::machine::PRESERVED, kept_text(scope, until));
    let node = scope.snapshot.node.as_deref().filter(|node| needs_drain(scope.machine, node) && !is_deleting(*node));
    let Some(node) = node else { return part };
    let decision = decide(scope);
    let Decision::Preserve { until, by_set } = decision else { return part };
    // No Pod may start on the Node before the others leave.
    if !marks(scope, decision).is_empty() {
        return part;
    }
    // The time to drain begins with the failure.
    let since = scope.machine.phase_since().unwrap_or(scope.now());
    let Some(drained) = drain::of_kept(scope, node, since) else {
        let condition = node::condition(until, by_set, true, scope.now());
        let step = Step::edit_status(TARGET, node, Patch(set_condition(node, &condition)));
        return part.then("no pod is left that could leave", step);
    };
    part.and(drained)
}

fn kept_text(scope: &Scope<'_>, until: Timestamp) -> String {
    let end = match scope.snapshot.owner {
        Owner::None => "; it has no set, so that it stays until somebody deletes it",
        _ => ", and replaced then",
    };
    let asked = "annotation node.machine.sapcloud.io/preserve: `false` ends it";
    format!("the failed machine is kept for diagnosis until {until:.0}{end} ({asked})")
}
