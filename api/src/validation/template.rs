//! Templates of machines and of nodes.

use super::MOST_ERRORS;
use crate::GoDuration;
use crate::common::{NodeTemplate, NodeTemplateSpec, Taint};
use crate::field::{FieldError, FieldPath};
use crate::machine::MachineSpec;
use crate::machine::MachineTemplate;
use crate::validation::metadata;
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// The only kind of class there is. machine-controller-manager once had one for each provider.
const CLASS_KIND: &str = "MachineClass";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The errors of `spec.template` besides those of single fields.
pub(super) fn errors(template: &MachineTemplate) -> Vec<FieldError> {
    let path = FieldPath::new("spec").child("template");
    let mut errors = metadata::template_errors(&template.metadata, &path.child("metadata"));
    let spec = path.child("spec");
    if !template.spec.provider_id.is_empty() {
        let detail = "must not be set in a template: all its machines would have the same VM";
        errors.push(FieldError::forbidden(spec.child("providerID"), detail));
    }
    errors.extend(node_template_errors(&template.spec.node_template, &spec.child("nodeTemplate")));
    errors.extend(size_error(template).map(|detail| FieldError::forbidden(path, detail)));
    errors
}

/// The most labels, annotations or taints of a template.
const MOST_ENTRIES: usize = 256;
/// The largest size of each of the maps of a template and of its taints, in bytes. A Node gets the template's labels, annotations
/// and taints, and a copy of them as an annotation; all annotations of an object may have 256 KiB.
const LARGEST_PART: usize = 64 << 10;

/// Why a template is too large to be copied into every machine, if it is.
pub fn size_error(template: &MachineTemplate) -> Option<String> {
    let of_map = |map: Option<&BTreeMap<String, String>>| {
        map.map_or((0, 0), |map| (map.len(), map.iter().map(|(key, value)| key.len() + value.len()).sum()))
    };
    let (of_machine, of_node) = (&template.metadata, &template.spec.node_template);
    let taints = of_node.spec.taints.as_deref().unwrap_or_default();
    let of_taint = |taint: &Taint| taint.key.len() + taint.value.as_ref().map_or(0, String::len) + taint.effect.len();
    let conditions = template.spec.node_conditions.as_deref().unwrap_or_default();
    let parts = [
        ("metadata.labels", of_map(of_machine.labels.as_ref())),
        ("metadata.annotations", of_map(of_machine.annotations.as_ref())),
        ("spec.nodeTemplate.metadata.labels", of_map(of_node.metadata.labels.as_ref())),
        ("spec.nodeTemplate.metadata.annotations", of_map(of_node.metadata.annotations.as_ref())),
        ("spec.nodeTemplate.spec.taints", (taints.len(), taints.iter().map(of_taint).sum())),
        ("spec.nodeConditions", (conditions.split(',').count(), conditions.len())),
    ];
    parts.into_iter().find(|(_, (entries, bytes))| *entries > MOST_ENTRIES || *bytes > LARGEST_PART).map(
        |(field, (entries, bytes)): (&str, (usize, usize))| {
            format!(
                "spec.template.{field} has {entries} entries of {bytes} bytes, and is copied into every machine: at most \
                 {MOST_ENTRIES} entries of {LARGEST_PART} bytes are allowed"
            )
        },
    )
}

/// The errors of what is copied to the Node.
pub(super) fn node_template_errors(template: &NodeTemplate, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = metadata::template_errors(&template.metadata, &path.child("metadata"));
    let path = path.child("spec").child("taints");
    let taints = template.spec.taints.as_deref().unwrap_or_default();
    let mut known = HashSet::new();
    let of_taints = taints.iter().enumerate().flat_map(|(index, taint)| {
        let path = path.key(index);
        let mut errors = taint_errors(taint, &path);
        if !known.insert((&taint.key, &taint.effect)) {
            errors.push(FieldError::duplicate(path, json!({"key": taint.key, "effect": taint.effect})));
        }
        errors
    });
    errors.extend(of_taints.take(MOST_ERRORS));
    errors
}

fn taint_errors(taint: &Taint, path: &FieldPath) -> Vec<FieldError> {
    let value = taint.value.as_deref().unwrap_or_default();
    let mut errors: Vec<_> = metadata::key_error(&taint.key, &path.child("key")).into_iter().collect();
    errors.extend(metadata::label_value_error(value, &path.child("value")));
    let effect = taint.effect.as_str();
    if !EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(path.child("effect"), effect, &EFFECTS));
    }
    errors
}

/// Whether a timeout is shorter than VMs take to boot, or kubelets to report.
fn is_short(timeout: GoDuration) -> bool {
    !timeout.is_negative() && timeout.to_std() < Duration::from_mins(1)
}

/// Warnings about fields that hardly work as meant in the spec of a machine.
pub(super) fn warnings(spec: &MachineSpec, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let kind = spec.class.kind.as_str();
    if !kind.is_empty() && kind != CLASS_KIND {
        warnings.push(format!("{path}.class.kind: {kind:?} has no effect: the class is a {CLASS_KIND}"));
    }
    let used = NodeTemplateSpec { taints: spec.node_template.spec.taints.clone(), ..NodeTemplateSpec::default() };
    if spec.node_template.spec != used {
        warnings.push(format!("{path}.nodeTemplate.spec: only taints are copied to the Node"));
    }
    let timeouts = [("creationTimeout", spec.creation_timeout), ("healthTimeout", spec.health_timeout)];
    let short = timeouts.into_iter().filter_map(|(field, timeout)| Some((field, timeout.filter(|it| is_short(*it))?)));
    warnings.extend(short.map(|(field, timeout)| {
        format!("{path}.{field}: {timeout} is less than most machines take, which then fail and are replaced")
    }));
    let spaced = spec.node_conditions.iter().flat_map(|text| text.split(',')).any(|name| name.trim() != name);
    if spaced {
        warnings.push(format!(
            "{path}.nodeConditions: machine-controller-manager does not recognize conditions with spaces around them"
        ));
    }
    warnings
}
