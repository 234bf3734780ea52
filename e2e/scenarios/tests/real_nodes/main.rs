//! Scenarios with real kubelets: what the stand-ins of the other scenarios only claim. See `nodewright_e2e_lab::node`.
//!
//! The control plane misses a node after 10 s, not after 50 s, and the kubelets renew their Leases every 2 s, not every 10 s.
//! Each scenario says what else differs from the defaults.
//!
//! Where root or packages are missing, each scenario prints `skipped NAME: REASON`.

mod cloud_node;
mod creation;
mod drain;
mod force;
mod health;
mod report;
mod rollout;
mod tokens;
mod volumes;
mod workload;

use std::io::Write;

use nodewright_e2e_lab::node::requirements;
use nodewright_e2e_scenarios::{Environment, EnvironmentBuilder, TestResult};

/// A builder for an environment with real nodes; `None`, with a message, where they cannot run.
fn real_nodes(name: &str) -> Option<EnvironmentBuilder> {
    let external = std::env::var("NODEWRIGHT_E2E").is_ok_and(|mode| mode == "external");
    let reason = if external { Some("the cluster is an external one".to_owned()) } else { requirements::missing() };
    if let Some(reason) = reason {
        // Not `eprintln!`, whose output the test runner hides.
        let _ = writeln!(std::io::stderr(), "skipped {name}: {reason}");
        return None;
    }
    Some(Environment::builder(name).with_real_nodes())
}

/// Removes all pods, then all machines, and checks the invariants.
async fn finish(env: Environment) -> TestResult {
    env.kubectl("delete deployments,statefulsets,poddisruptionbudgets,pods --all --grace-period=1").await?;
    env.kubectl("delete machinedeployments --all").await?;
    env.wait_for_nothing().await?;
    env.end().await
}
