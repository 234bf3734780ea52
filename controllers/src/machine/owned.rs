//! What the Machine controller writes, and reads back.

use std::collections::BTreeMap;

use json_patch::{AddOperation, Patch, PatchOperation, TestOperation, jsonptr::PointerBuf};
use nodewright_api::{Machine, MachineStatus, annotations, labels};
use nodewright_driver::Instance;
use nodewright_runtime::{
    object::annotation,
    owned::{Owned, Part},
};
use serde::Serialize;

use super::applied::AppliedKeys;
use crate::shared::ownership::noted_node;

/// The durable link to the VM, written right after the driver has answered.
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

/// How long the value of a label may be.
pub(super) const LONGEST_LABEL: usize = 63;

impl Link {
    /// The link of a Machine to an instance. Without a target cluster there is no label `node`.
    pub(super) fn of(machine: &Machine, instance: &Instance, has_target: bool) -> Self {
        let mut metadata = LinkMeta::default();
        // A longer name is no value of a label. The Node is found by its providerID all the same.
        if has_target && (1..=LONGEST_LABEL).contains(&instance.node_name.len()) {
            metadata.labels.insert(labels::NODE.to_owned(), instance.node_name.clone());
        }
        // The autoscaler and users lower it; what they wrote before there was a VM stays.
        let priority = annotation(machine, annotations::MACHINE_PRIORITY).map(str::to_owned);
        let priority = priority.unwrap_or_else(|| annotations::MACHINE_PRIORITY_DEFAULT.to_string());
        metadata.annotations.insert(annotations::MACHINE_PRIORITY.to_owned(), priority);
        // What its Node will get is remembered before there is one.
        if let Some(applied) = AppliedKeys::of(&machine.spec.node_template).to_text().filter(|_| has_target) {
            metadata.annotations.insert(annotations::APPLIED_NODE_TEMPLATE.to_owned(), applied);
        }
        Self { metadata, spec: LinkSpec { provider_id: instance.provider_id.clone() } }
    }
}

impl Owned for Link {
    type Of = Machine;
    const PART: Part = Part::Main;

    fn seen(live: &Machine) -> Self {
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

/// Sets the label `node` to what the provider named the Node, where somebody has changed it: the cluster autoscaler
/// reads it.
pub(super) fn relabel(machine: &Machine) -> Option<Patch> {
    let wanted = noted_node(machine).filter(|name| name.len() <= LONGEST_LABEL)?;
    let standing = machine.metadata.labels.as_ref()?.get(labels::NODE);
    if standing.is_some_and(|standing| standing == wanted) {
        return None;
    }
    let path = PointerBuf::from_tokens(["metadata", "labels", labels::NODE]);
    let test = TestOperation { path: path.clone(), value: standing.cloned().into() };
    let add = AddOperation { path, value: wanted.into() };
    Some(Patch(vec![PatchOperation::Test(test), PatchOperation::Add(add)]))
}

/// All of a Machine's status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StatusPart {
    pub(super) status: MachineStatus,
}

impl Owned for StatusPart {
    type Of = Machine;
    const PART: Part = Part::Status;

    fn seen(live: &Machine) -> Self {
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
        assert!(relabel(&machine("m").label("node", "cp-1").build()).is_none(), "nobody has named a node");
    }
}
