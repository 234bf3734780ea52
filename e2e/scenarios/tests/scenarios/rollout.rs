//! A new template: machines are replaced one by one.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use nodewright_api::MachineDeployment;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, waits};
use serde_json::json;

const REPLICAS: u32 = 4;

/// Whether a node has the taint and the annotations of a former template in a rollout.
fn is_marked(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == "deployment.machine.sapcloud.io/prefer-no-schedule") && is_kept(node)
}

/// Whether the autoscaler is kept from removing a node.
fn is_kept(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key("cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm"))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_class_rolls_all_machines_within_surge_and_unavailable() -> TestResult {
    let env = Environment::start("roll").await?;
    env.apply_class("small").await?;
    env.apply(&env.class("large").provider("size", "large")).await?;
    env.apply(&env.pool("a", REPLICAS)).await?;
    let replicas = REPLICAS as usize;
    let before = env.wait_for_running(replicas).await?;
    let (machines, nodes) = (env.machines().mark(), env.nodes().mark());
    let events = env.cloud().events(0).await?.last().map_or(0, |event| event.number);

    env.apply(&env.pool("a", REPLICAS).class("large")).await?;
    env.wait_for_machines("all machines to be of class large", |machines| {
        machines.len() == replicas
            && machines.values().all(|machine| waits::is_running(machine) && machine.class_name() == "large")
    })
    .await?;
    assert_eq!(env.machines().born_since(machines)?, replicas);
    assert_eq!(env.machines().gone_since(machines)?, replicas);

    for event in env.cloud().events(events).await? {
        ensure(event.live <= u64::from(REPLICAS) + 1, || format!("there were {} VMs: {event:?}", event.live))?;
    }
    env.machines().states(machines, |at, state| {
        let ready = state.values().filter(|machine| waits::is_running(machine)).count();
        ensure(ready >= replicas, || format!("at {at} {ready} machines were running"))
    })?;
    env.nodes().states(nodes, |at, state| {
        let open = |node: &k8s_openapi::api::core::v1::Node| {
            waits::is_ready(node) && node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true))
        };
        let ready = state.values().filter(|node| open(node)).count();
        ensure(ready >= replicas, || format!("at {at} {ready} nodes were ready and open to pods"))
    })?;
    let former: std::collections::BTreeSet<_> =
        before.values().filter_map(|machine| machine.node_name().map(str::to_owned)).collect();
    let mut marked = std::collections::BTreeSet::new();
    env.nodes().states(nodes, |at, state| {
        for (name, _) in state.iter().filter(|(_, node)| is_marked(node)) {
            ensure(former.contains(name), || format!("at {at} node {name} of the new template is marked"))?;
            marked.insert(name.clone());
        }
        Ok(())
    })?;
    ensure(marked == former, || format!("{marked:?} were marked of {former:?}"))?;
    // The autoscaler leaves those of the new template alone as well, until the rollout is over.
    let mut kept = std::collections::BTreeSet::new();
    env.nodes().states(nodes, |_, state| {
        kept.extend(state.iter().filter(|(_, node)| is_kept(node)).map(|(name, _)| name.clone()));
        Ok(())
    })?;
    let new = env.nodes().current().into_keys().filter(|name| kept.contains(name)).count();
    ensure(new > 0 && former.is_subset(&kept), || format!("{kept:?} were kept from the autoscaler"))?;
    env.wait_for("the annotations to go", async || Ok(!env.nodes().current().values().any(|node| is_kept(node))))
        .await?;
    let sets = env.table("mcs").await?;
    let mut desired = sets.column("DESIRED")?;
    desired.sort_unstable();
    assert_eq!(desired, ["0", &REPLICAS.to_string()], "the old set stays, empty, for a rollback");
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_taken_back_within_a_second_costs_no_machine() -> TestResult {
    let env = Environment::builder("undo").cloud_flags(["--boot-seconds=5"]).start().await?;
    env.apply_class("small").await?;
    env.apply_class("large").await?;
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}});
    let pool = || env.pool("a", 3).spec("strategy", strategy.clone());
    env.apply(&pool()).await?;
    let first = env.wait_for_running(3).await?;
    let mark = env.machines().mark();
    env.apply(&pool().class("large")).await?;
    env.wait_for_machines("a machine of the new template", |machines| machines.len() > 3).await?;
    // At once: a kubectl takes up to a second to start.
    let pools: Api<MachineDeployment> = Api::namespaced(env.client(), env.namespace());
    let former = json!({"spec": {"template": {"spec": {"class": {"name": "small"}}}}});
    pools.patch(pool().name(), &PatchParams::default(), &Patch::Merge(former)).await?;
    let left = env.wait_for_running(3).await?;
    ensure(left.keys().eq(first.keys()), || format!("{:?} are left of {:?}", left.keys(), first.keys()))?;
    // The rollout may make one machine beside the three; the second is for a controller that hears late of the change.
    let (born, gone) = (env.machines().born_since(mark)?, env.machines().gone_since(mark)?);
    env.wait_for("no node to be marked", async || Ok(!env.nodes().current().values().any(|node| is_marked(node))))
        .await?;
    ensure(born == gone && born <= 2, || format!("{born} machines were created and {gone} deleted"))?;
    env.end().await
}
