//! Makes the calls: lists VMs, and deletes orphans after a last look at the API server.

use std::sync::Arc;

use nodewright_api::Machine;
use nodewright_driver::{Driver, OrphanRequest};
use nodewright_runtime::{
    leadership::Clock,
    object::{is_deleting, namespace},
    request::{Call as ApiCall, Connection, FailureClass, RequestError},
    without_managed_fields,
};
use serde_json::value::RawValue;

use super::{
    OrphanMetrics,
    calls::{Call, Orphan, Outcome, Request, SweepResult},
};
use crate::shared::{
    indexes::instance_id,
    lists::{items, machines_named},
    mcm_metrics::DriverCalls,
    ownership::vm_id,
};

/// Makes the calls of the controller.
pub(crate) struct Caller {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) control: Connection,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) calls: DriverCalls,
    pub(crate) metrics: OrphanMetrics,
}

impl Caller {
    pub(crate) async fn perform(self: Arc<Self>, call: Call) -> Outcome {
        match call {
            Call::List(request) => self.list(&request).await,
            Call::Sweep(request, orphans) => {
                let mut results = vec![];
                for orphan in orphans.iter() {
                    let result = self.sweep(&request, orphan).await;
                    self.metrics.swept(&result);
                    results.push((orphan.provider_id.clone(), result));
                }
                Outcome::Swept(results)
            }
        }
    }

    async fn list(&self, request: &Request) -> Outcome {
        let list = self.driver.list(request.class.clone());
        match self.calls.measure("list_machine", self.clock.as_ref(), list).await {
            Ok(listed) => {
                let listed = Arc::new(listed);
                self.metrics.listed(&request.key, listed.clone());
                Outcome::Listed(listed)
            }
            Err(error) => Outcome::Failed { throttled: error.throttled, message: error.to_string() },
        }
    }

    async fn sweep(&self, request: &Request, orphan: &Orphan) -> SweepResult {
        match self.is_needed(request, orphan).await {
            Ok(true) => return SweepResult::Kept,
            Ok(false) => {}
            Err(why) => return SweepResult::Failed(why),
        }
        let (provider_id, machine) = (orphan.provider_id.clone(), orphan.machine.clone());
        let deleted = self.driver.delete_orphan(OrphanRequest { provider_id, machine, class: request.class.clone() });
        // As machine-controller-manager, whose drivers measure each deletion.
        let deleted = self.calls.measure("delete_machine", self.clock.as_ref(), deleted).await;
        deleted.map_or_else(|error| SweepResult::Failed(error.to_string()), |()| SweepResult::Deleted)
    }

    /// Whether a Machine has the VM, or may. The provider has shown the VM before this read began, and a Machine exists before
    /// its VM: a new one is found.
    async fn is_needed(&self, request: &Request, orphan: &Orphan) -> Result<bool, String> {
        let machines = self.machines(&orphan.machine).await.map_err(|error| {
            let remedy = match error.class {
                // A machine of that name in another namespace would have the VM.
                FailureClass::Forbidden => {
                    "; allow to list machines in all namespaces, as the ClusterRole nodewright-machines does"
                }
                _ => "",
            };
            format!("failed to look for machine {}: {error}{remedy}", orphan.machine)
        })?;
        let is_free = |machine: &Machine| {
            namespace(machine) == &*request.key.namespace
                && !is_deleting(machine)
                && orphan.keeps.as_deref().is_some_and(|keeps| {
                    vm_id(machine).is_none_or(|own| instance_id(own) == instance_id(keeps))
                        && instance_id(keeps) != instance_id(&orphan.provider_id)
                })
        };
        Ok(!machines.iter().all(|machine| machine.as_ref().is_some_and(is_free)))
    }

    /// The Machines of a name, in all namespaces; `None` for one that cannot be decoded.
    async fn machines(&self, name: &str) -> Result<Vec<Option<Machine>>, RequestError> {
        let answer = self.control.send(ApiCall::get(machines_named(name))).await?;
        let Ok(Some(machines)) = items::<Box<RawValue>>(answer.body()) else { return Ok(vec![None]) };
        Ok(machines.into_iter().map(|item| without_managed_fields::from_slice(item.get().as_bytes()).ok()).collect())
    }
}
