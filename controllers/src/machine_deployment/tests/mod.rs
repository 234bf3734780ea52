//! Tests of the controller on small clusters.

mod cluster;
mod gitops;
mod nodes;
mod rollouts;
mod sets;
mod status;
