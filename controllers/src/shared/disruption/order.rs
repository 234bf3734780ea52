//! Which Node of a pool is next.

use jiff::Timestamp;
use nodewright_api::{labels, stored::UPDATE_PRIORITY};
use nodewright_runtime::object::{created, label};

use super::node_state::is_failing;
use crate::shared::node::Node;

/// The order in which Nodes are given a configuration: those that fail first, since they may be able to go back; then the larger
/// priority; then by zone, those without one last; the oldest first.
pub(crate) fn rank(node: &Node) -> impl Ord + use<> {
    let zone = label(node, labels::ZONE).map(str::to_owned);
    let created = created(node).unwrap_or(Timestamp::MIN);
    let priority = UPDATE_PRIORITY.of(node).unwrap_or_default();
    (!is_failing(node), std::cmp::Reverse(priority), zone.is_none(), zone, created, node.metadata.name.clone())
}
