//! Tests of the controller on small clusters.

pub(crate) mod cluster;
mod gitops;
mod in_place;
mod mcm_in_place;
mod rollouts;
mod sets;
mod status;
