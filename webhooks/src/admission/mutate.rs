//! Defaults, and the trace of a change.

use std::collections::BTreeMap;

use json_patch::Patch;
use nodewright_api::{MachineClass, MachineDeployment, annotations, defaults};
use nodewright_observability::trace::{SpanRecord, TraceContext};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::decode::{DecodeError, decode};
use super::old_object;
use super::overlay::{overlay, parts};
use crate::review::Request;

pub(super) struct Mutation {
    pub(super) patch: Patch,
    /// The span of the change, if the spec changes.
    pub(super) span: Option<SpanRecord>,
}

/// Sets the defaults of the strategy and, if the spec changes, the annotation with the trace. The template gets none, because
/// that would start a rollout.
///
/// `begin` gets the trace that the user chose by writing the annotation. The mutation does not change such an annotation, or
/// the stored object would differ from the applied one. Without a span there is no annotation: whether a trace is sampled would be decided
/// for all that follows from the change.
pub(super) fn machine_deployment(
    request: &Request<'_>,
    text: &str,
    begin: impl FnOnce(Option<TraceContext>) -> Option<SpanRecord>,
) -> Result<Mutation, DecodeError> {
    let mut deployment: MachineDeployment = decode(text)?;
    let before = part(&deployment);
    defaults::machine_deployment(&mut deployment);
    let old = old_object::<MachineDeployment>(request);
    let chosen = chosen_trace(&deployment, old.as_ref());
    let generation = next_generation(old.as_ref());
    let span = (!request.dry_run && spec_changes(&deployment, old)).then(|| begin(chosen)).flatten();
    if let Some(span) = &span {
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::TRACEPARENT_GENERATION.to_owned(), generation.to_string());
        if chosen.is_none() {
            annotations.insert(annotations::TRACEPARENT.to_owned(), span.context.at(span.id).to_string());
        }
    }
    let patch = patch(text, &DEPLOYMENT_PARTS, &before, &part(&deployment))?;
    Ok(Mutation { patch, span })
}

/// The parts of a MachineDeployment that can change. Only these are copied, because the rest may be large.
const DEPLOYMENT_PARTS: [&[&str]; 8] = [
    &["metadata", "annotations", annotations::TRACEPARENT],
    &["metadata", "annotations", annotations::TRACEPARENT_GENERATION],
    &["spec", "strategy", "type"],
    &["spec", "strategy", "rollingUpdate", "maxSurge"],
    &["spec", "strategy", "rollingUpdate", "maxUnavailable"],
    &["spec", "strategy", "inPlaceUpdate", "maxSurge"],
    &["spec", "strategy", "inPlaceUpdate", "maxUnavailable"],
    &["spec", "strategy", "inPlaceUpdate", "orchestrationType"],
];

fn part(deployment: &MachineDeployment) -> Value {
    let own = [annotations::TRACEPARENT, annotations::TRACEPARENT_GENERATION];
    let known = |key| Some((key, deployment.metadata.annotations.as_ref()?.get(key)?));
    let own: BTreeMap<_, _> = own.into_iter().filter_map(known).collect();
    json!({
        "metadata": {"annotations": Some(own).filter(|own| !own.is_empty())},
        "spec": {"strategy": deployment.spec.strategy},
    })
}

/// The generation that the change of a spec makes: the API server counts after the webhooks, and from 1.
fn next_generation(old: Option<&MachineDeployment>) -> i64 {
    old.and_then(|old| old.metadata.generation).unwrap_or_default() + 1
}

/// The trace in the annotation, unless it is that of the previous change.
fn chosen_trace(new: &MachineDeployment, old: Option<&MachineDeployment>) -> Option<TraceContext> {
    let trace = |of: &MachineDeployment| {
        TraceContext::from_annotation(of.metadata.annotations.as_ref(), annotations::TRACEPARENT)
    };
    trace(new).filter(|chosen| old.and_then(trace).as_ref() != Some(chosen))
}

/// Whether the spec changes. An old object that cannot be decoded differs from the new one.
fn spec_changes(new: &MachineDeployment, old: Option<MachineDeployment>) -> bool {
    old.is_none_or(|mut old| {
        // An object that is older than the webhook has no defaults. Setting them is no change.
        defaults::machine_deployment(&mut old);
        old.spec != new.spec
    })
}

const CLASS_PARTS: [&[&str]; 4] = [
    &["secretRef", "name"],
    &["secretRef", "namespace"],
    &["credentialsSecretRef", "name"],
    &["credentialsSecretRef", "namespace"],
];

/// Sets the defaults of the namespaces of the Secrets.
pub(super) fn machine_class(request: &Request<'_>, text: &str) -> Result<Patch, DecodeError> {
    let mut class: MachineClass = decode(text)?;
    if class.metadata.namespace.is_none() {
        class.metadata.namespace = Some(request.namespace.clone());
    }
    let part = |class: &MachineClass| json!({"secretRef": class.secret_ref, "credentialsSecretRef": class.credentials_secret_ref});
    let before = part(&class);
    defaults::machine_class(&mut class);
    patch(text, &CLASS_PARTS, &before, &part(&class))
}

fn patch(text: &str, paths: &[&[&str]], before: &Value, after: &Value) -> Result<Patch, DecodeError> {
    let sent = parts(text, paths).or_else(|_| explain(text))?;
    let mut wanted = sent.clone();
    overlay(&mut wanted, before, after);
    Ok(json_patch::diff(&sent, &wanted))
}

/// The error of a part that decodes as a type and not as a value, because it is too deep. Decoding the whole as a value finds
/// the field.
fn explain<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    decode::<Value>(text)?;
    decode::<T>(text)
}
