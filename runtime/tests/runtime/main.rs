//! Managers with small controllers, on an API server in process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../support/mod.rs"]
mod support;

mod clusters;
mod determinism;
mod evictions;
mod example;
mod leadership;
mod manager;
mod named;
mod probes;
mod scoped_watches;
mod unanswered;
mod unlisted;
