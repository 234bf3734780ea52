//! Tests of the controller on small clusters.

mod cluster;
mod rollouts;
mod sets;
mod status;
