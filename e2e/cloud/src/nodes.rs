//! What runs in the VMs of the cloud: kubelet stand-ins in this process, or real kubelets.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Taint as NodeTaint;

use super::{
    api::{Taint, VmState},
    memory::VmRecord,
};
use crate::kubelet::{Fleet, KubeletSpec};

/// VMs with real kubelets.
pub trait RealNodes: Debug + Send + Sync {
    /// Deletes the VMs that an earlier cloud has left and that are not known. Blocks for a moment.
    fn keep_only(&self, known: &BTreeMap<String, VmRecord>) -> Result<(), String>;

    /// Sets the state of a VM. `None`: it is gone. Needs a tokio runtime.
    fn set(&self, id: &str, vm: Option<&VmRecord>);
}

/// What runs in the VMs.
pub(crate) enum Nodes {
    /// Stand-ins.
    StandIns(Fleet),
    /// Real kubelets.
    Real(Arc<dyn RealNodes>),
}

impl Nodes {
    /// Sets the state of a VM. `None`: it is gone. Needs a tokio runtime.
    pub(crate) fn set(&self, id: &str, vm: Option<&VmRecord>) {
        match self {
            Self::StandIns(fleet) => fleet.set(id, vm.and_then(kubelet_of)),
            Self::Real(nodes) => nodes.set(id, vm),
        }
    }
}

/// The kubelet of a VM. `None` unless the VM runs.
fn kubelet_of(vm: &VmRecord) -> Option<KubeletSpec> {
    if vm.state != VmState::Running {
        return None;
    }
    // The size was checked when the VM was created.
    let size = vm.order.size().ok()?;
    Some(KubeletSpec {
        node_names: vm.node_names(),
        provider_id: vm.provider_id(),
        labels: vm.order.node.labels.clone(),
        taints: vm.order.node.taints.iter().map(taint_of).collect(),
        has_external_cloud_provider: vm.order.node.external_cloud_provider,
        instance_type: size.name.to_owned(),
        cores: size.cores,
        memory_gib: size.memory_gib,
        address: vm.address(),
        silent: vm.kubelet.silent || vm.hardware.hung || vm.hardware.network_cut,
        not_ready: vm.kubelet.not_ready,
        flap: vm.kubelet.flap_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        behavior_since: vm.kubelet.since.unwrap_or(vm.boots_at),
        running_since: vm.boots_at,
    })
}

fn taint_of(Taint { key, value, effect }: &Taint) -> NodeTaint {
    NodeTaint { key: key.clone(), value: value.clone(), effect: effect.clone(), time_added: None }
}
