//! Objects that say that a VM is somebody's: copies in another namespace, an edited ledger, finalizers that are removed by hand.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use http::Method;
use nodewright_e2e_cloud::CloudClient;
use nodewright_e2e_lab::devcluster::DevclusterOptions;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Measured,
    target::{MACHINES, Target},
};

const LEDGER: &str = "nodewright.dev/ledger";
const PROVISIONED: &str = "InstanceProvisioned";
const NEIGHBOUR: &str = "neighbour";
/// How long an attack waits for what it expects.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The VMs that stay, by their ids.
async fn vms(cloud: &CloudClient) -> Result<BTreeMap<String, String>, String> {
    let vms = cloud.vms().await.map_err(|error| error.to_string())?;
    Ok(vms.into_iter().map(|vm| (vm.provider_id, vm.name)).collect())
}

/// Looks until there is an answer.
async fn until<T>(mut look: impl AsyncFnMut() -> Result<Option<T>, String>) -> Result<Option<T>, String> {
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        if let Some(found) = look().await? {
            return Ok(Some(found));
        }
        sleep(POLL).await;
    }
    Ok(None)
}

/// The same object in another namespace.
fn copied(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut copy = object.clone();
    copy["metadata"] =
        json!({"name": metadata["name"], "labels": metadata["labels"], "annotations": metadata["annotations"]});
    if let Some(fields) = copy.as_object_mut() {
        fields.remove("status");
    }
    if !text(&copy, "/secretRef/namespace").is_empty() {
        copy["secretRef"]["namespace"] = NEIGHBOUR.into();
    }
    copy
}

/// The MachineSet is copied with its ledger into another namespace, which has a manager of its own and a class with the same cluster.
/// The copies take no VM, and their deletion deletes none.
pub(crate) async fn copied_set(target: &mut Target) -> Measured {
    let cloud = target.cloud();
    let before = vms(&cloud).await?;
    let set = target.request(Method::GET, "machinesets", None).await?;
    let set = items(&set).next().ok_or("there is no set")?.clone();
    let class = target.request(Method::GET, "machineclasses/demo-small", None).await?;
    target.create_neighbour(NEIGHBOUR, "demo-user-data").await?;
    for (kind, object) in [("machineclasses", &class), ("machinesets", &set)] {
        target.request_in(NEIGHBOUR, Method::POST, kind, Some(&copied(object))).await?;
    }
    let mut manager = target.start_manager_in(NEIGHBOUR, vec![]).await?;
    let refused = until(async || {
        let machines = target.request_in(NEIGHBOUR, Method::GET, "machines", None).await?;
        let says = |machine: &&Value| {
            let conditions = machine.pointer("/status/conditions").and_then(Value::as_array);
            let mut all = conditions.into_iter().flatten();
            all.any(|it| it["type"] == PROVISIONED && it["reason"] == "VMNotOwned")
        };
        Ok((items(&machines).filter(says).count() == MACHINES).then_some(MACHINES))
    });
    let refused = refused.await?;
    target
        .request_in(NEIGHBOUR, Method::DELETE, &format!("machinesets/{}", text(&set, "/metadata/name")), None)
        .await?;
    let gone = until(async || {
        let machines = target.request_in(NEIGHBOUR, Method::GET, "machines", None).await?;
        Ok(items(&machines).next().is_none().then_some(()))
    });
    let gone = gone.await?;
    manager.terminate().await.map_err(|error| error.to_string())?;
    let after = vms(&cloud).await?;
    let lost = before.keys().filter(|id| !after.contains_key(*id)).count();
    let made = after.len() + lost - before.len();
    let measured = format!("{MACHINES} machines copied, {lost} of their VMs deleted, {made} made");
    match (lost + made, refused, gone) {
        (0, Some(_), Some(())) => Ok(format!("{measured}; each copy says VMNotOwned")),
        (0, None, _) => Err(format!("{measured}; not all copies say VMNotOwned")),
        (0, _, None) => Err(format!("{measured}; the copies do not end")),
        _ => Err(measured),
    }
}

/// The ordinals of all machines are retired by an edit of the ledger. The deployment allows none to be missing, and one more.
pub(crate) async fn edited_ledger(target: &mut Target) -> Measured {
    let set = target.request(Method::GET, "machinesets", None).await?;
    let set =
        items(&set).find(|set| set["spec"]["replicas"] == MACHINES).ok_or("there is no set of that size")?.clone();
    let path = format!("machinesets/{}", text(&set, "/metadata/name"));
    let ledger = set["metadata"]["annotations"][LEDGER].as_str().unwrap_or_default().to_owned();
    let seed = ledger.split(';').next().unwrap_or_default();
    let edit = |ledger: &str| json!({"metadata": {"annotations": {LEDGER: ledger}}});
    let says = async |part: &str| {
        let set = target.request(Method::GET, &path, None).await?;
        let conditions = set.pointer("/status/machineSetCondition").and_then(Value::as_array);
        let mut all = conditions.into_iter().flatten();
        let is_said = all.any(|it| it["reason"] == "InvalidLedger" && text(it, "/message").contains(part));
        Ok::<_, String>(is_said)
    };
    target.request(Method::PATCH, &path, Some(&edit(&format!("{seed};0-4000000000")))).await?;
    let explained = until(async || Ok(says("goes beyond").await?.then_some(()))).await?;
    target.request(Method::PATCH, &path, Some(&edit(&ledger))).await?;

    let machines = target.request(Method::GET, "machines", None).await?;
    let last = items(&machines)
        .filter_map(|it| it["metadata"]["annotations"]["nodewright.dev/index"].as_str()?.parse::<u32>().ok());
    let last = last.max().ok_or("no machine has an ordinal")?;
    let first: Vec<_> = items(&machines).map(|machine| text(machine, "/metadata/uid").to_owned()).collect();
    target.request(Method::PATCH, &path, Some(&edit(&format!("{seed};0-{last}")))).await?;
    let (mut fewest, mut most, mut reported) = (usize::MAX, 0, false);
    let replaced = until(async || {
        let machines = target.request(Method::GET, "machines", None).await?;
        let staying = || items(&machines).filter(|it| it.pointer("/metadata/deletionTimestamp").is_none());
        let working = staying().filter(|it| text(it, "/status/currentStatus/phase") == "Running").count();
        (fewest, most) = (fewest.min(working), most.max(staying().count()));
        reported |= says("work and are needed").await?;
        let is_new = items(&machines).all(|it| !first.contains(&text(it, "/metadata/uid").to_owned()));
        Ok((is_new && working == MACHINES).then_some(()))
    });
    let replaced = replaced.await?.is_some();
    let measured =
        format!("{} ordinals retired: {fewest} to {most} of {MACHINES} machines worked or came up", last + 1);
    if fewest >= MACHINES && most <= MACHINES + 1 && reported && replaced && explained.is_some() {
        return Ok(format!("{measured}, all replaced; InvalidLedger said why"));
    }
    Err(format!(
        "{measured}; replaced: {replaced}, reported: {reported}, a huge range explained: {}",
        explained.is_some()
    ))
}

/// The finalizers of a machine that runs and has no set are removed by hand, on a devcluster of its own: orphans are looked for each second. The VM
/// goes, and its Node.
pub(crate) async fn finalizers_removed() -> Measured {
    let flags = [
        "--machine-safety-orphan-vms-period=1s",
        "--orphan-vms-grace=2s",
        "--orphan-vms-minimum-age=4s",
        "--orphan-vms-vanished-pause=4s",
        "--orphaned-node-grace=2s",
    ];
    let options =
        DevclusterOptions { manager_flags: flags.map(str::to_owned).to_vec(), ..DevclusterOptions::default() };
    let mut target = Target::start(&options).await.map_err(|error| error.to_string())?;
    let measured = bereft(&mut target).await;
    let after = target.check().await;
    target.stop().await.map_err(|error| error.to_string())?;
    after.and(measured)
}

async fn bereft(target: &mut Target) -> Measured {
    const NAME: &str = "bereft";
    let machine = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": NAME},
        "spec": {"class": {"kind": "MachineClass", "name": "demo-small"}},
    });
    target.request(Method::POST, "machines", Some(&machine)).await?;
    target.wait_for(MACHINES + 1).await?;
    let machine = target.request(Method::GET, &format!("machines/{NAME}"), None).await?;
    let (id, node) = (text(&machine, "/spec/providerID"), text(&machine, "/metadata/labels/node"));
    // The manager would put the finalizer back.
    target.manager().signal("STOP").map_err(|error| error.to_string())?;
    let bare = json!({"metadata": {"finalizers": null}});
    let freed = target.request(Method::PATCH, &format!("machines/{NAME}"), Some(&bare)).await;
    let deleted = target.request(Method::DELETE, &format!("machines/{NAME}"), None).await;
    target.manager().signal("CONT").map_err(|error| error.to_string())?;
    freed.and(deleted)?;
    let begun = Instant::now();
    let cloud = target.cloud();
    let vm_gone = until(async || Ok((!vms(&cloud).await?.contains_key(id)).then(|| begun.elapsed()))).await?;
    let node_gone = until(async || {
        let left = target.kubectl(&["get", "node", node, "--ignore-not-found", "--output=name"]).await;
        let left = left.map_err(|error| error.to_string())?;
        Ok(left.trim().is_empty().then(|| begun.elapsed()))
    });
    match (vm_gone, node_gone.await?) {
        (Some(vm), Some(node)) => Ok(format!("VM gone after {} s, its node after {} s", vm.as_secs(), node.as_secs())),
        (Some(vm), None) => Err(format!("VM gone after {} s, and its node stays", vm.as_secs())),
        (None, _) => Err("the VM stays".to_owned()),
    }
}
