//! The controller on small worlds.

mod cluster;
mod live;
mod rollouts;
mod sets;
mod status;
