//! The taints of Nodes: which ones are required, and how they are changed.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Taint, Toleration},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::Shared;
use nodewright_e2e_cloud::request::{RequestError, request};

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A condition, the status that requires a taint, and the taint's key.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// The number of immediate retries after a conflict.
const TRIES: usize = 5;
/// The pause before a retry.
const PAUSE: Duration = Duration::from_millis(100);

/// The identity of a taint: key and effect.
pub(super) type Sign = (&'static str, &'static str);

/// Taints to add and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Swap {
    pub(super) add: Vec<Sign>,
    pub(super) remove: Vec<Sign>,
}

impl Swap {
    /// The part of the change that this Node still needs.
    pub(super) fn on(&self, node: &Node) -> Self {
        let add = self.add.iter().filter(|sign| !has(node, **sign)).copied().collect();
        let remove = self.remove.iter().filter(|sign| has(node, **sign)).copied().collect();
        Self { add, remove }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// The taints of the Node after the change.
    fn after(&self, node: &Node, now: Timestamp) -> Vec<Taint> {
        let is_removed = |taint: &Taint| self.remove.iter().any(|sign| is(taint, *sign));
        let added = self.add.iter().map(|(key, effect)| Taint {
            key: (*key).to_owned(),
            effect: (*effect).to_owned(),
            value: None,
            time_added: Some(Time(now)),
        });
        // New taints come first, as in the real controller.
        added.chain(taints(node).iter().filter(|taint| !is_removed(taint)).cloned()).collect()
    }
}

pub(super) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn is(taint: &Taint, (key, effect): Sign) -> bool {
    taint.key == key && taint.effect == effect
}

fn has(node: &Node, sign: Sign) -> bool {
    taints(node).iter().any(|taint| is(taint, sign))
}

/// The change to the `NoSchedule` taints that a Node's conditions and `unschedulable` require.
pub(super) fn by_condition(node: &Node) -> Swap {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let says = |type_: &str, status: &str| conditions.iter().any(|it| it.type_ == type_ && it.status == status);
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let wanted = BY_CONDITION.iter().map(|(type_, status, key)| (*key, says(type_, status)));
    let mut swap = Swap::default();
    for (key, is_wanted) in wanted.chain([(UNSCHEDULABLE, is_cordoned)]) {
        if is_wanted { &mut swap.add } else { &mut swap.remove }.push((key, "NoSchedule"));
    }
    swap.on(node)
}

/// The change to the `NoExecute` taints that a status of the Ready condition requires.
pub(super) fn by_readiness(ready: &str) -> Swap {
    let (not_ready, unreachable) = ((NOT_READY, "NoExecute"), (UNREACHABLE, "NoExecute"));
    let (add, remove) = match ready {
        "True" => (vec![], vec![not_ready, unreachable]),
        "False" => (vec![not_ready], vec![unreachable]),
        _ => (vec![unreachable], vec![not_ready]),
    };
    Swap { add, remove }
}

/// Whether a toleration covers a taint.
pub(super) fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let fits =
        |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == is);
    let same_value = toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    fits(&toleration.effect, &taint.effect)
        && fits(&toleration.key, &taint.key)
        && (toleration.operator.as_deref() == Some("Exists") || same_value)
}

impl Shared {
    /// Changes the taints of a Node: reads its current state, and writes with its resourceVersion.
    pub(super) async fn swap_taints(&self, name: &str, swap: &Swap) -> Result<(), RequestError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut tries = 0;
        loop {
            let node = request(nodes.get(name)).await?;
            let left = swap.on(&node);
            if left.is_empty() {
                return Ok(());
            }
            let patch = Patch::Merge(json!({
                "metadata": { "resourceVersion": node.metadata.resource_version },
                "spec": { "taints": left.after(&node, self.clock.wall()) },
            }));
            match request(nodes.patch(name, &PatchParams::default(), &patch)).await {
                Err(error) if error.is_conflict() && tries < TRIES => tries += 1,
                other => return other.map(drop),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn node(ready: &str, unschedulable: bool, taints: &Value) -> Node {
        let conditions = json!([{ "type": "Ready", "status": ready }, { "type": "DiskPressure", "status": "False" }]);
        let spec = json!({ "unschedulable": unschedulable, "taints": taints });
        serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": { "conditions": conditions } })).unwrap()
    }

    fn taint(key: &str, effect: &str) -> Value {
        json!({ "key": key, "effect": effect })
    }

    #[test]
    fn conditions_ask_for_taints_and_others_stay() {
        let foreign = taint("foreign", "NoSchedule");
        for (ready, unschedulable, taints, expected) in [
            ("True", false, json!([foreign]), vec!["foreign"]),
            ("True", true, json!([foreign]), vec![UNSCHEDULABLE, "foreign"]),
            ("False", false, json!([foreign]), vec![NOT_READY, "foreign"]),
            ("Unknown", false, json!([taint(NOT_READY, "NoSchedule")]), vec![UNREACHABLE]),
            ("True", false, json!([taint(UNSCHEDULABLE, "NoSchedule"), foreign]), vec!["foreign"]),
            ("True", false, json!([taint("node.kubernetes.io/disk-pressure", "NoSchedule")]), vec![]),
            ("True", false, json!([taint(UNREACHABLE, "NoExecute")]), vec![UNREACHABLE]),
        ] {
            let node = node(ready, unschedulable, &taints);
            let after = by_condition(&node).after(&node, Timestamp::UNIX_EPOCH);
            let keys: Vec<&str> = after.iter().map(|taint| taint.key.as_str()).collect();
            assert_eq!(keys, expected, "{ready} {unschedulable} {taints}");
        }
    }

    #[test]
    fn readiness_executes() {
        let both = json!([taint(NOT_READY, "NoExecute"), taint(UNREACHABLE, "NoSchedule")]);
        for (ready, expected) in [
            ("True", vec![(UNREACHABLE, "NoSchedule")]),
            ("False", vec![(NOT_READY, "NoExecute"), (UNREACHABLE, "NoSchedule")]),
            ("Unknown", vec![(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]),
        ] {
            let node = node(ready, false, &both);
            let after = by_readiness(ready).on(&node).after(&node, Timestamp::UNIX_EPOCH);
            let signs: Vec<_> = after.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str())).collect();
            assert_eq!(signs, expected, "{ready}");
        }
        assert!(by_readiness("True").on(&node("True", false, &json!([]))).is_empty());
    }
}
