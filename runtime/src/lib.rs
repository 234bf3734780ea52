//! A generic reconciler runtime: watch, cache, queue, plan, act.

pub mod cache;
pub mod conditions;
pub mod controller;
pub mod effect;
mod effect_runner;
pub mod events;
mod execute;
pub mod finalizers;
pub mod lease;
pub mod look;
pub mod manager;
pub mod metrics;
pub mod object;
pub mod owned;
pub mod plan;
pub mod queue;
mod reconcile;
pub mod request;
pub mod server;
pub mod telemetry;
pub mod term;
pub mod testing;
pub mod trace;
mod watch;
