//! `spec.rollbackTo`: deprecated, and supported as by MCM and early Kubernetes.
//!
//! One write, with the version that was read, restores the template of the revision and the annotations that the deployment
//! had with it, and clears the field.

use std::collections::BTreeMap;

use json_patch::Patch;
use nodewright_api::{MachineDeployment, MachineSet, labels, reasons::events};
use nodewright_runtime::{
    effect::Never,
    events::Event,
    object::name,
    plan::{Step, reference},
};
use serde_json::json;

use super::{
    patch,
    sets::copied,
    snapshot::{SetView, Snapshot},
    template,
};
use crate::shared::clusters::CONTROL;

/// The rollback and its event, if one is requested.
pub(super) fn roll_back(snapshot: &Snapshot) -> Option<(Option<Step<Never>>, Event)> {
    let deployment = snapshot.deployment.as_ref();
    let wanted = deployment.spec.rollback_to.as_ref()?.revision;
    let revision = if wanted == 0 { last_revision(snapshot) } else { Some(wanted) };
    let found = revision.and_then(|revision| snapshot.staying().find(|view| view.revision() == revision));
    let mut operations = vec![patch::same_version(&deployment.metadata), patch::remove(&["spec", "rollbackTo"])];
    let event = match found {
        None => warning(deployment, events::ROLLBACK_REVISION_NOT_FOUND, "Unable to find the revision to rollback to."),
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
