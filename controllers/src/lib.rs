//! The controllers of Nodewright: a folder for each, and their shared code.

pub mod controller_config;
pub mod in_use;
pub mod kubelet_config;
pub mod machine;
pub mod machine_class;
pub mod machine_class_secret;
pub mod machine_config_pool;
pub mod machine_deployment;
pub mod machine_set;
pub mod node_drain;
pub mod node_lifecycle;
pub mod orphan_node;
pub mod orphan_vm;
pub mod rollout_node;
pub mod rollout_preview;
pub mod shared;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod unowned_node;
pub mod wiring;
