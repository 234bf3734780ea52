//! The plan of a Machine, composed from its decisions.
//!
//! ```text
//! caches ── snapshot ─► Scope ─┬─ proof ─────► whose VM is it?            ─┐
//!                              ├─ provision ─► what does its VM lack?      ├─ parts ─► Plan
//!                              ├─ preserve ──► is it kept, and until when? │
//!                              ├─ update ────► is its Node updated?        │
//!                              ├─ health ────► does it fail, and when?     │
//!                              └─ terminate ─► what is left to delete?    ─┘
//! ```

use nodewright_api::{conditions, finalizers};
use nodewright_runtime::{
    finalizers as finalizer,
    object::{has_finalizer, is_deleting},
    plan::{Notes, Step},
};

use super::{
    claim,
    decision::{self, Decision},
    health,
    memory::Plan,
    partial_plan::PartialPlan,
    preserve,
    proof::{vm_proven, vm_settled},
    provision,
    scope::{Scope, WORTH_REPORTING},
    terminate::{self, LISTING_NODES, NODES_UNLISTED},
    trace, update, waiting,
};
use crate::shared::{CONTROL, class_secrets};

pub(super) fn plan(scope: &Scope<'_>) -> Plan {
    let mut plan = if let Some(message) = scope.snapshot.secret_pending() {
        PartialPlan::waiting(class_secrets::PENDING, message).plan
    } else {
        let is_deleting = is_deleting(scope.machine);
        let part = run(scope, if is_deleting { &TERMINATION[..] } else { &MAINTENANCE });
        let extends_trace = trace::is_in_progress(scope.machine);
        Plan { traceparent: Some(scope.trace), extends_trace, ..part.plan }
    };
    plan.scoped_watches.extend(scope.snapshot.scoped_watches.iter().cloned());
    waiting::report(scope, plan)
}

/// What one question adds to the plan, and whether the next one follows.
type Question = fn(&Scope<'_>) -> PartialPlan;

const MAINTENANCE: [Question; 6] =
    [nodes_listed, finalizer_added, claim_reported, vm_proven, preserve::recorded, maintained];

const TERMINATION: [Question; 15] = [
    terminate::has_finalizer,
    terminate::begun,
    terminate::failure_reported,
    claim_reported,
    vm_settled,
    terminate::node_readable,
    terminate::disruption_claimed,
    terminate::drained,
    terminate::volumes_detached,
    terminate::vm_deleted,
    terminate::token_dropped,
    terminate::volumes_released,
    terminate::node_deleted,
    terminate::name_retired,
    terminate::finished,
];

fn run(scope: &Scope<'_>, questions: &[Question]) -> PartialPlan {
    let mut all = PartialPlan::over();
    for question in questions {
        all = all.and(question(scope));
        if !all.is_over {
            break;
        }
    }
    all
}

/// Until then it is not known which Node is the Machine's.
fn nodes_listed(scope: &Scope<'_>) -> PartialPlan {
    if scope.snapshot.nodes_listed || !scope.settings.has_target {
        return PartialPlan::over();
    }
    // It is on its way: thousands of Machines would say so at each start.
    if let Some(due) = scope.pause_end(scope.context.leader_since, WORTH_REPORTING) {
        return PartialPlan::default().waking_at(due);
    }
    PartialPlan::waiting(LISTING_NODES, NODES_UNLISTED)
}

fn finalizer_added(scope: &Scope<'_>) -> PartialPlan {
    let machine = scope.machine;
    if has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return PartialPlan::over();
    }
    let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    PartialPlan::step("the machine has to outlive its VM", Step::edit(CONTROL, machine, add))
}

fn claim_reported(scope: &Scope<'_>) -> PartialPlan {
    let (machine, kind) = (scope.machine, conditions::machine::CONFIGURATION_VALID);
    let part = match claim::conflict(machine, &scope.snapshot.claim) {
        Some((reason, message)) => {
            let step = scope.status().condition(kind, false, reason, message.as_str()).step();
            let event = scope.warning(reason, message.as_str());
            PartialPlan::reporting("the machine's claim is not in order", step, event).and_wait(reason, message)
        }
        None if claim::reports_conflict(machine) => {
            PartialPlan::step("the machine's claim is in order again", scope.status().without(kind).step())
        }
        None => PartialPlan::over(),
    };
    part.over_if_idle()
}

fn maintained(scope: &Scope<'_>) -> PartialPlan {
    let part = match decision::decide(scope) {
        Decision::Preserve(until) => preserve::kept(scope, until),
        Decision::AwaitReplacement => {
            PartialPlan::waiting("Failed", "the machine set deletes and replaces a machine in phase Failed")
        }
        Decision::AwaitUser => {
            let text = "a machine in phase Failed that has no machine set stays until somebody deletes it";
            PartialPlan::waiting("Failed", text)
        }
        Decision::CreateVm => provision::create(scope),
        Decision::InitializeVm => provision::initialize(scope),
        Decision::CheckHealth => updated(scope),
        Decision::Nothing => PartialPlan::over(),
    };
    preserve::marked(scope, part)
}

/// The health of the Node, and its update in place.
fn updated(scope: &Scope<'_>) -> PartialPlan {
    match update::part(scope) {
        update::Part::None => update::awaiting_components(scope, health::checked(scope)),
        update::Part::Instead(part) => part,
        update::Part::Beside(part) => {
            let mut health = health::checked(scope);
            // The drain goes by what it was answered.
            health.plan.forgets_outcomes = false;
            if health.plan.steps().next().is_none() {
                return health.and(part);
            }
            // Both may write the Machine or its Node. What the drain remembers stays.
            health.plan.notes = Notes::Keep;
            health
        }
    }
}
