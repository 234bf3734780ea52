//! The machines that the cluster autoscaler wants to be gone.
//!
//! It writes their names and the time into an annotation of the MachineDeployment, together with the smaller number of
//! replicas. Here they become marks on the machines, which the MachineSet goes by; once a machine is leaving, its name
//! leaves the list. Names of machines that are not the deployment's are dropped: MCM would mark them as well.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{Machine, MachinePhase, annotations};
use nodewright_runtime::{
    effect::Never,
    object::{annotation, name},
    plan::{Moment, Plan, Planned, Step},
};

use super::{patch, world::World};
use crate::shared::clusters::CONTROL;

/// Adds what the list asks for. Returns whether anything is written: then the sizes wait for the next plan, so that the
/// marks are seen before the smaller number of replicas is.
pub(super) fn mark(plan: &mut Plan<Never>, at: &Moment<'_, Never>, world: &World) -> bool {
    let deployment = world.deployment.as_ref();
    let Some(list) = annotation(deployment, annotations::TRIGGER_DELETION) else { return false };
    let changed = annotation(deployment, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME);
    let since = changed.map_or_else(|| format!("{:.0}", at.now), str::to_owned);
    let entries: Vec<(&Arc<Machine>, String)> =
        list.split(',').filter_map(|entry| read(world, entry.trim(), &since)).collect();
    plan.stage(entries.iter().filter_map(|(machine, time)| mark_one(machine, time)));
    let kept: Vec<_> = entries.iter().map(|(machine, time)| format!("{}~{time}", name(machine.as_ref()))).collect();
    let patch = if kept.is_empty() {
        patch::remove_annotation(&deployment.metadata, annotations::TRIGGER_DELETION)
    } else {
        patch::annotate(&deployment.metadata, &BTreeMap::from([(annotations::TRIGGER_DELETION, kept.join(","))]))
    };
    let step = Step::edit(CONTROL, deployment, patch);
    plan.then("names of machines that are gone or leaving are dropped from the list", step);
    !plan.is_idle()
}

/// An entry `machine~time`, or the name alone, if the machine is there and not yet leaving.
fn read<'a>(world: &'a World, entry: &str, since: &str) -> Option<(&'a Arc<Machine>, String)> {
    let (wanted, time) = entry.split_once('~').unwrap_or((entry, since));
    time.parse::<jiff::Timestamp>().ok()?;
    let machine = world.machines().find(|machine| name(machine.as_ref()) == wanted)?;
    let leaving = machine.is_deleting() || matches!(machine.phase(), MachinePhase::Failed | MachinePhase::Terminating);
    (!leaving).then(|| (machine, time.to_owned()))
}

fn mark_one(machine: &Machine, time: &str) -> Option<Planned<Never>> {
    let priority = annotations::MACHINE_PRIORITY_CANDIDATE.to_owned();
    // The first mark counts: it says how long the autoscaler has been waiting.
    let time = annotation(machine, annotations::MARKED_FOR_DELETION_TIME).unwrap_or(time).to_owned();
    let wanted =
        BTreeMap::from([(annotations::MACHINE_PRIORITY, priority), (annotations::MARKED_FOR_DELETION_TIME, time)]);
    let step = Step::edit(CONTROL, machine, patch::annotate(&machine.metadata, &wanted))?;
    Some(Planned { why: "the autoscaler wants the machine to be gone".into(), step })
}
