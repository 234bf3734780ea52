//! The Pods on Nodes of pools, as far as kubelets have to do with them, and the controller that sees that a kubelet is silent.

use std::{collections::BTreeMap, time::Duration};

use nodewright_e2e_cloud::kubelet::TERMINATION_ANNOTATION;
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::node::Member;
use crate::names::{NODES, is_member};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// When Pods were first seen to be deleted, by UID.
#[derive(Default)]
pub(super) struct Pods {
    ending: BTreeMap<String, Instant>,
}

impl Pods {
    /// Whether no Pod is about to end.
    pub(super) fn are_idle(&self) -> bool {
        self.ending.is_empty()
    }

    pub(super) fn round(&mut self, server: &ApiServer) {
        let mut ending = BTreeMap::new();
        for pod in server.objects(PODS) {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            let Some(node) = is_member(node).then(|| server.object(&format!("{NODES}/{node}"))).flatten() else {
                continue;
            };
            let is_up = Member::of(&node).is_ready;
            let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap_or_default());
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                let since = self.ending.get(uid).copied().unwrap_or_else(Instant::now);
                if is_up && since.elapsed() >= takes(&pod) {
                    server.remove(&path);
                } else {
                    ending.insert(uid.to_owned(), since);
                }
                continue;
            }
            let status = if is_up { "True" } else { "False" };
            let is_same = |it: &Value| it["type"] == "Ready" && it["status"] == status;
            let is_known = pod["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_same));
            if !is_known {
                server.change(&path, |pod| {
                    pod["status"]["phase"] = "Running".into();
                    pod["status"]["conditions"] = json!([{"type": "Ready", "status": status}]);
                });
            }
        }
        self.ending = ending;
    }
}

/// How long a Pod takes to end: its grace period at most.
fn takes(pod: &Value) -> Duration {
    let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    let own = pod["metadata"]["annotations"][TERMINATION_ANNOTATION].as_str().and_then(|text| text.parse().ok());
    Duration::from_secs(own.unwrap_or(grace).min(grace))
}
