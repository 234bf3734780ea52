//! What tests of controllers need: worlds in a line, an API server in process. A plan is compared as its text.

pub mod api_server;
mod clock;
mod json_patch;
mod objects;

pub use self::{
    clock::HandClock,
    json_patch::json_patch,
    objects::{ObjectBuilder, Worlds, object},
};
