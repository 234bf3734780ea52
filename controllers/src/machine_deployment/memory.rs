//! What the plans of a MachineDeployment remember.

use nodewright_runtime::{effect::Never, plan};

use crate::shared::status_writer;

pub(super) type Context<'a> = plan::Context<'a, Never, Note>;
pub(super) type Plan = plan::Plan<Never, Note>;
pub(super) type StatusWrite = status_writer::StatusWrite<Never, Note>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// Machines have become unhealthy, and the status does not say so yet.
    Unhealthy,
    /// The template of this hash is being rolled out.
    RollingOut(u32),
}
