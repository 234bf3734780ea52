//! The metrics of machine-controller-manager, by its names and labels, so that its dashboards and alerts continue to work. Each controller has
//! those of its objects; what they share is here.
//!
//! Those of objects are read from the caches at each scrape: what is gone has no series. Durations are gauges, the last one of a
//! deployment, as there. `docs/reference/telemetry.md` lists them, and what differs.
//!
//! # Caveats
//! * What is counted from changes of objects is counted by a process that stands by, too.
//! * A restart forgets durations and counts.

mod calls;
mod provider_requests;
mod scrape;

pub(crate) use self::{
    calls::DriverCalls,
    provider_requests::register_provider_requests,
    scrape::{HELP, Label, Number, Scrape, created_at, register_objects},
};
