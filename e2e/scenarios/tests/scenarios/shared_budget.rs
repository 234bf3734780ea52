//! Node configuration and rollouts of machines share the disruption budget of a pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase, annotations, conditions, machine_config::DESIRED_CONFIG, taints};
use nodewright_e2e_scenarios::{
    Environment, Fault, TestResult, ensure,
    node_agent::{is_disrupted, said},
    node_updater::{Answer, NodeUpdater, is_cordoned},
    objects::{ENVIRONMENT_LABEL, Pool},
    waits::is_ready,
    worker_pool::pool,
};
use serde_json::{Value, json};

use crate::pool_rollout::{Fixture, WORKER, ZONE, ZONES};

const BUDGET: usize = 2;
/// How many machines each deployment has, and may have in addition.
const PER_ZONE: u32 = 4;
const SURGE: u32 = 3;
/// How long a node is silent that starts again: longer than the health timeout.
const SILENCE: Duration = Duration::from_secs(9);
const HEALTH_TIMEOUT: &str = "3s";
/// The reason of a machine that waits for the budget.
const WAITS: &str = "AwaitingDisruptionBudget";

fn deployment(env: &Environment, zone: &str) -> Pool {
    env.pool(zone, PER_ZONE).machine("healthTimeout", HEALTH_TIMEOUT)
}

/// Rolls all deployments to another class.
async fn roll(env: &Environment, strategy: &Value) -> TestResult {
    for zone in ZONES {
        let (labels, class) = (json!({ENVIRONMENT_LABEL: env.namespace(), WORKER: "", ZONE: zone}), format!("{zone}2"));
        env.apply(&env.class(&class).provider("labels", labels)).await?;
        env.apply(&deployment(env, zone).class(&class).spec("strategy", strategy.clone())).await?;
    }
    Ok(())
}

fn is_marked(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == taints::PREFER_NO_SCHEDULE)
}

/// Checks that at no moment more nodes were disrupted than these. One that joins does not count before it works.
fn check_budget(env: &Environment) -> TestResult {
    let mut known = BTreeSet::new();
    env.nodes().states(0, |at, nodes| {
        known.extend(nodes.values().filter(|node| !is_disrupted(node)).filter_map(|node| node.uid()));
        let is_known = |node: &Node| node.uid().is_some_and(|uid| known.contains(&uid));
        let disrupted: Vec<_> = nodes.values().filter(|node| is_known(node) && is_disrupted(node)).collect();
        let texts = || disrupted.iter().map(|node| described(node)).collect::<Vec<_>>();
        ensure(disrupted.len() <= BUDGET, || format!("at {at} more than {BUDGET}: {:#?}", texts()))
    })
}

/// What of a Node says why it is disrupted.
fn described(node: &Node) -> String {
    let (labels, annotations) = (node.labels(), node.annotations());
    let (ready, cordoned) = (is_ready(node), is_cordoned(node));
    format!("{}: ready {ready}, cordoned {cordoned}, labels {labels:?}, annotations {annotations:?}", node.name_any())
}

/// Checks that no node was given a configuration once a rollout was about to replace it.
fn check_leaving(env: &Environment) -> TestResult {
    let mut desired = BTreeMap::<String, String>::new();
    for change in env.nodes().changes()?.into_iter().filter(|change| is_marked(&change.object)) {
        let (node, now) = (&change.object, said(&change.object, DESIRED_CONFIG).to_owned());
        let before = desired.entry(node.uid().unwrap_or_default()).or_insert_with(|| now.clone());
        ensure(*before == now, || format!("{} is about to go, and was given {now}", node.name_any()))?;
    }
    Ok(())
}

/// The machines that were ever in a phase that means that one was replaced because of its health.
fn failed(env: &Environment) -> TestResult<Vec<String>> {
    let changes = env.machines().changes()?;
    let failed = changes.iter().filter(|change| *change.object.phase() == MachinePhase::Failed);
    Ok(failed.map(|change| change.object.name_any()).collect())
}

async fn claims(env: &Environment) -> TestResult<String> {
    Ok(pool(env).await?.annotations().get(annotations::DISRUPTIONS).cloned().unwrap_or_default())
}

/// A configuration and a class are rolled at the same time. The nodes start again for longer than the health timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_machines_amid_one_of_a_pool_keeps_the_budget() -> TestResult {
    let Some(fixture) = Fixture::start("both", 1, PER_ZONE, json!(BUDGET)).await? else { return Ok(()) };
    let env = &fixture.env;
    let first: BTreeSet<String> = env.machines().current().into_keys().collect();
    for zone in ZONES {
        env.apply(&deployment(env, zone).class(zone)).await?;
    }
    let is_set = |machine: &Machine| machine.spec.health_timeout.is_some();
    env.wait_for_machines("the health timeout", |all| all.values().all(|machine| is_set(machine))).await?;
    fixture.agents.by_default(Fault::NoReturn);
    fixture.retarget("second").await?;
    env.wait_for("nodes to start again", async || {
        Ok(env.nodes().current().values().filter(|node| !is_ready(node)).count() == BUDGET)
    })
    .await?;
    roll(env, &json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": 0}})).await?;
    env.wait_for("a machine to wait for the budget", async || {
        let drained =
            |machine: &Machine| machine.condition(conditions::machine::DRAINED).and_then(|it| it.reason.clone());
        let waits = |machine: &Machine| drained(machine).is_some_and(|reason| reason == WAITS);
        Ok(env.machines().current().values().any(|machine| waits(machine)))
    })
    .await?;
    tokio::time::sleep(SILENCE).await;
    fixture.agents.by_default(Fault::None);
    env.wait_for("the machines to be replaced", async || {
        let now = env.machines().current();
        Ok(now.len() == first.len() && now.keys().all(|name| !first.contains(name)))
    })
    .await?;
    fixture.wait_for_all().await?;
    check_budget(env)?;
    check_leaving(env)?;
    assert_eq!(failed(env)?, Vec::<String>::new(), "machines whose nodes started again");
    assert_eq!(env.machines().born_since(0)?, 2 * first.len());
    assert_eq!(claims(env).await?, "{}");
    fixture.end().await
}

/// The same, where the machines are updated in place.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_in_place_amid_a_rollout_of_a_pool_keeps_the_budget() -> TestResult {
    let Some(fixture) = Fixture::start("inplace", 1, PER_ZONE, json!(BUDGET)).await? else { return Ok(()) };
    let env = &fixture.env;
    let first: BTreeSet<String> = env.machines().current().into_keys().collect();
    let updater = NodeUpdater::start(env).await?;
    updater.by_default(Answer::Reboot);
    fixture.retarget("second").await?;
    let bounds = json!({"maxSurge": 0, "maxUnavailable": SURGE, "orchestrationType": "Auto"});
    roll(env, &json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds})).await?;
    let progress = "get machinedeployments -o jsonpath={.items[*].status.updatedReplicas}";
    let all = [PER_ZONE.to_string(), PER_ZONE.to_string(), PER_ZONE.to_string()].join(" ");
    env.wait_for("the machines to be updated", async || Ok(env.kubectl(progress).await? == all)).await?;
    fixture.wait_for_all().await?;
    check_budget(env)?;
    let now: BTreeSet<String> = env.machines().current().into_keys().collect();
    assert_eq!(now, first, "all machines stay");
    assert_eq!(failed(env)?, Vec::<String>::new());
    let mut asked = updater.updates()?;
    asked.sort();
    assert_eq!(asked.len(), first.len(), "{asked:?}");
    assert_eq!(claims(env).await?, "{}");
    fixture.end().await
}
