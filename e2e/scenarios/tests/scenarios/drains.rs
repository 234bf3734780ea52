//! Many nodes that are drained at once: disruption budgets, the limit of evictions, and drains that cannot end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Pod, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use nodewright_api::{Machine, conditions};
use nodewright_e2e_cloud::disks::Disks;
use nodewright_e2e_lab::control_plane::{
    Component,
    audit::{Entry, most_at_once},
    testing::skip_on_external_cluster,
};
use nodewright_e2e_scenarios::{
    Environment, History, Manifest, TestResult, clusters, ensure, history::State, objects::ENVIRONMENT_LABEL,
};
use serde_json::{Value, json};

use crate::{
    selfhealing::forget_node,
    why::{planned_apply, succeeds},
};

const APP_LABEL: &str = "app";
/// The label of nodes with the name of their pool.
const NODE_LABEL: &str = "e2e.nodewright.dev/pool";
/// How many nodes are drained within budgets.
const NODES: usize = 4;
/// The limit of evictions, which is reached.
const EVICTIONS: usize = 2;
const EVICTIONS_FLAG: &str = "--eviction-concurrency=2";
/// How many drains cannot end.
const STUCK: usize = 50;
/// How many other machines there are meanwhile.
const OTHERS: usize = 5;

/// Equal pods, of which so many may be unavailable.
pub(crate) struct App {
    pub(crate) name: &'static str,
    pub(crate) replicas: usize,
    pub(crate) unavailable: usize,
}

const WEB: App = App { name: "web", replicas: 20, unavailable: 5 };
const STORE: App = App { name: "store", replicas: 6, unavailable: 2 };

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_drained_at_once_keep_within_budgets_and_the_limit_of_evictions() -> TestResult {
    let env = Environment::builder("drains").manager_flags([EVICTIONS_FLAG]).start().await?;
    let disks = Disks::start(env.target_client(), env.namespace(), Duration::from_millis(500));
    env.apply_class("small").await?;
    env.apply(&env.pool("a", u32::try_from(NODES)?)).await?;
    env.wait_for_running(NODES).await?;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    let mut items = disks.objects(STORE.name, STORE.replicas);
    items.extend([WEB.budget(), WEB.deployment(&env, ENVIRONMENT_LABEL, env.namespace())]);
    items.extend([STORE.budget(), STORE.stateful_set(&env)]);
    env.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items})).await?;
    let all_run = || [WEB, STORE].iter().all(|app| app.available(&pods.current()) == app.replicas);
    env.wait_for("all pods to run", async || Ok(all_run())).await?;
    env.apply(&env.pool("b", u32::try_from(NODES)?)).await?;
    env.wait_for_running(2 * NODES).await?;
    let mark = pods.mark();
    let mut turns = vec![];
    for machine in env.machines().current().into_keys() {
        turns.push(in_turns(&planned_drain(&env, &machine).await?));
    }
    let turns = turns.into_iter().max_by_key(Vec::len).unwrap_or_default();
    ensure(turns.len() > 1, || "no node has two pods with volumes".to_owned())?;
    let has_log = env.cluster().control_plane().is_some();
    let before = if has_log { env.requests().await?.entries().len() } else { 0 };

    env.scale("a", 0).await?;
    env.wait_for_running(NODES).await?;
    env.wait_for("all pods to run elsewhere", async || Ok(all_run())).await?;
    env.wait_for("all VMs to go", async || Ok(env.vms().await?.len() == NODES)).await?;
    for app in [WEB, STORE] {
        pods.states(mark, |at, state| {
            let (available, least) = (app.available(state), app.replicas - app.unavailable);
            ensure(available >= least, || format!("at {at} only {available} pods of {} were available", app.name))
        })?;
    }
    if has_log {
        let requests = env.requests_since(before).await?;
        let evictions = || requests.entries().iter().filter(|entry| is_eviction(entry));
        let (granted, at_once) = (evictions().filter(|entry| entry.code == 201).count(), most_at_once(evictions()));
        println!("{granted} evictions, {at_once:?} at once");
        assert_eq!(granted, WEB.replicas + STORE.replicas, "each pod was evicted once\n{requests}");
        ensure(at_once.is_some_and(|most| most <= EVICTIONS), || {
            let times = evictions().map(|it| format!("{} to {}: {} {}", it.received, it.answered, it.name, it.code));
            format!("{at_once:?} evictions were in progress at once\n{}", times.collect::<Vec<_>>().join("\n"))
        })?;
        // One that its budget holds is asked for again, and another one may leave before it.
        let mut asked: Vec<String> = vec![];
        for Entry { name, .. } in evictions().filter(|entry| turns.contains(&entry.name)) {
            if !asked.contains(name) {
                asked.push(name.clone());
            }
        }
        assert_eq!(asked, turns, "pods with volumes are asked for in the order of the plan\n{requests}");
    }
    disks.clean(env.target_client()).await?;
    env.end().await
}

/// What the plugin says of the drain of a machine's node.
async fn planned_drain(env: &Environment, machine: &str) -> TestResult<Value> {
    Ok(serde_json::from_str(&succeeds(env, &format!("plan drain machine/{machine} -o json")).await?)?)
}

/// The pods that leave one by one, in their order.
fn in_turns(planned: &Value) -> Vec<String> {
    let leaving = planned["leaving"].as_array().into_iter().flatten();
    let with_volumes = leaving.filter(|it| it["volumes"].as_array().is_some_and(|volumes| !volumes.is_empty()));
    let mut pods: Vec<_> =
        with_volumes.map(|it| (it["turn"].as_u64(), it["pod"].as_str().unwrap_or_default())).collect();
    pods.sort_unstable();
    pods.into_iter().map(|(_, pod)| pod.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_that_cannot_end_say_why_delay_no_other_machine_and_end_at_their_timeout() -> TestResult {
    let env = Environment::builder("stuck").mostly_waiting().start().await?;
    for pool in ["a", "b"] {
        let labels = json!({ENVIRONMENT_LABEL: env.namespace(), NODE_LABEL: pool});
        env.apply(&env.class(pool).provider("labels", labels)).await?;
    }
    env.apply(&env.pool("a", u32::try_from(STUCK)?).class("a").machine("drainTimeout", "1h")).await?;
    env.apply(&env.pool("b", 0).class("b")).await?;
    env.wait_for_running(STUCK).await?;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    let (stuck, free) = (
        App { name: "stuck", replicas: STUCK, unavailable: 0 },
        App { name: "free", replicas: OTHERS, unavailable: OTHERS },
    );
    env.apply(&stuck.budget()).await?;
    for (app, pool) in [(&stuck, "a"), (&free, "b")] {
        env.apply(&app.deployment(&env, NODE_LABEL, pool)).await?;
    }
    env.wait_for("a pod on each node", async || Ok(stuck.available(&pods.current()) == STUCK)).await?;
    let alone = Others { env: &env, pods: &pods, app: &free, beside: STUCK }.come_and_go().await?;

    let prefix = env.pool("a", 0).name().to_owned();
    let drained = env.machines().current().into_keys().next().unwrap_or_default();
    holds_of_all(&env).await?;
    let planned = planned_drain(&env, &drained).await?;
    let held = planned["leaving"][0]["held"].as_str().unwrap_or_default();
    ensure(held.contains("allows no disruption although all"), || planned.to_string())?;
    env.scale("a", 0).await?;
    let are_all_stuck = |machines: &State<Machine>| {
        let stuck = machines.values().filter(|it| it.name_any().starts_with(&prefix) && names_its_blocker(it)).count();
        stuck == STUCK
    };
    let machines = env.wait_for_machines("all drains to name what they wait for", are_all_stuck).await?;
    let drain = machines.get(&drained).and_then(|machine| machine.condition(conditions::machine::DRAINED));
    let says = drain.and_then(|it| it.message.as_deref()).unwrap_or_default();
    ensure(says.contains(held), || format!("planned {held}, and then {drain:?}"))?;
    let mark = env.machines().mark();
    let beside = Others { env: &env, pods: &pods, app: &free, beside: STUCK }.come_and_go().await?;
    assert_eq!(env.machines().gone_since(mark)?, OTHERS, "only the others have gone");
    assert_eq!(stuck.available(&pods.current()), STUCK, "no pod has left");
    let ((alone, alone_took), (beside, beside_took)) = (alone, beside);
    println!("{OTHERS} machines alone: {alone} writes in {alone_took:.1?}");
    println!("beside {STUCK} drains that cannot end: {beside} writes in {beside_took:.1?}");
    ensure(beside <= alone + 2 * OTHERS, || format!("{beside} writes beside drains that cannot end, {alone} without"))?;

    let machines: Api<Machine> = Api::namespaced(env.client(), env.namespace());
    let (over, parameters) = (Patch::Merge(json!({"spec": {"drainTimeout": "1s"}})), PatchParams::default());
    let names: BTreeSet<_> = env.machines().current().into_keys().collect();
    try_join_all(names.iter().map(|name| machines.patch(name, &parameters, &over))).await?;
    env.wait_for_nothing().await?;
    env.wait_for("an event for each drain that was forced", async || Ok(forced_drains(&env).await? == STUCK)).await?;
    env.end().await
}

/// A plan of the end of all machines names the budget that holds their pods.
async fn holds_of_all(env: &Environment) -> TestResult {
    let none = env.pool("a", 0).class("a").machine("drainTimeout", "1h");
    let holds = planned_apply(env, &[&none.manifest()]).await?["holds"].take();
    let held = holds["pods"].as_array().map_or(0, Vec::len);
    ensure((&holds["drained"], holds["examined"].as_u64()) == (&STUCK.into(), Some(held as u64)) && held > 0, || {
        holds.to_string()
    })?;
    let says = holds["pods"][0]["pods"][0]["reason"].as_str().unwrap_or_default();
    ensure(says.contains("allows no disruption although all"), || holds.to_string())
}

/// How many events say that a drain is forced by its timeout: each once, and of one Pod.
async fn forced_drains(env: &Environment) -> TestResult<usize> {
    let events: Api<Event> = Api::namespaced(env.client(), env.namespace());
    let events = events.list(&ListParams::default().fields("reason=DrainForced")).await?.items;
    for event in &events {
        let message = event.message.as_deref().unwrap_or_default();
        let text = "the drain timeout is over: deleting without grace, ignoring disruption budgets, 1 pod: ";
        let is_one = message.starts_with(text) && event.count.is_none_or(|count| count == 1);
        ensure(is_one, || format!("{message}: {:?} times", event.count))?;
    }
    Ok(events.len())
}

/// With the label, a deletion waits for nothing of the target cluster; at the drain timeout, not for long.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn drains_that_have_begun_end_by_label_or_timeout_while_the_target_cluster_is_away() -> TestResult {
    const BY_LABEL: usize = 6;
    const ALL: usize = 10;
    if skip_on_external_cluster("begun", "there is no second control plane to break") {
        return Ok(());
    }
    let target = clusters::exclusive().await?;
    let Some(plane) = target.control_plane() else { return Ok(()) };
    let env = Environment::builder("begun").cloud_flags(["--delete-seconds=0"]).with_target(&target);
    let env = env.mostly_waiting().start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", u32::try_from(ALL)?).machine("drainTimeout", "1h")).await?;
    let before = env.wait_for_running(ALL).await?;
    held_by_a_budget(&env, &before).await?;
    env.scale("a", 0).await?;
    let is_draining = |machine: &Machine| {
        let drained = machine.condition(conditions::machine::DRAINED).and_then(|drained| drained.message.as_deref());
        drained.is_some_and(|message| message.contains("disruption budget stuck"))
    };
    env.wait_for_machines("all drains to name what they wait for", |machines| {
        machines.values().filter(|machine| is_draining(machine)).count() == ALL
    })
    .await?;

    plane.stop(Component::ApiServer)?;
    let machines: Api<Machine> = Api::namespaced(env.client(), env.namespace());
    let labelled: BTreeSet<_> = before.keys().take(BY_LABEL).cloned().collect();
    let (label, over) =
        (json!({"metadata": {"labels": {"force-deletion": "true"}}}), json!({"spec": {"drainTimeout": "1s"}}));
    for name in before.keys() {
        let patch = if labelled.contains(name) { &label } else { &over };
        machines.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    env.wait_for_machines("the machines with the label to go", |machines| {
        labelled.iter().all(|name| !machines.contains_key(name))
    })
    .await?;
    env.wait_for("all VMs to go", async || Ok(env.vms().await?.is_empty())).await?;

    plane.start_again(Component::ApiServer).await?;
    env.wait_for_machines("the other machines to go", BTreeMap::is_empty).await?;
    for machine in labelled.iter().filter_map(|name| before.get(name)) {
        forget_node(&env, machine).await?;
    }
    env.wait_for_nothing().await?;
    env.end().await
}

/// Pods on the machines' Nodes that no eviction may take: no controller says how many of them the budget can do without.
async fn held_by_a_budget(env: &Environment, machines: &State<Machine>) -> TestResult {
    let client = env.target_client();
    // The controllers that would make them are not there either.
    let apply = PatchParams::apply("e2e");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": env.namespace()}});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    Api::<Namespace>::all(client.clone()).patch(env.namespace(), &apply, &Patch::Apply(namespace)).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), env.namespace());
    accounts.patch("default", &apply, &Patch::Apply(account)).await?;
    let budget = App { name: "stuck", replicas: 0, unavailable: 0 };
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), env.namespace());
    budgets.create(&PostParams::default(), &serde_json::from_value(budget.budget())?).await?;
    let pods: Api<Pod> = Api::namespaced(client, env.namespace());
    for node in machines.values().filter_map(|machine| machine.node_name()) {
        let pod = json!({
            "metadata": {"name": node, "labels": {APP_LABEL: budget.name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    }
    // The budget does not protect a Pod that is yet to run.
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    env.wait_for("all pods to run", async || Ok(pods.list(&ListParams::default()).await?.iter().all(runs))).await
}

/// Machines that come and go while others stay.
struct Others<'a> {
    env: &'a Environment,
    pods: &'a History<Pod>,
    app: &'a App,
    beside: usize,
}

impl Others<'_> {
    /// Creates the machines, waits for their pods, and deletes them. Returns how many writes and how much time that took.
    async fn come_and_go(&self) -> TestResult<(usize, Duration)> {
        let Self { env, pods, app, beside } = *self;
        let begun = Instant::now();
        let has_log = env.cluster().control_plane().is_some();
        let before = if has_log { env.requests().await?.entries().len() } else { 0 };
        let prefix = env.pool("b", 0).name().to_owned();
        let others = |machines: &State<Machine>| -> Vec<_> {
            machines.values().filter(|machine| machine.name_any().starts_with(&prefix)).cloned().collect()
        };
        env.scale("b", u32::try_from(OTHERS)?).await?;
        env.wait_for("pods on the other machines", async || Ok(app.available(&pods.current()) == OTHERS)).await?;
        env.wait_for_machines("the other machines to run", |machines| {
            let others = others(machines);
            others.len() == OTHERS && others.iter().all(|machine| nodewright_e2e_scenarios::waits::is_running(machine))
        })
        .await?;
        env.scale("b", 0).await?;
        env.wait_for_machines("the other machines to go", |machines| others(machines).is_empty()).await?;
        ensure(env.machines().current().len() == beside, || "a machine of the first pool has gone".to_owned())?;
        let took = begun.elapsed();
        if !has_log {
            return Ok((0, took));
        }
        let requests = env.requests_since(before).await?;
        let writes = requests.writes_for_machines().iter().filter(|entry| entry.name.starts_with(&prefix)).count();
        Ok((writes, took))
    }
}

/// Whether a machine says which disruption budget its drain waits for, and that this budget can never allow the eviction.
fn names_its_blocker(machine: &Machine) -> bool {
    let condition = machine.condition(conditions::machine::DRAINED).filter(|condition| condition.status == "False");
    let message = condition.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
    message.contains("disruption budget stuck allows no disruption")
        && message.contains("; pods that are left are deleted without grace at 20")
}

fn is_eviction(entry: &Entry) -> bool {
    entry.resource == "pods" && entry.subresource == "eviction"
}

impl App {
    pub(crate) fn available(&self, pods: &State<Pod>) -> usize {
        let is_available = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
            let is_ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            is_ready && pod.metadata.deletion_timestamp.is_none()
        };
        let is_of = |pod: &Pod| pod.labels().get(APP_LABEL).is_some_and(|app| app == self.name);
        pods.values().filter(|pod| is_of(pod) && is_available(pod)).count()
    }

    pub(crate) fn budget(&self) -> Value {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": self.name},
            "spec": {"maxUnavailable": self.unavailable, "selector": {"matchLabels": {APP_LABEL: self.name}}},
        })
    }

    /// Pods on the nodes with a label.
    pub(crate) fn deployment(&self, env: &Environment, label: &str, value: &str) -> Value {
        let selector = json!({ENVIRONMENT_LABEL: env.namespace(), label: value});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name}, "spec": {
            "replicas": self.replicas, "selector": {"matchLabels": {APP_LABEL: self.name}},
            "template": self.template(&selector),
        }})
    }

    fn stateful_set(&self, env: &Environment) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": self.name}, "spec": {
            "serviceName": self.name, "replicas": self.replicas, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {APP_LABEL: self.name}},
            "template": self.template(&json!({ENVIRONMENT_LABEL: env.namespace()})),
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}},
            }}],
        }})
    }

    /// No node gets two pods more than another one. If no pod may leave, nodes count although pods cannot go there yet.
    fn template(&self, selector: &Value) -> Value {
        let taints = if self.unavailable == 0 { "Ignore" } else { "Honor" };
        json!({
            "metadata": {"labels": {APP_LABEL: self.name}},
            "spec": {
                "nodeSelector": selector,
                "terminationGracePeriodSeconds": 5,
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                    "nodeTaintsPolicy": taints, "labelSelector": {"matchLabels": {APP_LABEL: self.name}},
                }],
                "containers": [{"name": "main", "image": "none"}],
            },
        })
    }
}
