//! What the plans of a MachineConfigPool remember.

use nodewright_runtime::plan;

use super::call::Render;
use crate::shared::{machine_config::LeaseRenewal, status_writer};

pub(super) type Context<'a> = plan::Context<'a, Render, Note>;
pub(super) type Plan = plan::Plan<Render, Note>;
pub(super) type StatusWrite = status_writer::StatusWrite<Render, Note>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// The Lease of machine-config-operator was last renewed then.
    Operator(LeaseRenewal),
    /// What the pool selects renders to the MachineConfig of this name.
    Desired(String),
    /// The agent of the Node with this UID has failed, after it was given a configuration so often: a span has said it.
    Failed(String, u32),
}
