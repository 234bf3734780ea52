//! What is filled in.

use json_patch::Patch;
use nodewright_api::{MachineClass, MachineDeployment, annotations, defaults};
use nodewright_runtime::trace::TraceContext;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Begun;
use super::decode::{Undecodable, decode};
use super::overlay::{overlay, parts};
use crate::review::Request;

/// What became of a MachineDeployment.
pub(super) struct Changed {
    pub(super) patch: Patch,
    /// The trace of the change, if the spec changes.
    pub(super) begun: Option<Begun>,
}

/// Fills in the strategy, and writes the trace of the change into an annotation if the spec changes. Never into the
/// template: that would start a rollout.
///
/// A writer may write the annotation too. Then it stays as it is: what is stored must not differ from what was applied.
/// `trace` is given the trace that the writer chose in this way.
pub(super) fn machine_deployment(
    request: &Request<'_>,
    text: &str,
    trace: impl FnOnce(Option<TraceContext>) -> Begun,
) -> Result<Changed, Undecodable> {
    let before: MachineDeployment = decode(text)?;
    let old = request.old_object().and_then(|old| decode::<MachineDeployment>(old).ok());
    let mut after = before.clone();
    defaults::machine_deployment(&mut after);
    let chosen = chosen_trace(&before, old.as_ref());
    let begun = (!request.dry_run && spec_changes(&after, old)).then(|| trace(chosen));
    if let (Some(begun), None) = (&begun, chosen) {
        let annotations = after.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::TRACEPARENT.to_owned(), begun.place().to_string());
    }
    let part = |deployment: &MachineDeployment| {
        json!({
            "metadata": {"annotations": deployment.metadata.annotations},
            "spec": {"strategy": deployment.spec.strategy},
        })
    };
    let patch = patch(text, &[&["metadata", "annotations"], &["spec", "strategy"]], &part(&before), &part(&after))?;
    Ok(Changed { patch, begun })
}

/// The trace in the annotation, unless it is that of the former change.
fn chosen_trace(new: &MachineDeployment, old: Option<&MachineDeployment>) -> Option<TraceContext> {
    let trace = |of: &MachineDeployment| {
        TraceContext::from_annotation(of.metadata.annotations.as_ref(), annotations::TRACEPARENT)
    };
    trace(new).filter(|chosen| old.and_then(trace).as_ref() != Some(chosen))
}

/// An old object that cannot be read differs from one that can.
fn spec_changes(new: &MachineDeployment, old: Option<MachineDeployment>) -> bool {
    old.is_none_or(|mut old| {
        // Objects from before the webhook lack what it fills in: that alone is no change.
        defaults::machine_deployment(&mut old);
        old.spec != new.spec
    })
}

/// Fills in the namespaces of the secrets.
pub(super) fn machine_class(request: &Request<'_>, text: &str) -> Result<Patch, Undecodable> {
    let mut before: MachineClass = decode(text)?;
    if before.metadata.namespace.is_none() {
        before.metadata.namespace = Some(request.namespace.clone());
    }
    let mut after = before.clone();
    defaults::machine_class(&mut after);
    let part = |class: &MachineClass| json!({"secretRef": class.secret_ref, "credentialsSecretRef": class.credentials_secret_ref});
    patch(text, &[&["secretRef"], &["credentialsSecretRef"]], &part(&before), &part(&after))
}

fn patch(text: &str, paths: &[&[&str]], before: &Value, after: &Value) -> Result<Patch, Undecodable> {
    let sent = parts(text, paths).or_else(|_| explain(text))?;
    let mut wanted = sent.clone();
    overlay(&mut wanted, before, after);
    Ok(json_patch::diff(&sent, &wanted))
}

/// Why a part that the types could skip over cannot be read as a value: it is nested too deep. Reading the whole as a
/// value finds out where.
fn explain<T: DeserializeOwned>(text: &str) -> Result<T, Undecodable> {
    decode::<Value>(text)?;
    decode::<T>(text)
}
