//! The control planes of scenarios, in addition to [`Cluster::shared`].

use std::sync::Arc;

use nodewright_e2e_lab::control_plane::{
    ControlPlaneOptions, machine_controller_manager_crds,
    testing::{Cluster, TestResult, crds, machine_config_crds, on_shared_runtime},
};
use tokio::sync::OnceCell;

/// An API server without CRDs and controllers, shared by scenarios: a second cluster, for nodes.
pub async fn bare() -> TestResult<Arc<Cluster>> {
    static BARE: OnceCell<Arc<Cluster>> = OnceCell::const_new();
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..Cluster::options() };
    Cluster::start_shared(&BARE, options, false).await
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

/// A control plane with the kinds of node configuration.
pub async fn with_node_configuration(options: ControlPlaneOptions) -> TestResult<Arc<Cluster>> {
    let cluster = Cluster::start(options, false).await?;
    if let Some(plane) = cluster.control_plane() {
        let mut definitions = machine_config_crds().await?;
        definitions.push(crds().await?);
        plane.apply_files(&definitions).await?;
    }
    Ok(cluster)
}

/// The same for one scenario, with Kubernetes' garbage collector.
pub(crate) async fn with_garbage_collector() -> TestResult<Arc<Cluster>> {
    let controllers = vec!["garbage-collector-controller".to_owned()];
    with_node_configuration(ControlPlaneOptions { controllers, scheduler: false, ..Cluster::options() }).await
}

/// Options of a control plane on which no Pod runs: of its controllers, nodes need only the one that misses their kubelets.
pub(crate) fn without_pods() -> ControlPlaneOptions {
    let controllers = vec!["node-lifecycle-controller".to_owned()];
    ControlPlaneOptions { controllers, scheduler: false, ..Cluster::options() }
}

/// A control plane for one scenario, which may break it. It has no controller manager, because that would exit together with
/// the API server. Dropping it stops it.
pub async fn exclusive() -> TestResult<Arc<Cluster>> {
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..Cluster::options() };
    Cluster::start(options, true).await
}
