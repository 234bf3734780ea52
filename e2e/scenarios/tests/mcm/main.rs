//! Nodewright and the real machine-controller-manager on the same objects, VMs and Nodes.
//!
//! | module | content |
//! |---|---|
//! | [`handover`] | one of them is killed at each stage of its work, and the other continues |
//! | [`half_swap`] | one of the two processes of each, together |
//! | [`in_place`] | one of them begins an update in place, and the other continues; and one process of each |
//! | [`preservation`] | one of them preserves a machine, and the other continues and ends it |
//! | [`metrics`] | both have the same values in the metrics that machine-controller-manager has |
//! | [`picture`] | what users read of conditions and events is the same under both |
//! | [`suite`] | machine-controller-manager's own integration tests, run against Nodewright |
//! | [`environment`] | where a scenario plays |
//! | [`controllers`] | the processes |
//! | [`objects`] | what users apply |
//! | [`moments`] | waiting for a stage |
//! | [`exactness`] | nothing lost, nothing twice |
//!
//! The scenarios take minutes, because machine-controller-manager waits for five seconds between the steps of a machine.
//! `make test-mcm` runs them; `cargo test` alone does not.

mod controllers;
mod environment;
mod exactness;
mod half_swap;
mod handover;
mod in_place;
mod metrics;
mod moments;
mod objects;
mod picture;
mod preservation;
mod suite;
