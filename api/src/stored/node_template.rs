//! What was put on a Node: what a later plan may remove from it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{NodeTemplate, Taint};

type Map = BTreeMap<String, String>;

/// MCM's annotation of a Node: its node template, the base of a three-way merge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastApplied {
    metadata: LastAppliedMeta,
    spec: LastAppliedSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct LastAppliedMeta {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: Map,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: Map,
    /// Go always writes this.
    #[serde(rename = "creationTimestamp", skip_serializing)]
    _created: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct LastAppliedSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    taints: Vec<Taint>,
}

impl LastApplied {
    /// That of a Node that has this template.
    pub fn new(template: &NodeTemplate) -> Self {
        Self {
            metadata: LastAppliedMeta {
                annotations: template.metadata.annotations.clone().unwrap_or_default(),
                labels: template.metadata.labels.clone().unwrap_or_default(),
                _created: None,
            },
            spec: LastAppliedSpec { taints: template.spec.taints.clone().unwrap_or_default() },
        }
    }
}

/// What was copied to the Node of a Machine: the keys of labels and annotations, and the taints as `key:effect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AppliedKeys {
    /// Keys of annotations.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub annotations: BTreeSet<String>,
    /// Keys of labels.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    taints: BTreeSet<String>,
}

impl AppliedKeys {
    /// Those of a template.
    pub fn new(template: &NodeTemplate) -> Self {
        Self {
            annotations: template.metadata.annotations.iter().flatten().map(|(key, _)| key.clone()).collect(),
            labels: template.metadata.labels.iter().flatten().map(|(key, _)| key.clone()).collect(),
            taints: template.spec.taints.iter().flatten().map(entry).collect(),
        }
    }

    /// The value of the annotation; `None` if nothing was copied.
    pub fn to_text(&self) -> Option<String> {
        (*self != Self::default()).then(|| self.to_string())
    }

    /// Whether a taint was copied.
    pub fn has_taint(&self, taint: &Taint) -> bool {
        self.taints.contains(&entry(taint))
    }

    /// Whether these are all the others, and maybe more.
    pub fn covers(&self, others: &Self) -> bool {
        self.annotations.is_superset(&others.annotations)
            && self.labels.is_superset(&others.labels)
            && self.taints.is_superset(&others.taints)
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.annotations.extend(other.annotations);
        self.labels.extend(other.labels);
        self.taints.extend(other.taints);
        self
    }
}

fn entry(taint: &Taint) -> String {
    format!("{}:{}", taint.key, taint.effect)
}

/// MCM's annotation of a Node: the extended resources that were added to its capacity, and their quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualCapacity(pub BTreeMap<String, String>);
