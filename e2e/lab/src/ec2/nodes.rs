//! Kubelet stand-ins for the VMs that run, as their tags say.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nodewright_e2e_cloud::kubelet::{Fleet, KubeletSpec};

use crate::ec2::{Moto, Vm, account::REGION};

/// Time between two looks at the VMs.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The tag of a VM that is a node of a cluster begins so.
const CLUSTER_TAG: &str = "kubernetes.io/cluster/";
/// The size of all VMs.
const CORES: u32 = 2;
const MEMORY_GIB: u32 = 4;

/// Keeps one kubelet for each VM that runs, until the future is dropped.
/// `is_external`: they leave to an external cloud provider what they do not know of their VM.
pub(crate) async fn keep(moto: Moto, fleet: Fleet, labels: BTreeMap<String, String>, is_external: bool) {
    let mut known = BTreeSet::<String>::new();
    loop {
        match moto.vms().await {
            Ok(vms) => {
                let running: BTreeMap<_, _> =
                    vms.iter().filter(|vm| is_node(vm)).map(|vm| (vm.id.clone(), kubelet_of(vm, &labels))).collect();
                for id in known.iter().filter(|id| !running.contains_key(*id)) {
                    fleet.set(id, None);
                }
                known = running.keys().cloned().collect();
                for (id, kubelet) in running {
                    fleet.set(&id, Some(KubeletSpec { has_external_cloud_provider: is_external, ..kubelet }));
                }
            }
            Err(error) => tracing::warn!(%error, "failed to see the VMs; trying again"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_node(vm: &Vm) -> bool {
    vm.state == "running" && vm.tags.contains_key("Name") && vm.tags.keys().any(|key| key.starts_with(CLUSTER_TAG))
}

/// The kubelet has the name that the VM has in the network, as that of an AMI without other settings.
fn kubelet_of(vm: &Vm, labels: &BTreeMap<String, String>) -> KubeletSpec {
    KubeletSpec {
        node_names: vec![vm.private_dns_name.clone()],
        provider_id: format!("aws:///{REGION}/{}", vm.id),
        labels: labels.clone(),
        instance_type: vm.instance_type.clone(),
        cores: CORES,
        memory_gib: MEMORY_GIB,
        address: vm.private_ip.clone(),
        behavior_since: vm.launched,
        running_since: vm.launched,
        ..KubeletSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(state: &str, tags: &[&str]) -> Vm {
        Vm {
            id: "i-1".to_owned(),
            state: state.to_owned(),
            token: String::new(),
            instance_type: "t3.small".to_owned(),
            private_dns_name: "ip-10-0-0-4.eu-west-1.compute.internal".to_owned(),
            private_ip: "10.0.0.4".to_owned(),
            launched: jiff::Timestamp::UNIX_EPOCH,
            tags: tags.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect(),
        }
    }

    #[test]
    fn a_vm_of_a_cluster_that_runs_is_a_node() {
        let tags = ["Name", "kubernetes.io/cluster/c"];
        assert!(is_node(&vm("running", &tags)));
        assert!(!is_node(&vm("terminated", &tags)) && !is_node(&vm("pending", &tags)));
        assert!(!is_node(&vm("running", &["Name"])) && !is_node(&vm("running", &tags[1..])));
        let kubelet = kubelet_of(&vm("running", &tags), &BTreeMap::new());
        assert_eq!(kubelet.node_names, ["ip-10-0-0-4.eu-west-1.compute.internal"]);
        assert_eq!(kubelet.provider_id, "aws:///eu-west-1/i-1");
    }
}
