//! The health of Nodes: a Node that is silent for too long becomes Unknown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use kube::{Api, api::PostParams};

use super::{Settings, Shared, taints};
use nodewright_e2e_cloud::{
    kubelet::LEASE_NAMESPACE,
    request::{RequestError, request},
};

/// The conditions that become Unknown.
const OF_KUBELETS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// The number of attempts to write one Node's status in one round.
const TRIES: usize = 5;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The observed heartbeat of one Node.
#[derive(Clone, Debug, Default, PartialEq)]
struct Health {
    /// When the heartbeat last changed, by the controller's own clock.
    probe: Duration,
    /// The last heartbeat of the Ready condition; `None` without the condition.
    heartbeat: Option<Timestamp>,
    renewed: Option<MicroTime>,
}

impl Health {
    fn new(node: &Node, now: Duration) -> Self {
        Self { probe: now, heartbeat: heartbeat(node), renewed: None }
    }

    /// Observes the heartbeat. Only a change counts, so the clock that wrote it does not matter.
    fn observe(&mut self, node: &Node, lease: Option<&Lease>, now: Duration) {
        let heartbeat = heartbeat(node);
        if heartbeat != self.heartbeat {
            (self.heartbeat, self.probe) = (heartbeat, now);
        }
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
        if renewed > self.renewed {
            (self.renewed, self.probe) = (renewed, now);
        }
    }

    /// Whether the Node has been silent for too long.
    fn is_lost(&self, settings: &Settings, now: Duration) -> bool {
        let grace = if self.heartbeat.is_some() { settings.monitor_grace } else { settings.startup_grace };
        now.saturating_sub(self.probe) > grace
    }
}

fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    conditions(node).iter().find(|condition| condition.type_ == "Ready")
}

/// The last heartbeat of the Ready condition; the Unix epoch if the condition has no time.
fn heartbeat(node: &Node) -> Option<Timestamp> {
    Some(ready(node)?.last_heartbeat_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

/// The status of the Ready condition.
fn readiness(node: &Node) -> Option<String> {
    Some(ready(node)?.status.clone())
}

/// The Node with all conditions of its kubelet Unknown; `None` if they already are.
fn lost(node: &Node, now: Timestamp) -> Option<Node> {
    if ready(node).is_some_and(|ready| ready.status == "Unknown") {
        return None;
    }
    let mut node = node.clone();
    let created = node.metadata.creation_timestamp.clone();
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    for type_ in OF_KUBELETS {
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                "Unknown".clone_into(&mut condition.status);
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(Time(now));
            }
            None => conditions.push(NodeCondition {
                type_: type_.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: created.clone(),
                last_transition_time: Some(Time(now)),
            }),
        }
    }
    Some(node)
}

/// Checks all Nodes periodically.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.view.is_listed().await;
    let mut monitor = Monitor { shared, known: BTreeMap::new() };
    let mut ticks = tokio::time::interval(monitor.shared.settings.monitor_period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        monitor.round().await;
    }
}

/// The Ready status before and after.
type Readiness = (Option<String>, Option<String>);

/// An observed Node: its UID, its health, and whether its pods still need an update.
#[derive(Debug)]
struct Known {
    uid: String,
    health: Health,
    pods_to_tell: bool,
}

struct Monitor {
    shared: Arc<Shared>,
    known: BTreeMap<String, Known>,
}

impl Monitor {
    async fn round(&mut self) {
        let nodes = self.shared.view.nodes.all();
        self.known.retain(|name, _| nodes.iter().any(|node| node.metadata.name.as_ref() == Some(name)));
        for node in nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            if let Err(error) = self.look_after(&name, &node).await {
                tracing::debug!(node = name, %error, "a node's health cannot be written");
            }
        }
    }

    async fn look_after(&mut self, name: &str, node: &Arc<Node>) -> Result<(), RequestError> {
        let shared = Arc::clone(&self.shared);
        // A Node without a Ready condition has no consequences until its grace period ends.
        let (before, Some(after)) = self.tell_health(name, node).await? else { return Ok(()) };
        let before = before.unwrap_or_else(|| "Unknown".to_owned());
        let swap = taints::by_readiness(&before).on(node);
        if !swap.is_empty() {
            shared.swap_taints(name, &swap).await?;
        }
        let Some(known) = self.known.get_mut(name) else { return Ok(()) };
        known.pods_to_tell |= before == "True" && after != "True";
        if known.pods_to_tell && after != "True" {
            shared.tell_pods(name).await?;
        }
        known.pods_to_tell = false;
        Ok(())
    }

    /// Writes Unknown to a Node if it is lost. Returns its Ready status before and after.
    async fn tell_health(&mut self, name: &str, node: &Arc<Node>) -> Result<Readiness, RequestError> {
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        let (mut fresh, mut tries) = (Arc::clone(node), 1);
        loop {
            let before = readiness(&fresh);
            let is_lost = self.observe(name, &fresh);
            let Some(unknown) = is_lost.then(|| lost(&fresh, self.shared.clock.wall())).flatten() else {
                return Ok((before.clone(), before));
            };
            match request(nodes.replace_status(name, &PostParams::default(), &unknown)).await {
                Ok(written) => return Ok((before, readiness(&written))),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(PAUSE).await;
            fresh = Arc::new(request(nodes.get(name)).await?);
        }
    }

    /// Observes the heartbeat of a Node. Returns whether the Node is lost.
    fn observe(&mut self, name: &str, node: &Node) -> bool {
        let (shared, now) = (&self.shared, self.shared.clock.elapsed());
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let health = Health::new(node, now);
        let known = self.known.entry(name.to_owned()).or_insert_with(|| Known {
            uid: uid.clone(),
            health: health.clone(),
            pods_to_tell: false,
        });
        if known.uid != uid {
            *known = Known { uid, health, pods_to_tell: false };
        }
        let lease = shared.view.leases.named(LEASE_NAMESPACE, name);
        known.health.observe(node, lease.as_deref(), now);
        known.health.is_lost(&shared.settings, now)
    }
}

impl Shared {
    /// Marks the pods of a Node as not ready: their kubelet no longer reports it.
    async fn tell_pods(&self, node: &str) -> Result<(), RequestError> {
        for pod in self.view.pods.all() {
            let is_there = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
            let Some(mut pod) = is_there.then(|| Pod::clone(&pod)) else { continue };
            let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
            let ready =
                conditions.iter_mut().find(|condition| condition.type_ == "Ready" && condition.status == "True");
            let Some(ready) = ready else { continue };
            "False".clone_into(&mut ready.status);
            ready.last_transition_time = Some(Time(self.clock.wall()));
            let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace.unwrap_or_default());
            let parameters = PostParams::default();
            match request(pods.replace_status(name.unwrap_or_default(), &parameters, &pod)).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(conditions: &Value) -> Node {
        let metadata = json!({ "name": "n", "creationTimestamp": "2026-01-01T00:00:00Z" });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "conditions": conditions } })).unwrap()
    }

    fn beating(second: u32) -> Node {
        let at = format!("2026-01-01T00:00:{second:02}Z");
        node(&json!([{ "type": "Ready", "status": "True", "lastHeartbeatTime": at, "lastTransitionTime": at }]))
    }

    fn lease(second: u32) -> Lease {
        let renewed = format!("2026-01-01T00:00:{second:02}.000000Z");
        serde_json::from_value(json!({ "metadata": {}, "spec": { "renewTime": renewed } })).unwrap()
    }

    const fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn any_new_word_counts_by_the_own_clock() {
        let settings = Settings::default();
        let mut health = Health::new(&beating(50), at(0));
        let lost_at = |health: &mut Health, node: &Node, lease: Option<&Lease>, second| {
            health.observe(node, lease, at(second));
            health.is_lost(&settings, at(second))
        };
        assert!(!lost_at(&mut health, &beating(50), None, 40));
        assert!(lost_at(&mut health, &beating(50), None, 41));
        assert!(!lost_at(&mut health, &beating(51), None, 42), "a post, though its clock is ahead");
        assert!(!lost_at(&mut health, &beating(51), Some(&lease(1)), 80), "a Lease, though its clock is behind");
        assert!(!lost_at(&mut health, &beating(51), Some(&lease(1)), 120), "and that is 40 s ago");
        assert!(lost_at(&mut health, &beating(51), Some(&lease(0)), 121), "an older word is none");
        assert!(!lost_at(&mut health, &beating(51), Some(&lease(2)), 122));
    }

    #[test]
    fn a_node_that_never_posted_has_more_time() {
        let (settings, silent) = (Settings::default(), node(&json!([])));
        let mut health = Health::new(&silent, at(0));
        assert!(!health.is_lost(&settings, at(60)));
        assert!(health.is_lost(&settings, at(61)));
        health.observe(&beating(0), None, at(70));
        assert!(!health.is_lost(&settings, at(110)));
        assert!(health.is_lost(&settings, at(111)));
    }

    #[test]
    fn what_was_reported_turns_unknown_and_what_was_not_is_never_updated() {
        let before = node(&json!([
            { "type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:10Z" },
            { "type": "DiskPressure", "status": "Unknown", "reason": "before" },
            { "type": "Own", "status": "True" },
        ]));
        let after = lost(&before, "2026-01-01T00:01:00Z".parse().unwrap()).unwrap();
        let seen: Vec<_> = conditions(&after)
            .iter()
            .map(|it| (it.type_.as_str(), it.status.as_str(), it.reason.as_deref().unwrap_or_default()))
            .collect();
        let expected = [
            ("Ready", "Unknown", "NodeStatusUnknown"),
            ("DiskPressure", "Unknown", "before"),
            ("Own", "True", ""),
            ("MemoryPressure", "Unknown", "NodeStatusNeverUpdated"),
            ("PIDPressure", "Unknown", "NodeStatusNeverUpdated"),
        ];
        assert_eq!(seen, expected);
        let times = |time: &Option<Time>| time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let ready = ready(&after).unwrap();
        assert_eq!(times(&ready.last_heartbeat_time), "2026-01-01T00:00:10Z", "what the kubelet said stays");
        assert_eq!(times(&ready.last_transition_time), "2026-01-01T00:01:00Z");
        assert!(lost(&after, Timestamp::UNIX_EPOCH).is_none(), "once is enough");
    }
}
