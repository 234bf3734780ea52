//! The plan of a Machine, composed from its decisions.
//!
//! ```text
//! caches ── snapshot ─► Scope ─┬─ proof ─────► whose VM is it?            ─┐
//!                              ├─ provision ─► what does its VM lack?      ├─ Stage ─► Plan
//!                              ├─ health ────► is it given up, and when?   │
//!                              └─ terminate ─► what is left to delete?    ─┘
//! ```

use nodewright_api::{MachinePhase, conditions, finalizers};
use nodewright_runtime::{
    finalizers as finalizer,
    object::{has_finalizer, is_deleting},
    plan::Step,
};

use super::{
    claim,
    decision::{Scope, Stage, WORTH_TELLING},
    health,
    kept::kept,
    memory::Plan,
    proof::{vm_proven, vm_settled},
    provision,
    snapshot::Owner,
    terminate::{self, LISTING_NODES, NODES_UNLISTED},
    trace, waiting,
};
use crate::shared::{CONTROL, class_secrets, ownership::vm_id};

pub(super) fn plan(scope: &Scope<'_>) -> Plan {
    let mut plan = if let Some(message) = scope.snapshot.secret_pending() {
        Stage::waiting(class_secrets::PENDING, message).plan
    } else {
        let is_deleting = is_deleting(scope.machine);
        let stage = run(scope, if is_deleting { &TERMINATION[..] } else { &MAINTENANCE });
        Plan { traceparent: Some(trace::current(scope.machine)), ..stage.plan }
    };
    plan.scoped_watches.extend(scope.snapshot.scoped_watches.iter().cloned());
    waiting::told(scope, plan)
}

type Decision = fn(&Scope<'_>) -> Stage;

const MAINTENANCE: [Decision; 5] = [nodes_listed, finalizer_added, claim_reported, vm_proven, maintained];

const TERMINATION: [Decision; 14] = [
    terminate::has_finalizer,
    terminate::begun,
    terminate::failure_reported,
    claim_reported,
    vm_settled,
    terminate::node_readable,
    terminate::drained,
    terminate::volumes_detached,
    terminate::vm_deleted,
    terminate::token_dropped,
    terminate::volumes_released,
    terminate::node_deleted,
    terminate::name_retired,
    terminate::finished,
];

fn run(scope: &Scope<'_>, decisions: &[Decision]) -> Stage {
    let mut all = Stage::over();
    for decide in decisions {
        all = all.and(decide(scope));
        if !all.is_over {
            break;
        }
    }
    all
}

/// Until then nobody knows which Node is the Machine's.
fn nodes_listed(scope: &Scope<'_>) -> Stage {
    if scope.snapshot.nodes_listed || !scope.settings.has_target {
        return Stage::over();
    }
    // It is on its way: thousands of Machines would say so at each start.
    if let Some(due) = scope.pause_end(scope.context.leader_since, WORTH_TELLING) {
        return Stage::default().waking_at(due);
    }
    Stage::waiting(LISTING_NODES, NODES_UNLISTED)
}

fn finalizer_added(scope: &Scope<'_>) -> Stage {
    let machine = scope.machine;
    if has_finalizer(machine, finalizers::MACHINE_CONTROLLER_MANAGER) {
        return Stage::over();
    }
    let add = finalizer::add(&machine.metadata, finalizers::MACHINE_CONTROLLER_MANAGER);
    Stage::step("the machine has to outlive its VM", Step::edit(CONTROL, machine, add))
}

fn claim_reported(scope: &Scope<'_>) -> Stage {
    let (machine, kind) = (scope.machine, conditions::machine::CONFIGURATION_VALID);
    let stage = match claim::problem(machine, &scope.snapshot.claim) {
        Some((reason, message)) => {
            let step = scope.status().condition(kind, false, reason, message.as_str()).step();
            let event = scope.warning(reason, message.as_str());
            Stage::reporting("the machine's claim is not in order", step, event).and_wait(reason, message)
        }
        None if claim::names_problem(machine) => {
            Stage::step("the machine's claim is in order again", scope.status().without(kind).step())
        }
        None => Stage::over(),
    };
    stage.over_if_idle()
}

fn maintained(scope: &Scope<'_>) -> Stage {
    let phase = scope.machine.phase();
    let is_healthy = || health::has_healthy_node(scope);
    if *phase == MachinePhase::Failed && !is_healthy() {
        let text = match scope.snapshot.owner {
            Owner::None => "a machine in phase Failed that has no machine set stays until somebody deletes it",
            _ => "the machine set deletes and replaces a machine in phase Failed",
        };
        return kept(scope).unwrap_or_else(|| Stage::waiting("Failed", text));
    }
    match vm_id(scope.machine) {
        None => provision::create(scope),
        Some(_) if provision::is_unprovisioned(phase) && !is_healthy() => provision::initialize(scope),
        Some(_) if scope.settings.has_target => health::judged(scope),
        Some(_) => Stage::over(),
    }
}
