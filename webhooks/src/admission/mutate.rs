//! What is filled in.

use json_patch::Patch;
use nodewright_api::{MachineClass, MachineDeployment, annotations, defaults};
use nodewright_observability::trace::TraceContext;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::decode::{Undecodable, decode};
use super::overlay::{overlay, parts};
use super::{Begun, old_object};
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
    let mut deployment: MachineDeployment = decode(text)?;
    let before = part(&deployment);
    defaults::machine_deployment(&mut deployment);
    let old = old_object::<MachineDeployment>(request);
    let chosen = chosen_trace(&deployment, old.as_ref());
    let begun = (!request.dry_run && spec_changes(&deployment, old)).then(|| trace(chosen));
    if let (Some(begun), None) = (&begun, chosen) {
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::TRACEPARENT.to_owned(), begun.place().to_string());
    }
    let patch = patch(text, &DEPLOYMENT_PARTS, &before, &part(&deployment))?;
    Ok(Changed { patch, begun })
}

/// What of a MachineDeployment may be changed. Only that is ever copied: the rest may be large.
const DEPLOYMENT_PARTS: [&[&str]; 7] = [
    &["metadata", "annotations", annotations::TRACEPARENT],
    &["spec", "strategy", "type"],
    &["spec", "strategy", "rollingUpdate", "maxSurge"],
    &["spec", "strategy", "rollingUpdate", "maxUnavailable"],
    &["spec", "strategy", "inPlaceUpdate", "maxSurge"],
    &["spec", "strategy", "inPlaceUpdate", "maxUnavailable"],
    &["spec", "strategy", "inPlaceUpdate", "orchestrationType"],
];

fn part(deployment: &MachineDeployment) -> Value {
    let trace = deployment.metadata.annotations.as_ref().and_then(|all| all.get(annotations::TRACEPARENT));
    json!({
        "metadata": {"annotations": trace.map(|trace| json!({annotations::TRACEPARENT: trace}))},
        "spec": {"strategy": deployment.spec.strategy},
    })
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

/// What of a MachineClass may be changed.
const CLASS_PARTS: [&[&str]; 4] = [
    &["secretRef", "name"],
    &["secretRef", "namespace"],
    &["credentialsSecretRef", "name"],
    &["credentialsSecretRef", "namespace"],
];

/// Fills in the namespaces of the secrets.
pub(super) fn machine_class(request: &Request<'_>, text: &str) -> Result<Patch, Undecodable> {
    let mut class: MachineClass = decode(text)?;
    if class.metadata.namespace.is_none() {
        class.metadata.namespace = Some(request.namespace.clone());
    }
    let part = |class: &MachineClass| json!({"secretRef": class.secret_ref, "credentialsSecretRef": class.credentials_secret_ref});
    let before = part(&class);
    defaults::machine_class(&mut class);
    patch(text, &CLASS_PARTS, &before, &part(&class))
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
