//! A fake cluster for tests: an API server in process, and builders that make an object in one line. Only tests, benchmarks
//! and simulations depend on this crate, and it depends on no other crate of the workspace.

pub mod api_server;
mod json_patch;
mod objects;
pub mod stand_in;

pub use self::{
    json_patch::json_patch,
    objects::{ObjectBuilder, object},
};
