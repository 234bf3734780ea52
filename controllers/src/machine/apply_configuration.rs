//! The fields of a Machine that its controller writes, and how they are read back.

use std::collections::BTreeMap;

use json_patch::Patch;
use nodewright_api::{Machine, MachineStatus, annotations, labels};
use nodewright_driver::Instance;
use nodewright_runtime::{
    annotations::set_label,
    apply_configuration::{ApplyConfiguration, Subresource},
    object::annotation,
};
use serde::Serialize;

use super::applied::AppliedKeys;
use crate::shared::ownership::noted_node;

/// The durable link to the VM, written right after the driver's answer.
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

/// The most bytes of a label's value.
pub(super) const LONGEST_LABEL: usize = 63;

impl Link {
    /// The link of a Machine to an instance. Without a target cluster there is no label `node`.
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
        if let Some(applied) = AppliedKeys::of(&machine.spec.node_template).to_text().filter(|_| has_target) {
            metadata.annotations.insert(annotations::APPLIED_NODE_TEMPLATE.to_owned(), applied);
        }
        Self { metadata, spec: LinkSpec { provider_id: instance.provider_id.clone() } }
    }
}

impl ApplyConfiguration for Link {
    type Of = Machine;
    const SUBRESOURCE: Subresource = Subresource::Main;

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

/// Sets the label `node` to the name that the provider gave the Node, if somebody changed it: the cluster autoscaler reads it.
pub(super) fn relabel(machine: &Machine) -> Option<Patch> {
    let wanted = noted_node(machine).filter(|name| name.len() <= LONGEST_LABEL)?;
    machine.metadata.labels.as_ref()?;
    Some(set_label(&machine.metadata, labels::NODE, Some(wanted))).filter(|patch| !patch.0.is_empty())
}

/// All of a Machine's status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StatusPart {
    pub(super) status: MachineStatus,
}

impl ApplyConfiguration for StatusPart {
    type Of = Machine;
    const SUBRESOURCE: Subresource = Subresource::Status;

    fn extract(live: &Machine) -> Self {
        Self { status: live.status.clone().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn the_label_is_what_the_provider_named_the_node() {
        let noted = serde_json::json!([{"type": "NodeJoined", "status": "True", "reason": "Joined", "message": "n"}]);
        let labelled =
            |label: &str| machine("m").label("node", label).with("/status/conditions", noted.clone()).build();
        assert!(relabel(&labelled("n")).is_none());
        let other = labelled("cp-1");
        let mut live = serde_json::to_value(&other).unwrap();
        nodewright_testing::json_patch(&mut live, &relabel(&other).unwrap()).unwrap();
        assert_eq!(live["metadata"]["labels"]["node"], "n");
        let lost = machine("m").label("x", "y").with("/status/conditions", noted.clone()).build();
        assert!(relabel(&lost).is_some());
        assert!(relabel(&machine("m").label("node", "cp-1").build()).is_none(), "no node was ever named");
    }
}
