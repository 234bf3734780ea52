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

use jiff::Timestamp;
use json_patch::Patch;
use nodewright_api::{
    Machine, MachineDeployment, MachinePhase, MachineSet, annotations, labels,
    reasons::events,
    stored::{Removal, Removals, SCALER_CHANGE, Seconds, removals},
};
use nodewright_runtime::{
    annotations as annotations_of,
    effect::Never,
    events::Event,
    object::{annotation, name},
    plan::{Planned, Step, reference},
};
use serde_json::json;

use super::{
    sets::copied,
    snapshot::{SetView, Snapshot},
};
use crate::shared::{CONTROL, patch, template};

/// What the list of the cluster autoscaler asks for.
#[derive(Debug)]
pub(super) struct Marks<'a> {
    machines: Vec<(&'a Arc<Machine>, Patch)>,
    /// The change of the list. Empty if it names only Machines that exist and are not leaving.
    pub(super) list: Patch,
}

impl Marks<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.list.0.is_empty()
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = Planned<Never>> {
        self.machines.iter().filter_map(|(machine, patch)| {
            let step = Step::edit(CONTROL, machine.as_ref(), patch.clone())?;
            Some(Planned { why: "the autoscaler wants the machine to be gone".into(), step })
        })
    }
}

pub(super) fn marks(now: Timestamp, snapshot: &Snapshot) -> Marks<'_> {
    let deployment = snapshot.deployment.as_ref();
    let Some(list) = annotation(deployment, annotations::TRIGGER_DELETION) else {
        return Marks { machines: vec![], list: Patch::default() };
    };
    let changed = annotation(deployment, annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME);
    let since = changed.map_or_else(|| Seconds(now).to_string(), str::to_owned);
    let machines: HashMap<&str, &Arc<Machine>> =
        snapshot.machines().map(|machine| (name(machine.as_ref()), machine)).collect();
    let has_since = !matches!(SCALER_CHANGE.read(deployment), Some(Err(_)));
    let entries = removals(list).flatten().filter(|entry| entry.time.is_some() || has_since);
    let entries: Vec<_> = entries.filter_map(|entry| Some((staying(&machines, entry.machine)?, entry))).collect();
    let dated = entries.iter().map(|(machine, entry)| (*machine, entry.time.unwrap_or(&since)));
    let marks = dated.clone().map(|(machine, time)| (machine, mark(machine, time)));
    let kept: Vec<_> =
        dated.map(|(machine, time)| Removal { machine: name(machine.as_ref()), time: Some(time) }).collect();
    let kept = (!entries.is_empty()).then(|| Removals(kept).to_string());
    let list = annotations_of::set(&deployment.metadata, annotations::TRIGGER_DELETION, kept.as_deref());
    Marks { machines: marks.filter(|(_, patch)| !patch.0.is_empty()).collect(), list }
}

/// The Machine of this name, unless it is leaving already.
fn staying<'a>(machines: &HashMap<&str, &'a Arc<Machine>>, wanted: &str) -> Option<&'a Arc<Machine>> {
    let machine = *machines.get(wanted)?;
    let leaving = machine.is_deleting() || matches!(machine.phase(), MachinePhase::Failed | MachinePhase::Terminating);
    (!leaving).then_some(machine)
}

fn mark(machine: &Machine, time: &str) -> Patch {
    let priority = annotations::MACHINE_PRIORITY_CANDIDATE.to_owned();
    // The first mark counts: it says how long the autoscaler has been waiting.
    let time = annotation(machine, annotations::MARKED_FOR_DELETION_TIME).unwrap_or(time).to_owned();
    let wanted =
        BTreeMap::from([(annotations::MACHINE_PRIORITY, priority), (annotations::MARKED_FOR_DELETION_TIME, time)]);
    patch::annotate(&machine.metadata, &wanted)
}

/// What becomes of `spec.rollbackTo`. Each case clears the field.
#[derive(Debug)]
pub(super) enum Rollback<'a> {
    /// No set has the revision.
    Unknown(String),
    /// The set of the revision has the present template.
    Unchanged,
    To(&'a SetView),
}

pub(super) fn rollback(snapshot: &Snapshot) -> Option<Rollback<'_>> {
    let deployment = snapshot.deployment.as_ref();
    let wanted = deployment.spec.rollback_to.as_ref()?.revision;
    let revision = if wanted == 0 { last_revision(snapshot) } else { Some(wanted) };
    let found = revision.and_then(|revision| snapshot.staying().find(|view| view.revision() == revision));
    Some(match found {
        None => Rollback::Unknown(unknown_revision(snapshot, wanted)),
        Some(view) if template::is_same(&view.set.spec.template, &deployment.spec.template) => Rollback::Unchanged,
        Some(view) => Rollback::To(view),
    })
}

impl Rollback<'_> {
    pub(super) fn patch(&self, deployment: &MachineDeployment) -> Patch {
        let mut operations = vec![patch::same_version(&deployment.metadata), patch::remove(&["spec", "rollbackTo"])];
        if let Self::To(view) = self {
            operations.extend(restore(deployment, &view.set));
        }
        Patch(operations)
    }

    pub(super) fn event(&self, deployment: &MachineDeployment) -> Event {
        let (about, deployment) = (reference(deployment), name(deployment));
        match self {
            Self::Unknown(text) => Event::warning(about, events::ROLLBACK_REVISION_NOT_FOUND, text.as_str()),
            Self::Unchanged => {
                let text =
                    format!("The rollback revision contains the same template as current deployment {deployment:?}");
                Event::warning(about, events::ROLLBACK_TEMPLATE_UNCHANGED, text)
            }
            Self::To(view) => {
                let text = format!("Rolled back deployment {deployment:?} to revision {}", view.revision());
                Event::normal(about, events::ROLLBACK_DONE, text)
            }
        }
    }
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

/// The template of the set, and the annotations that the deployment had with it.
pub(super) fn restore(deployment: &MachineDeployment, set: &MachineSet) -> [json_patch::PatchOperation; 2] {
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
