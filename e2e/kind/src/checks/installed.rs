//! Checks of the installation itself.

use kube::ResourceExt;
use nodewright_e2e_lab::control_plane::testing::{Failure, TestResult, ensure};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NAMESPACE},
    installation::{self, leader, none, pods, ready, restarts},
};

/// The leader is found within the time of a lease.
async fn wait_for_leader(cluster: &Cluster, other_than: &str) -> TestResult<String> {
    cluster
        .wait_for("one Pod with both Leases", async || {
            let name = leader(cluster).await?.map(|pod| pod.name_any());
            Ok(name.filter(|name| name != other_than))
        })
        .await
}

pub(super) async fn one_leads(cluster: &Cluster) -> TestResult {
    let pods = ready(cluster).await?;
    ensure(restarts(&pods) == 0, || "a container was restarted".to_owned())?;
    wait_for_leader(cluster, "").await?;
    Ok(())
}

pub(super) async fn webhooks_answer(cluster: &Cluster) -> TestResult {
    let object = |selected: &str| {
        json!({
            "apiVersion": nodewright_api::API_VERSION, "kind": "MachineDeployment", "metadata": {"name": "reviewed"},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"name": selected}},
                "template": {"metadata": {"labels": {"name": "reviewed"}}, "spec": {"class": {"kind": "MachineClass", "name": "none"}}},
            },
        })
    };
    let dry_run = format!("apply --dry-run=server --namespace={NAMESPACE} --server-side -o json -f -");
    let stored = cluster.program(&dry_run).input(object("reviewed").to_string()).output().await?;
    let stored: Value = serde_json::from_str(&stored)?;
    ensure(stored["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1, || format!("no defaults in {stored}"))?;
    let refused = cluster.program(&dry_run).input(object("another").to_string()).output().await;
    let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure(said.contains("spec.template.metadata.labels: Invalid value"), || format!("not refused by field: {said}"))
}

/// Through a port of the Pod: the API server does not pass the client's token on.
pub(super) async fn metrics_are_authorized(cluster: &Cluster) -> TestResult {
    cluster.kubectl(&format!("create serviceaccount prometheus --namespace={NAMESPACE}")).await?;
    let scrape = async |wanted: bool| {
        let token = cluster.kubectl(&format!("create token prometheus --namespace={NAMESPACE}")).await?;
        let port = cluster.forward("service/nodewright-metrics", 10258).await?;
        for (token, expected) in [("", 401), ("wrong", 401), (token.as_str(), if wanted { 200 } else { 403 })] {
            let (status, body) = port.get("/metrics", token).await?;
            ensure(status == expected, || {
                format!("GET /metrics with token {:?} answers {status}, not {expected}", !token.is_empty())
            })?;
            let is_whole = body.contains("leader_election_master_status") && body.ends_with("# EOF\n");
            ensure(status != 200 || is_whole, || {
                format!("the {} bytes of the answer are not all metrics", body.len())
            })?;
        }
        Ok::<_, Failure>(())
    };
    scrape(false).await?;
    let bind = "create clusterrolebinding nodewright-e2e-metrics --clusterrole=nodewright-metrics-reader";
    cluster.kubectl(&format!("{bind} --serviceaccount={NAMESPACE}:prometheus")).await?;
    let result = scrape(true).await;
    cluster.kubectl("delete clusterrolebinding nodewright-e2e-metrics").await?;
    cluster.kubectl(&format!("delete serviceaccount prometheus --namespace={NAMESPACE}")).await?;
    result
}

pub(super) async fn killed_leader_is_followed(cluster: &Cluster) -> TestResult {
    let killed = wait_for_leader(cluster, "").await?;
    cluster.kubectl(&format!("delete pod {killed} --namespace={NAMESPACE} --grace-period=0 --force")).await?;
    wait_for_leader(cluster, &killed).await?;
    ready(cluster).await.map(drop)
}

/// A client that evicts both Pods at once gets one.
pub(super) async fn budget_keeps_one(cluster: &Cluster) -> TestResult {
    let pods = ready(cluster).await?;
    let evict = async |name: String| {
        let eviction =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}});
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction");
        cluster.program(&format!("create --raw={path} -f -")).input(eviction.to_string()).output().await
    };
    evict(pods[0].name_any()).await?;
    let second = evict(pods[1].name_any()).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure(second.contains("disruption budget"), || format!("the second eviction was not refused: {second}"))?;
    ready(cluster).await.map(drop)
}

/// `maxUnavailable` is 0: one Pod is ready at any time.
pub(super) async fn restarted(cluster: &Cluster) -> TestResult {
    let watch = async {
        loop {
            let ready = pods(cluster).await?.iter().filter(|pod| is_ready(pod)).count();
            ensure(ready >= 2, || format!("{ready} Pods are ready during the restart"))?;
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        result = installation::restart(cluster) => result?,
        result = watch => return result,
    }
    wait_for_leader(cluster, "").await.map(drop)
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) async fn no_warnings(cluster: &Cluster) -> TestResult {
    let pods = ready(cluster).await?;
    ensure(restarts(&pods) == 0, || "a container was restarted".to_owned())?;
    none("lines of the logs", &installation::warnings(cluster).await?)
}
