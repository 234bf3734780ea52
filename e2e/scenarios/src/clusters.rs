//! The control planes of scenarios, in addition to [`Cluster::shared`].

use std::sync::Arc;

use nodewright_e2e_lab::control_plane::{
    ControlPlaneOptions, machine_controller_manager_crds,
    testing::{Cluster, TestResult, on_shared_runtime},
};
use tokio::sync::OnceCell;

/// An API server without CRDs and controllers, shared by scenarios: a second cluster, for nodes.
pub async fn bare() -> TestResult<Arc<Cluster>> {
    static BARE: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..Cluster::options() };
    Cluster::start_shared(&BARE, options, false).await
}

/// A control plane for scenarios with webhooks, whose registration is cluster-wide.
pub async fn with_webhooks() -> TestResult<Arc<Cluster>> {
    static WITH_WEBHOOKS: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let options = ControlPlaneOptions { scheduler: false, ..Cluster::options() };
    Cluster::start_shared(&WITH_WEBHOOKS, options, true).await
}

/// A control plane that real nodes join. It has all controllers.
pub async fn with_real_nodes() -> TestResult<Arc<Cluster>> {
    static WITH_REAL_NODES: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let options = ControlPlaneOptions { node_network: true, ..Cluster::options() };
    Cluster::start_shared(&WITH_REAL_NODES, options, true).await
}

/// A control plane with machine-controller-manager's CRDs, for scenarios in which machine-controller-manager runs.
pub async fn with_mcm_crds() -> TestResult<Arc<Cluster>> {
    static WITH_MCM_CRDS: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let start = Box::pin(async {
        let cluster = Cluster::start(Cluster::options(), false).await?;
        if let Some(plane) = cluster.control_plane() {
            plane.apply_file(machine_controller_manager_crds().await?).await?;
        }
        Ok(cluster)
    });
    WITH_MCM_CRDS.get_or_try_init(|| on_shared_runtime(start)).await.cloned()
}

/// A control plane for one scenario, with Kubernetes' garbage collector.
pub async fn with_garbage_collector() -> TestResult<Arc<Cluster>> {
    let controllers = vec!["garbage-collector-controller".to_owned()];
    Cluster::start(ControlPlaneOptions { controllers, scheduler: false, ..Cluster::options() }, true).await
}

/// Options of a control plane on which no Pod runs: of its controllers, nodes need only the one that misses their kubelets.
pub fn without_pods() -> ControlPlaneOptions {
    let controllers = vec!["node-lifecycle-controller".to_owned()];
    ControlPlaneOptions { controllers, scheduler: false, ..Cluster::options() }
}

/// A control plane for one scenario, which may break it. It has no controller manager, because that would exit together with
/// the API server. Dropping it stops it.
pub async fn exclusive() -> TestResult<Arc<Cluster>> {
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..Cluster::options() };
    Cluster::start(options, true).await
}
