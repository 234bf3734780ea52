//! Which Pods a drain removes, and how: the rules of `kubectl drain` as machine-controller-manager applies them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use nodewright_runtime::plan::Refusal;
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
#[serde(default)]
pub struct PodView {
    pub metadata: ObjectMeta,
    pub spec: PodSpecView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpecView {
    /// Pods with a higher priority are evicted earlier.
    pub priority: i32,
}

impl PodView {
    /// Whether a drain removes it. Mirror Pods cannot be evicted, and the Pods of DaemonSets would be created again at once.
    pub fn leaves(&self) -> bool {
        let mirror =
            self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"));
        let mut owners = self.metadata.owner_references.iter().flatten();
        let daemon = owners.any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
        !mirror && !daemon
    }

    /// Whether it is being deleted without a grace period: only finalizers keep it, and no request removes it sooner.
    pub fn is_gone_but_for_finalizers(&self) -> bool {
        self.is_leaving() && self.metadata.deletion_grace_period_seconds == Some(0)
    }

    pub fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Evict,
    Wait,
    /// Evict it again at this time, because the last eviction was refused.
    Later(Timestamp),
    /// Delete it without a grace period: too many evictions were refused, or the time is up.
    Delete,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) forced: bool,
    pub(crate) max_retries: u32,
    pub(crate) retry: SignedDuration,
}

pub(crate) fn next(pod: &PodView, refusal: Option<&Refusal>, rules: Rules, now: Timestamp) -> Next {
    if rules.forced {
        return if pod.is_gone_but_for_finalizers() { Next::Wait } else { Next::Delete };
    }
    if pod.is_leaving() {
        return Next::Wait;
    }
    let Some(refusal) = refusal else { return Next::Evict };
    if refusal.times >= rules.max_retries {
        return Next::Delete;
    }
    let asked = refusal.retry_after.and_then(|after| SignedDuration::try_from(after).ok()).unwrap_or_default();
    match refusal.at.checked_add(rules.retry.max(asked)) {
        Ok(later) if later > now => Next::Later(later),
        _ => Next::Evict,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const RULES: Rules = Rules { forced: false, max_retries: 3, retry: SignedDuration::from_secs(20) };

    fn pod(value: serde_json::Value) -> PodView {
        serde_json::from_value(value).unwrap()
    }

    fn now() -> Timestamp {
        crate::testing::NOW.parse().unwrap()
    }

    fn refusal(times: u32, retry_after: Option<u64>) -> Refusal {
        let at = now() - SignedDuration::from_secs(5);
        Refusal {
            uid: "u".into(),
            at,
            times,
            message: "budget".into(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn mirror_and_daemon_pods_stay() {
        let daemon = pod(json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true}]}}));
        let mirror = pod(json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}));
        let plain = pod(json!({"metadata": {"name": "p"}, "status": {"phase": "Succeeded"}}));
        assert_eq!([daemon.leaves(), mirror.leaves(), plain.leaves()], [false, false, true]);
    }

    #[test]
    fn a_refused_pod_is_asked_again_after_the_pause_and_deleted_in_the_end() {
        let live = pod(json!({}));
        assert_eq!(next(&live, None, RULES, now()), Next::Evict);
        let later = now() + SignedDuration::from_secs(15);
        assert_eq!(next(&live, Some(&refusal(1, None)), RULES, now()), Next::Later(later));
        assert_eq!(next(&live, Some(&refusal(1, None)), RULES, later), Next::Evict);
        let asked = now() + SignedDuration::from_secs(55);
        assert_eq!(next(&live, Some(&refusal(1, Some(60))), RULES, now()), Next::Later(asked), "Retry-After counts");
        assert_eq!(next(&live, Some(&refusal(3, None)), RULES, now()), Next::Delete);
    }

    #[test]
    fn a_forced_drain_leaves_no_grace() {
        let rules = Rules { forced: true, ..RULES };
        let leaving =
            pod(json!({"metadata": {"deletionTimestamp": "2026-06-01T11:00:00Z", "deletionGracePeriodSeconds": 30}}));
        assert_eq!(next(&leaving, None, RULES, now()), Next::Wait);
        assert_eq!(next(&leaving, None, rules, now()), Next::Delete);
        let ended =
            pod(json!({"metadata": {"deletionTimestamp": "2026-06-01T11:00:00Z", "deletionGracePeriodSeconds": 0}}));
        assert_eq!(next(&ended, None, rules, now()), Next::Wait);
    }
}
