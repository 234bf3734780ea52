//! A volume leaves its node before the VM goes.
//!
//! Kubernetes takes a volume off the Node's status when it begins to detach it, and that is what the manager waits for: how
//! long the detachment takes then, it does not see.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use nodewright_e2e_cloud::EventKind;
use nodewright_e2e_node::BUSYBOX;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{finish, real_nodes, workload::nodes_of};

const DRIVER: &str = "disks.e2e.nodewright.dev";
const FINALIZER: &str = "external-attacher/disks-e2e-nodewright-dev";
/// How long a disk takes to be detached.
const DETACHING: Duration = Duration::from_secs(4);

/// When Kubernetes began to detach each volume.
type Detaching = Arc<Mutex<Vec<Timestamp>>>;

/// The part of a CSI driver that attaches volumes, as the sidecar external-attacher does. There is no part on the nodes: the
/// pod waits for its volume to be mounted, which does not matter for what Kubernetes' attach-detach controller does.
async fn attacher(client: Client, begun: Detaching) {
    let attachments: Api<VolumeAttachment> = Api::all(client);
    loop {
        for attachment in attachments.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            // The next round tries again what failed.
            let _ = handle(&attachments, attachment, &begun).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn handle(api: &Api<VolumeAttachment>, attachment: VolumeAttachment, begun: &Detaching) -> kube::Result<()> {
    let (name, parameters) = (attachment.name_any(), PatchParams::default());
    if attachment.spec.attacher != DRIVER {
        return Ok(());
    }
    if let Some(asked) = attachment.metadata.deletion_timestamp {
        begun.lock().push(asked.0);
        tokio::time::sleep(DETACHING).await;
        api.patch(&name, &parameters, &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
    } else if !attachment.status.is_some_and(|status| status.attached) {
        api.patch(&name, &parameters, &Patch::Merge(json!({"metadata": {"finalizers": [FINALIZER]}}))).await?;
        api.patch_status(&name, &parameters, &Patch::Merge(json!({"status": {"attached": true}}))).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_volume_leaves_its_node_before_the_vm_goes() -> TestResult {
    let Some(builder) = real_nodes("volume") else { return Ok(()) };
    let env = builder.start().await?;
    let begun = Detaching::default();
    let attaching = tokio::spawn(attacher(env.target_client(), Arc::clone(&begun)));
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    env.apply(&volume(&env)).await?;
    env.wait_for("the volume to be attached to the node", async || {
        let attached = |node: &k8s_openapi::api::core::v1::Node| node.status.as_ref()?.volumes_attached.clone();
        Ok(env.nodes().current().values().any(|node| attached(node).is_some_and(|volumes| !volumes.is_empty())))
    })
    .await?;
    let vm = env.vms().await?.swap_remove(0);

    env.kubectl("delete machinedeployments --all --wait=false").await?;
    env.wait_for_nothing().await?;
    let events = env.cloud().events(0).await?;
    let deleted =
        events.iter().find(|event| event.kind == EventKind::DeleteAccepted && event.vm.as_ref() == Some(&vm.id));
    let deleted = deleted.map(|event| event.at);
    env.wait_for("the end of the attachment", async || {
        Ok(env.kubectl("get volumeattachments -o name").await?.trim().is_empty())
    })
    .await?;
    let begun = begun.lock().first().copied();
    ensure(begun.is_some() && begun <= deleted, || {
        format!("the detachment began at {begun:?}, the VM was deleted at {deleted:?}")
    })?;
    attaching.abort();
    // It goes when its claim goes, with the namespace.
    env.kubectl(&format!("delete persistentvolume {} --wait=false", env.namespace())).await?;
    env.kubectl(&format!("delete csidriver {DRIVER}")).await?;
    finish(env).await
}

/// A volume that has to be attached, and a set with a pod that uses it.
fn volume(env: &Environment) -> Value {
    let name = env.namespace();
    let claim = json!({"name": "data", "namespace": name});
    let pod = json!({
        "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "3600"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "nodeSelector": nodes_of(env),
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    });
    let size = json!({"storage": "1Gi"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {
            "attachRequired": true,
        }},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "claimRef": claim, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": name},
        }},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name, "resources": {"requests": size},
        }},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "store"}, "spec": {
            "serviceName": "store", "replicas": 1, "selector": {"matchLabels": {"app": "store"}},
            "template": {"metadata": {"labels": {"app": "store"}}, "spec": pod},
        }},
    ]})
}
