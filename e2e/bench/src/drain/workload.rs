//! The pods of the nodes that are drained, and their disruption budgets.

use nodewright_e2e_cloud::disks::Disks;
use serde_json::{Value, json};

/// The label with the name of an application.
pub(super) const APP_LABEL: &str = "app";
/// The label of pods with volumes: each node gets as many.
const VOLUME_LABEL: &str = "volume";
/// How many Deployments there are, each with one pod per node.
const DEPLOYMENTS: usize = 8;
/// How many `StatefulSet`s there are, each with one pod for two nodes.
const STATEFUL_SETS: usize = 4;

/// A number of equal pods with a disruption budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct App {
    pub(super) name: String,
    pub(super) replicas: usize,
    /// How many of them may be unavailable at once.
    pub(super) unavailable: usize,
    /// Whether each has a volume.
    pub(super) has_volumes: bool,
}

/// The applications on this number of nodes: ten pods for each node, two of them with volumes.
pub(super) fn apps(nodes: usize) -> Vec<App> {
    let deployment = |number| App {
        name: format!("web-{number}"),
        replicas: nodes,
        unavailable: (nodes / 5).max(1),
        has_volumes: false,
    };
    let stateful_set = |number| App {
        name: format!("store-{number}"),
        replicas: nodes / 2,
        unavailable: (nodes / 10).max(1),
        has_volumes: true,
    };
    (0..DEPLOYMENTS).map(deployment).chain((0..STATEFUL_SETS).map(stateful_set)).collect()
}

impl App {
    /// Everything that is applied for it.
    pub(super) fn objects(&self, disks: &Disks) -> Vec<Value> {
        let mut objects = if self.has_volumes { disks.objects(&self.name, self.replicas) } else { vec![] };
        objects.extend([self.budget(), self.workload()]);
        objects
    }

    fn budget(&self) -> Value {
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": self.name}, "spec": {
            "maxUnavailable": self.unavailable, "selector": {"matchLabels": {APP_LABEL: self.name}},
        }})
    }

    fn workload(&self) -> Value {
        let mut spec = json!({
            "replicas": self.replicas,
            "selector": {"matchLabels": {APP_LABEL: self.name}},
            "template": {
                "metadata": {"labels": {APP_LABEL: self.name, VOLUME_LABEL: self.has_volumes.to_string()}},
                "spec": {
                    "topologySpreadConstraints": [self.spread()],
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        });
        if self.has_volumes {
            spec["serviceName"] = self.name.as_str().into();
            spec["podManagementPolicy"] = "Parallel".into();
            spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}},
            }}]);
        }
        let kind = if self.has_volumes { "StatefulSet" } else { "Deployment" };
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": self.name}, "spec": spec})
    }

    /// Spreads its pods over the nodes; those with volumes together with those of the other applications.
    fn spread(&self) -> Value {
        let (label, value) = if self.has_volumes { (VOLUME_LABEL, "true") } else { (APP_LABEL, self.name.as_str()) };
        json!({
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {label: value}},
        })
    }
}

/// A MachineDeployment of the same class as the samples, for the pods to go to.
pub(super) fn spare_pool(name: &str, class: &str, nodes: usize) -> Value {
    json!({"apiVersion": nodewright_api::API_VERSION, "kind": "MachineDeployment", "metadata": {"name": name}, "spec": {
        "replicas": nodes,
        "selector": {"matchLabels": {"name": name}},
        "template": {
            "metadata": {"labels": {"name": name}},
            "spec": {"class": {"kind": "MachineClass", "name": class}},
        },
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_nodes_have_two_hundred_pods_and_forty_of_them_have_volumes() {
        let apps = apps(20);
        let count = |with_volumes: bool| -> usize {
            apps.iter().filter(|app| app.has_volumes == with_volumes).map(|app| app.replicas).sum()
        };
        assert_eq!((count(false), count(true)), (160, 40));
        assert!(apps.iter().all(|app| app.unavailable < app.replicas));
    }
}
