//! Provider errors whose messages together exceed the size limit of an object in etcd.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::Value;
use tokio::time::sleep;

use nodewright_e2e_cloud::{Code, Effect, FaultOperation, FaultOrder};

use super::{
    Measured,
    target::{DEPLOYMENT, MACHINES, Target},
};

/// How many creations fail, and the bytes of each message: together more than etcd's 1.5 MiB.
const FAILING: usize = 70;
const MESSAGE: usize = 30_000;
/// How long the machines may take to fail, and the status to be updated.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn large(target: &mut Target) -> Measured {
    let message = format!("no such quota: {}", "x".repeat(MESSAGE));
    let failure = Effect::Error { code: Code::Internal, message: Some(message), applied: false };
    let fault = FaultOrder::always(FaultOperation::Create, failure);
    target.cloud().fault(&fault).await.map_err(|error| error.to_string())?;
    target.scale(MACHINES + FAILING).await?;
    let result = fail_and_lose_one(target).await;
    target.cloud().clear_faults().await.map_err(|error| error.to_string())?;
    target.scale(MACHINES).await?;
    result
}

/// Deletes a ready machine while creations fail. The ready count of the status must be updated.
async fn fail_and_lose_one(target: &Target) -> Measured {
    let failing = until(target, "machines to fail", async |target| {
        let machines = target.request(Method::GET, "machines", None).await?;
        let failing = items(&machines).filter(|machine| operation(machine)["state"] == "Failed").count();
        Ok((failing >= FAILING).then_some(machines))
    })
    .await?;
    let running = items(&failing).find(|machine| machine["status"]["currentStatus"]["phase"] == "Running");
    let name = running.and_then(|machine| machine["metadata"]["name"].as_str()).ok_or("no machine runs")?;
    let longest = items(&failing).filter_map(|machine| operation(machine)["description"].as_str()).map(str::len).max();
    target.request(Method::DELETE, &format!("machines/{name}"), None).await?;
    let begun = Instant::now();
    let wanted = MACHINES as u64 - 1;
    let followed = until(target, "the ready count to follow", async |target| {
        let deployment = target.request(Method::GET, &format!("machinedeployments/{DEPLOYMENT}"), None).await?;
        let ready = deployment["status"]["readyReplicas"].as_u64().unwrap_or_default();
        Ok((ready == wanted).then_some(deployment))
    })
    .await;
    let sets = target.request(Method::GET, "machinesets", None).await?;
    let largest = items(&sets).map(|set| set["status"].to_string().len()).max().unwrap_or_default();
    let text = format!(
        "{FAILING} creations failed with {MESSAGE} bytes each: descriptions have up to {} bytes, the status of the set {largest}",
        longest.unwrap_or_default()
    );
    match followed {
        Ok(deployment) => {
            let listed = deployment["status"]["failedMachines"].as_array().map_or(0, Vec::len);
            Ok(format!(
                "{text}, READY followed in {} s, {listed} failed machines are listed",
                begun.elapsed().as_secs()
            ))
        }
        Err(error) => Err(format!("{text}; {error}")),
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn operation(machine: &Value) -> &Value {
    &machine["status"]["lastOperation"]
}

async fn until(
    target: &Target,
    what: &str,
    poll: impl AsyncFn(&Target) -> Result<Option<Value>, String>,
) -> Result<Value, String> {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll(target).await? {
            return Ok(found);
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("waited {} s for {what}", TIMEOUT.as_secs()));
        }
        sleep(POLL_INTERVAL).await;
    }
}
