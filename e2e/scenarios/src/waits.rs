//! Waits for observable conditions, each with a timeout.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::{Machine, MachineSet, finalizers};
use tokio::time::Instant;

use crate::{Environment, Failure, TestResult, diagnosis, history::State};
pub use nodewright_e2e_lab::devcluster::machines::is_running;

/// The polling interval.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Whether the Node is ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the set controls the machine.
pub fn is_of(machine: &Machine, set: &MachineSet) -> bool {
    let is_set = |uid: &String| set.metadata.uid.as_ref() == Some(uid);
    machine.owner_references().iter().any(|owner| owner.controller == Some(true) && is_set(&owner.uid))
}

impl Environment {
    /// Waits until a condition holds. `what` completes "failed to see …" in the error.
    pub async fn wait_for(&self, what: &str, mut is_so: impl AsyncFnMut() -> TestResult<bool>) -> TestResult {
        let (since, limit) = (Instant::now(), self.cluster().timeout());
        loop {
            if is_so().await? {
                return Ok(());
            }
            if let Err(failure) = self.check_manager() {
                return Err(failure.and(&diagnosis::of(self).await));
            }
            if since.elapsed() > limit {
                let failure = Failure::new(format!("failed to see {what} within {limit:?}"));
                return Err(failure.and(&diagnosis::of(self).await));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until `wanted` accepts the machines, and returns them.
    pub async fn wait_for_machines(
        &self,
        what: &str,
        wanted: impl Fn(&State<Machine>) -> bool,
    ) -> TestResult<State<Machine>> {
        let mut found = State::new();
        self.wait_for(what, async || {
            found = self.machines().current();
            Ok(wanted(&found))
        })
        .await?;
        Ok(found)
    }

    /// Waits until there are exactly this many machines, all running on ready nodes, and returns them.
    ///
    /// A manager may write that a machine runs before it writes what its node gets: finalizer, labels and taints in one patch.
    pub async fn wait_for_running(&self, count: usize) -> TestResult<State<Machine>> {
        let is_written = |node: &Node| node.finalizers().iter().any(|finalizer| finalizer == finalizers::NODE);
        self.wait_for_nodes_of_running(count, is_written).await
    }

    /// The same, of any manager: the nodes may lack the finalizer. machine-controller-manager adds it to a new node after three minutes.
    pub async fn wait_for_running_of_any_manager(&self, count: usize) -> TestResult<State<Machine>> {
        self.wait_for_nodes_of_running(count, |_| true).await
    }

    async fn wait_for_nodes_of_running(
        &self,
        count: usize,
        is_complete: impl Fn(&Node) -> bool,
    ) -> TestResult<State<Machine>> {
        let nodes = || self.nodes().current().values().filter(|node| is_ready(node) && is_complete(node)).count();
        let all_run = |machines: &State<Machine>| {
            machines.len() == count && machines.values().all(|machine| is_running(machine)) && nodes() == count
        };
        self.wait_for_machines(&format!("{count} machines running, on ready nodes"), all_run).await
    }

    /// Waits until no machine, VM or node is left.
    pub async fn wait_for_nothing(&self) -> TestResult {
        self.wait_for("no machine, no VM and no node", async || {
            let machines = self.machines().current();
            let nodes = self.nodes().current();
            Ok(machines.is_empty() && nodes.is_empty() && self.vms().await?.is_empty())
        })
        .await
    }

    /// Waits for a future, and fails if it takes too long.
    pub async fn in_time<T>(&self, what: &str, work: impl Future<Output = T>) -> TestResult<T> {
        let limit = self.cluster().timeout();
        if let Ok(outcome) = tokio::time::timeout(limit, work).await {
            return Ok(outcome);
        }
        let failure = Failure::new(format!("failed to see {what} within {limit:?}"));
        Err(failure.and(&diagnosis::of(self).await))
    }

    /// The only machine.
    pub fn only_machine(&self) -> TestResult<Arc<Machine>> {
        let machines = self.machines().current();
        let mut all = machines.into_values();
        match (all.next(), all.next()) {
            (Some(machine), None) => Ok(machine),
            _ => Err(Failure::new("there is not exactly one machine")),
        }
    }
}
