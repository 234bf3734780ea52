//! What the plans of a Node whose VM is gone remember: the answers about its permit.

use nodewright_runtime::{effect::Never, plan};

use super::brake::DeletionRequest;

pub(super) type Context<'a> = plan::Context<'a, DeletionRequest, Never>;
pub(super) type Plan = plan::Plan<DeletionRequest, Never>;
