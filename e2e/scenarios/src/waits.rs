//! Waiting, always for something that can be seen, and never for longer than makes sense.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use nodewright_api::Machine;
use tokio::time::Instant;

use crate::{Environment, Failure, TestResult, diagnosis, history::State};
pub use nodewright_e2e_devcluster::machines::is_running;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Is the Node ready?
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl Environment {
    /// Waits until something is so. `what` completes "failed to see …" in the failure.
    pub async fn wait_for(&self, what: &str, mut is_so: impl AsyncFnMut() -> TestResult<bool>) -> TestResult {
        let (since, patience) = (Instant::now(), self.cluster().patience());
        loop {
            if is_so().await? {
                return Ok(());
            }
            if let Err(failure) = self.check_manager() {
                return Err(failure.and(&diagnosis::of(self).await));
            }
            if since.elapsed() > patience {
                let failure = Failure::new(format!("failed to see {what} within {patience:?}"));
                return Err(failure.and(&diagnosis::of(self).await));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the machines are as wanted, and gives them.
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

    /// Waits until there are exactly so many machines, all running on nodes that are ready, and gives them.
    pub async fn wait_for_running(&self, count: usize) -> TestResult<State<Machine>> {
        let nodes = || self.nodes().current().values().filter(|node| is_ready(node)).count();
        let all_run = |machines: &State<Machine>| {
            machines.len() == count && machines.values().all(|machine| is_running(machine)) && nodes() == count
        };
        self.wait_for_machines(&format!("{count} machines running, on ready nodes"), all_run).await
    }

    /// Waits until there is no machine, no VM and no node.
    pub async fn wait_for_nothing(&self) -> TestResult {
        self.wait_for("no machine, no VM and no node", async || {
            let machines = self.machines().current();
            let nodes = self.nodes().current();
            Ok(machines.is_empty() && nodes.is_empty() && self.vms().await?.is_empty())
        })
        .await
    }

    /// Waits for something that ends by itself, and fails when that takes too long.
    pub async fn in_time<T>(&self, what: &str, work: impl Future<Output = T>) -> TestResult<T> {
        let patience = self.cluster().patience();
        if let Ok(outcome) = tokio::time::timeout(patience, work).await {
            return Ok(outcome);
        }
        let failure = Failure::new(format!("failed to see {what} within {patience:?}"));
        Err(failure.and(&diagnosis::of(self).await))
    }

    /// The one machine that there is.
    pub fn only_machine(&self) -> TestResult<Arc<Machine>> {
        let machines = self.machines().current();
        let mut all = machines.into_values();
        match (all.next(), all.next()) {
            (Some(machine), None) => Ok(machine),
            _ => Err(Failure::new("there is not exactly one machine")),
        }
    }
}
