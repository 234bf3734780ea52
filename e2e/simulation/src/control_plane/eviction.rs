//! Taint eviction: deletes pods that do not tolerate the `NoExecute` taints of their Node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::{
    Shared,
    pods::{Removal, key},
    taints::{self, NOT_READY, UNREACHABLE},
};

/// How long a pod may stay under these taints; `None` means forever. A single untolerated taint ends it now.
fn stays(pod: &Pod, executing: &[&Taint], default: Duration) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let bound = |taint: &&Taint| {
        let mut covering = tolerations.iter().filter(|toleration| taints::covers(toleration, taint)).peekable();
        if covering.peek().is_none() {
            let is_default = taint.key == NOT_READY || taint.key == UNREACHABLE;
            return Some(if is_default { default } else { Duration::ZERO });
        }
        // The shortest toleration time counts; a negative one means now.
        let seconds = covering.filter_map(|toleration| toleration.toleration_seconds).min()?;
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    };
    executing.iter().filter_map(bound).min()
}

/// Deletes pods after their toleration time.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.view.is_listed().await;
    let (mut nodes, mut pods) = (shared.view.nodes.changes(), shared.view.pods.changes());
    // Since when each pod, by UID, has been under taints that end it.
    let mut since: BTreeMap<String, Duration> = BTreeMap::new();
    loop {
        nodes.mark_unchanged();
        pods.mark_unchanged();
        let next = round(&shared, &mut since).await;
        let wait = async {
            match next {
                Some(next) => tokio::time::sleep(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = nodes.changed() => if changed.is_err() { return },
            changed = pods.changed() => if changed.is_err() { return },
            () = wait => {}
        }
    }
}

/// Checks all pods once. Returns the time until the next check without a change.
async fn round(shared: &Shared, since: &mut BTreeMap<String, Duration>) -> Option<Duration> {
    let nodes: BTreeMap<String, Arc<Node>> = shared
        .view
        .nodes
        .all()
        .into_iter()
        .map(|node| (node.metadata.name.clone().unwrap_or_default(), node))
        .collect();
    let (now, mut under, mut next) = (shared.clock.elapsed(), BTreeMap::new(), None::<Duration>);
    for pod in shared.view.pods.all() {
        let node = pod.spec.as_ref().and_then(|spec| nodes.get(spec.node_name.as_deref()?));
        let Some(node) = node.filter(|_| pod.metadata.deletion_timestamp.is_none()) else { continue };
        let executing: Vec<&Taint> = taints::taints(node).iter().filter(|taint| taint.effect == "NoExecute").collect();
        let Some(stays) = stays(&pod, &executing, shared.settings.default_toleration) else { continue };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let begun = since.get(&uid).copied().unwrap_or(now);
        under.insert(uid, begun);
        let mut left = (begun + stays).saturating_sub(now);
        if left.is_zero() {
            let removal =
                Removal { reason: "DeletionByTaintManager", message: "Taint manager: deleting due to NoExecute taint" };
            match shared.evict(&pod, &removal).await {
                Ok(()) => continue,
                Err(error) => tracing::debug!(pod = ?key(&pod), %error, "a pod cannot be evicted"),
            }
            left = Duration::from_secs(1);
        }
        next = Some(next.map_or(left, |next| next.min(left)));
    }
    *since = under;
    next
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(tolerations: &serde_json::Value) -> Pod {
        let spec = json!({ "containers": [], "tolerations": tolerations });
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() }
    }

    #[test]
    fn a_pod_stays_as_long_as_it_tolerates() {
        let (unreachable, own) = (taint(UNREACHABLE), taint("own"));
        let seconds = Duration::from_secs;
        let exists = |key: &str, seconds: Option<i64>| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds });
        for (tolerations, taints, expected) in [
            (json!([]), vec![], None),
            (json!([]), vec![&unreachable], Some(seconds(300))),
            (json!([]), vec![&own], Some(seconds(0))),
            (json!([]), vec![&unreachable, &own], Some(seconds(0))),
            (json!([{ "operator": "Exists" }]), vec![&unreachable, &own], None),
            (json!([exists(UNREACHABLE, Some(30))]), vec![&unreachable], Some(seconds(30))),
            (json!([exists(UNREACHABLE, Some(-1))]), vec![&unreachable], Some(seconds(0))),
            (json!([exists(UNREACHABLE, None)]), vec![&unreachable, &own], Some(seconds(0))),
            (json!([exists("own", Some(60)), exists("own", Some(20))]), vec![&own], Some(seconds(20))),
            (json!([{ "key": "own", "value": "x" }]), vec![&own], Some(seconds(0))),
        ] {
            assert_eq!(stays(&pod(&tolerations), &taints, seconds(300)), expected, "{tolerations} under {taints:?}");
        }
    }
}
