//! What the plans of a Node whose VM is gone remember: the answers about its permit.

use nodewright_runtime::{effect::Never, plan};

use super::brake::Permit;

pub(super) type Context<'a> = plan::Context<'a, Permit, Never>;
pub(super) type Plan = plan::Plan<Permit, Never>;
