//! A volume leaves its node before the VM goes.

use std::time::Duration;

use nodewright_e2e_cloud::{EventKind, disks::Disks};
use nodewright_e2e_lab::node::BUSYBOX;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};
use serde_json::{Value, json};

use crate::{finish, real_nodes, workload::nodes_of};

/// How long a disk takes to be detached.
const DETACHING: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-real-nodes"]
async fn a_volume_leaves_its_node_before_the_vm_goes() -> TestResult {
    let Some(builder) = real_nodes("volume") else { return Ok(()) };
    let env = builder.start().await?;
    let disks = Disks::start(env.target_client(), env.namespace(), DETACHING);
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    env.apply(&store(&env, &disks)).await?;
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
    let detached = disks.detached().first().map(|(_, at)| *at);
    ensure(detached.is_some() && detached <= deleted, || {
        format!("the volume was detached at {detached:?}, the VM was deleted at {deleted:?}")
    })?;
    disks.clean(env.target_client()).await?;
    finish(env).await
}

/// A volume that has to be attached, and a set with a pod that uses it.
fn store(env: &Environment, disks: &Disks) -> Value {
    let pod = json!({
        "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "3600"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "nodeSelector": nodes_of(env),
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-store-0"}}],
    });
    let mut items = disks.objects("store", 1);
    items.push(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "store"}, "spec": {
        "serviceName": "store", "replicas": 1, "selector": {"matchLabels": {"app": "store"}},
        "template": {"metadata": {"labels": {"app": "store"}}, "spec": pod},
    }}));
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
