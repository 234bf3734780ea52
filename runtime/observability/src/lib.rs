//! The observability of a process: metrics for Prometheus, logs, and traces over OTLP.
//!
//! | module | content |
//! |---|---|
//! | [`metrics`] | metrics, with the names of controller-runtime and client-go where they have one |
//! | [`telemetry`] | logs, and the export of spans to a collector |
//! | [`trace`] | spans whose times and ids come from objects and not from the process |

pub mod metrics;
pub mod telemetry;
pub mod trace;
