//! The cluster autoscaler, as its provider for machine-controller-manager calls the API servers.
//!
//! The provider (`cluster-autoscaler/cloudprovider/mcm` of gardener/autoscaler) is no Go module that could be built here. So
//! its calls are repeated: it reads from caches that watches fill, and writes whole typed objects with the version of the cached
//! one, again every five seconds for a minute if that is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, NodeStatus, Taint},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{Api, Resource, ResourceExt, api::PostParams};
use nodewright_api::{
    ConditionStatus, Machine, MachineClass, MachineDeployment, MachinePhase, MachineSet, OperationState, OperationType,
    annotations,
};
use nodewright_e2e_scenarios::{Environment, Failure, History, Pool, TestResult, ensure, objects::Manifest};
use serde_json::json;

/// The provider's pause before it repeats a refused write, and how often it tries in its minute.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const TRIES: usize = 12;

/// A node group: a MachineDeployment.
struct NodeGroup<'a> {
    env: &'a Environment,
    name: String,
    deployments: History<MachineDeployment>,
    sets: History<MachineSet>,
}

/// What the provider reports as an instance.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Instance {
    /// A registered node, with its provider id.
    Node(String),
    /// A machine without a node.
    Requested(String),
    /// A machine for which the cloud has no capacity. The autoscaler then tries another node group.
    OutOfResources(String),
}

impl<'a> NodeGroup<'a> {
    async fn new(env: &'a Environment, pool: &Pool) -> TestResult<Self> {
        Ok(Self {
            env,
            name: pool.name().to_owned(),
            deployments: History::record(Api::namespaced(env.client(), env.namespace()), "").await?,
            sets: History::record(Api::namespaced(env.client(), env.namespace()), "").await?,
        })
    }

    fn cached(&self) -> TestResult<MachineDeployment> {
        let cached = self.deployments.current().remove(&self.name).map(Arc::unwrap_or_clone);
        cached.ok_or_else(|| Failure::new(format!("there is no MachineDeployment {}", self.name)))
    }

    /// Whether the provider allows a scale-down.
    fn is_rolling_update_finished(deployment: &MachineDeployment) -> bool {
        deployment.condition("Progressing").is_none_or(|condition| {
            matches!(
                (&condition.status, condition.reason.as_str()),
                (ConditionStatus::True, "NewMachineSetAvailable") | (ConditionStatus::Unknown, "DeploymentPaused")
            )
        })
    }

    /// Waits until no rollout is in progress: before that the provider allows no scale-down.
    async fn wait_for_rollout(&self) -> TestResult {
        let is_finished = async || Ok(Self::is_rolling_update_finished(&self.cached()?));
        self.env.wait_for("the rollout to be finished", is_finished).await
    }

    /// Replaces the MachineDeployment by a change of the cached one. Returns the number of tries.
    async fn update(&self, change: impl Fn(&mut MachineDeployment)) -> TestResult<usize> {
        let api: Api<MachineDeployment> = Api::namespaced(self.env.client(), self.env.namespace());
        let mut last = None;
        for tries in 1..=TRIES {
            let mut wanted = self.cached()?;
            change(&mut wanted);
            match api.replace(&self.name, &PostParams::default(), &wanted).await {
                Ok(_) => return Ok(tries),
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        Err(Failure::new(format!("refused {TRIES} times; the last time: {last:?}")))
    }

    /// `NodeGroup.IncreaseSize`, and the wait for the next loop of the autoscaler, ten seconds later, whose cache has the new
    /// size: the size is computed once, so that an increase over an older cached one would take the last increase back.
    async fn increase_size(&self, delta: i32) -> TestResult<usize> {
        let size = self.cached()?.spec.replicas + delta;
        let tries = self.update(|deployment| deployment.spec.replicas = size).await?;
        self.wait_for_size(size).await?;
        Ok(tries)
    }

    async fn wait_for_size(&self, size: i32) -> TestResult {
        self.env.wait_for("the new size in the cache", async || Ok(self.cached()?.spec.replicas == size)).await
    }

    /// `NodeGroup.DecreaseTargetSize`: takes back what has not become a node. It names no machine.
    async fn decrease_target_size(&self, delta: i32) -> TestResult {
        let (size, nodes) = (self.cached()?.spec.replicas - delta, self.instances());
        let nodes = nodes.iter().filter(|instance| matches!(instance, Instance::Node(_))).count();
        ensure(usize::try_from(size)? >= nodes, || format!("{size} machines would be fewer than {nodes} nodes"))?;
        self.update(|deployment| deployment.spec.replicas = size).await.map(drop)
    }

    /// `CloudProvider.NodeGroupForNode`: the machine of the node, if its owners lead to this group.
    fn machine_of(&self, node: &Node) -> TestResult<Arc<Machine>> {
        let id = last_segment(node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()));
        let machines = self.env.machines().current();
        let matching = |machine: &&Arc<Machine>| last_segment(machine.provider_id()) == id || machine.name_any() == id;
        let machine = machines.values().find(matching).cloned();
        let machine = machine
            .ok_or_else(|| Failure::new(format!("no machine has the provider id of node {}", node.name_any())))?;
        let set = self.sets.current().remove(&first_owner(machine.as_ref())?);
        let set = set.ok_or_else(|| Failure::new(format!("machine {} belongs to no known set", machine.name_any())))?;
        let deployment = first_owner(set.as_ref())?;
        ensure(deployment == self.name, || format!("node {} belongs to {deployment}", node.name_any()))?;
        Ok(machine)
    }

    /// `NodeGroup.DeleteNodes`: chooses machines and takes their number off the replicas, in one write. Then cordons.
    async fn delete_nodes(&self, nodes: &[Arc<Node>]) -> TestResult {
        let deployment = self.cached()?;
        ensure(Self::is_rolling_update_finished(&deployment), || format!("{} is under rolling update", self.name))?;
        let machines: Vec<_> = nodes.iter().map(|node| self.machine_of(node)).collect::<TestResult<_>>()?;
        let machines: Vec<_> = machines.into_iter().filter(|machine| may_be_removed(machine)).collect();
        self.update(|deployment| {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let marked = names_marked(deployment);
            let new: Vec<_> =
                machines.iter().map(|machine| machine.name_any()).filter(|name| !marked.contains(name)).collect();
            deployment.spec.replicas -= i32::try_from(new.len()).unwrap_or(i32::MAX);
            let entries = new.iter().map(|name| format!("{name}~{now}")).collect::<Vec<_>>().join(",");
            let all = deployment.annotations_mut();
            let list = all.entry(annotations::TRIGGER_DELETION.to_owned()).or_default();
            *list = if list.is_empty() { entries } else { format!("{list},{entries}") };
            all.insert(annotations::LAST_REPLICA_CHANGE_BY_SCALER_TIME.to_owned(), now);
        })
        .await?;
        self.cordon(nodes.iter().map(|node| node.name_any()).collect()).await
    }

    /// `CloudProvider.Refresh`, before each loop of the autoscaler: cordons the nodes of the chosen machines again. It suspends
    /// itself besides while the Deployment of the controller manager has no available replica, which is not repeated here.
    async fn refresh(&self) -> TestResult {
        let marked = names_marked(&self.cached()?);
        let machines = self.machines();
        let nodes = machines.iter().filter(|machine| marked.contains(&machine.name_any()));
        self.cordon(nodes.filter_map(|machine| machine.labels().get("node").cloned()).collect()).await
    }

    /// `NodeGroup.TemplateNodeInfo`: what a node of the group would be, by its class and its template. A group without nodes is
    /// scaled up by this alone.
    async fn template_node(&self) -> TestResult<Node> {
        let deployment = self.cached()?;
        let template = &deployment.spec.template.spec;
        let classes: Api<MachineClass> = Api::namespaced(self.env.client(), self.env.namespace());
        let class = classes.get(&template.class.name).await?;
        let of_class = class.node_template.ok_or_else(|| Failure::new("the class has no nodeTemplate"))?;
        let mut capacity: BTreeMap<String, Quantity> = serde_json::from_value(json!(of_class.capacity))?;
        capacity.insert("pods".to_owned(), Quantity("110".to_owned()));
        let known = [
            ("node.kubernetes.io/instance-type", &of_class.instance_type),
            ("topology.kubernetes.io/region", &of_class.region),
            ("topology.kubernetes.io/zone", &of_class.zone),
        ];
        let mut labels: BTreeMap<_, _> =
            known.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let own = &template.node_template;
        labels.extend(own.metadata.labels.clone().unwrap_or_default());
        let taints: Option<Vec<Taint>> = serde_json::from_value(json!(own.spec.taints))?;
        let status =
            NodeStatus { allocatable: Some(capacity.clone()), capacity: Some(capacity), ..NodeStatus::default() };
        let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
        Ok(Node { metadata, spec: Some(NodeSpec { taints, ..NodeSpec::default() }), status: Some(status) })
    }

    /// As far as it goes: the provider only logs failures.
    async fn cordon(&self, names: Vec<String>) -> TestResult {
        let api: Api<Node> = Api::all(self.env.target_client());
        for name in names {
            let Some(node) = self.env.nodes().current().remove(&name) else { continue };
            let mut node = Arc::unwrap_or_clone(node);
            let spec = node.spec.get_or_insert_default();
            if spec.unschedulable != Some(true) {
                spec.unschedulable = Some(true);
                drop(api.replace(&name, &PostParams::default(), &node).await);
            }
        }
        Ok(())
    }

    /// The machines of the group, by the label that it goes by.
    fn machines(&self) -> Vec<Arc<Machine>> {
        let all = self.env.machines().current().into_values();
        all.filter(|machine| machine.labels().get("name") == Some(&self.name)).collect()
    }

    /// `NodeGroup.Nodes`.
    fn instances(&self) -> BTreeSet<Instance> {
        let nodes = self.env.nodes().current();
        let instance = |machine: Arc<Machine>| {
            let name = machine.name_any();
            let node = machine.labels().get("node").and_then(|node| nodes.get(node));
            if let Some(id) = node.and_then(|node| node.spec.as_ref()?.provider_id.clone()) {
                return Instance::Node(id);
            }
            let operation = machine.status.as_ref().map(|status| status.last_operation.clone()).unwrap_or_default();
            let failed = operation.operation_type == OperationType::Create && operation.state == OperationState::Failed;
            if failed && operation.error_code == "ResourceExhausted" {
                Instance::OutOfResources(name)
            } else {
                Instance::Requested(name)
            }
        };
        self.machines().into_iter().map(instance).collect()
    }
}

/// Machines that have failed, are being deleted or are preserved are left to the controllers.
fn may_be_removed(machine: &Machine) -> bool {
    let preserved = machine.status.as_ref().is_some_and(|status| status.current_status.preserve_expiry_time.is_some());
    !matches!(machine.phase(), MachinePhase::Failed | MachinePhase::Terminating) && !preserved
}

fn last_segment(id: Option<&str>) -> String {
    id.unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned()
}

fn first_owner<K: Resource>(object: &K) -> TestResult<String> {
    let owner = object.owner_references().first().map(|owner| owner.name.clone());
    owner.ok_or_else(|| Failure::new(format!("{:?} has no owner", object.meta().name)))
}

/// The machines that were chosen before and are still there.
fn names_marked(deployment: &MachineDeployment) -> BTreeSet<String> {
    let list = deployment.annotations().get(annotations::TRIGGER_DELETION).map_or("", String::as_str);
    list.split(',')
        .filter_map(|entry| entry.split('~').next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A pool with the label that the provider knows machines by.
fn pool(env: &Environment, replicas: u32) -> Pool {
    let pool = env.pool("a", replicas);
    let labels = json!({"name": pool.name()});
    let spec = json!({"class": {"kind": "MachineClass", "name": "small"}});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    pool.spec("selector", json!({"matchLabels": labels})).spec("template", template)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_autoscaler_gets_what_it_asks_for() -> TestResult {
    let env = Environment::start("autoscaler").await?;
    env.apply_class("small").await?;
    let pool = pool(&env, 3);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    env.wait_for_running(3).await?;

    // Up, and seven times more while the machines come up and the status changes.
    group.increase_size(100).await?;
    for more in 1..=7 {
        let joined = 3 + 12 * more;
        env.wait_for("more of the new machines", async || Ok(env.nodes().current().len() >= joined)).await?;
        let tries = group.increase_size(1).await?;
        ensure(tries <= 3, || format!("write {more} was refused {} times", tries - 1))?;
        group.refresh().await?;
    }
    env.wait_for_running(110).await?;
    assert_eq!(group.instances().iter().filter(|instance| matches!(instance, Instance::Node(_))).count(), 110);

    // Down: exactly the nodes that it chose go, also those that it chooses while others go.
    group.wait_for_rollout().await?;
    let nodes: Vec<_> = env.nodes().current().into_values().collect();
    let (first, second, rest) = (&nodes[4..9], &nodes[20..23], [&nodes[..4], &nodes[9..20], &nodes[23..]].concat());
    group.delete_nodes(first).await?;
    group.refresh().await?;
    group.delete_nodes(second).await?;
    group.refresh().await?;
    let machines = env.wait_for_running(102).await?;
    let kept: BTreeSet<_> = machines.values().filter_map(|machine| machine.node_name().map(str::to_owned)).collect();
    assert_eq!(kept, rest.iter().map(|node| node.name_any()).collect::<BTreeSet<_>>());
    env.wait_for("the list of chosen machines to be empty", async || Ok(names_marked(&group.cached()?).is_empty()))
        .await?;
    assert_eq!(group.cached()?.spec.replicas, 102);
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_nodes_comes_up_as_the_autoscaler_expects_it() -> TestResult {
    let env = Environment::start("from-zero").await?;
    let capacity =
        json!({"cpu": "4", "memory": "8Gi", "gpu": "0", "ephemeral-storage": "50Gi", "example.com/gpu": "2"});
    let of_class = json!({"capacity": capacity, "instanceType": "big", "region": "here", "zone": "here-a"});
    let mut class: serde_json::Value = serde_json::from_str(&env.class("small").manifest())?;
    class["nodeTemplate"] = of_class;
    env.apply(&class).await?;
    let taint = json!({"key": "team", "value": "blue", "effect": "NoSchedule"});
    let node_template = json!({"metadata": {"labels": {"team": "blue"}}, "spec": {"taints": [taint]}});
    let pool = pool(&env, 0).machine("nodeTemplate", node_template);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    env.wait_for("the deployment", async || Ok(group.cached().is_ok())).await?;
    let expected = group.template_node().await?;
    let allocatable = expected.status.as_ref().and_then(|status| status.allocatable.clone()).unwrap_or_default();
    let amounts =
        ["cpu", "memory", "ephemeral-storage", "example.com/gpu", "pods"].map(|of| allocatable[of].0.as_str());
    assert_eq!(amounts, ["4", "8Gi", "50Gi", "2", "110"], "kept as it was written");

    group.increase_size(1).await?;
    env.wait_for_running(1).await?;
    let node = env.nodes().current().into_values().next().ok_or_else(|| Failure::new("there is no node"))?;
    ensure(node.labels().get("team") == expected.labels().get("team"), || format!("{:?}", node.labels()))?;
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_there = |taint: &Taint| taints(&node).iter().any(|it| (&it.key, &it.effect) == (&taint.key, &taint.effect));
    ensure(taints(&expected).iter().all(is_there), || format!("{:?}", taints(&node)))?;
    assert_eq!(group.machine_of(&node)?.node_name(), node.metadata.name.as_deref());
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_autoscaler_sees_that_there_is_no_capacity() -> TestResult {
    let env = Environment::start("exhausted").await?;
    env.cloud().set_quota(Some(2)).await?;
    env.apply_class("small").await?;
    let pool = pool(&env, 2);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    env.wait_for_running(2).await?;
    // Otherwise it would be part of the first rollout, which then does not end.
    group.wait_for_rollout().await?;
    group.increase_size(1).await?;
    let exhausted = || group.instances().into_iter().find(|instance| matches!(instance, Instance::OutOfResources(_)));
    env.wait_for("a machine without capacity", async || Ok(exhausted().is_some())).await?;

    // The autoscaler takes the request back, and deletes the machine that it shows as `requested://NAME`.
    let without_node = env.machines().current().into_values().find(|machine| machine.node_name().is_none());
    let without_node = without_node.ok_or_else(|| Failure::new("no machine is without node"))?;
    assert_ne!(*without_node.phase(), MachinePhase::Running);
    let requested = Node {
        spec: Some(NodeSpec {
            provider_id: Some(format!("requested://{}", without_node.name_any())),
            ..NodeSpec::default()
        }),
        ..Node::default()
    };
    group.delete_nodes(&[Arc::new(requested)]).await?;
    let left = env.wait_for_running(2).await?;
    ensure(!left.contains_key(&without_node.name_any()), || "another machine went".to_owned())?;
    env.end().await
}

/// Issues 1084 and 1085 of machine-controller-manager: the autoscaler takes nodes away, one after the other, and wants one more, before
/// any of that is seen.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_autoscaler_has_chosen_while_no_manager_ran_goes_and_nothing_else() -> TestResult {
    let env = Environment::start("unseen").await?;
    env.apply_class("small").await?;
    let pool = pool(&env, 6);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    env.wait_for_running(6).await?;
    group.wait_for_rollout().await?;
    // How many nodes it takes away, in turns, and how many it wants afterwards.
    for (removed, added) in [(1, 1), (2, 0), (2, 2)] {
        let before = env.machines().current();
        let chosen: Vec<_> = env.nodes().current().into_values().take(removed).collect();
        let names: BTreeSet<_> =
            chosen.iter().map(|node| Ok(group.machine_of(node)?.name_any())).collect::<TestResult<_>>()?;
        let mut manager = env.manager().await?;
        manager.kill_9();
        for node in &chosen {
            let size = group.cached()?.spec.replicas;
            group.delete_nodes(std::slice::from_ref(node)).await?;
            group.wait_for_size(size - 1).await?;
        }
        if added > 0 {
            group.increase_size(added).await?;
        }
        manager.start_again().await?;
        drop(manager);
        env.wait_for_machines("the chosen ones to be gone", |machines| {
            names.iter().all(|it| !machines.contains_key(it))
        })
        .await?;
        let expected = before.len() - removed + usize::try_from(added)?;
        let after = env.wait_for_running(expected).await?;
        let lost: Vec<_> = before.keys().filter(|name| !names.contains(*name) && !after.contains_key(*name)).collect();
        ensure(lost.is_empty(), || format!("{lost:?} went, and {names:?} were chosen"))?;
        let is_open = |node: &Arc<Node>| node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true);
        env.wait_for("all nodes to be open to pods", async || Ok(env.nodes().current().values().all(is_open))).await?;
        env.wait_for("the list of chosen machines to be empty", async || Ok(names_marked(&group.cached()?).is_empty()))
            .await?;
        env.wait_for("no VM to be too many", async || Ok(env.vms().await?.len() == expected)).await?;
    }
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_autoscaler_takes_back_what_has_not_become_a_node() -> TestResult {
    let env = Environment::start("decrease").await?;
    env.cloud().set_quota(Some(3)).await?;
    env.apply_class("small").await?;
    let pool = pool(&env, 3);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    let first = env.wait_for_running(3).await?;
    for is_seen in [true, false] {
        group.increase_size(3).await?;
        env.wait_for("machines without capacity", async || Ok(group.instances().len() == 6)).await?;
        let mut manager = env.manager().await?;
        if !is_seen {
            manager.kill_9();
        }
        group.decrease_target_size(2).await?;
        group.wait_for_size(4).await?;
        group.decrease_target_size(1).await?;
        group.wait_for_size(3).await?;
        if !is_seen {
            manager.start_again().await?;
        }
        drop(manager);
        env.wait_for_machines("three machines", |machines| machines.len() == 3).await?;
        let left = env.machines().current();
        ensure(left.keys().eq(first.keys()), || format!("{:?} are left of {:?}", left.keys(), first.keys()))?;
    }
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_autoscaler_removes_nothing_during_a_rollout() -> TestResult {
    let env = Environment::builder("rolling").cloud_flags(["--boot-seconds=2"]).start().await?;
    env.apply_class("small").await?;
    env.apply_class("large").await?;
    let pool = pool(&env, 3);
    env.apply(&pool).await?;
    let group = NodeGroup::new(&env, &pool).await?;
    env.wait_for_running(3).await?;
    group.wait_for_rollout().await?;
    let mark = group.deployments.mark();
    env.apply(&pool.class("large")).await?;
    let begun = group.deployments.until(|changes| {
        changes.iter().skip(mark).any(|change| !NodeGroup::is_rolling_update_finished(&change.object))
    });
    env.in_time("the rollout to begin", begun).await?;
    group.wait_for_rollout().await?;
    // It is finished only once no machine of the old class is left.
    let machines = env.machines().current();
    let old = machines.values().filter(|machine| machine.spec.class.name == "small" && !machine.is_deleting()).count();
    assert_eq!(old, 0, "machines of the old class when the rollout is said to be finished");
    env.wait_for_running(3).await?;
    env.end().await
}
