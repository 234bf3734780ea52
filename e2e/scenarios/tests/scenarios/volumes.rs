//! Pods with volumes: they leave a node one after the other, and the VM goes after the last volume.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, storage::v1::VolumeAttachment};
use kube::{Api, ResourceExt};
use nodewright_e2e_cloud::{EventKind, disks::Disks};
use nodewright_e2e_scenarios::{Environment, History, TestResult, ensure, history::Change, objects::ENVIRONMENT_LABEL};
use serde_json::{Value, json};

/// How many pods with volumes there are. Two nodes share them.
const PODS: usize = 6;
const DETACHING: Duration = Duration::from_secs(2);
/// How long a volume of another provider is being detached: less than a drain would wait for it.
const DETACHING_ELSEWHERE: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread")]
async fn pods_with_volumes_move_one_after_the_other_and_the_vm_goes_after_the_last_volume() -> TestResult {
    let env = Environment::start("volumes").await?;
    let disks = Disks::start(env.target_client(), env.namespace(), DETACHING);
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    let attachments: History<VolumeAttachment> = History::record(Api::all(env.target_client()), "").await?;
    let mut items = disks.objects("store", PODS);
    items.push(stateful_set(&env, "store", PODS));
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    let volumes: Vec<String> = (0..PODS).map(|index| disks.volume("store", index)).collect();
    env.wait_for("all volumes to be attached", async || Ok(are_attached(&attachments, &volumes))).await?;

    env.scale("a", 1).await?;
    let machines = env.wait_for_machines("a machine to go", |all| all.values().any(|it| it.is_deleting())).await?;
    let leaving = machines.values().find(|machine| machine.is_deleting()).map(|it| it.name_any()).unwrap_or_default();
    let moved: Vec<(String, String)> =
        pods.current().values().filter(|pod| node_of(pod) == leaving).map(claim_of).collect();
    ensure(moved.len() > 1, || format!("the node of {leaving} has the volumes {moved:?}"))?;
    env.wait_for_running(1).await?;

    let begun = evictions(&pods.changes()?);
    let detached: BTreeMap<String, Timestamp> = disks.detached().into_iter().collect();
    let mut order: Vec<_> =
        moved.iter().map(|(pod, index)| (begun.get(pod), disks.volume("store", index.parse().unwrap_or(0)))).collect();
    order.sort_by_key(|(eviction, _)| eviction.map(|it| it.version));
    for pair in order.windows(2) {
        let [(_, volume), (next, _)] = pair else { continue };
        let end = detached.get(volume).copied();
        ensure(end.is_some() && end <= next.map(|it| it.at), || {
            format!("{volume} was detached at {end:?}, and the next pod was evicted at {next:?}: {order:?}")
        })?;
        let elsewhere = attached_elsewhere(&attachments.changes()?, volume, &leaving);
        ensure(elsewhere.is_some() && elsewhere <= next.map(|it| it.version), || {
            format!(
                "{volume} was attached elsewhere at version {elsewhere:?}, and the next pod was evicted at {next:?}"
            )
        })?;
    }
    let events = env.cloud().events(0).await?;
    let deleted = events.iter().find(|event| event.kind == EventKind::DeleteAccepted).map(|event| event.at);
    let last = order.last().and_then(|(_, volume)| detached.get(volume)).copied();
    ensure(last.is_some() && last <= deleted, || {
        format!("the last volume was detached at {last:?}, and the VM was deleted at {deleted:?}")
    })?;
    disks.clean(env.target_client()).await?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_another_provider_blocks_no_drain_and_one_of_the_provider_does() -> TestResult {
    let env = Environment::start("foreign-volumes").await?;
    let own = Disks::start(env.target_client(), env.namespace(), DETACHING);
    let foreign = Disks::start_elsewhere(env.target_client(), env.namespace(), DETACHING_ELSEWHERE);
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    let attachments: History<VolumeAttachment> = History::record(Api::all(env.target_client()), "").await?;
    let mut items = own.objects("own", 1);
    items.extend(foreign.objects("foreign", 2));
    items.extend([stateful_set(&env, "own", 1), stateful_set(&env, "foreign", 2)]);
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    let volumes = [own.volume("own", 0), foreign.volume("foreign", 0), foreign.volume("foreign", 1)];
    env.wait_for("all volumes to be attached", async || Ok(are_attached(&attachments, &volumes))).await?;

    env.scale("a", 0).await?;
    env.wait_for("the VM to go", async || Ok(env.vms().await?.is_empty())).await?;
    let events = env.cloud().events(0).await?;
    let deleted = events.iter().find(|event| event.kind == EventKind::DeleteAccepted).map(|event| event.at);
    let detached = own.detached().first().map(|(_, at)| *at);
    ensure(detached.is_some() && detached <= deleted, || {
        format!("the provider's volume was detached at {detached:?}, and the VM was deleted at {deleted:?}")
    })?;
    let begun = evictions(&pods.changes()?);
    ensure(begun.len() == 3 && begun.values().all(|it| Some(it.at) < detached), || {
        format!("the provider's volume was detached at {detached:?}, and the pods were evicted at {begun:?}")
    })?;
    let elsewhere = foreign.detached();
    ensure(elsewhere.iter().all(|(_, at)| Some(*at) > deleted), || {
        format!("the VM was deleted at {deleted:?}, and volumes of another provider were detached at {elsewhere:?}")
    })?;
    env.wait_for("the other volumes to be detached", async || Ok(foreign.detached().len() == 2)).await?;
    own.clean(env.target_client()).await?;
    foreign.clean(env.target_client()).await?;
    env.end().await
}

fn are_attached(attachments: &History<VolumeAttachment>, volumes: &[String]) -> bool {
    let current = attachments.current();
    volumes.iter().all(|volume| current.values().any(|it| volume_of(it) == Some(volume) && is_attached(it)))
}

/// When the deletion of a pod began. Its version is comparable with those of other objects, in whatever order their watches deliver.
#[derive(Debug)]
struct Eviction {
    at: Timestamp,
    version: u64,
}

/// The first one of each pod.
fn evictions(changes: &[Change<Pod>]) -> BTreeMap<String, Eviction> {
    let mut begun = BTreeMap::new();
    for change in changes.iter().filter(|change| change.object.metadata.deletion_timestamp.is_some()) {
        let Some(version) = version(&*change.object) else { continue };
        begun.entry(change.object.name_any()).or_insert(Eviction { at: change.at, version });
    }
    begun
}

fn version(object: &impl ResourceExt) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

/// The version at which a volume was attached to another node first.
fn attached_elsewhere(changes: &[Change<VolumeAttachment>], volume: &str, node: &str) -> Option<u64> {
    let is_elsewhere = |change: &&Change<VolumeAttachment>| {
        let attachment = &change.object;
        volume_of(attachment).is_some_and(|it| it == volume)
            && attachment.spec.node_name != node
            && is_attached(attachment)
    };
    changes.iter().find(is_elsewhere).and_then(|change| version(&*change.object))
}

fn volume_of(attachment: &VolumeAttachment) -> Option<&String> {
    attachment.spec.source.persistent_volume_name.as_ref()
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// A pod, and the index of its volume.
fn claim_of(pod: &std::sync::Arc<Pod>) -> (String, String) {
    let name = pod.name_any();
    let index = name.rsplit('-').next().unwrap_or_default().to_owned();
    (name, index)
}

fn stateful_set(env: &Environment, name: &str, replicas: usize) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": {
        "serviceName": name, "replicas": replicas, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "nodeSelector": {ENVIRONMENT_LABEL: env.namespace()},
            "terminationGracePeriodSeconds": 1,
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": name}},
            }],
            "containers": [{"name": "main", "image": "none"}],
        }},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}},
        }}],
    }})
}
