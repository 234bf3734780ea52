//! The AWS driver with moto's EC2, on a real control plane, with what goes wrong in a real cloud.
//!
//! | module | content |
//! |---|---|
//! | [`classes`] | wrong classes are refused in the driver's words, without EC2 |
//! | [`fleet`] | a fleet grows, shrinks and rolls, while each process is killed ten times |
//! | [`nodes`] | without a cloud controller manager, Nodes get what EC2 knows, and go with their VM |
//! | [`moments`] | when which process is killed |
//! | [`processes`] | EC2, driver and manager |
//! | [`exactness`] | EC2's own list: nothing lost, nothing twice |
//!
//! `make test-aws` runs them; `cargo test` alone runs only what needs no moto, which is not part of the workspace.

mod classes;
mod exactness;
mod fleet;
mod moments;
mod nodes;
mod processes;
