//! Disks that have to be attached, by the part of a CSI driver that attaches them, as the sidecar external-attacher does. There
//! is no part on the nodes. A real kubelet waits for such a disk to be mounted; a stand-in does not. Neither matters for
//! Kubernetes' attach-detach controller, which is the real one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::PersistentVolume,
    storage::v1::{CSIDriver, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

const PERIOD: Duration = Duration::from_millis(200);

/// The disks of a namespace. Dropping it ends the driver.
#[derive(Debug)]
pub struct Disks {
    namespace: String,
    driver: String,
    ended: Arc<Mutex<Vec<(String, Timestamp)>>>,
    task: AbortHandle,
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Disks {
    /// Starts a driver of the simulated cloud, which knows it by its name. A detachment takes `detaching`.
    pub fn start(client: Client, namespace: &str, detaching: Duration) -> Self {
        Self::run(client, namespace, "simulated.nodewright.dev", detaching)
    }

    /// Starts a driver whose disks are not the simulated cloud's.
    pub fn start_elsewhere(client: Client, namespace: &str, detaching: Duration) -> Self {
        Self::run(client, namespace, "elsewhere.example.com", detaching)
    }

    fn run(client: Client, namespace: &str, kind: &str, detaching: Duration) -> Self {
        let (driver, ended) = (format!("{namespace}.{kind}"), Arc::default());
        let task = tokio::spawn(attach(client, driver.clone(), detaching, Arc::clone(&ended)));
        Self { namespace: namespace.to_owned(), driver, ended, task: task.abort_handle() }
    }

    /// When each detachment ended: the volume, and the time.
    pub fn detached(&self) -> Vec<(String, Timestamp)> {
        self.ended.lock().clone()
    }

    /// The driver, and a volume for each claim of a `StatefulSet`'s template `data`: the claims are bound to them.
    pub fn objects(&self, set: &str, replicas: usize) -> Vec<Value> {
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": self.driver},
            "spec": {"attachRequired": true}});
        let size = json!({"storage": "1Gi"});
        let of = |index: usize| {
            let (claim, volume) = (format!("data-{set}-{index}"), self.volume(set, index));
            let own = json!({"name": claim, "namespace": self.namespace});
            [
                json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {
                    "capacity": size, "accessModes": ["ReadWriteOnce"], "claimRef": own, "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": self.driver, "volumeHandle": volume},
                }}),
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
                    "resources": {"requests": size},
                }}),
            ]
        };
        [driver].into_iter().chain((0..replicas).flat_map(of)).collect()
    }

    /// The name of a volume.
    pub fn volume(&self, set: &str, index: usize) -> String {
        format!("{}-{set}-{index}", self.namespace)
    }

    /// Removes what has no namespace: all volumes of the namespace, whatever their driver, and this driver.
    pub async fn clean(self, client: Client) -> kube::Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let prefix = format!("{}-", self.namespace);
        for volume in volumes.list(&ListParams::default()).await?.items {
            let name = volume.name_any();
            if name.starts_with(&prefix) {
                volumes.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Api::<CSIDriver>::all(client).delete(&self.driver, &DeleteParams::default()).await.map(drop)
    }
}

async fn attach(client: Client, driver: String, detaching: Duration, ended: Arc<Mutex<Vec<(String, Timestamp)>>>) {
    let attachments: Api<VolumeAttachment> = Api::all(client);
    let under_way = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        for attachment in attachments.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            if attachment.spec.attacher != driver || !under_way.lock().insert(attachment.name_any()) {
                continue;
            }
            let (attachments, under_way, ended) = (attachments.clone(), Arc::clone(&under_way), Arc::clone(&ended));
            tokio::spawn(async move {
                // The next round tries again what failed.
                let _ = handle(&attachments, &attachment, detaching, &ended).await;
                under_way.lock().remove(&attachment.name_any());
            });
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn handle(
    api: &Api<VolumeAttachment>,
    attachment: &VolumeAttachment,
    detaching: Duration,
    ended: &Mutex<Vec<(String, Timestamp)>>,
) -> kube::Result<()> {
    let (name, parameters) = (attachment.name_any(), PatchParams::default());
    if attachment.metadata.deletion_timestamp.is_some() {
        tokio::time::sleep(detaching).await;
        let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let at = Timestamp::now();
        // It fails if the list was from before the end of the same detachment, which then does not count twice.
        api.patch(&name, &parameters, &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
        ended.lock().push((volume, at));
    } else if attachment.status.as_ref().is_none_or(|status| !status.attached) {
        let finalizer = format!("external-attacher/{}", attachment.spec.attacher.replace('.', "-"));
        api.patch(&name, &parameters, &Patch::Merge(json!({"metadata": {"finalizers": [finalizer]}}))).await?;
        api.patch_status(&name, &parameters, &Patch::Merge(json!({"status": {"attached": true}}))).await?;
    }
    Ok(())
}
