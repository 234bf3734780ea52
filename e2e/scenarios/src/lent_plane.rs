//! Control planes for scenarios with node configuration. Its kinds have no namespace, so each scenario has a control plane for itself; but
//! as a start takes many seconds of CPU, the next scenario gets the same one.
//!
//! # Guarantees
//! * A scenario gets a control plane without objects of node configuration, Nodes and webhooks.
//! * There are as many as scenarios have run at once. An idle one takes no CPU.
//! * Nobody gets the control plane of a scenario that failed.
//!
//! # Caveats
//! * The namespaces of earlier scenarios remain, because no controller removes them, with what [`crate::Environment::end`] leaves there.
//! * The controller manager may yet record an event of a Node that has gone with an earlier scenario.

use std::sync::Arc;

use nodewright_e2e_lab::control_plane::{Component, testing::on_shared_runtime};
use parking_lot::Mutex;

use crate::{Cluster, TestResult, cleaning, clusters};

/// Those that no scenario has.
static IDLE: Mutex<Vec<Arc<Cluster>>> = Mutex::new(Vec::new());
/// The processes of such a control plane, each before those that need it.
const COMPONENTS: [Component; 3] = [Component::Etcd, Component::ApiServer, Component::ControllerManager];

/// A control plane that a scenario has for itself. Dropping it stops it.
pub(crate) struct LentPlane(Arc<Cluster>);

impl LentPlane {
    /// An idle control plane, or another one. The caller has its turn.
    pub(crate) async fn take() -> TestResult<Self> {
        while let Some(cluster) = idle() {
            match resume(&cluster).await {
                Ok(()) => return Ok(Self(cluster)),
                Err(failure) => eprintln!("a control plane is not used again: {failure}"),
            }
        }
        let start = Box::pin(clusters::with_node_configuration(clusters::without_pods()));
        Ok(Self(on_shared_runtime(start).await?))
    }

    /// The control plane.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.0
    }

    /// Removes what the scenario has left, and keeps the control plane for another one. The scenario's processes have ended.
    pub(crate) async fn put_back(self) -> TestResult {
        cleaning::reset(&self.0).await?;
        if let Some(plane) = self.0.control_plane() {
            plane.check()?;
            for component in COMPONENTS.into_iter().rev() {
                plane.pause(component)?;
            }
        }
        IDLE.lock().push(self.0);
        Ok(())
    }
}

fn idle() -> Option<Arc<Cluster>> {
    IDLE.lock().pop()
}

async fn resume(cluster: &Cluster) -> TestResult {
    if let Some(plane) = cluster.control_plane() {
        for component in COMPONENTS {
            plane.unpause(component)?;
        }
        for component in COMPONENTS {
            plane.wait_until_ready(component).await?;
        }
    }
    cleaning::check_reset(cluster).await
}
