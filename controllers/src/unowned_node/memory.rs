//! What the plans of a Node without a Machine remember: the answers about its VM, and what was reported.

use nodewright_runtime::plan;

use super::call::Describe;

/// An event has reported this.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reported(pub(super) String);

pub(super) type Context<'a> = plan::Context<'a, Describe, Reported>;
pub(super) type Plan = plan::Plan<Describe, Reported>;
