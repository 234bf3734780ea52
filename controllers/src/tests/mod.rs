//! Several controllers together, in the real runtime, against the API server in process.

mod class_secrets;
mod game;
mod machine_deployments;
mod mcm_metrics;
mod refused_writes;
