//! How many Nodes of a pool may be disrupted at once.

use nodewright_api::{
    int_or_percent::{ParseIntOrPercentError, Rounding, resolve},
    machine_config::MachineConfigPool,
};
use nodewright_runtime::object::name;

use crate::shared::pools::MASTER;

/// The budget of a pool with so many Nodes: 1 if none is given, or if it comes to 0. A percentage is rounded down. Of a control plane
/// one Node at a time, whatever the pool says.
pub(crate) fn of(pool: &MachineConfigPool, nodes: usize) -> Result<usize, ParseIntOrPercentError> {
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    let budget = pool.spec.max_unavailable.as_ref().map_or(Ok(1), |value| resolve(value, nodes, Rounding::Down))?;
    let budget = usize::try_from(budget).unwrap_or_default().max(1);
    Ok(if name(pool) == MASTER { 1 } else { budget })
}
