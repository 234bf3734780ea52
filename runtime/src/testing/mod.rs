//! What tests of controllers need.

pub mod api_server;
