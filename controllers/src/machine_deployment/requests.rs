//! What is asked of a MachineDeployment besides its spec: removals and a rollback.
//!
//! The cluster autoscaler writes names of Machines and the time into an annotation, together with the smaller number of
//! replicas. The controller turns them into marks on the Machines, which the MachineSet reads, and drops the names of Machines
//! that are being deleted or not the deployment's, which MCM would mark as well.
//!
//! `spec.rollbackTo` is deprecated, and supported as by MCM and early Kubernetes: one write restores the template of the
//! revision and the annotations that the deployment had with it, and clears the field.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use json_patch::Patch;
use nodewright_api::{
    Machine, MachineDeployment, MachinePhase, MachineSet, annotations, labels,
    reasons::events,
    stored::{Removal, SCALER_CHANGE, removals},
};
use nodewright_runtime::{
    effect::Never,
    events::Event,
    object::{annotation, name},
    plan::{Planned, Step, reference},
};
use serde_json::json;

use super::{
    sets::copied,
    snapshot::{Scope, SetView, Snapshot},
};
use crate::shared::{CONTROL, patch, template};

pub(super) fn marks(scope: &Scope<'_>) -> [Vec<Planned<Never>>; 2] {
    let deployment = scope.deployment;
    let Some(list) = annotation(deployment, annotations::TRIGGER_DELETION) else { return Default::default() };
    let changed = annotation(deployment, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME);
    let since = changed.map_or_else(|| format!("{:.0}", scope.context.now), str::to_owned);
    let machines: HashMap<&str, &Arc<Machine>> =
        scope.snapshot.machines().map(|machine| (name(machine.as_ref()), machine)).collect();
    let has_since = !matches!(SCALER_CHANGE.read(deployment), Some(Err(_)));
    let is_timed = |entry: &Removal<'_>| entry.time.is_some() || has_since;
    let entries = removals(list).flatten().filter(|entry| is_timed(entry) && stays(&machines, entry));
    let entries: Vec<_> = entries.collect();
    let marks = entries.iter().filter_map(|entry| mark(machines.get(entry.machine)?, entry.time.unwrap_or(&since)));
    let marks = marks.collect();
    let kept: Vec<_> = entries.iter().map(|entry| entry.text(&since)).collect();
    let kept = (!kept.is_empty()).then(|| kept.join(","));
    let patch =
        nodewright_runtime::annotations::set(&deployment.metadata, annotations::TRIGGER_DELETION, kept.as_deref());
    let why = "names of machines that are gone or leaving are dropped from the list";
    let list = Step::edit(CONTROL, deployment, patch).map(|step| Planned { why: why.into(), step });
    [marks, list.into_iter().collect()]
}

/// Whether the Machine of an entry exists, and is not leaving already.
fn stays(machines: &HashMap<&str, &Arc<Machine>>, entry: &Removal<'_>) -> bool {
    machines.get(entry.machine).is_some_and(|machine| {
        !machine.is_deleting() && !matches!(machine.phase(), MachinePhase::Failed | MachinePhase::Terminating)
    })
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

pub(super) fn roll_back(snapshot: &Snapshot) -> Option<(Option<Step<Never>>, Event)> {
    let deployment = snapshot.deployment.as_ref();
    let wanted = deployment.spec.rollback_to.as_ref()?.revision;
    let revision = if wanted == 0 { last_revision(snapshot) } else { Some(wanted) };
    let found = revision.and_then(|revision| snapshot.staying().find(|view| view.revision() == revision));
    let mut operations = vec![patch::same_version(&deployment.metadata), patch::remove(&["spec", "rollbackTo"])];
    let event = match found {
        None => warning(deployment, events::ROLLBACK_REVISION_NOT_FOUND, unknown_revision(snapshot, wanted)),
        Some(view) if template::is_same(&view.set.spec.template, &deployment.spec.template) => {
            let text = format!(
                "The rollback revision contains the same template as current deployment {:?}",
                name(deployment)
            );
            warning(deployment, events::ROLLBACK_TEMPLATE_UNCHANGED, text)
        }
        Some(view) => {
            operations.extend(restore(deployment, &view.set));
            let text = format!("Rolled back deployment {:?} to revision {}", name(deployment), view.revision());
            Event::normal(reference(deployment), events::ROLLBACK_DONE, text)
        }
    };
    Some((Step::edit(CONTROL, deployment, Patch(operations)), event))
}

/// The text of machine-controller-manager, with the revisions that there are: at most ten, the newest first.
fn unknown_revision(snapshot: &Snapshot, wanted: i64) -> String {
    let mut known: Vec<i64> = snapshot.staying().map(SetView::revision).filter(|&revision| revision > 0).collect();
    known.sort_unstable_by(|a, b| b.cmp(a));
    let known: Vec<_> = known.iter().take(10).map(ToString::to_string).collect();
    let wanted = if wanted == 0 { "the last one before this".to_owned() } else { wanted.to_string() };
    format!("Unable to find the revision to rollback to. Wanted: {wanted}; there are: {}", known.join(", "))
}

/// The revision before the newest.
fn last_revision(snapshot: &Snapshot) -> Option<i64> {
    let mut revisions: Vec<i64> = snapshot.staying().map(SetView::revision).filter(|&revision| revision > 0).collect();
    revisions.sort_unstable();
    revisions.into_iter().rev().nth(1)
}

fn restore(deployment: &MachineDeployment, set: &MachineSet) -> [json_patch::PatchOperation; 2] {
    let mut template = set.spec.template.clone();
    if let Some(all) = template.metadata.labels.as_mut() {
        all.remove(labels::MACHINE_TEMPLATE_HASH);
    }
    let mut annotations: BTreeMap<String, String> = deployment.metadata.annotations.clone().unwrap_or_default();
    let present = copied(deployment.metadata.annotations.as_ref());
    annotations.retain(|key, _| !present.contains_key(key));
    annotations.extend(copied(set.metadata.annotations.as_ref()));
    [patch::set(&["spec", "template"], json!(template)), patch::set(&["metadata", "annotations"], json!(annotations))]
}

fn warning(deployment: &MachineDeployment, reason: &'static str, message: impl Into<String>) -> Event {
    Event::warning(reference(deployment), reason, message)
}
