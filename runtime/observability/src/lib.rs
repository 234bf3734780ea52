//! What a process tells about itself: metrics for Prometheus, logs, and traces by OTLP.
//!
//! | module | what it does |
//! |---|---|
//! | [`metrics`] | counts, under the names of controller-runtime and client-go where they have one |
//! | [`telemetry`] | writes logs, and exports spans to a collector |
//! | [`trace`] | spans whose times and ids come from objects instead of from the process |

pub mod metrics;
pub mod telemetry;
pub mod trace;
