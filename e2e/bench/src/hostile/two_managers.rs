//! Two managers without leader election, whose machines fail: they must not write in turns.

use std::time::{Duration, Instant};

use http::Request;
use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};
use nodewright_e2e_lab::{
    control_plane::audit::{AuditLog, Entry},
    devcluster::{ManagerOptions, ManagerProcess, machines::machines},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Measured, target::Target};

const NAMESPACE: &str = "two-managers";
const FAILING: usize = 30;
/// How long the machines may take to fail.
const TIMEOUT: Duration = Duration::from_mins(1);
/// How long the writes are counted.
const WINDOW: Duration = Duration::from_secs(12);
/// The second manager asks the provider once for each machine, and may tell its answer.
const SETTLE: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn unelected(target: &mut Target) -> Measured {
    let failure = Effect::Error { code: Code::Internal, message: Some("no such quota".to_owned()), applied: false };
    let fault = FaultOrder::always(FaultOperation::Create, failure);
    target.cloud().fault(&fault).await.map_err(|error| error.to_string())?;
    let result = compete(target).await;
    target.cloud().clear_faults().await.map_err(|error| error.to_string())?;
    result
}

async fn compete(target: &Target) -> Measured {
    apply(target).await?;
    let mut first = manager(target, "first-of-two").await?;
    wait_until_failing(target).await?;
    sleep(SETTLE).await;
    let one = writes(target).await?;
    let mut second = manager(target, "second-of-two").await?;
    sleep(SETTLE).await;
    let two = writes(target).await?;
    // The machines go without a VM, while one manager runs.
    second.terminate().await.map_err(|error| error.to_string())?;
    remove(target).await?;
    first.terminate().await.map_err(|error| error.to_string())?;
    let per_minute = |writes: usize| writes * 60 / usize::try_from(WINDOW.as_secs()).unwrap_or(1);
    let text = format!(
        "{FAILING} failing machines: one manager without leader election wrote {} statuses a minute, two {}",
        per_minute(one),
        per_minute(two)
    );
    // One write for each machine may be the report of a call that the second one has made.
    if two <= 2 * one + FAILING { Ok(text) } else { Err(text) }
}

async fn manager(target: &Target, name: &str) -> Result<ManagerProcess, String> {
    let plane = target.control_plane();
    let flags = ["--leader-elect=false", "--controllers=machine-deployment,machine-set,machine,machine-class"];
    let options = ManagerOptions::new(plane.kubeconfig_path(), target.cloud().url());
    let options = ManagerOptions { name: name.to_owned(), namespace: NAMESPACE.to_owned(), ..options };
    let options = options.without_webhooks().with_flags(flags);
    ManagerProcess::start_on(plane, options).await.map_err(|error| error.to_string())
}

/// The writes of Machines' statuses in the window.
async fn writes(target: &Target) -> Result<usize, String> {
    let mut log = AuditLog::from_now(target.control_plane().audit_log()).map_err(|error| error.to_string())?;
    sleep(WINDOW).await;
    let is_counted = |entry: &&Entry| {
        entry.is_write()
            && entry.namespace == NAMESPACE
            && (&*entry.resource, &*entry.subresource) == ("machines", "status")
    };
    let entries = log.read().map_err(|error| error.to_string())?;
    Ok(entries.iter().filter(is_counted).count())
}

async fn wait_until_failing(target: &Target) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let all = get(target, "machines").await?;
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let failing = all.iter().filter(|it| it["status"]["lastOperation"]["state"] == "Failed").count();
        if failing >= FAILING {
            return Ok(());
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("{failing} of {FAILING} machines have failed after {} s", TIMEOUT.as_secs()));
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn apply(target: &Target) -> Result<(), String> {
    let group = "machine.sapcloud.io/v1alpha1";
    let labels = json!({"name": "two"});
    let class = json!({"apiGroup": "machine.sapcloud.io", "kind": "MachineClass", "name": "two"});
    let deployment = json!({
        "apiVersion": group, "kind": "MachineDeployment", "metadata": {"name": "two"},
        "spec": {"replicas": FAILING, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"class": class}}},
    });
    let class = json!({
        "apiVersion": group, "kind": "MachineClass", "metadata": {"name": "two"}, "provider": "simulated",
        "providerSpec": {"cluster": NAMESPACE, "size": "small"}, "secretRef": {"name": "two", "namespace": NAMESPACE},
    });
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "two"}, "stringData": {"userData": "x"}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    send(target, "POST", "/api/v1/namespaces", Some(&namespace)).await?;
    send(target, "POST", &format!("/api/v1/namespaces/{NAMESPACE}/secrets"), Some(&secret)).await?;
    send(target, "POST", &of_kind("machineclasses"), Some(&class)).await?;
    send(target, "POST", &of_kind("machinedeployments"), Some(&deployment)).await.map(drop)
}

/// Removes the deployment and waits until its machines are gone, then the namespace.
async fn remove(target: &Target) -> Result<(), String> {
    target.cloud().clear_faults().await.map_err(|error| error.to_string())?;
    send(target, "DELETE", &format!("{}/two", of_kind("machinedeployments")), None).await?;
    let begun = Instant::now();
    while !machines(&target.client(), NAMESPACE).await.map_err(|error| error.to_string())?.is_empty() {
        if begun.elapsed() > TIMEOUT {
            return Err(format!("the machines are not gone after {} s", TIMEOUT.as_secs()));
        }
        sleep(POLL_INTERVAL).await;
    }
    send(target, "DELETE", &format!("{}/two", of_kind("machineclasses")), None).await?;
    send(target, "DELETE", &format!("/api/v1/namespaces/{NAMESPACE}"), None).await.map(drop)
}

async fn get(target: &Target, kind: &str) -> Result<Value, String> {
    send(target, "GET", &of_kind(kind), None).await
}

fn of_kind(kind: &str) -> String {
    format!("/apis/machine.sapcloud.io/v1alpha1/namespaces/{NAMESPACE}/{kind}")
}

async fn send(target: &Target, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(body.map(Value::to_string).unwrap_or_default().into_bytes());
    let answer = target.client().request(request.map_err(|error| error.to_string())?).await;
    answer.map_err(|error| format!("{method} {path}: {error}"))
}
