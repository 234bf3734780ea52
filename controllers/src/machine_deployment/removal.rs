//! The Machines that the cluster autoscaler wants to remove.
//!
//! The autoscaler writes their names and the time into an annotation of the MachineDeployment, together with the smaller
//! number of replicas. The controller turns the names into marks on the Machines, which the MachineSet reads. It drops a name
//! once the Machine is being deleted, and names of Machines that are not the deployment's, which MCM would mark as well.

use std::{collections::BTreeMap, sync::Arc};

use nodewright_api::{Machine, MachinePhase, annotations};
use nodewright_runtime::{
    effect::Never,
    object::{annotation, name},
    plan::{Planned, Step},
};

use super::{patch, scope::Scope, snapshot::Snapshot};
use crate::shared::clusters::CONTROL;

/// The steps for the list, in two stages: marks on Machines, then a shorter list.
pub(super) fn marks(scope: &Scope<'_>) -> [Vec<Planned<Never>>; 2] {
    let deployment = scope.deployment;
    let Some(list) = annotation(deployment, annotations::TRIGGER_DELETION) else { return Default::default() };
    let changed = annotation(deployment, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME);
    let since = changed.map_or_else(|| format!("{:.0}", scope.context.now), str::to_owned);
    let entries: Vec<(&Arc<Machine>, String)> =
        list.split(',').filter_map(|entry| read(scope.snapshot, entry.trim(), &since)).collect();
    let marks = entries.iter().filter_map(|(machine, time)| mark(machine, time)).collect();
    let kept: Vec<_> = entries.iter().map(|(machine, time)| format!("{}~{time}", name(machine.as_ref()))).collect();
    let patch = if kept.is_empty() {
        patch::remove_annotation(&deployment.metadata, annotations::TRIGGER_DELETION)
    } else {
        patch::annotate(&deployment.metadata, &BTreeMap::from([(annotations::TRIGGER_DELETION, kept.join(","))]))
    };
    let why = "names of machines that are gone or leaving are dropped from the list";
    let list = Step::edit(CONTROL, deployment, patch).map(|step| Planned { why: why.into(), step });
    [marks, list.into_iter().collect()]
}

/// Parses an entry `machine~time`, or a name alone. `None` unless the Machine exists and is not yet being deleted.
fn read<'a>(snapshot: &'a Snapshot, entry: &str, since: &str) -> Option<(&'a Arc<Machine>, String)> {
    let (wanted, time) = entry.split_once('~').unwrap_or((entry, since));
    time.parse::<jiff::Timestamp>().ok()?;
    let machine = snapshot.machines().find(|machine| name(machine.as_ref()) == wanted)?;
    let leaving = machine.is_deleting() || matches!(machine.phase(), MachinePhase::Failed | MachinePhase::Terminating);
    (!leaving).then(|| (machine, time.to_owned()))
}

fn mark(machine: &Machine, time: &str) -> Option<Planned<Never>> {
    let priority = annotations::MACHINE_PRIORITY_CANDIDATE.to_owned();
    // The first mark counts: it says how long the autoscaler has been waiting.
    let time = annotation(machine, annotations::MARKED_FOR_DELETION_TIME).unwrap_or(time).to_owned();
    let wanted =
        BTreeMap::from([(annotations::MACHINE_PRIORITY, priority), (annotations::MARKED_FOR_DELETION_TIME, time)]);
    let step = Step::edit(CONTROL, machine, patch::annotate(&machine.metadata, &wanted))?;
    Some(Planned { why: "the autoscaler wants the machine to be gone".into(), step })
}
