//! A dump of the state of a failed scenario, for debugging.

use std::fmt::Write;

use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachineDeployment, MachineSet};

use crate::{Environment, waits::is_ready};

/// The maximum number of machines, nodes and VMs in the dump.
const SHOWN: usize = 30;
/// The number of lines from the manager's log.
const LINES: usize = 40;

/// The processes whose logs are shown, if they run.
const PROCESSES: [&str; 5] =
    ["manager", "nodewright-mcm", "nodewright-mc", "machine-controller-manager", "machine-controller"];

/// Machines, nodes, VMs, MachineDeployments, MachineSets, and the ends of the controllers' logs.
pub(crate) async fn of(env: &Environment) -> String {
    let mut text = String::new();
    let machines = env.machines().current();
    section(&mut text, "machines", machines.values().map(|machine| machine_line(machine)));
    let nodes = env.nodes().current();
    section(
        &mut text,
        "nodes",
        nodes.values().map(|node| {
            let (name, ready) = (node.name_any(), is_ready(node));
            format!("{name} ready={ready} deleting={}", node.metadata.deletion_timestamp.is_some())
        }),
    );
    let vms = env.cloud().vms().await.unwrap_or_default();
    section(&mut text, "VMs", vms.iter().map(|vm| format!("{} {} {:?}", vm.id, vm.name, vm.state)));
    section(&mut text, "machine deployments", deployments(env).await.into_iter());
    section(&mut text, "machine sets", sets(env).await.into_iter());
    for process in PROCESSES {
        let Ok(log) = std::fs::read_to_string(env.log(process)) else { continue };
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        // Writing to a string does not fail.
        let _ = writeln!(text, "the last lines of {process}:\n  {}", tail.join("\n  "));
    }
    text
}

fn section(text: &mut String, name: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<_> = lines.collect();
    let _ = writeln!(text, "{} {name}:", lines.len());
    for line in lines.iter().take(SHOWN) {
        let _ = writeln!(text, "  {line}");
    }
}

fn machine_line(machine: &Machine) -> String {
    let operation = machine.status.as_ref().map(|status| &status.last_operation);
    let operation = operation.map_or_else(String::new, |operation| {
        format!("{:?} {:?} {:?}", operation.operation_type, operation.state, operation.description)
    });
    let (name, phase) = (machine.name_any(), machine.phase());
    format!("{name} phase={phase} deleting={} VM={:?} {operation}", machine.is_deleting(), machine.spec.provider_id)
}

async fn deployments(env: &Environment) -> Vec<String> {
    let api: Api<MachineDeployment> = Api::namespaced(env.client(), env.namespace());
    let list = api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let line = |it: &MachineDeployment| {
        let status = serde_json::to_string(&it.status).unwrap_or_default();
        format!("{} replicas={} deleting={} status={status}", it.name_any(), it.spec.replicas, it.is_deleting())
    };
    list.iter().map(line).collect()
}

async fn sets(env: &Environment) -> Vec<String> {
    let api: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    let list = api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let line = |it: &MachineSet| {
        let ledger = it.annotations().get(nodewright_api::annotations::LEDGER);
        let status = serde_json::to_string(&it.status).unwrap_or_default();
        format!(
            "{} replicas={} deleting={} ledger={ledger:?} status={status}",
            it.name_any(),
            it.spec.replicas,
            it.is_deleting()
        )
    };
    list.iter().map(line).collect()
}
