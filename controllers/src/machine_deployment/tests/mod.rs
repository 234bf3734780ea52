//! The controller on small worlds.

mod cluster;
mod rollouts;
mod sets;
mod status;
