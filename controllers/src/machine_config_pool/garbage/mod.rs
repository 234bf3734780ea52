//! Rendered MachineConfigs that nothing needs any more: marked with the time, and deleted after a while.

mod decision;
mod plan;

pub(super) use self::plan::{collect, unmark};
