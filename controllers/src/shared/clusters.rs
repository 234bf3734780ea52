//! The clusters that a manager knows.

use nodewright_runtime::object::Cluster;

/// The cluster that holds the custom resources and the leases.
pub const CONTROL: Cluster = Cluster::new("control");
/// The cluster that the nodes join. It may be served by the same API server as [`CONTROL`].
pub const TARGET: Cluster = Cluster::new("target");
