//! What `nodewright render` prints.

use std::collections::BTreeSet;

use nodewright_api::machine_config::{API_VERSION, MachineConfig};
use nodewright_render::{
    Origin, Provenance, Rendered, RenderedSpec,
    change::{Difference, Kind, Policy, cost, differences, irreconcilable},
    name,
};
use serde_json::{Value, json};

use super::Checked;

fn failed(what: &str, error: impl std::fmt::Display) -> Vec<String> {
    vec![format!("failed to write {what}: {error}")]
}

/// Rendered MachineConfigs, as documents of YAML.
pub(super) fn yaml<'a>(rendered: impl Iterator<Item = (&'a str, &'a Rendered)>) -> Checked<String> {
    // Text in one line stays in one.
    let options = serde_saphyr::ser_options! { min_fold_chars: usize::MAX };
    let mut text = String::new();
    for (index, (pool, rendered)) in rendered.enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        let object: Value = json!({
            "apiVersion": API_VERSION,
            "kind": "MachineConfig",
            "metadata": {"name": name(pool, &rendered.spec)},
            "spec": rendered.spec,
        });
        serde_saphyr::to_fmt_writer_with_options(&mut text, &object, options.clone())
            .map_err(|error| failed("YAML", error))?;
    }
    Ok(text)
}

/// The Ignition config alone: an error if the pool has more, unless that is allowed.
pub(super) fn ignition(pool: &str, rendered: &Rendered, allows_more: bool) -> Checked<String> {
    let more = rendered.spec.beside_ignition();
    if !more.is_empty() && !allows_more {
        let line = |field: &&str| {
            format!(
                "MachineConfigPool {pool}: spec.{field}: an Ignition config cannot express it; --allow-incomplete prints the rest"
            )
        };
        return Err(more.iter().map(line).collect());
    }
    let text = serde_json::to_string_pretty(&rendered.spec.config).map_err(|error| failed("JSON", error))?;
    Ok(format!("{text}\n"))
}

/// Who has set what, a line for each key.
pub(super) fn explain(path: &str, rendered: &Rendered) -> Checked<String> {
    let origins: Vec<_> = rendered.provenance.at(path).collect();
    if origins.is_empty() {
        let hint = "`--explain spec` prints all that a MachineConfig sets";
        return Err(vec![format!("no MachineConfig sets anything at {path}: {hint}")]);
    }
    let mut text = String::new();
    for Origin { key, set_by, over } in origins {
        text.extend(["spec.", key, ": ", &set_by.join(", ")]);
        if !over.is_empty() {
            text.extend([" over ", &over.join(", ")]);
        }
        text.push('\n');
    }
    Ok(text)
}

/// What differs from an earlier configuration, and what the change costs.
pub(super) fn diff(before: &MachineConfig, pool: &str, rendered: &Rendered) -> Checked<String> {
    let before_name = before.metadata.name.as_deref().unwrap_or_default();
    let old = RenderedSpec::read(&before.spec).map_err(|errors| {
        errors.iter().map(|error| format!("MachineConfig {before_name}: {error}")).collect::<Vec<_>>()
    })?;
    let errors = irreconcilable(&old, &rendered.spec, &[]);
    if !errors.is_empty() {
        return Err(errors.iter().map(|error| format!("MachineConfigPool {pool}: {error}")).collect());
    }
    let changes = changes(&old, &rendered.spec, Some(&rendered.provenance));
    let text: String = changes.iter().flat_map(|change| [change, "\n"]).collect();
    let cost = cost(&old, &rendered.spec, &Policy::default());
    let name = name(pool, &rendered.spec);
    Ok(format!("{text}from {before_name} to {name}\ncost of each node: {cost}\n"))
}

/// What differs, a line each, with the MachineConfigs that have set it, if they are known.
pub(crate) fn changes(old: &RenderedSpec, new: &RenderedSpec, provenance: Option<&Provenance>) -> Vec<String> {
    let line = |difference: Difference| {
        let sign = match difference.kind {
            Kind::Added => "+",
            Kind::Removed => "-",
            Kind::Changed => "~",
        };
        let origins = provenance.into_iter().flat_map(|provenance| provenance.at(&difference.key));
        let authors: BTreeSet<_> = origins.flat_map(|origin| origin.set_by).collect();
        let mut text = [sign, " spec.", &difference.key].concat();
        if !authors.is_empty() {
            text.extend(["  by ", &authors.into_iter().collect::<Vec<_>>().join(", ")]);
        }
        text
    };
    differences(old, new).into_iter().map(line).collect()
}
