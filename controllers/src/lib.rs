//! The controllers of Nodewright: a room for each, and the providers' contract.

mod claim;
mod class_secrets;
pub mod deletion_order;
pub mod drain;
pub mod driver;
mod failed_machines;
mod indexes;
pub mod ledger;
pub mod machine;
pub mod machine_class;
pub mod machine_deployment;
pub mod machine_set;
pub mod node;
pub mod orphan_node;
pub mod pacing;
pub mod rollout;
pub mod schema;
#[cfg(test)]
pub(crate) mod testing;
pub mod wiring;
