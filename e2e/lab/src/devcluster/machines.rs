//! Listing machines, and waiting for them.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachineDeployment, MachinePhase, OperationState};

use crate::{
    control_plane::ControlPlaneError,
    devcluster::{DevclusterError, table::Table},
};

/// Time between two checks of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The machines of a namespace, by name.
pub async fn machines(client: &Client, namespace: &str) -> Result<Vec<Machine>, ControlPlaneError> {
    let api: Api<Machine> = Api::namespaced(client.clone(), namespace);
    let mut list = api.list(&ListParams::default()).await.map_err(ControlPlaneError::request("list machines"))?.items;
    list.sort_by_key(ResourceExt::name_any);
    Ok(list)
}

/// The MachineDeployments of a namespace.
pub async fn machine_deployments(
    client: &Client,
    namespace: &str,
) -> Result<Vec<MachineDeployment>, ControlPlaneError> {
    let api: Api<MachineDeployment> = Api::namespaced(client.clone(), namespace);
    let list = api.list(&ListParams::default()).await;
    Ok(list.map_err(ControlPlaneError::request("list machine deployments"))?.items)
}

/// The sum of `spec.replicas` of the MachineDeployments in a namespace.
pub async fn desired_replicas(client: &Client, namespace: &str) -> Result<usize, ControlPlaneError> {
    let deployments = machine_deployments(client, namespace).await?;
    Ok(deployments.iter().map(|deployment| usize::try_from(deployment.spec.replicas).unwrap_or(0)).sum())
}

/// Whether the machine is `Running` and is not being deleted.
pub fn is_running(machine: &Machine) -> bool {
    *machine.phase() == MachinePhase::Running && !machine.is_deleting()
}

/// Waits until there are exactly `count` machines, all `Running`.
pub async fn wait_for_running(
    client: &Client,
    namespace: &str,
    count: usize,
    timeout: Duration,
) -> Result<Vec<Machine>, DevclusterError> {
    let since = Instant::now();
    loop {
        let seen = machines(client, namespace).await?;
        if seen.len() == count && seen.iter().all(is_running) {
            return Ok(seen);
        }
        if since.elapsed() > timeout {
            let running = seen.iter().filter(|machine| is_running(machine)).count();
            let what = format!("{running} of {} machines are Running, {count} should be", seen.len());
            return Err(DevclusterError::Machines { what, waited: timeout, seen: table(&seen).to_string() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A machine as displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) node: String,
    pub(crate) provider_id: String,
    /// How many pods run on its node, and how many are assigned to it. Empty if nothing assigns pods.
    pub(crate) pods: String,
    /// The reason why it waits. Empty if its last operation succeeded.
    pub(crate) reason: String,
}

impl From<&Machine> for Row {
    fn from(machine: &Machine) -> Self {
        let phase = match machine.phase() {
            MachinePhase::Unset => "-".to_owned(),
            phase => phase.to_string(),
        };
        let operation = machine.status.as_ref().map(|status| &status.last_operation);
        let unfinished = operation.filter(|operation| operation.state != OperationState::Successful);
        let reason = unfinished.map(|operation| operation.description.lines().next().unwrap_or_default().to_owned());
        Self {
            name: machine.name_any(),
            phase,
            node: machine.node_name().unwrap_or("-").to_owned(),
            provider_id: machine.provider_id().unwrap_or("-").to_owned(),
            pods: String::new(),
            reason: reason.unwrap_or_default(),
        }
    }
}

impl Row {
    /// The machine on one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("machine {}: {}", self.name, self.phase);
        for (name, value) in [("node", &self.node), ("providerID", &self.provider_id)] {
            if value != "-" {
                line.extend([", ", name, " ", value]);
            }
        }
        if !self.pods.is_empty() {
            line.extend([", pods ", &self.pods]);
        }
        if !self.reason.is_empty() {
            line.extend([" (", &self.reason, ")"]);
        }
        line
    }
}

/// The machines of a namespace, with the pods on their nodes.
pub(crate) async fn rows(client: &Client, seen: &[Machine], namespace: &str) -> Result<Vec<Row>, ControlPlaneError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await.map_err(ControlPlaneError::request("list pods"))?.items;
    let with_pods = |machine: &Machine| {
        let row = Row::from(machine);
        let on_node = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&row.node);
        let assigned: Vec<_> = pods.iter().filter(on_node).collect();
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let running = assigned.iter().filter(|pod| phase(pod).as_deref() == Some("Running")).count();
        let text = if pods.is_empty() { String::new() } else { format!("{running}/{}", assigned.len()) };
        Row { pods: text, ..row }
    };
    Ok(seen.iter().map(with_pods).collect())
}

/// Machines as a table.
pub fn table<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> Table {
    rows_table(&machines.into_iter().map(Row::from).collect::<Vec<_>>())
}

pub(crate) fn rows_table(rows: &[Row]) -> Table {
    if rows.iter().all(|row| row.pods.is_empty()) {
        let mut table = Table::new(["MACHINE", "PHASE", "NODE", "PROVIDER-ID", "WAITING FOR"]);
        for row in rows {
            table.add([&row.name, &row.phase, &row.node, &row.provider_id, &row.reason].map(String::as_str));
        }
        return table;
    }
    let mut table = Table::new(["MACHINE", "PHASE", "NODE", "PROVIDER-ID", "PODS", "WAITING FOR"]);
    for row in rows {
        let cells = [&row.name, &row.phase, &row.node, &row.provider_id, &row.pods, &row.reason];
        table.add(cells.map(String::as_str));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(phase: &str, state: &str) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "a", "labels": {"node": "vm-a"}},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}, "providerID": "simulated:///1"},
            "status": {
                "currentStatus": {"phase": phase},
                "lastOperation": {"description": "Waiting for the node\nmore", "state": state, "type": "Create"},
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_machine_is_shown_in_a_line() {
        let pending = Row::from(&machine("Pending", "Processing"));
        assert_eq!(pending.line(), "machine a: Pending, node vm-a, providerID simulated:///1 (Waiting for the node)");
        assert_eq!(Row::from(&Machine::default()).line(), "machine : -");
    }

    #[test]
    fn a_running_machine_waits_for_nothing() {
        let running = machine("Running", "Successful");
        assert!(is_running(&running));
        assert_eq!(Row::from(&running).reason, "");
    }
}
