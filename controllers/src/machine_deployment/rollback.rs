//! `spec.rollbackTo`: deprecated, yet obeyed as MCM and early Kubernetes do.
//!
//! The template of the revision becomes that of the deployment, the annotations that came from the deployment at that
//! time come back with it, and the wish is cleared, all in one write under the version that was read.

use std::collections::BTreeMap;

use json_patch::Patch;
use nodewright_api::{MachineDeployment, MachineSet, labels, reasons::events};
use nodewright_runtime::{
    effect::Never,
    events::Event,
    object::name,
    plan::{Plan, Step, reference},
};
use serde_json::json;

use super::{
    owned::copied,
    patch, template,
    world::{SetView, World},
};
use crate::shared::clusters::CONTROL;

/// Adds the rollback, if one is asked for. Returns whether the deployment is written.
pub(super) fn roll_back(plan: &mut Plan<Never>, world: &World) -> bool {
    let deployment = world.deployment.as_ref();
    let Some(wish) = deployment.spec.rollback_to.as_ref() else { return false };
    let revision = if wish.revision == 0 { last_revision(world) } else { Some(wish.revision) };
    let found = revision.and_then(|revision| world.staying().find(|view| view.revision() == revision));
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
    plan.then("a rollback is asked for", Step::edit(CONTROL, deployment, Patch(operations)));
    plan.event(event);
    true
}

/// The revision before the newest.
fn last_revision(world: &World) -> Option<i64> {
    let mut revisions: Vec<i64> = world.staying().map(SetView::revision).filter(|&revision| revision > 0).collect();
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
