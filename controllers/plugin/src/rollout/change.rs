//! Changes of a rollout. Each touches the fields that it must, and no others.

use jiff::Timestamp;
use nodewright_api::{MachineDeployment, MachineSet};
use nodewright_controllers::machine_deployment::{is_same_template, rollback_patch};
use nodewright_runtime::object::name;
use serde_json::{Value, json};

use super::{
    deployment, full_name,
    history::{revisions, template_text},
};
use crate::{
    client::Patch,
    fault::{Fault, Outcome, fail},
    read::Scope,
    resources::DEPLOYMENTS,
    snapshot::revision,
};

/// The annotation of the template by which `kubectl rollout restart` makes a new one.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
const DRY: &str = " (server dry run)";
/// What an API server answers if a test in a JSON patch fails.
const PATCH_REFUSED: &str = "the server rejected our request due to an error in our request";

async fn patched(scope: &Scope, of: &str, patch: &Patch, (dry, done): (bool, &str)) -> Outcome<String> {
    let at = (DEPLOYMENTS, scope.namespace.as_deref(), of);
    let changed = scope.control.patch(at, patch, dry).await;
    changed.map_err(|error| changed_meanwhile(of, error))?;
    Ok(format!("{} {done}{}\n", full_name(of), if dry { DRY } else { "" }))
}

/// A test of a JSON patch has failed, or the version is another.
fn changed_meanwhile(of: &str, error: Fault) -> Fault {
    match &error {
        Fault::Refused { code: 409, .. } => changed(of),
        Fault::Refused { code: 422, message, .. } if message.contains(PATCH_REFUSED) => changed(of),
        _ => error,
    }
}

fn changed(of: &str) -> Fault {
    Fault::Message(format!("machinedeployment {of:?} has changed since it was read: run the command again"))
}

/// A merge patch for the object that was read.
fn of_this(deployment: &MachineDeployment, mut change: Value) -> Patch {
    change["metadata"]["uid"] = deployment.metadata.uid.clone().into();
    Patch::Merge(change)
}

pub(crate) async fn pause(scope: &Scope, of: &str, dry: bool) -> Outcome<String> {
    let found = deployment(scope, of).await?;
    if found.spec.paused {
        return fail(format!("machinedeployments.machine.sapcloud.io {of:?} is already paused"));
    }
    patched(scope, of, &of_this(&found, json!({"spec": {"paused": true}})), (dry, "paused")).await
}

pub(crate) async fn resume(scope: &Scope, of: &str, dry: bool) -> Outcome<String> {
    let found = deployment(scope, of).await?;
    if !found.spec.paused {
        return fail(format!("machinedeployments.machine.sapcloud.io {of:?} is not paused"));
    }
    // As absent, so that an apply of files that do not have the field changes nothing.
    patched(scope, of, &of_this(&found, json!({"spec": {"paused": null}})), (dry, "resumed")).await
}

/// Replaces all machines, by an annotation of the template.
pub(crate) async fn restart(scope: &Scope, of: &str, dry: bool) -> Outcome<String> {
    let found = deployment(scope, of).await?;
    if found.spec.paused {
        return fail(format!(
            "machinedeployments.machine.sapcloud.io {of:?} can't restart paused deployment (run rollout resume first)"
        ));
    }
    let at = format!("{:.0}", Timestamp::now());
    let change = json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: at}}}}});
    patched(scope, of, &of_this(&found, change), (dry, "restarted")).await
}

/// Restores the template of a revision; 0 is the one before the newest. With `show` it prints the template alone.
pub(crate) async fn undo(scope: &Scope, of: &str, to: i64, (dry, show): (bool, bool)) -> Outcome<String> {
    let (found, sets) = revisions(scope, of).await?;
    let set = chosen(of, &sets, to)?;
    if show {
        return Ok(format!("{} {}", full_name(of), template_text(set)?));
    }
    if found.spec.paused {
        return fail(format!(
            "cannot rollback a paused deployment; resume it first with 'kubectl nodewright rollout resume {of}' and try again"
        ));
    }
    if is_same_template(&set.spec.template, &found.spec.template) {
        let number = revision(set);
        let text = format!("skipped rollback (current template already matches revision {number})");
        return Ok(format!("{} {text}\n", full_name(of)));
    }
    patched(scope, name(&found), &Patch::Json(rollback_patch(&found, set)), (dry, "rolled back")).await
}

/// The set of a revision; 0 is the one before the newest.
fn chosen<'a>(of: &str, sets: &'a [MachineSet], to: i64) -> Outcome<&'a MachineSet> {
    if to == 0 {
        let before = sets.iter().rev().nth(1);
        return before.ok_or_else(|| Fault::Message(format!("no rollout history found for machinedeployment {of:?}")));
    }
    let found = sets.iter().find(|set| revision(set) == to);
    found.ok_or_else(|| Fault::Message(format!("unable to find specified revision {to} in history")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(revision: i64) -> MachineSet {
        let object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "spec": {},
            "metadata": {"name": format!("s{revision}"), "annotations": {"deployment.kubernetes.io/revision": revision.to_string()}}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn without_a_number_the_revision_before_the_newest_is_chosen() {
        let sets = [set(1), set(3), set(4)];
        let revision = |to| chosen("pool", &sets, to).map(revision).map_err(|error| error.to_string());
        assert_eq!(revision(0), Ok(3));
        assert_eq!(revision(1), Ok(1));
        assert_eq!(revision(2), Err("unable to find specified revision 2 in history".to_owned()));
        let only = chosen("pool", &sets[..1], 0).map(name).map_err(|error| error.to_string());
        assert_eq!(only, Err("no rollout history found for machinedeployment \"pool\"".to_owned()));
    }
}
