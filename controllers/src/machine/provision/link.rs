//! The link of a Machine to its VM: what the Machine gets as soon as its VM exists.

use std::collections::BTreeMap;

use nodewright_api::{Machine, annotations, labels, stored::AppliedKeys};
use nodewright_driver::Instance;
use nodewright_runtime::{apply_configuration::ApplyConfiguration, object::annotation};
use serde::Serialize;

use crate::machine::node_sync::LONGEST_LABEL;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Link {
    metadata: LinkMeta,
    spec: LinkSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct LinkMeta {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct LinkSpec {
    #[serde(rename = "providerID")]
    provider_id: String,
}

impl Link {
    pub(super) fn of(machine: &Machine, instance: &Instance, has_target: bool) -> Self {
        let mut metadata = LinkMeta::default();
        // A longer name cannot be a label's value. The Node is found by its providerID anyway.
        if has_target && (1..=LONGEST_LABEL).contains(&instance.node_name.len()) {
            metadata.labels.insert(labels::NODE.to_owned(), instance.node_name.clone());
        }
        // The autoscaler and users lower it; a value from before there was a VM stays.
        let priority = annotation(machine, annotations::MACHINE_PRIORITY).map(str::to_owned);
        let priority = priority.unwrap_or_else(|| annotations::MACHINE_PRIORITY_DEFAULT.to_string());
        metadata.annotations.insert(annotations::MACHINE_PRIORITY.to_owned(), priority);
        // What the Node will get is recorded before there is a Node.
        if let Some(applied) = AppliedKeys::new(&machine.spec.node_template).to_text().filter(|_| has_target) {
            metadata.annotations.insert(annotations::APPLIED_NODE_TEMPLATE.to_owned(), applied);
        }
        Self { metadata, spec: LinkSpec { provider_id: instance.provider_id.clone() } }
    }
}

impl ApplyConfiguration for Link {
    type Of = Machine;

    fn extract(live: &Machine) -> Self {
        let some = |map: Option<&BTreeMap<String, String>>, keys: &[&str]| {
            let found = keys.iter().filter_map(|key| map?.get_key_value(*key));
            found.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Self {
            metadata: LinkMeta {
                labels: some(live.metadata.labels.as_ref(), &[labels::NODE]),
                annotations: some(
                    live.metadata.annotations.as_ref(),
                    &[annotations::MACHINE_PRIORITY, annotations::APPLIED_NODE_TEMPLATE],
                ),
            },
            spec: LinkSpec { provider_id: live.spec.provider_id.clone() },
        }
    }
}
