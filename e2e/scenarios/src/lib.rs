//! What the end-to-end scenarios are written in.
//!
//! A scenario begins with a [`Environment`]: a namespace on a real control plane, a fake cloud with kubelets, and a manager,
//! all of its own. It changes something, as users do (mostly by kubectl), waits for what has to follow, and ends with
//! [`Environment::end`], which checks what holds in every scenario (see [`oracles`]).
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
//! By default all scenarios of a test process share one control plane, which ends with the process. With
//! [`EXTERNAL_VARIABLE`], or `KUBECONFIG` and `NODEWRIGHT_E2E=external`, they run against that cluster; those that need
//! more than an API server are left out then, and say so. [`CRDS_VARIABLE`]`=mcm` puts machine-controller-manager's CRDs
//! in place of ours.
//!
//! # Guarantees
//! * Nothing is judged by a snapshot where a moment counts: [`History`] and the cloud's own log hold every change, in
//!   order.
//! * A wait that is in vain says what there is: machines, nodes, VMs, the manager's last words.

mod cleaning;
pub mod clusters;
pub mod collector;
mod diagnosis;
pub mod environment;
pub mod history;
mod kubectl;
pub mod metrics;
pub mod objects;
pub mod oracles;
pub mod requests;
pub mod waits;

pub use self::{
    collector::Collector,
    environment::{Environment, EnvironmentBuilder},
    history::{Change, History},
    kubectl::Table,
    objects::{Class, Pool},
    requests::Requests,
};
pub use nodewright_e2e_control_plane::testing::{
    CRDS_VARIABLE, Cluster, EXTERNAL_VARIABLE, Failure, TestResult, ensure, has_mcm_crds, skip_on_external_cluster,
};
