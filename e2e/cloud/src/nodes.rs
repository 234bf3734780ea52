//! What runs in the VMs of the cloud: kubelet stand-ins in this process, or real kubelets.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Taint as NodeTaint;
use nodewright_e2e_node::{Desired, NodeError, Vm, VmSpec};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use super::{
    api::{Taint, VmState},
    memory::VmRecord,
};
use crate::kubelet::{Fleet, KubeletSpec};

/// Time between two attempts to change a real VM.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What runs in the VMs.
pub(crate) enum Nodes {
    /// Stand-ins.
    StandIns(Fleet),
    /// VMs made of namespaces, with real kubelets.
    Real(RealNodes),
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

/// What a real VM is made from, and how it should be. `None`: it is gone.
type Wanted = Option<(VmSpec, Desired)>;

/// Real VMs. Each has a task that makes it as it should be. The VMs outlive this: they end with their network.
pub(crate) struct RealNodes {
    /// The directory of their network.
    directory: Arc<Path>,
    vms: Mutex<BTreeMap<String, watch::Sender<Wanted>>>,
}

impl RealNodes {
    /// VMs in the directory of a network. Deletes those that are not `known`, which blocks for a moment.
    pub(crate) fn start(directory: PathBuf, known: &BTreeMap<String, VmRecord>) -> Result<Self, NodeError> {
        for id in Vm::ids(&directory).into_iter().filter(|id| !known.contains_key(id)) {
            Vm::new(&directory, &id)?.delete()?;
        }
        Ok(Self { directory: directory.into(), vms: Mutex::default() })
    }

    fn set(&self, id: &str, vm: Option<&VmRecord>) {
        let wanted = vm.map(|vm| (spec_of(vm), desired_of(vm)));
        let mut vms = self.vms.lock();
        match (vms.get(id), wanted) {
            (Some(known), Some(wanted)) => drop(known.send_replace(Some(wanted))),
            (Some(known), None) => {
                known.send_replace(None);
                vms.remove(id);
            }
            (None, None) => {}
            (None, wanted) => {
                let (sender, receiver) = watch::channel(wanted);
                tokio::spawn(keep(Arc::clone(&self.directory), id.to_owned(), receiver));
                vms.insert(id.to_owned(), sender);
            }
        }
    }
}

/// Makes a VM as it should be, until it is gone.
async fn keep(directory: Arc<Path>, id: String, mut wanted: watch::Receiver<Wanted>) {
    // Of one VM one change after the other: the lock is never contended.
    let vm = Arc::new(Mutex::new(None));
    loop {
        let next = wanted.borrow_and_update().clone();
        let is_gone = next.is_none();
        let (vm, directory, of_vm) = (Arc::clone(&vm), Arc::clone(&directory), id.clone());
        let changed = tokio::task::spawn_blocking(move || {
            let mut vm = vm.lock();
            let vm = match &mut *vm {
                Some(vm) => vm,
                none => none.insert(Vm::new(&directory, &of_vm)?),
            };
            match next {
                Some((spec, desired)) => vm.apply(&spec, &desired),
                None => vm.delete(),
            }
        });
        let failure = match changed.await {
            Ok(Ok(())) if is_gone => return,
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failure) = failure {
            tracing::warn!(vm = id, failure, "failed to change a VM; trying again");
            tokio::time::sleep(RETRY_PAUSE).await;
        } else if wanted.changed().await.is_err() {
            return;
        }
    }
}

fn spec_of(vm: &VmRecord) -> VmSpec {
    let mut labels = vm.order.node.labels.clone();
    if let Ok(size) = vm.order.size() {
        labels.insert("node.kubernetes.io/instance-type".to_owned(), size.name.to_owned());
    }
    VmSpec {
        name: vm.order.node_name().to_owned(),
        provider_id: vm.provider_id(),
        number: vm.number,
        user_data: vm.order.user_data.clone().unwrap_or_default(),
        labels,
        taints: vm.order.node.taints.iter().map(|taint| json!(taint)).collect(),
    }
}

fn desired_of(vm: &VmRecord) -> Desired {
    Desired {
        running: vm.state == VmState::Running,
        hung: vm.hardware.hung,
        kubelet_stopped: vm.kubelet.silent,
        kubelet_restarts: vm.kubelet.restarts,
        network_cut: vm.hardware.network_cut,
        disk_bytes_per_second: vm.hardware.disk_bytes_per_second,
    }
}
