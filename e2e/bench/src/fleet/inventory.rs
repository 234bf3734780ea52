//! Compares machines, VMs and nodes with the expected number.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams, core::PartialObjectMeta};
use nodewright_api::Machine;

use nodewright_e2e_cloud::pages::pages;
use nodewright_e2e_lab::{
    control_plane::ControlPlaneError,
    devcluster::{
        NAMESPACE,
        machines::{is_running, table},
    },
};

use crate::{
    error::BenchError,
    measure::{Measurable, Measured},
};

/// Entries for each page of a list.
const PAGE: u32 = 500;
/// How many machines an error shows.
const SHOWN: usize = 20;

/// The parts of a machine that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    name: String,
    is_running: bool,
    provider_id: Option<String>,
    node: Option<String>,
}

impl From<Machine> for Known {
    fn from(machine: Machine) -> Self {
        Self {
            name: machine.name_any(),
            is_running: is_running(&machine),
            provider_id: machine.provider_id().map(str::to_owned),
            node: machine.node_name().map(str::to_owned),
        }
    }
}

/// All machines, VMs and nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    machines: Vec<Known>,
    /// Their provider ids.
    vms: BTreeSet<String>,
    /// Their names.
    nodes: BTreeSet<String>,
}

impl Inventory {
    pub(crate) async fn take<C: Measurable>(measured: &Measured<C>) -> Result<Self, BenchError> {
        let machines: Api<Machine> = Api::namespaced(measured.client(), NAMESPACE);
        let machines = pages(&machines, page(), Known::from).await;
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(measured.client());
        let name = |node: PartialObjectMeta<Node>| node.name_any();
        let nodes = pages(&nodes, page(), name).await;
        Ok(Self {
            machines: machines.map_err(ControlPlaneError::request("list machines"))?.0,
            vms: measured.cloud().vms().await?.into_iter().map(|vm| vm.provider_id).collect(),
            nodes: nodes.map_err(ControlPlaneError::request("list nodes"))?.0.into_iter().collect(),
        })
    }

    /// The differences from a fleet of `expected` machines, one line each.
    pub(crate) fn problems(&self, expected: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let counts = [("machines", self.machines.len()), ("VMs", self.vms.len()), ("nodes", self.nodes.len())];
        for (what, count) in counts.into_iter().filter(|(_, count)| *count != expected) {
            problems.push(format!("there are {count} {what}, {expected} should be"));
        }
        for Known { name, is_running, provider_id, node } in &self.machines {
            if !is_running {
                problems.push(format!("machine {name} is not Running"));
            }
            if !provider_id.as_ref().is_some_and(|id| self.vms.contains(id)) {
                problems.push(format!("machine {name} has no VM; its provider ID is {provider_id:?}"));
            }
            if !node.as_ref().is_some_and(|node| self.nodes.contains(node)) {
                problems.push(format!("machine {name} has no node; its node is {node:?}"));
            }
        }
        let taken: BTreeSet<_> = self.machines.iter().filter_map(|machine| machine.provider_id.as_ref()).collect();
        problems.extend(self.vms.iter().filter(|id| !taken.contains(id)).map(|id| format!("VM {id} has no machine")));
        problems
    }
}

fn page() -> ListParams {
    ListParams::default().limit(PAGE)
}

/// A table of machines that are not Running, at most [`SHOWN`].
pub(crate) async fn unfinished(client: &Client) -> Result<String, ControlPlaneError> {
    let api: Api<Machine> = Api::namespaced(client.clone(), NAMESPACE);
    let keep = |machine: Machine| Some(machine).filter(|machine| !is_running(machine));
    let machines = pages(&api, page(), keep).await;
    let machines: Vec<_> =
        machines.map_err(ControlPlaneError::request("list machines"))?.0.into_iter().flatten().collect();
    let more = machines.len().saturating_sub(SHOWN);
    let shown = table(machines.iter().take(SHOWN)).to_string();
    Ok(if more > 0 { format!("{shown}and {more} more\n") } else { shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(machines: &[(&str, bool, &str, &str)], vms: &[&str], nodes: &[&str]) -> Inventory {
        let known = |(name, is_running, vm, node): &(&str, bool, &str, &str)| Known {
            name: (*name).to_owned(),
            is_running: *is_running,
            provider_id: (!vm.is_empty()).then(|| (*vm).to_owned()),
            node: (!node.is_empty()).then(|| (*node).to_owned()),
        };
        Inventory {
            machines: machines.iter().map(known).collect(),
            vms: vms.iter().map(|vm| (*vm).to_owned()).collect(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        }
    }

    #[test]
    fn a_complete_fleet_has_no_problem() {
        let fleet = inventory(&[("a", true, "1", "n1"), ("b", true, "2", "n2")], &["1", "2"], &["n1", "n2"]);
        assert_eq!(fleet.problems(2), Vec::<String>::new());
        assert_eq!(Inventory::default().problems(0), Vec::<String>::new());
    }

    #[test]
    fn missing_and_superfluous_objects_are_problems() {
        let fleet = inventory(&[("a", false, "1", "n1"), ("b", true, "", "n3")], &["1", "9"], &["n1", "n2"]);
        assert_eq!(
            fleet.problems(2),
            [
                "machine a is not Running",
                "machine b has no VM; its provider ID is None",
                "machine b has no node; its node is Some(\"n3\")",
                "VM 9 has no machine",
            ]
        );
        let left = inventory(&[], &["1"], &["n1"]);
        let expected = ["there are 1 VMs, 0 should be", "there are 1 nodes, 0 should be", "VM 1 has no machine"];
        assert_eq!(left.problems(0), expected);
    }
}
