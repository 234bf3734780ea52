//! What tests of controllers need.

pub mod api_server;
mod json_patch;

pub use self::json_patch::json_patch;
