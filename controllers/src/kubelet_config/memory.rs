//! The plans' types, and what they remember.

use nodewright_runtime::plan;

use super::call::Generate;
use crate::shared::status_writer;

pub(super) use crate::shared::machine_config::LeaseRenewal as Note;

pub(super) type Context<'a> = plan::Context<'a, Generate, Note>;
pub(super) type Plan = plan::Plan<Generate, Note>;
pub(super) type StatusWrite = status_writer::StatusWrite<Generate, Note>;
