//! The disruption controller: how many pods may be evicted.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::evict::is_ready;
use super::route::{Id, Part, Resource};
use super::selector;
use super::store::{Store, Writer, said, seconds, set_or_remove};
use super::write::Target;

/// How long an evicted pod may take to get its deletion timestamp.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

impl Store {
    /// Counts the pods of all budgets. Returns whether some evicted pods have no deletion timestamp yet.
    pub(super) fn count_pods(&mut self, writer: &Writer<'_>) -> bool {
        let resource = Resource::budgets();
        let budgets: Vec<_> = self.all(&resource).cloned().collect();
        let mut waits = false;
        for budget in budgets {
            let mut wanted = (*budget).clone();
            wanted["status"] = self.counted(&budget, writer.now);
            set_condition(&mut wanted, writer.now);
            waits |= wanted["status"]["disruptedPods"].is_object();
            if wanted["status"] != budget["status"] {
                let id = Id::of(&resource, &budget);
                let target = Target { id: &id, kind: self.kind(&resource), part: Part::Status, writer };
                target.own(&budget, &mut wanted);
                self.commit(&id, wanted);
            }
        }
        waits
    }

    fn counted(&self, budget: &Value, now: Timestamp) -> Value {
        let resource = Resource::pods();
        let pods = self.all(&resource).filter(|pod| {
            said(pod, "namespace") == said(budget, "namespace")
                && selector::matches_labels(&budget["spec"]["selector"], &pod["metadata"]["labels"])
        });
        let pods: Vec<_> = pods.collect();
        let expected = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let awaited = awaited(budget, &pods, now);
        let healthy = pods.iter().filter(|pod| {
            let name = said(pod, "name").unwrap_or("");
            pod["metadata"]["deletionTimestamp"].is_null() && !awaited.contains_key(name) && is_ready(pod)
        });
        let (current, desired) =
            (i64::try_from(healthy.count()).unwrap_or(i64::MAX), desired(&budget["spec"], expected));
        let allowed = if expected > 0 { (current - desired).max(0) } else { 0 };
        let mut status = json!({
            "currentHealthy": current,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
            "expectedPods": expected,
            "observedGeneration": budget["metadata"]["generation"],
        });
        set_or_remove(&mut status, "disruptedPods", (!awaited.is_empty()).then_some(Value::Object(awaited)));
        set_or_remove(&mut status, "conditions", budget["status"].get("conditions").cloned());
        status
    }
}

/// Evicted pods without a deletion timestamp.
fn awaited(budget: &Value, pods: &[&Arc<Value>], now: Timestamp) -> Map<String, Value> {
    let reported = budget["status"]["disruptedPods"].as_object().into_iter().flatten();
    let awaited = reported.filter(|(name, since)| {
        let stays = |pod: &&Arc<Value>| {
            said(pod, "name") == Some(name.as_str()) && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let since = since.as_str().and_then(|since| since.parse::<Timestamp>().ok());
        pods.iter().any(stays)
            && since.is_some_and(|since| since.saturating_add(DELETION_TIMEOUT).is_ok_and(|end| end >= now))
    });
    awaited.map(|(name, since)| (name.clone(), since.clone())).collect()
}

/// How many pods have to be healthy. A percentage refers to the existing pods; a real controller applies it to the
/// number that their owners want.
fn desired(spec: &Value, expected: i64) -> i64 {
    let number = |value: &Value| match value.as_str().and_then(|text| text.strip_suffix('%')) {
        Some(share) => (share.parse::<i64>().unwrap_or(0) * expected + 99) / 100,
        None => value.as_i64().unwrap_or(0),
    };
    match spec.get("maxUnavailable") {
        Some(unavailable) => (expected - number(unavailable)).max(0),
        None => number(&spec["minAvailable"]),
    }
}

/// Sets the condition of a budget: whether a disruption is allowed.
pub(super) fn set_condition(budget: &mut Value, now: Timestamp) {
    let allows = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) > 0;
    let (status, reason) = if allows { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": budget["status"]["observedGeneration"],
        "lastTransitionTime": seconds(now),
    });
    let conditions = &mut budget["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|it| it["type"] == condition["type"]) {
        None => conditions.push(condition),
        Some(present) => {
            let since = present["lastTransitionTime"].clone();
            let is_same = present["status"] == condition["status"];
            *present = condition;
            if is_same {
                present["lastTransitionTime"] = since;
            }
        }
    }
}
