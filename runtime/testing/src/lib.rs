//! What tests need of a cluster: an API server in process, and objects in a line. Only tests, benchmarks and simulations
//! depend on this crate, and it depends on no other crate of the workspace.

pub mod api_server;
mod json_patch;
mod objects;

pub use self::{
    json_patch::json_patch,
    objects::{ObjectBuilder, object},
};
