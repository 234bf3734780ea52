//! Owners of pods, their scheduler, and the collection of the pods of deleted Nodes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    App, Storage,
    keeper::{State, seed_claim},
    objects::{
        AGENT, ATTACHMENTS, CLAIMS, PODS, VOLUMES, app_name, attachment, claims_of, daemon_pod, is_deleting,
        is_finished, is_ready, mirror_pod, name, node_of, pod,
    },
};
use crate::names::{NODES, takes_pods};

/// How long a Node has to be missing before its pods are collected.
const QUARANTINE: Duration = Duration::from_secs(40);

impl State {
    /// Removes the pods of Nodes that are gone.
    pub(super) fn collect(&mut self) {
        let (pods, now) = (self.server.objects(PODS), Instant::now());
        let exists = |node: &str| self.server.object(&format!("{NODES}/{node}")).is_some();
        let bound = pods.iter().filter(|pod| !node_of(pod).is_empty());
        let orphans: Vec<&Arc<Value>> = bound.filter(|pod| !exists(node_of(pod))).collect();
        let mut missing = BTreeMap::new();
        for pod in orphans {
            let since = self.missing.get(node_of(pod)).copied().unwrap_or(now);
            if since + QUARANTINE <= now {
                self.server.remove(&format!("{PODS}/{}", name(pod)));
            } else {
                missing.insert(node_of(pod).to_owned(), since);
            }
        }
        self.missing = missing;
        if let Some(first) = self.missing.values().min() {
            self.wake_at(*first + QUARANTINE);
        }
    }

    /// Creates the pods that owners lack. A `ReplicaSet` replaces a pod that is being deleted, a `StatefulSet`
    /// one that is gone.
    pub(super) fn replace(&mut self) {
        let pods = self.server.objects(PODS);
        for (number, (app, owner)) in self.workload.apps.iter().zip(&self.owners).enumerate() {
            let app_name = app_name(number);
            let own = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == app_name.as_str());
            let mut lacking = if app.volume.is_some() {
                let names = (0..app.pods).map(|pod| format!("{app_name}-{pod}"));
                names.filter(|wanted| own.clone().all(|pod| name(pod) != wanted)).collect()
            } else {
                let active = own.filter(|pod| !is_deleting(pod) && !is_finished(pod)).count();
                vec![String::new(); (app.pods as usize).saturating_sub(active)]
            };
            for pod_name in &mut lacking {
                if pod_name.is_empty() {
                    self.serial += 1;
                    *pod_name = format!("{app_name}-x{:03}", self.serial);
                }
                self.server.seed(PODS, pod(pod_name, app, owner));
            }
        }
    }

    /// Binds each pod whose volumes are free to the suitable Node with the fewest pods, and asks for its volumes to be attached.
    pub(super) fn bind(&mut self) {
        let pods = self.server.objects(PODS);
        let nodes = self.server.objects(NODES);
        let suits = |node: &&Arc<Value>| {
            is_ready(node) && !is_deleting(node) && node["spec"]["unschedulable"] != true && takes_pods(name(node))
        };
        let mut load: BTreeMap<&str, usize> = nodes.iter().filter(suits).map(|node| (name(node), 0)).collect();
        for pod in &pods {
            load.entry(node_of(pod)).and_modify(|load| *load += 1);
        }
        for pod in pods.iter().filter(|pod| node_of(pod).is_empty() && !is_deleting(pod)) {
            let volumes = self.volumes_of(pod);
            let is_taken = |volume: &Arc<Value>| self.attachments_of(name(volume)).next().is_some();
            if volumes.iter().any(is_taken) {
                continue;
            }
            let Some(node) = load.iter().min_by_key(|(_, load)| **load).map(|(node, _)| *node) else { return };
            load.entry(node).and_modify(|load| *load += 1);
            self.request_attachments(&volumes, node);
            self.server.change(&format!("{PODS}/{}", name(pod)), |pod| pod["spec"]["nodeName"] = node.into());
        }
    }

    fn request_attachments(&self, volumes: &[Arc<Value>], node: &str) {
        for volume in volumes {
            let driver = &volume["spec"]["csi"]["driver"];
            if !driver.is_null() {
                self.server.seed(ATTACHMENTS, attachment(name(volume), driver, node));
            }
        }
    }

    /// The volumes of a pod's claims.
    pub(super) fn volumes_of(&self, pod: &Value) -> Vec<Arc<Value>> {
        let volume = |claim: String| {
            let claim = self.server.object(&format!("{CLAIMS}/{claim}"))?;
            self.server.object(&format!("{VOLUMES}/{}", claim["spec"]["volumeName"].as_str()?))
        };
        claims_of(pod).filter_map(volume).collect()
    }

    /// Creates the mirror pod and the pod of the DaemonSet on each Node.
    pub(super) fn keep_daemons(&mut self) {
        let Some(daemon_set) = self.daemon_set.clone() else { return };
        for node in self.server.objects(NODES).iter().filter(|node| takes_pods(name(node)) && !is_deleting(node)) {
            let node_name = name(node);
            let (daemon, mirror) = (format!("{AGENT}-{node_name}"), format!("proxy-{node_name}"));
            let lacks = |pod: &str| self.server.object(&format!("{PODS}/{pod}")).is_none();
            if lacks(&mirror) {
                self.server.seed(PODS, mirror_pod(&mirror, node));
            }
            // The volume of the former pod may still be attached.
            if lacks(&daemon) && self.attachments_of(&format!("pv-{daemon}")).next().is_none() {
                seed_claim(&self.server, &daemon, Storage::Provider);
                let pod = self.server.seed(PODS, daemon_pod(&daemon, node_name, &daemon_set));
                self.request_attachments(&self.volumes_of(&pod), node_name);
            }
        }
    }

    /// The app of a pod, if it has one.
    pub(super) fn app_of(&self, pod: &str) -> Option<&App> {
        let number = pod.strip_prefix("app")?.split('-').next()?.parse::<usize>().ok()?;
        self.workload.apps.get(number)
    }
}
