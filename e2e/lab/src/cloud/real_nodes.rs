//! Real kubelets in the VMs of the cloud.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nodewright_e2e_cloud::{RealNodes, VmState, memory::VmRecord};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch::{self, error::RecvError};

use crate::node::{Desired, NodeError, Vm, VmSpec};

/// Time between two attempts to change a real VM.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Time between two looks whether a VM has ended, to switch it on again.
const REBOOT_INTERVAL: Duration = Duration::from_millis(500);

/// What a real VM is made from, and how it should be. `None`: it is gone.
type Wanted = Option<(VmSpec, Desired)>;

/// VMs made of namespaces, each with a task that makes it as it should be. The VMs outlive this: they end with their network.
#[derive(Debug)]
pub(crate) struct NodeVms {
    /// The directory of their network.
    directory: Arc<Path>,
    /// What VMs with systemd have as `/opt`.
    image: Option<PathBuf>,
    vms: Mutex<BTreeMap<String, watch::Sender<Wanted>>>,
}

impl NodeVms {
    /// VMs in the directory of a network.
    /// `image`: systemd is their first process, and this is their `/opt`.
    pub(crate) fn new(directory: PathBuf, image: Option<PathBuf>) -> Self {
        Self { directory: directory.into(), image, vms: Mutex::default() }
    }
}

impl RealNodes for NodeVms {
    fn keep_only(&self, known: &BTreeMap<String, VmRecord>) -> Result<(), String> {
        let delete = |id: &String| Vm::new(&self.directory, id)?.delete();
        let unknown = Vm::ids(&self.directory).into_iter().filter(|id| !known.contains_key(id));
        unknown.into_iter().try_for_each(|id| delete(&id)).map_err(|error: NodeError| error.to_string())
    }

    fn set(&self, id: &str, vm: Option<&VmRecord>) {
        let wanted = vm.map(|vm| (spec_of(vm, self.image.as_deref()), desired_of(vm)));
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
    let kept = Arc::new(Mutex::new(None));
    loop {
        let next = wanted.borrow_and_update().clone();
        let is_gone = next.is_none();
        let (vm, directory, of_vm) = (Arc::clone(&kept), Arc::clone(&directory), id.clone());
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
        } else if until_work(&mut wanted, &kept).await.is_err() {
            return;
        }
    }
}

/// Waits until a VM is to be changed, or one with systemd has ended: it reboots. An error if nobody wants anything any more.
async fn until_work(wanted: &mut watch::Receiver<Wanted>, vm: &Mutex<Option<Vm>>) -> Result<(), RecvError> {
    if wanted.borrow().as_ref().is_none_or(|(spec, _)| spec.image.is_none()) {
        return wanted.changed().await;
    }
    loop {
        if let Ok(changed) = tokio::time::timeout(REBOOT_INTERVAL, wanted.changed()).await {
            return changed;
        }
        if vm.lock().as_ref().is_some_and(Vm::has_ended) {
            return Ok(());
        }
    }
}

fn spec_of(vm: &VmRecord, image: Option<&Path>) -> VmSpec {
    let mut labels = vm.order.node.labels.clone();
    // An external cloud provider sets it.
    if let Ok(size) = vm.order.size()
        && !vm.order.node.external_cloud_provider
    {
        labels.insert("node.kubernetes.io/instance-type".to_owned(), size.name.to_owned());
    }
    VmSpec {
        name: vm.order.node_name().to_owned(),
        provider_id: vm.provider_id(),
        has_external_cloud_provider: vm.order.node.external_cloud_provider,
        number: vm.number,
        user_data: vm.order.user_data.clone().unwrap_or_default(),
        labels,
        taints: vm.order.node.taints.iter().map(|taint| json!(taint)).collect(),
        image: image.map(Path::to_owned),
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
