//! What machines cost that are preserved, and that are updated in place.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use nodewright_api::{Machine, MachineDeployment, annotations, conditions, labels, reasons::node as reasons, taints};
use nodewright_e2e_lab::{
    control_plane::ControlPlaneError,
    devcluster::{
        ManagerProcess, NAMESPACE,
        machines::{machine_deployments, machines},
    },
};
use serde_json::{Value, json};

use crate::{costs::Costs, error::BenchError, measure::Measured};

/// Time between two looks of the program that updates Nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Preserves all machines, and ends that. Returns the requests of each.
pub(crate) async fn preserve(measured: &mut Measured, count: u32) -> Result<[Costs; 2], BenchError> {
    let preserved = ask(measured, count, annotations::PRESERVE_NOW, true).await?;
    let ended = ask(measured, count, annotations::PRESERVE_FALSE, false).await?;
    Ok([preserved, ended])
}

/// Sets the annotation of all machines, and counts the requests until nothing is written. Fails unless each machine then has a time
/// until which it is preserved, or none, as it should.
async fn ask(measured: &mut Measured, count: u32, value: &str, expires: bool) -> Result<Costs, BenchError> {
    let annotation = format!("{}={value}", annotations::PRESERVE);
    let all = ["annotate", "machines", "--all", "--overwrite", "--namespace", NAMESPACE, &annotation];
    measured.control_plane().kubectl(all).await?;
    let mut costs = Costs::of(count);
    measured.settle(|entry| costs.add::<ManagerProcess>(&entry)).await?;
    let does_expire = |machine: &Machine| {
        machine.status.as_ref().is_some_and(|status| status.current_status.preserve_expiry_time.is_some())
    };
    let all = machines(&measured.client(), NAMESPACE).await?;
    match all.iter().find(|machine| does_expire(machine) != expires) {
        None => Ok(costs),
        Some(machine) => Err(BenchError::Failed(format!("machine {} ignores {annotation}", machine.name_any()))),
    }
}

/// Updates all machines in place at once, with a program on their Nodes that succeeds immediately. Returns the requests.
pub(crate) async fn update(measured: &mut Measured, count: u32, timeout: Duration) -> Result<Costs, BenchError> {
    let deployments: Api<MachineDeployment> = Api::namespaced(measured.client(), NAMESPACE);
    let bounds = json!({"maxSurge": 0, "maxUnavailable": count, "orchestrationType": "Auto"});
    let change = json!({"spec": {
        "strategy": {"type": "InPlaceUpdate", "rollingUpdate": null, "inPlaceUpdate": bounds},
        "template": {"metadata": {"labels": {"version": "2"}}},
    }});
    let patched = deployments.patch(measured.deployment(), &PatchParams::default(), &Patch::Merge(&change)).await;
    let patched = patched.map_err(ControlPlaneError::request("patch the machine deployment"))?;
    let nodes: Api<Node> = Api::all(measured.client());
    let since = Instant::now();
    while !is_updated(measured, &nodes, &patched, count).await? {
        if since.elapsed() > timeout {
            return Err(BenchError::Failed(format!("{count} machines were not updated in place within {timeout:?}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let mut costs = Costs::of(count);
    measured.settle(|entry| costs.add::<ManagerProcess>(&entry)).await?;
    Ok(costs)
}

/// Does what is due on the Nodes, and tells whether all machines are updated to the template of this deployment, and no Node is marked.
async fn is_updated(
    measured: &Measured,
    nodes: &Api<Node>,
    patched: &MachineDeployment,
    count: u32,
) -> Result<bool, BenchError> {
    let listed = nodes.list(&ListParams::default()).await.map_err(ControlPlaneError::request("list nodes"))?;
    let mut is_marked = false;
    for node in &listed {
        is_marked |= node.labels().contains_key(labels::CANDIDATE_FOR_UPDATE) || awaits_components(node);
        if let Some(patch) = answer(node) {
            let name = node.name_any();
            match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                // It has changed: the next look shows it.
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                patched => drop(patched.map_err(ControlPlaneError::request(format!("patch node {name}")))?),
            }
        }
    }
    let deployments = machine_deployments(&measured.client(), NAMESPACE).await?;
    let status = deployments.iter().find(|it| it.name_any() == patched.name_any()).and_then(|it| it.status.as_ref());
    let is_complete = status.is_some_and(|status| {
        // That of the former template says the same.
        let is_current = status.observed_generation >= patched.metadata.generation.unwrap_or_default();
        is_current && u32::try_from(status.updated_replicas) == Ok(count)
    });
    Ok(!is_marked && is_complete)
}

/// What the program on a Node writes next: that it has updated the Node, or that its critical components run.
fn answer(node: &Node) -> Option<Value> {
    let has_result = node.labels().contains_key(labels::UPDATE_RESULT);
    if is_permitted(node) && !has_result {
        return Some(json!({"metadata": {"labels": {labels::UPDATE_RESULT: labels::UPDATE_SUCCESSFUL}}}));
    }
    awaits_components(node).then(|| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let others: Vec<_> =
            taints.into_iter().filter(|taint| taint.key != taints::CRITICAL_COMPONENTS_NOT_READY).collect();
        // The version makes it fail if the taints have changed.
        json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": others}})
    })
}

fn is_permitted(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| {
        condition.type_ == conditions::node::IN_PLACE_UPDATE
            && condition.reason.as_deref() == Some(reasons::READY_FOR_UPDATE)
    })
}

fn awaits_components(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == taints::CRITICAL_COMPONENTS_NOT_READY)
}
