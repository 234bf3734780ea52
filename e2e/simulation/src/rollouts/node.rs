//! What a Node says. Written apart from the product, after machine-config-operator.

use std::collections::BTreeSet;

use nodewright_api::{
    annotations::{CONFIG_DRAIN, CONFIG_GIVEN, UPDATE_PRIORITY},
    machine_config::{
        CURRENT_CONFIG, DEGRADED, DESIRED_CONFIG, DESIRED_DRAIN, DONE, LAST_APPLIED_DRAIN, STATE, UNRECONCILABLE,
        WORKER,
    },
};
use serde_json::Value;

use super::{MASTER, ROLE_LABEL};

/// A Node as the invariants see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) uid: String,
    pub(super) roles: BTreeSet<String>,
    pub(super) current: String,
    pub(super) desired: String,
    pub(super) state: String,
    pub(super) asks: String,
    pub(super) done: String,
    pub(super) given: u32,
    /// The record of its drain.
    pub(super) record: String,
    pub(super) is_cordoned: bool,
    pub(super) is_ready: bool,
    pub(super) rank: Rank,
}

/// By priority, the largest first, by zone, those without one last, then the oldest.
pub(super) type Rank = (std::cmp::Reverse<i32>, bool, String, String, String);

impl Member {
    pub(super) fn of(node: &Value) -> Self {
        let metadata = &node["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let said = |key: &str| text(&metadata["annotations"][key]);
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let zone = &metadata["labels"]["topology.kubernetes.io/zone"];
        let priority = said(UPDATE_PRIORITY).parse().unwrap_or(0);
        Self {
            uid: text(&metadata["uid"]),
            roles: labels.filter_map(|(key, _)| key.strip_prefix(ROLE_LABEL).map(str::to_owned)).collect(),
            current: said(CURRENT_CONFIG),
            desired: said(DESIRED_CONFIG),
            state: said(STATE),
            asks: said(DESIRED_DRAIN),
            done: said(LAST_APPLIED_DRAIN),
            given: said(CONFIG_GIVEN).parse().unwrap_or(0),
            record: said(CONFIG_DRAIN),
            is_cordoned: node["spec"]["unschedulable"] == true,
            is_ready: conditions.filter(|it| it["type"] == "Ready").all(|it| it["status"] == "True"),
            rank: (
                std::cmp::Reverse(priority),
                zone.is_null(),
                text(zone),
                text(&metadata["creationTimestamp"]),
                text(&metadata["name"]),
            ),
        }
    }

    /// The pool that it belongs to, of those with these names.
    pub(super) fn pool<'a>(&self, pools: impl Iterator<Item = &'a String>) -> Option<&'a str> {
        let own: Vec<&str> = pools.filter(|pool| self.roles.contains(*pool)).map(String::as_str).collect();
        if own.contains(&MASTER) && own.iter().filter(|pool| ![MASTER, WORKER].contains(pool)).count() < 2 {
            return Some(MASTER);
        }
        match own.iter().copied().filter(|pool| ![MASTER, WORKER].contains(pool)).collect::<Vec<_>>()[..] {
            [] => own.first().copied(),
            [custom] => Some(custom),
            _ => None,
        }
    }

    pub(super) fn has_agent(&self) -> bool {
        !self.current.is_empty()
    }

    pub(super) fn is_done(&self) -> bool {
        self.has_agent() && self.current == self.desired && self.state == DONE
    }

    pub(super) fn has_failed(&self) -> bool {
        [DEGRADED, UNRECONCILABLE].contains(&self.state.as_str())
    }

    /// Whether it takes Pods.
    pub(super) fn is_open(&self) -> bool {
        self.is_ready && !self.is_cordoned
    }

    /// Whether it takes a part of the budget of a pool with this target.
    pub(super) fn counts(&self, target: &str) -> bool {
        let fails = self.has_failed() && self.current != self.desired;
        !self.is_open() || self.has_agent() && !self.is_done() && !fails || fails && self.desired == target
    }

    /// The drain that its agent waits for.
    pub(super) fn drain(&self) -> Option<&str> {
        self.asks.strip_prefix("drain-").filter(|_| self.asks != self.done)
    }
}
