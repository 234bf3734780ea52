//! What the plans of a MachineSet remember.

use nodewright_runtime::{effect::Never, plan};

use crate::shared::status_writer;

pub(crate) type Context<'a> = plan::Context<'a, Never, Note>;
pub(crate) type Plan = plan::Plan<Never, Note>;
pub(super) type StatusWrite = status_writer::StatusWrite<Never, Note>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// Machines have become unhealthy, and the status does not say so yet.
    Unhealthy,
    /// Each plan writes the set, and not its status.
    StatusDeferred,
    /// The deployment has this generation, and the set is yet to be sized for it.
    SizeAwaited(i64),
}
