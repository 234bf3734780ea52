//! Tests of the controller on small clusters.

pub(crate) mod cluster;
mod gitops;
mod rollouts;
mod sets;
mod status;
