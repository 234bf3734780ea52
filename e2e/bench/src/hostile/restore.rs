//! What a restore of etcd leaves behind.

use std::time::{Duration, Instant};

use http::Method;
use nodewright_e2e_lab::devcluster::{NAMESPACE, machines::wait_for_running};
use serde_json::{Value, json};

use super::{
    Measured,
    target::{DEPLOYMENT, MACHINES, Target},
};

/// The annotation of a set that names the deployment's generation for which it was sized.
const SIZED_FOR: &str = "nodewright.dev/sized-for";
/// How long the deployment may take to follow.
const TIMEOUT: Duration = Duration::from_secs(40);

/// The sets were sized for a generation of the deployment that a restore has undone: a manager that runs through it writes its
/// newer generation to a set that is restored before the deployment. The deployment must follow its spec all the same.
pub(crate) async fn undone_generation(target: &mut Target) -> Measured {
    let deployment = target.request(Method::GET, &format!("machinedeployments/{DEPLOYMENT}"), None).await?;
    let meta = &deployment["metadata"];
    let generation = meta["generation"].as_i64().ok_or("the deployment has no generation")? + 50;
    let newer = format!("{}/{generation}", meta["uid"].as_str().unwrap_or_default());
    let sets = target.request(Method::GET, "machinesets", None).await?;
    let sets: Vec<_> =
        sets["items"].as_array().into_iter().flatten().filter_map(|set| set["metadata"]["name"].as_str()).collect();
    for set in &sets {
        let note = json!({"metadata": {"annotations": {SIZED_FOR: newer}}});
        target.request(Method::PATCH, &format!("machinesets/{set}"), Some(&note)).await?;
    }
    let begun = Instant::now();
    target.scale(MACHINES + 1).await?;
    let followed = wait_for_running(&target.client(), NAMESPACE, MACHINES + 1, TIMEOUT).await;
    let seconds = begun.elapsed().as_secs_f64();
    let text = format!("{} sets sized for generation {generation} that is gone", sets.len());
    let result = match followed {
        Ok(_) => Ok(format!("{text}: one machine more came up within {seconds:.1} s")),
        Err(_) => Err(format!("{text}: frozen for {seconds:.0} s; {}", reported(target).await?)),
    };
    if result.is_err() {
        for set in &sets {
            let forget = json!({"metadata": {"annotations": {SIZED_FOR: Value::Null}}});
            target.request(Method::PATCH, &format!("machinesets/{set}"), Some(&forget)).await?;
        }
    }
    target.scale(MACHINES).await?;
    result
}

/// What the deployment says meanwhile.
async fn reported(target: &Target) -> Result<String, String> {
    let deployment = target.request(Method::GET, &format!("machinedeployments/{DEPLOYMENT}"), None).await?;
    let conditions = deployment["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let stalled = conditions.iter().find(|condition| condition["type"] == "Stalled");
    Ok(stalled
        .map_or("the deployment does not say why".to_owned(), |stalled| format!("Stalled: {}", stalled["message"])))
}
