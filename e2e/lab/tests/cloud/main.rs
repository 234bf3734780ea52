//! The fake cloud over HTTP, and the driver `simulated` with it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod driver;
mod remote_driver;
mod server;
mod support;
