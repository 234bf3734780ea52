//! The metric of drains that have failed.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::machine_config::DrainVerb;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{cache::Stores, leadership::Clock, object::name};
use prometheus_client::encoding::EncodeLabelSet;

use super::{
    memory::Overdue,
    snapshot::{ASKING_NODES, asked, recorded_since},
};
use crate::shared::{TARGET, gauges::register_gauge, node::Node};

const SERIES_LIMIT: usize = 100;

#[derive(Clone, Debug, EncodeLabelSet)]
struct NodeLabels {
    node: String,
}

/// Registers `mcc_drain_err`, machine-config-operator's: 1 for each Node whose drain takes longer than an hour. A Node that is
/// drained at last, or gone, has no series.
pub(crate) fn register(metrics: &Metrics, stores: Stores, clock: Arc<dyn Clock>) {
    let series = move || {
        let now = clock.wall();
        let nodes = stores.of::<Node>(TARGET).by(ASKING_NODES, "");
        let mut failed: Vec<_> =
            nodes.iter().filter(|node| has_failed(node, now)).map(|it| name(it.as_ref())).collect();
        failed.sort_unstable();
        failed.into_iter().take(SERIES_LIMIT).map(|node| (NodeLabels { node: node.to_owned() }, 1)).collect()
    };
    register_gauge(metrics, "mcc_drain_err", "1 for each node whose drain takes longer than an hour", series);
}

fn has_failed(node: &Node, now: Timestamp) -> bool {
    let drain = asked(node).filter(|asked| DrainVerb::of(asked) == Some(DrainVerb::Drain));
    let since = drain.and_then(|asked| recorded_since(node, asked));
    since.is_some_and(|since| Overdue::reached(since, now).any(|overdue| overdue == Overdue::Hour))
}
