//! What it costs a node to get from what it runs to the target.

use std::collections::BTreeMap;

use nodewright_api::machine_config::MachineConfig;
use nodewright_controllers::machine_config_pool::Preview;
use nodewright_render::{
    Provenance, RenderedSpec,
    change::{Policy, cost, irreconcilable},
};

use crate::render::report::changes;

/// What a change costs each node.
#[derive(Debug)]
pub(super) struct Cost {
    /// In a word, or a few.
    pub(super) text: String,
    /// Whether Pods leave the node, and whether it starts again; `None` if that is unknown.
    pub(super) drains: Option<bool>,
    pub(super) reboots: Option<bool>,
    /// What differs, a line each: paths and names, and no content. Or why the cost is unknown, or the change impossible.
    pub(super) changes: Vec<String>,
}

/// The costs by the MachineConfig that nodes run before they move.
pub(super) fn of(
    preview: &Preview,
    machine_configs: &[MachineConfig],
    provenance: Option<&Provenance>,
) -> BTreeMap<String, Cost> {
    let mut costs = BTreeMap::new();
    for step in preview.rounds.iter().flatten() {
        if !costs.contains_key(&step.from) {
            let from = machine_configs.iter().find(|config| config.metadata.name.as_ref() == Some(&step.from));
            costs.insert(step.from.clone(), between(&step.from, from, preview, provenance));
        }
    }
    costs
}

fn between(name: &str, from: Option<&MachineConfig>, preview: &Preview, provenance: Option<&Provenance>) -> Cost {
    let unknown = |why: String| Cost { text: "unknown".to_owned(), drains: None, reboots: None, changes: vec![why] };
    let Some(from) = from else { return unknown(format!("MachineConfig {name} does not exist any more")) };
    let Ok(old) = RenderedSpec::read(&from.spec) else {
        return unknown(format!("MachineConfig {name} cannot be read"));
    };
    let Some(new) = &preview.target.spec else {
        return unknown(format!("MachineConfig {} cannot be read", preview.target.name));
    };
    let errors = irreconcilable(&old, new, &[]);
    if !errors.is_empty() {
        let changes = errors.iter().map(ToString::to_string).collect();
        return Cost { text: "impossible".to_owned(), changes, ..unknown(String::new()) };
    }
    let cost = cost(&old, new, &Policy::default());
    let changes = changes(&old, new, provenance);
    Cost { text: cost.to_string(), drains: Some(cost.drains()), reboots: Some(cost.reboots()), changes }
}
