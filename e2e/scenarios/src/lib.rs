//! The framework for the end-to-end scenarios.
//!
//! A scenario begins with an [`Environment`]: a namespace on a real control plane, a fake cloud with kubelets, and a manager,
//! all of its own. It makes changes as users do (mostly with kubectl), waits for the consequences, and ends with
//! [`Environment::end`], which checks the invariants of all scenarios (see [`oracles`]).
//!
//! ```no_run
//! # use nodewright_e2e_scenarios::{TestResult, Environment};
//! # async fn scenario() -> TestResult {
//! let environment = Environment::start("scale").await?;
//! environment.apply_class("small").await?;
//! environment.apply(&environment.pool("a", 3)).await?;
//! environment.wait_for_running(3).await?;
//! environment.end().await
//! # }
//! ```
//!
//! # Which cluster
//!
//! By default all scenarios of a test process share one control plane, which ends with the process. Those with node configuration have
//! one for themselves, which the next one takes over. With [`EXTERNAL_VARIABLE`],
//! or `KUBECONFIG` and `NODEWRIGHT_E2E=external`, they run against that cluster; scenarios that need more than an API server
//! are then skipped, with a message. [`CRDS_VARIABLE`]`=mcm` uses machine-controller-manager's CRDs, and OpenShift's of node
//! configuration, instead of ours.
//!
//! # Guarantees
//! * No check of a transient state relies on a snapshot: [`History`] and the cloud's own log hold every change, in order.
//! * A wait that times out reports the current state: machines, nodes, VMs, the manager's last log lines.

mod changes;
mod cleaning;
pub mod cloud_nodes;
pub mod clusters;
pub mod collector;
mod diagnosis;
pub mod environment;
pub mod held;
mod kubectl;
mod lent_plane;
pub mod metrics;
pub mod node_agent;
pub mod node_updater;
pub mod objects;
pub mod oracles;
pub mod requests;
pub mod service_account;
pub mod tokens;
mod visits;
pub mod waits;
pub mod worker_pool;

pub use self::{
    collector::Collector,
    environment::{Environment, EnvironmentBuilder},
    kubectl::Table,
    node_agent::{Fault, NodeAgents},
    node_updater::{Answer, NodeUpdater},
    objects::{Class, Manifest, Pool},
    requests::Requests,
};
pub use nodewright_e2e_lab::control_plane::{
    history::{self, Change, History},
    testing::{
        CRDS_VARIABLE, Cluster, EXTERNAL_VARIABLE, Failure, TestResult, ensure, has_mcm_crds, skip_on_external_cluster,
    },
};
