//! Checks of machines: containers that join by their user data, and are drained, replaced and deleted like VMs.

use std::time::Duration;

use kube::ResourceExt;
use nodewright_e2e_lab::control_plane::testing::{Failure, TestResult, ensure};

use crate::{
    cluster::{Cluster, NAMESPACE, docker},
    installation::leader,
    pool::{self, POOL},
};

pub(super) async fn join_and_run_pods(cluster: &Cluster) -> TestResult {
    pool::apply(cluster, 2).await?;
    let names = pool::running(cluster, 2).await?;
    for node in pool::nodes(cluster).await? {
        let (name, id) = (node.name_any(), node.spec.as_ref().and_then(|spec| spec.provider_id.clone()));
        ensure(id == Some(format!("local:///{name}")), || format!("Node {name} has the provider id {id:?}"))?;
    }
    cluster.wait_for("no bootstrap token", async || Ok(pool::tokens(cluster).await?.is_empty().then_some(()))).await?;
    pool::start_application(cluster, 4).await?;
    let nodes = pool::application_nodes(cluster).await?;
    ensure(nodes == names, || format!("the application runs on {nodes:?}, and the pool has {names:?}"))
}

/// Off for less than the health timeout: the node comes back with its disk.
pub(super) async fn power_cycle(cluster: &Cluster) -> TestResult {
    let before = pool::running(cluster, 2).await?;
    let name = before.first().ok_or_else(|| Failure::new("no machine"))?;
    docker(&format!("kill {name}")).await?;
    let silent = pool::heartbeat(cluster, name).await?;
    docker(&format!("start {name}")).await?;
    cluster
        .wait_for("a heartbeat of the kubelet", async || {
            Ok((pool::heartbeat(cluster, name).await? > silent).then_some(()))
        })
        .await?;
    let after = pool::running(cluster, 2).await?;
    pool::application_ready(cluster).await?;
    ensure(after == before, || format!("{before:?} became {after:?}"))
}

pub(super) async fn power_off(cluster: &Cluster) -> TestResult {
    let before = pool::running(cluster, 2).await?;
    let off = before.first().cloned().unwrap_or_default();
    docker(&format!("kill {off}")).await?;
    replaced(cluster, &off).await
}

pub(super) async fn node_deleted(cluster: &Cluster) -> TestResult {
    let before = pool::running(cluster, 2).await?;
    let name = before.last().cloned().unwrap_or_default();
    cluster.kubectl(&format!("delete node {name} --wait=false")).await?;
    replaced(cluster, &name).await
}

/// Waits until another machine has taken the place of this one, whose Pods run again.
async fn replaced(cluster: &Cluster, name: &str) -> TestResult {
    cluster
        .wait_for(&format!("the end of machine {name}"), async || {
            let is_gone = pool::machines(cluster).await?.iter().all(|machine| machine.name_any() != name);
            Ok((is_gone && !pool::containers(cluster).await?.contains(name)).then_some(()))
        })
        .await?;
    pool::running(cluster, 2).await?;
    pool::application_ready(cluster).await
}

pub(super) async fn roll(cluster: &Cluster) -> TestResult {
    let before = pool::running(cluster, 2).await?;
    let patch = r#"{"spec":{"template":{"metadata":{"annotations":{"rolled":"true"}}}}}"#;
    cluster
        .program(&format!("patch mcd {POOL} --namespace={NAMESPACE} --type=merge -p"))
        .arguments([patch])
        .output()
        .await?;
    let rolled = cluster.wait_for("all machines replaced", async || {
        let now: Vec<String> = pool::machines(cluster).await?.iter().map(ResourceExt::name_any).collect();
        Ok(now.iter().all(|name| !before.contains(name)).then_some(()))
    });
    while_available(cluster, 3, rolled).await?;
    pool::running(cluster, 2).await?;
    pool::application_ready(cluster).await
}

pub(super) async fn scale_down(cluster: &Cluster) -> TestResult {
    pool::running(cluster, 2).await?;
    pool::scale(cluster, 1).await?;
    let left = while_available(cluster, 3, pool::running(cluster, 1)).await?;
    pool::application_ready(cluster).await?;
    let nodes = pool::application_nodes(cluster).await?;
    ensure(nodes == left, || format!("the application runs on {nodes:?}, and the pool has {left:?}"))
}

/// Runs to the end of `work`, and fails as soon as fewer Pods of the application are available.
async fn while_available<T>(cluster: &Cluster, least: i32, work: impl Future<Output = TestResult<T>>) -> TestResult<T> {
    let watch = async {
        loop {
            let available = pool::available(cluster).await?;
            ensure(available >= least, || format!("{available} Pods of the application are available, not {least}"))?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        result = work => result,
        result = watch => result,
    }
}

/// The leader is killed while it makes machines: another replica makes the rest, and no machine gets two containers.
pub(super) async fn leader_killed(cluster: &Cluster) -> TestResult {
    pool::scale(cluster, 3).await?;
    let leader = cluster.wait_for("a leader", async || leader(cluster).await).await?.name_any();
    cluster
        .wait_for("a new container", async || Ok((pool::containers(cluster).await?.len() > 1).then_some(())))
        .await?;
    cluster.kubectl(&format!("delete pod {leader} --namespace={NAMESPACE} --grace-period=0 --force")).await?;
    pool::running(cluster, 3).await.map(drop)
}

pub(super) async fn deleted(cluster: &Cluster) -> TestResult {
    pool::stop_application(cluster).await?;
    cluster.kubectl(&format!("delete mcd {POOL} --namespace={NAMESPACE}")).await?;
    pool::gone(cluster).await?;
    cluster.kubectl(&format!("delete mcc kind-node --namespace={NAMESPACE} --timeout=1m")).await?;
    cluster.kubectl(&format!("delete secret kind-user-data --namespace={NAMESPACE} --timeout=1m")).await?;
    let tokens = pool::tokens(cluster).await?;
    ensure(tokens.is_empty(), || format!("bootstrap tokens are left: {tokens:?}"))
}
