//! A pool moves its nodes to another configuration, within its budget.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nodewright_api::{
    annotations,
    conditions::machine_config_pool as conditions,
    machine_config::{CURRENT_CONFIG, DESIRED_CONFIG},
    taints,
};
use nodewright_e2e_lab::{
    control_plane::audit::{AuditLog, Entry},
    devcluster::ManagerProcess,
};
use nodewright_e2e_scenarios::{
    Cluster, Environment, Failure, Fault, History, NodeAgents, TestResult, clusters, ensure,
    node_agent::{FAILURE, is_disrupted, said},
    objects::ENVIRONMENT_LABEL,
    requests::AGENT,
    skip_on_external_cluster,
    worker_pool::{self, check_budget, is, message, pool, target},
};
use serde_json::{Value, json};

use crate::{
    drains::App,
    machine_configs::{UNELECTED, manager},
};

pub(crate) const ROLE: &str = "machineconfiguration.openshift.io/role";
pub(crate) const WORKER: &str = "node-role.kubernetes.io/worker";
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
pub(crate) const ZONES: [&str; 3] = ["a", "b", "c"];
/// Writes of the manager to move a Node: the taint, the target, the cordon, and the answers to its agent.
const TO_MOVE: usize = 5;
/// Writes of the pool for each of its nodes.
const OF_POOL: usize = 3;
/// Nodes in each zone, and how many of all may be unavailable.
const PER_ZONE: u32 = 10;
const BUDGET: usize = 3;
const WHY: &str = "the kinds are cluster-scoped";
/// How often managers are killed in a rollout.
const KILLS: usize = 10;

/// Nodes in three zones, the agents on them, and the pool `worker`.
pub(crate) struct Fixture {
    pub(crate) env: Environment,
    pub(crate) agents: NodeAgents,
    managers: Vec<ManagerProcess>,
    nodes: usize,
}

impl Fixture {
    /// Starts it with this number of managers, and of nodes in each zone, which run no Pods. All run the pool's first target.
    pub(crate) async fn start(name: &str, managers: usize, per_zone: u32, budget: Value) -> TestResult<Option<Self>> {
        if skip_on_external_cluster(name, WHY) {
            return Ok(None);
        }
        let env = Environment::builder(name).for_node_configuration().without_manager().start().await?;
        Ok(Some(Box::pin(Self::set_up(env, managers, per_zone, budget)).await?))
    }

    /// The same on a control plane of its own, which schedules Pods.
    async fn start_with_pods(name: &str, managers: usize, per_zone: u32, budget: Value) -> TestResult<Option<Self>> {
        if skip_on_external_cluster(name, WHY) {
            return Ok(None);
        }
        let cluster = clusters::with_node_configuration(Cluster::options()).await?;
        let env = Environment::builder(name).without_manager().on(&cluster).start().await?;
        Ok(Some(Box::pin(Self::set_up(env, managers, per_zone, budget)).await?))
    }

    async fn set_up(env: Environment, managers: usize, per_zone: u32, budget: Value) -> TestResult<Self> {
        let mut fixture = Vec::new();
        for at in 0..managers {
            let flags: &[&str] = if managers > 1 { &[UNELECTED] } else { &[] };
            fixture.push(manager(&env, &format!("manager-{at}"), flags).await?);
        }
        for zone in ZONES {
            let labels = json!({ENVIRONMENT_LABEL: env.namespace(), WORKER: "", ZONE: zone});
            env.apply(&env.class(zone).provider("labels", labels)).await?;
            env.apply(&env.pool(zone, per_zone).class(zone)).await?;
        }
        let selector = json!({"matchLabels": {WORKER: ""}});
        let spec = json!({"nodeSelector": selector, "machineConfigSelector": {"matchLabels": {ROLE: "worker"}}, "maxUnavailable": budget});
        env.apply(&json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": {"name": "worker"}, "spec": spec}))
            .await?;
        env.apply(&motd("first")).await?;
        let nodes = per_zone as usize * ZONES.len();
        env.wait_for_running(nodes).await?;
        env.wait_for("the first target", async || Ok(!target(&env).await?.is_empty())).await?;
        let agents = NodeAgents::start(&env, &target(&env).await?).await?;
        let fixture = Self { env, agents, managers: fixture, nodes };
        fixture.wait_for_all().await?;
        Ok(fixture)
    }

    /// Has the pool render something else; returns the name of its new target.
    pub(crate) async fn retarget(&self, text: &str) -> TestResult<String> {
        worker_pool::retarget(&self.env, &motd(text)).await
    }

    /// Waits until all nodes run the target, and the pool says so.
    pub(crate) async fn wait_for_all(&self) -> TestResult {
        worker_pool::wait_for_all(&self.env, self.nodes).await
    }

    /// Kills one manager after the other, this many times, and starts it again. It does not wait for the lease of the one before.
    async fn kill_managers(&mut self, kills: usize) -> TestResult {
        for round in 0..kills {
            let (at, pause) = (round % self.managers.len(), 300 + 170 * round);
            tokio::time::sleep(Duration::from_millis(u64::try_from(pause)?)).await;
            self.managers[at].kill_9();
            self.managers[at] = manager(&self.env, &format!("manager-{at}-{round}"), &[UNELECTED]).await?;
        }
        Ok(())
    }

    /// Checks that at no moment since the mark more nodes were disrupted than these.
    fn check_budget(&self, mark: usize, budget: usize) -> TestResult {
        check_budget(&self.env, mark, budget)
    }

    /// Checks that nothing of a rollout is left on the nodes.
    pub(crate) fn check_clean(&self) -> TestResult {
        for node in self.env.nodes().current().values() {
            let spec = node.spec.clone().unwrap_or_default();
            let is_tainted = spec.taints.iter().flatten().any(|taint| taint.key == taints::UPDATE_IN_PROGRESS);
            // Of a node that was never drained it is known that it was open.
            let is_recorded = !["", "open"].contains(&said(node, annotations::CONFIG_DRAIN));
            let is_left = is_tainted || is_recorded || spec.unschedulable == Some(true);
            ensure(!is_left, || format!("{}: {spec:?} {:?}", node.name_any(), node.annotations()))?;
        }
        Ok(())
    }

    pub(crate) async fn end(self) -> TestResult {
        for mut manager in self.managers {
            manager.check()?;
        }
        drop(self.agents);
        self.env.end_unevaluated().await
    }
}

/// A MachineConfig of the pool.
pub(crate) fn motd(text: &str) -> Value {
    let files = json!([{"path": "/etc/motd", "contents": {"source": format!("data:,{text}")}}]);
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "00-worker", "labels": {ROLE: "worker"}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}}})
}

/// The nodes in the order in which they were given a configuration since the mark.
pub(crate) fn given(nodes: &History<Node>, mark: usize, config: &str) -> TestResult<Vec<Node>> {
    let (mut seen, mut order) = (BTreeSet::new(), vec![]);
    for change in nodes.changes()?.into_iter().skip(mark) {
        if said(&change.object, DESIRED_CONFIG) == config && seen.insert(change.object.name_any()) {
            order.push(change.object.as_ref().clone());
        }
    }
    Ok(order)
}

/// The managers' writes of nodes, pods and pools since a position in the audit log.
async fn writes(env: &Environment, log: &mut AuditLog) -> TestResult<Vec<Entry>> {
    let mut read = env.read_audit(log).await?;
    read.retain(|it| it.is_write() && it.user_agent.starts_with(AGENT));
    Ok(read)
}

/// Moves all nodes to another configuration while they run pods, and kills a manager this many times in between. Checks the budget of the
/// pool, that of the pods, and that as little is written as it takes. Returns the nodes in the order in which they were moved.
async fn move_nodes_with_pods(fixture: &mut Fixture, kills: usize) -> TestResult<Vec<Node>> {
    let env = &fixture.env;
    let web = App { name: "web", replicas: 4 * fixture.nodes, unavailable: fixture.nodes * 2 / 5 };
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    let items = [web.budget(), web.deployment(env, ENVIRONMENT_LABEL, env.namespace())];
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    env.wait_for("all pods to run", async || Ok(web.available(&pods.current()) == web.replicas)).await?;
    let plane = env.cluster().control_plane().ok_or_else(|| Failure::new("there is no audit log"))?;
    let mut log = AuditLog::from_now(plane.audit_log())?;
    let (mark, pod_mark) = (env.nodes().mark(), pods.mark());

    let config = fixture.retarget("second").await?;
    fixture.kill_managers(kills).await?;
    fixture.wait_for_all().await?;
    fixture.check_budget(mark, BUDGET)?;
    fixture.check_clean()?;
    pods.states(pod_mark, |at, state| {
        let (available, least) = (web.available(state), web.replicas - web.unavailable);
        ensure(available >= least, || format!("at {at} only {available} pods were available"))
    })?;
    check_writes(&writes(&fixture.env, &mut log).await?, fixture)?;
    given(fixture.env.nodes(), mark, &config)
}

/// Checks the writes of managers that have moved all nodes with their pods. What was refused has written nothing. Of two managers at once
/// each may evict a pod: of a pod that is leaving, an API server takes any number of evictions.
fn check_writes(writes: &[Entry], fixture: &Fixture) -> TestResult {
    let (nodes, managers) = (fixture.nodes, fixture.managers.len());
    let counts = |resource: &str, subresource: &str| {
        let mut counts = BTreeMap::<&str, usize>::new();
        let are = writes.iter().filter(|it| it.resource == resource && it.code < 300);
        for entry in are.filter(|it| subresource.is_empty() || it.subresource == subresource) {
            *counts.entry(&entry.name).or_default() += 1;
        }
        counts
    };
    let (by_node, by_pod) = (counts("nodes", ""), counts("pods", "eviction"));
    let of_pool: usize = counts("machineconfigpools", "").values().sum();
    println!("writes by node: {by_node:?}; of the pool: {of_pool}; pods that were evicted: {}", by_pod.len());
    ensure(by_node.values().all(|count| *count <= TO_MOVE), || format!("writes by node: {by_node:?}"))?;
    ensure(of_pool <= OF_POOL * nodes, || format!("{of_pool} writes of the pool"))?;
    let is_once = !by_pod.is_empty() && by_pod.values().all(|count| *count <= managers);
    ensure(is_once, || format!("evictions by pod: {by_pod:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_moves_its_nodes_zone_by_zone_within_its_budget() -> TestResult {
    zone_by_zone("roll", 3).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn a_pool_of_thirty_moves_its_nodes_zone_by_zone_within_its_budget() -> TestResult {
    zone_by_zone("roll-thirty", PER_ZONE).await
}

async fn zone_by_zone(name: &str, per_zone: u32) -> TestResult {
    let Some(mut fixture) = Fixture::start_with_pods(name, 1, per_zone, json!(BUDGET)).await? else { return Ok(()) };
    let order = move_nodes_with_pods(&mut fixture, 0).await?;
    let zones: Vec<_> = order.iter().map(|node| node.labels()[ZONE].clone()).collect();
    assert!(zones.len() == fixture.nodes && zones.is_sorted(), "{zones:?}");
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn a_manager_that_is_killed_again_and_again_moves_the_nodes_of_a_pool() -> TestResult {
    let Some(mut fixture) = Fixture::start_with_pods("once", 1, PER_ZONE, json!(BUDGET)).await? else { return Ok(()) };
    move_nodes_with_pods(&mut fixture, KILLS).await?;
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn two_managers_at_once_that_are_killed_again_and_again_keep_the_budgets() -> TestResult {
    let Some(mut fixture) = Fixture::start_with_pods("twice", 2, PER_ZONE, json!("10%")).await? else { return Ok(()) };
    move_nodes_with_pods(&mut fixture, KILLS).await?;
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_fails_on_its_first_node_is_taken_back() -> TestResult {
    let Some(fixture) = Fixture::start("back", 1, 1, json!(1)).await? else { return Ok(()) };
    let env = &fixture.env;
    let good = target(env).await?;
    let bad = "rendered-worker-";
    for after_drain in [false, true] {
        let mark = env.nodes().mark();
        // Its name is known once it is the target.
        fixture.agents.by_default(Fault::NeverStart);
        let config = fixture.retarget(&format!("bad-{after_drain}")).await?;
        assert!(config.starts_with(bad));
        let fault =
            if after_drain { Fault::FailAfterDrain(config.clone()) } else { Fault::FailBeforeDrain(config.clone()) };
        fixture.agents.by_default(fault);
        env.wait_for("the pool to name the node that has failed", async || {
            let (degraded, text) =
                (pool(env).await?.status.unwrap_or_default(), message(env, conditions::NODE_DEGRADED).await?);
            Ok(is(&degraded, conditions::NODE_DEGRADED)
                && is(&degraded, conditions::DEGRADED)
                && text.contains(FAILURE))
        })
        .await?;
        assert_eq!(given(env.nodes(), mark, &config)?.len(), 1, "the others keep what they have");
        assert_eq!(fixture.retarget("first").await?, good);
        fixture.wait_for_all().await?;
        fixture.check_budget(mark, 1)?;
        fixture.check_clean()?;
        fixture.agents.by_default(Fault::None);
    }
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_users_do_to_nodes_is_not_undone_by_a_pool() -> TestResult {
    let Some(fixture) = Fixture::start("users", 1, 1, json!(1)).await? else { return Ok(()) };
    let env = &fixture.env;
    let names: Vec<_> = env.nodes().current().into_keys().collect();
    let mark = env.nodes().mark();
    // A node that is cordoned takes the budget, and is never updated.
    env.kubectl(&format!("cordon {}", names[0])).await?;
    env.wait_for("the pool to see it", async || {
        Ok(pool(env).await?.status.unwrap_or_default().unavailable_machine_count == 1)
    })
    .await?;
    let config = fixture.retarget("second").await?;
    env.wait_for("the pool to say why nothing moves", async || {
        let text = message(env, conditions::UPDATING).await?;
        Ok(text.contains(&format!("node {} is left out: it is cordoned", names[0]))
            && text.contains("at most 1 may be unavailable"))
    })
    .await?;
    assert!(given(env.nodes(), mark, &config)?.is_empty());
    // Paused, nothing moves although it may.
    env.kubectl("patch machineconfigpool worker --type=merge --patch={\"spec\":{\"paused\":true}}").await?;
    env.wait_for("the pause", async || Ok(message(env, conditions::UPDATING).await?.starts_with("Pool is paused")))
        .await?;
    env.kubectl(&format!("uncordon {}", names[0])).await?;
    env.wait_for("the pool to see it", async || {
        Ok(pool(env).await?.status.unwrap_or_default().unavailable_machine_count == 0)
    })
    .await?;
    // Somebody chooses a node by hand.
    env.kubectl(&format!("annotate node {} --overwrite {DESIRED_CONFIG}={config}", names[1])).await?;
    let is_moved = |name: &str| {
        env.nodes().current().get(name).is_some_and(|node| said(node, CURRENT_CONFIG) == config && !is_disrupted(node))
    };
    env.wait_for("the chosen node", async || Ok(is_moved(&names[1]))).await?;
    assert_eq!(given(env.nodes(), mark, &config)?.len(), 1);
    env.kubectl("patch machineconfigpool worker --type=merge --patch={\"spec\":{\"paused\":false}}").await?;
    fixture.wait_for_all().await?;
    fixture.check_budget(mark, 1)?;
    fixture.check_clean()?;
    fixture.end().await
}

/// As `kubectl replace` does. The pool reads its nodes once more, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_claims_that_is_removed_again_and_again_lets_no_more_nodes_move() -> TestResult {
    let Some(fixture) = Fixture::start("lost", 1, 2, json!(1)).await? else { return Ok(()) };
    let env = &fixture.env;
    let mark = env.nodes().mark();
    fixture.retarget("second").await?;
    let claims = async || Ok::<_, Failure>(pool(env).await?.annotations().get(annotations::DISRUPTIONS).cloned());
    for _ in 0..fixture.nodes {
        env.wait_for("a claim", async || Ok(claims().await?.is_some_and(|claims| claims != "{}"))).await?;
        env.kubectl(&format!("annotate machineconfigpool worker {}-", annotations::DISRUPTIONS)).await?;
        env.wait_for("another list", async || Ok(claims().await?.is_some())).await?;
    }
    fixture.wait_for_all().await?;
    fixture.check_budget(mark, 1)?;
    fixture.check_clean()?;
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_get_on_is_named_and_blocks_no_other() -> TestResult {
    let Some(fixture) = Fixture::start("stuck", 1, 1, json!(2)).await? else { return Ok(()) };
    let env = &fixture.env;
    let node = env.nodes().current().into_keys().next().unwrap_or_default();
    let failed = format!("node {node} has failed: {FAILURE}");
    let updating = |what: &str| format!("node {node} {what} (chosen at ");
    let any = String::new;
    for (round, (fault, text)) in [
        (Fault::NeverStart, updating("has yet to begin")),
        (Fault::Hang, updating("is being updated")),
        (Fault::Unreconcilable(any()), failed.clone()),
        (Fault::FailBeforeDrain(any()), failed.clone()),
        (Fault::FailAfterDrain(any()), failed.clone()),
        (Fault::NoReturn, updating("is being updated, and not ready")),
        (Fault::Drift, failed.clone()),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = env.nodes().mark();
        fixture.agents.on(&node, fault.clone());
        let config = fixture.retarget(&format!("round-{round}")).await?;
        env.wait_for(&format!("the pool to say {text:?}, with {fault:?}"), async || {
            Ok(message(env, conditions::UPDATING).await?.contains(&text))
        })
        .await?;
        env.wait_for("the others to be updated", async || {
            let nodes = env.nodes().current();
            let done = nodes.values().filter(|it| said(it, CURRENT_CONFIG) == config && !is_disrupted(it)).count();
            Ok(done == fixture.nodes - 1)
        })
        .await?;
        fixture.agents.on(&node, Fault::None);
        fixture.wait_for_all().await?;
        // A node that drifts once it is done comes on top of what the pool has begun meanwhile.
        fixture.check_budget(mark, if fault == Fault::Drift { 3 } else { 2 })?;
        fixture.check_clean()?;
    }
    fixture.end().await
}
