//! Clocks that are wrong, and timeouts that no machine can meet.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use nodewright_e2e_lab::devcluster::{ManagerProcess, shifted_clock};

use super::{
    Measured,
    target::{DEPLOYMENT, Target},
};

/// The machines that each attack asks for.
const WANTED: u64 = 2;
/// How long VMs are counted.
const COUNTED: Duration = Duration::from_secs(40);
/// The most VMs in that time of machines that never join: rounds at 0, 1, 12 and 33 s.
const MOST: u64 = 4 * WANTED;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const AN_HOUR: i64 = 3_600;

/// A namespace with a class, and a deployment whose machines have this creation timeout, and VMs that boot for so long.
fn pool(namespace: &str, creation_timeout: &str, boot_seconds: u64) -> Vec<Value> {
    let labels = json!({"name": "pool"});
    let api = "machine.sapcloud.io/v1alpha1";
    let meta = |name: &str| json!({"name": name, "namespace": namespace});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta("user-data"),
            "stringData": {"userData": "#cloud-config"}}),
        json!({"apiVersion": api, "kind": "MachineClass", "metadata": meta("class"), "provider": "simulated",
            "providerSpec": {"cluster": namespace, "size": "small", "bootSeconds": boot_seconds},
            "secretRef": {"name": "user-data", "namespace": namespace}}),
        json!({"apiVersion": api, "kind": "MachineDeployment", "metadata": meta("pool"), "spec": {
            "replicas": WANTED, "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "creationTimeout": creation_timeout, "class": {"kind": "MachineClass", "name": "class"}}}}}),
    ]
}

/// The time of the manager is an hour ahead: each machine is older than its creation timeout when it is born.
pub(crate) async fn clock_ahead(target: &mut Target) -> Measured {
    let namespace = "hostile-clock";
    let environment = shifted_clock(target.directory(), AN_HOUR).map_err(|error| error.to_string())?;
    let before = created(target).await?;
    target.apply(&pool(namespace, "20m", 1)).await?;
    let manager = target.start_manager_in(namespace, environment).await?;
    sleep(COUNTED).await;
    let vms = created(target).await? - before;
    let ready = ready(target, namespace).await?;
    let events = target.kubectl_in(namespace, &["get", "events", "--output=jsonpath={..reason}"]).await?;
    let metrics = manager.answer("/metrics").await.map_err(|error| error.to_string())?.1;
    let is_reported = events.contains("ClockSkew") && metrics.lines().any(is_an_hour);
    let gone = remove(target, namespace, manager).await;
    let text = format!(
        "{vms} VMs in {} s for {WANTED} wanted, {ready} ready; reported by event and metric: {is_reported}",
        COUNTED.as_secs()
    );
    gone?;
    if vms == WANTED && ready == WANTED && is_reported { Ok(text) } else { Err(text) }
}

fn is_an_hour(line: &str) -> bool {
    let value = line.strip_prefix("clock_skew_seconds{").and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.is_some_and(|seconds| (seconds - 3_600.0).abs() < 30.0)
}

/// VMs boot for longer than their machines have to join.
pub(crate) async fn short_timeouts(target: &mut Target) -> Measured {
    let namespace = "hostile-timeouts";
    let before = created(target).await?;
    // The webhooks review the namespace of the first manager.
    let zero = json!({"spec": {"template": {"spec": {"creationTimeout": "0s"}}}});
    let refused = target.request(Method::PATCH, &format!("machinedeployments/{DEPLOYMENT}"), Some(&zero)).await;
    let is_refused = refused.is_err_and(|error| error.contains("creationTimeout") && error.contains("greater than 0s"));
    target.apply(&pool(namespace, "1s", 3_600)).await?;
    let manager = target.start_manager_in(namespace, vec![]).await?;
    sleep(COUNTED).await;
    let vms = created(target).await? - before;
    let path = "jsonpath={.status.conditions[?(@.type=='Stalled')].reason}";
    let stalled = target.kubectl_in(namespace, &["get", "mcd", "pool", &format!("--output={path}")]).await?;
    let gone = remove(target, namespace, manager).await;
    let text = format!(
        "{vms} VMs in {} s for {WANTED} wanted with creationTimeout 1s (at most {MOST}), Stalled says {stalled:?}; 0s refused: \
         {is_refused}",
        COUNTED.as_secs()
    );
    gone?;
    if vms <= MOST && stalled == "CreationBackoff" && is_refused { Ok(text) } else { Err(text) }
}

async fn created(target: &Target) -> Result<u64, String> {
    target.cloud().stats().await.map(|stats| stats.created).map_err(|error| error.to_string())
}

async fn ready(target: &Target, namespace: &str) -> Result<u64, String> {
    let output = "--output=jsonpath={.status.readyReplicas}";
    let text = target.kubectl_in(namespace, &["get", "machinedeployment", "pool", output]).await?;
    Ok(text.parse().unwrap_or_default())
}

/// Deletes the deployment and waits until its VMs are gone, so that the next attack counts its own.
async fn remove(target: &Target, namespace: &str, manager: ManagerProcess) -> Result<(), String> {
    target.kubectl_in(namespace, &["delete", "machinedeployment", "pool", "--wait=false"]).await?;
    let begun = Instant::now();
    loop {
        let left = target.kubectl_in(namespace, &["get", "machines", "--output=name"]).await?;
        if left.trim().is_empty() {
            drop(manager);
            return Ok(());
        }
        if begun.elapsed() > super::target::TIMEOUT {
            return Err(format!("machines are left in namespace {namespace}: {left}"));
        }
        sleep(POLL_INTERVAL).await;
    }
}
