//! The plans' types, and what they remember.

use nodewright_runtime::plan;

use crate::shared::status_writer;
use nodewright_runtime::effect::Never;

pub(super) use crate::shared::machine_config::LeaseRenewal as Note;

pub(super) type Context<'a> = plan::Context<'a, Never, Note>;
pub(super) type Plan = plan::Plan<Never, Note>;
pub(super) type StatusWrite = status_writer::StatusWrite<Never, Note>;
