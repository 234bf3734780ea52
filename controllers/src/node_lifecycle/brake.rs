//! How many Nodes go at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{effect::Effect, leadership::Clock};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

/// The time in which so many Nodes of a zone may go.
pub(super) const WINDOW: SignedDuration = SignedDuration::from_mins(5);

/// How soon it is asked again about a zone of which none may go.
const PAUSE: SignedDuration = SignedDuration::from_mins(1);

/// The question whether a Node may go.
#[derive(Clone, Debug)]
pub struct DeletionRequest {
    pub(super) node_uid: String,
    pub(super) zone: String,
    /// How many Nodes of the zone may go in five minutes; none while too many are not ready.
    pub(super) most: usize,
}

impl PartialEq for DeletionRequest {
    fn eq(&self, other: &Self) -> bool {
        self.node_uid == other.node_uid
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted,
    /// It is worth asking again then.
    Held(Timestamp),
}

impl Effect for DeletionRequest {
    type Outcome = Answer;

    fn serialization_key(&self) -> Arc<str> {
        self.node_uid.as_str().into()
    }

    fn name(&self) -> &'static str {
        "permit_node_deletion"
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn timeout_outcome(&self) -> Answer {
        Answer::Held(Timestamp::MIN)
    }

    fn succeeded(_: &Answer) -> bool {
        true
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

const PERMITTED: &str = "permitted";
const HELD: &str = "held";

/// Counts the Nodes that may go.
pub(crate) struct Brake {
    clock: Arc<dyn Clock>,
    /// When each Node was permitted to go, by zone and UID.
    permitted: Mutex<BTreeMap<String, BTreeMap<String, Timestamp>>>,
    answers: Family<ResultLabel, Counter>,
}

impl Brake {
    pub(crate) fn register(metrics: &Metrics, clock: Arc<dyn Clock>) -> Self {
        let answers = Family::<_, Counter>::default();
        // An alert takes the increase of a series, which misses what was counted before it is seen first.
        for result in [PERMITTED, HELD] {
            let _ = answers.get_or_create(&ResultLabel { result });
        }
        metrics.register(|registry| {
            let help = "Nodes whose VM is gone: permitted to be deleted, or held by a brake of their zone";
            registry.register("node_deletion_permits", help, answers.clone());
        });
        Self { clock, permitted: Mutex::default(), answers }
    }

    pub(crate) fn perform(&self, permit: &DeletionRequest) -> Answer {
        let answer = self.answer(permit, self.clock.wall());
        let result = if answer == Answer::Granted { PERMITTED } else { HELD };
        self.answers.get_or_create(&ResultLabel { result }).inc();
        answer
    }

    pub(super) fn answer(&self, permit: &DeletionRequest, now: Timestamp) -> Answer {
        let mut all = self.permitted.lock();
        // A clock that was set back must not hold Nodes for ever.
        let is_recent = |at: &Timestamp| now.duration_since(*at).abs() < WINDOW;
        all.retain(|_, of_zone| {
            of_zone.retain(|_, at| is_recent(at));
            !of_zone.is_empty()
        });
        if permit.most == 0 {
            return Answer::Held(now.saturating_add(PAUSE).unwrap_or(Timestamp::MAX));
        }
        let of_zone = all.entry(permit.zone.clone()).or_default();
        let is_free = of_zone.len() < permit.most || of_zone.contains_key(&permit.node_uid);
        if !is_free {
            let first = of_zone.values().min().copied().unwrap_or(now);
            return Answer::Held(first.saturating_add(WINDOW).unwrap_or(Timestamp::MAX));
        }
        of_zone.entry(permit.node_uid.clone()).or_insert(now);
        Answer::Granted
    }
}
