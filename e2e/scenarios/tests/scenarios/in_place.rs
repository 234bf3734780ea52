//! Updates in place: machines keep their VMs and Nodes, which a program on each Node updates.

use std::{collections::BTreeSet, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachinePhase, MachineSet, annotations, labels};
use nodewright_e2e_scenarios::{
    Answer, Change, Environment, EnvironmentBuilder, Failure, NodeUpdater, TestResult, ensure, held,
    history::State,
    node_updater::{is_cordoned, is_labelled, marks},
    waits::{is_of, is_ready, is_running},
};
use serde_json::{Value, json};

/// The label of the template that tells its versions apart.
const VERSION: &str = "version";
/// Writes of the manager to update a machine, of the machine and its node: four of the machine, and five of the node.
const TO_UPDATE: usize = 9;
/// How long nothing may happen while no Node is selected. Nodewright would do it at once.
const QUIET: Duration = Duration::from_secs(3);
/// What a time may seem to be shorter by: those of a status have whole seconds, and a watch is late.
const GRANULARITY: SignedDuration = SignedDuration::from_secs(2);

/// Bounds of an update whose machines Nodewright selects.
fn auto(surge: u32, unavailable: u32) -> Value {
    json!({"maxSurge": surge, "maxUnavailable": unavailable, "orchestrationType": "Auto"})
}

/// Machines of version 1, which are to be updated in place, and the programs on their Nodes.
struct Fixture {
    env: Environment,
    updater: NodeUpdater,
    before: State<Machine>,
    mark: usize,
}

impl Fixture {
    async fn start(builder: EnvironmentBuilder, bounds: &Value, replicas: u32) -> TestResult<Self> {
        Self::start_with(builder, bounds, replicas, &[]).await
    }

    /// The same with settings of the machines.
    async fn start_with(
        builder: EnvironmentBuilder,
        bounds: &Value,
        replicas: u32,
        settings: &[(&str, &str)],
    ) -> TestResult<Self> {
        let env = builder.start().await?;
        let updater = NodeUpdater::start(&env).await?;
        env.apply_class("small").await?;
        let strategy = json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds});
        let mut pool = env.pool("a", replicas).label(VERSION, "1").spec("strategy", strategy);
        for (field, value) in settings {
            pool = pool.machine(field, *value);
        }
        env.apply(&pool).await?;
        let before = env.wait_for_running(replicas as usize).await?;
        let mark = env.machines().mark();
        Ok(Self { env, updater, before, mark })
    }

    /// Changes the template to this version.
    async fn roll(&self, version: &str) -> TestResult {
        let (env, patch) = (&self.env, json!({"spec": {"template": {"metadata": {"labels": {VERSION: version}}}}}));
        let name = env.pool("a", 0).name().to_owned();
        env.kubectl(&format!("patch machinedeployment {name} --type=merge --patch={patch}")).await.map(drop)
    }

    /// Selects a Node, as a user does.
    async fn select(&self, node: &str) -> TestResult {
        let label = format!("{}={}", labels::SELECTED_FOR_UPDATE, labels::UPDATE_LABEL_VALUE);
        self.env.kubectl(&format!("label node {node} {label}")).await.map(drop)
    }

    /// The set of a version, if it exists.
    async fn set(&self, version: &str) -> TestResult<Option<MachineSet>> {
        let sets: Api<MachineSet> = Api::namespaced(self.env.client(), self.env.namespace());
        let is_of_version = |set: &MachineSet| {
            let labels = set.spec.template.metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.get(VERSION).is_some_and(|is| is == version))
        };
        Ok(sets.list(&ListParams::default()).await?.items.into_iter().find(is_of_version))
    }

    /// How many machines of a version run.
    async fn running(&self, version: &str) -> TestResult<usize> {
        let Some(set) = self.set(version).await? else { return Ok(0) };
        let machines = self.env.machines().current();
        Ok(machines.values().filter(|machine| is_running(machine) && is_of(machine, &set)).count())
    }

    /// Waits until there are this many machines, all of this version, and nothing of an update is left on their Nodes.
    async fn wait_for_version(&self, version: &str, count: usize) -> TestResult {
        self.wait_for_closed(version, count, None).await
    }

    /// The same, and this Node is still cordoned.
    async fn wait_for_closed(&self, version: &str, count: usize, closed: Option<&str>) -> TestResult {
        let env = &self.env;
        let is_as_before = |name: &str, node: &Node| {
            let expected: &[&str] = if closed == Some(name) { &["unschedulable"] } else { &[] };
            is_ready(node) && left(node) == expected
        };
        env.wait_for(&format!("{count} machines of version {version}, and nothing of an update"), async || {
            let (machines, nodes) = (env.machines().current(), env.nodes().current());
            let are_nodes_done = nodes.len() == count && nodes.iter().all(|(name, node)| is_as_before(name, node));
            Ok(are_nodes_done && machines.len() == count && self.running(version).await? == count)
        })
        .await
    }

    /// Waits until the program on a Node is asked, as often as this in all.
    async fn wait_for_asked(&self, count: usize) -> TestResult {
        let what = format!("the program to be asked {count} times");
        self.env.wait_for(&what, async || Ok(self.updater.updates()?.len() >= count)).await
    }

    /// Kills the manager as soon as this is so, and starts it again.
    async fn kill_when(&self, what: &str, is_so: impl AsyncFnMut() -> TestResult<bool>) -> TestResult {
        self.env.wait_for(what, is_so).await?;
        let mut manager = self.env.manager().await?;
        manager.kill_9();
        Ok(manager.start_again().await?)
    }

    fn has_node(&self, is_so: impl Fn(&Node) -> bool) -> bool {
        self.env.nodes().current().values().any(|node| is_so(node))
    }

    /// The first of the machines, and the name of its Node.
    fn first(&self) -> TestResult<(String, String)> {
        let named = self.before.iter().find_map(|(name, machine)| Some((name.clone(), node_of(machine)?)));
        named.ok_or_else(|| Failure::new("no machine has a node"))
    }

    /// The Nodes of the first machines, in order.
    fn nodes_before(&self) -> Vec<String> {
        self.before.values().filter_map(|machine| node_of(machine)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// This many of the first machines are there, as they were: object, VM and Node.
    fn stayed(&self, count: usize) -> TestResult {
        let now = self.env.machines().current();
        let identity = |machine: &Machine| (machine.uid(), machine.spec.provider_id.clone(), node_of(machine));
        let is_same = |name: &String, was: &Machine| now.get(name).is_some_and(|is| identity(is) == identity(was));
        let same = self.before.iter().filter(|(name, was)| is_same(name, was)).count();
        ensure(same == count, || {
            format!("{same} machines stayed, not {count}: {:?} became {:?}", self.before.keys(), now.keys())
        })
    }

    /// This many machines were created and deleted in the course of the updates.
    fn came_and_went(&self, came: usize, went: usize) -> TestResult {
        let machines = self.env.machines();
        let counts = (machines.born_since(self.mark)?, machines.gone_since(self.mark)?);
        ensure(counts == (came, went), || format!("{counts:?} machines came and went, not {came} and {went}"))
    }

    /// At no time did fewer machines run, or were there more.
    fn kept_within(&self, least: usize, most: usize) -> TestResult {
        self.env.machines().states(self.mark, |at, state| {
            let running = state.values().filter(|machine| is_running(machine)).count();
            let staying = state.values().filter(|machine| !machine.is_deleting()).count();
            ensure(running >= least && staying <= most, || {
                format!("at {at} {running} of {staying} machines were running")
            })
        })
    }

    /// Each of the first Nodes was updated once, and no other one.
    fn updated_once(&self) -> TestResult {
        let mut updates = self.updater.updates()?;
        updates.sort();
        ensure(updates == self.nodes_before(), || format!("{updates:?} were updated, not {:?}", self.nodes_before()))
    }

    /// The change by which the machine got this phase first.
    fn shown(&self, machine: &str, phase: &MachinePhase) -> TestResult<Change<Machine>> {
        let is_it = |change: &Change<Machine>| change.object.name_any() == machine && change.object.phase() == phase;
        let found = self.env.machines().changes()?.into_iter().find(is_it);
        found.ok_or_else(|| Failure::new(format!("{machine} was never {phase}")))
    }
}

fn node_of(machine: &Machine) -> Option<String> {
    machine.node_name().map(str::to_owned)
}

/// What an update has left on a Node.
fn left(node: &Node) -> Vec<&'static str> {
    let keys = [
        annotations::CORDONED,
        annotations::UPDATE_BEGAN,
        annotations::UPDATE_FAILED_REASON,
        annotations::SCALE_DOWN_DISABLED_BY_MCM,
    ];
    marks(node).into_iter().chain(keys.into_iter().filter(|key| node.annotations().contains_key(*key))).collect()
}

fn description(machine: &Machine) -> &str {
    machine.status.as_ref().map_or("", |status| status.last_operation.description.as_str())
}

/// One program takes longer than the others: the next machine waits.
#[tokio::test(flavor = "multi_thread")]
async fn machines_are_updated_one_by_one_and_keep_their_vms() -> TestResult {
    let fixture = Fixture::start(Environment::builder("in-place"), &auto(0, 1), 3).await?;
    let (_, slow) = fixture.first()?;
    fixture.updater.on(&slow, Answer::Late(Duration::from_secs(2)));
    let has_log = fixture.env.cluster().control_plane().is_some();
    let mark = if has_log { fixture.env.requests().await?.entries().len() } else { 0 };
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 3).await?;
    if has_log {
        let requests = fixture.env.requests_since(mark).await?;
        let writes = requests.writes_by_machine();
        let most = writes.values().max().copied().unwrap_or_default();
        ensure(most <= TO_UPDATE, || format!("writes: {writes:?}"))?;
    }
    fixture.stayed(3)?;
    fixture.came_and_went(0, 0)?;
    fixture.kept_within(2, 3)?;
    fixture.updated_once()?;
    assert_eq!(fixture.updater.most_at_once()?, 1);

    fixture.env.scale("a", 4).await?;
    fixture.wait_for_version("2", 4).await?;
    assert_eq!(fixture.env.cloud().stats().await?.created, 4);
    let set = fixture.set("2").await?.ok_or_else(|| Failure::new("no set"))?;
    ensure(!set.labels().contains_key(labels::SCALE_UP_DISABLED), || "the set may not grow".to_owned())?;
    fixture.env.end().await
}

/// The Nodes are not ready for a while, as if they started again.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_surge_no_machine_is_ever_missing_and_one_of_the_former_ones_goes() -> TestResult {
    let fixture = Fixture::start(Environment::builder("surge"), &auto(1, 0), 3).await?;
    fixture.updater.by_default(Answer::Reboot);
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 3).await?;
    fixture.stayed(2)?;
    fixture.came_and_went(1, 1)?;
    fixture.kept_within(3, 4)?;
    assert_eq!(fixture.updater.updates()?.len(), 2, "the last one is not updated: it goes");
    assert_eq!(fixture.updater.most_at_once()?, 1);
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_selects_the_nodes_of_a_manual_update() -> TestResult {
    let manual = json!({"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Manual"});
    let fixture = Fixture::start(Environment::builder("manual"), &manual, 3).await?;
    let candidates = || {
        let nodes = fixture.env.nodes().current();
        nodes.values().filter(|node| is_labelled(node, labels::CANDIDATE_FOR_UPDATE)).count()
    };
    fixture.roll("2").await?;
    fixture.env.wait_for("all nodes to be candidates", async || Ok(candidates() == 3)).await?;
    let is_new_set_empty = async || TestResult::Ok(fixture.set("2").await?.is_some_and(|set| set.spec.replicas == 0));
    fixture.env.wait_for("the set of the new template", is_new_set_empty).await?;
    let may_not_grow = |set: &MachineSet| set.labels().contains_key(labels::SCALE_UP_DISABLED);
    let is_former_held = async || TestResult::Ok(fixture.set("1").await?.is_some_and(|set| may_not_grow(&set)));
    fixture.env.wait_for("the former set to be held", is_former_held).await?;
    tokio::time::sleep(QUIET).await;
    let is_touched = |node: &Node| is_labelled(node, labels::SELECTED_FOR_UPDATE) || is_cordoned(node);
    ensure(!fixture.has_node(is_touched), || "a node was selected".to_owned())?;

    let (_, first) = fixture.first()?;
    fixture.select(&first).await?;
    let is_updated = async || {
        let nodes = fixture.env.nodes().current();
        let is_open = nodes.get(&first).is_some_and(|node| left(node).is_empty());
        TestResult::Ok(is_open && fixture.running("2").await? == 1)
    };
    fixture.env.wait_for("the machine of the selected node to be updated", is_updated).await?;
    assert_eq!((fixture.updater.updates()?, candidates()), (vec![first.clone()], 2));
    for node in fixture.nodes_before().iter().filter(|node| **node != first) {
        fixture.select(node).await?;
    }
    fixture.wait_for_version("2", 3).await?;
    fixture.stayed(3)?;
    fixture.came_and_went(0, 0)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_update_fails_says_why_and_is_replaced() -> TestResult {
    const REASON: &str = "the disk is full";
    let settings = [("healthTimeout", "5s")];
    let fixture = Fixture::start_with(Environment::builder("fails"), &auto(0, 1), 3, &settings).await?;
    let (machine, node) = fixture.first()?;
    fixture.updater.on(&node, Answer::Fail(REASON.to_owned()));
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 3).await?;
    let failed = fixture.shown(&machine, &MachinePhase::InPlaceUpdateFailed)?;
    ensure(description(&failed.object).contains(REASON), || format!("it said {:?}", description(&failed.object)))?;
    fixture.shown(&machine, &MachinePhase::Failed)?;
    ensure(!fixture.env.machines().current().contains_key(&machine), || "it is still there".to_owned())?;
    fixture.stayed(2)?;
    fixture.came_and_went(1, 1)?;
    fixture.kept_within(2, 3)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_without_an_answer_fails_at_its_timeout() -> TestResult {
    const TIMEOUT: SignedDuration = SignedDuration::from_secs(5);
    let settings = [("healthTimeout", "5s"), ("inPlaceUpdateTimeout", "5s")];
    let fixture = Fixture::start_with(Environment::builder("silent"), &auto(0, 1), 2, &settings).await?;
    let (machine, node) = fixture.first()?;
    fixture.updater.on(&node, Answer::Never);
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 2).await?;
    let phases = [MachinePhase::InPlaceUpdating, MachinePhase::InPlaceUpdateFailed, MachinePhase::Failed];
    let [updating, failed, given_up] = phases.map(|phase| fixture.shown(&machine, &phase));
    let (updating, failed, given_up) = (updating?.at, failed?.at, given_up?.at);
    for (since, until) in [(updating, failed), (failed, given_up)] {
        let lasted = until.duration_since(since);
        ensure(lasted >= TIMEOUT - GRANULARITY, || format!("{machine} had {lasted:?}, not {TIMEOUT:?}"))?;
    }
    fixture.stayed(1)?;
    fixture.came_and_went(1, 1)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_node_vanishes_during_its_update_is_replaced() -> TestResult {
    let settings = [("healthTimeout", "5s"), ("inPlaceUpdateTimeout", "5s")];
    let fixture = Fixture::start_with(Environment::builder("vanishes"), &auto(0, 1), 2, &settings).await?;
    let (machine, node) = fixture.first()?;
    fixture.updater.on(&node, Answer::Vanish);
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 2).await?;
    ensure(!fixture.env.machines().current().contains_key(&machine), || "it is still there".to_owned())?;
    fixture.stayed(1)?;
    fixture.came_and_went(1, 1)?;
    fixture.env.end().await
}

/// The Pods on the Nodes may not be evicted, and the template is restored meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_is_taken_back_while_a_node_is_drained_leaves_nothing() -> TestResult {
    let fixture = Fixture::start(Environment::builder("taken-back"), &auto(0, 1), 2).await?;
    held::hold(&fixture.env).await?;
    fixture.roll("2").await?;
    let is_drained = |node: &Node| is_labelled(node, labels::SELECTED_FOR_UPDATE) && is_cordoned(node);
    fixture.env.wait_for("a drain to begin", async || Ok(fixture.has_node(is_drained))).await?;
    fixture.roll("1").await?;
    fixture.wait_for_version("1", 2).await?;
    assert_eq!(fixture.updater.updates()?, Vec::<String>::new(), "nothing was updated");
    assert_eq!(held::held(&fixture.env).await?, 2, "no pod has left");
    fixture.stayed(2)?;
    fixture.came_and_went(0, 0)?;
    fixture.kept_within(2, 2)?;
    let set = fixture.set("2").await?.ok_or_else(|| Failure::new("no set"))?;
    assert_eq!(set.spec.replicas, 0);

    fixture.env.scale("a", 3).await?;
    fixture.wait_for_version("1", 3).await?;
    held::release(&fixture.env).await?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_from_before_the_program_was_asked_does_not_count() -> TestResult {
    let fixture = Fixture::start(Environment::builder("stale"), &auto(0, 1), 2).await?;
    for (node, answer) in fixture.nodes_before().iter().zip([labels::UPDATE_SUCCESSFUL, labels::UPDATE_FAILED]) {
        fixture.env.kubectl(&format!("label node {node} {}={answer}", labels::UPDATE_RESULT)).await?;
    }
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 2).await?;
    fixture.stayed(2)?;
    fixture.came_and_went(0, 0)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

/// The Nodes show that they were updated before, which was to a former template.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_after_an_update_does_not_count_for_the_next_one() -> TestResult {
    let fixture = Fixture::start(Environment::builder("stale-again"), &auto(0, 1), 2).await?;
    fixture.roll("2").await?;
    fixture.wait_for_version("2", 2).await?;
    for (node, answer) in fixture.nodes_before().iter().zip([labels::UPDATE_SUCCESSFUL, labels::UPDATE_FAILED]) {
        fixture.env.kubectl(&format!("label node {node} {}={answer}", labels::UPDATE_RESULT)).await?;
    }
    fixture.roll("3").await?;
    fixture.wait_for_version("3", 2).await?;
    fixture.stayed(2)?;
    fixture.came_and_went(0, 0)?;
    let updates = fixture.updater.updates()?;
    let often = |node: &String| updates.iter().filter(|updated| *updated == node).count();
    ensure(fixture.nodes_before().iter().all(|node| often(node) == 2), || format!("{updates:?} were updated"))?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_a_user_has_cordoned_stays_cordoned() -> TestResult {
    let fixture = Fixture::start(Environment::builder("cordoned"), &auto(0, 1), 2).await?;
    let (_, closed) = fixture.first()?;
    fixture.env.kubectl(&format!("cordon {closed}")).await?;
    let is_closed = |nodes: &State<Node>| nodes.get(&closed).is_some_and(|node| is_cordoned(node));
    let nodes = fixture.env.nodes();
    fixture.env.wait_for("the node to be cordoned", async || Ok(is_closed(&nodes.current()))).await?;
    let mark = nodes.mark();
    fixture.roll("2").await?;
    fixture.wait_for_closed("2", 2, Some(&closed)).await?;
    nodes.states(mark, |at, state| ensure(is_closed(state), || format!("at {at} it was open to pods")))?;
    fixture.stayed(2)?;
    fixture.came_and_went(0, 0)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_manager_continues_its_updates() -> TestResult {
    let builder = Environment::builder("killed").manager_flags([
        "--leader-elect-lease-duration=6s",
        "--leader-elect-renew-deadline=5s",
        "--leader-elect-retry-period=500ms",
    ]);
    let fixture = Fixture::start(builder, &auto(0, 1), 3).await?;
    fixture.updater.by_default(Answer::Never);
    fixture.roll("2").await?;
    let is_selected = |node: &Node| is_labelled(node, labels::SELECTED_FOR_UPDATE);
    fixture.kill_when("a node to be selected", async || Ok(fixture.has_node(is_selected))).await?;
    let asked = async |count: usize| TestResult::Ok(fixture.updater.updates()?.len() == count);
    fixture.kill_when("the program to be asked", async || asked(1).await).await?;
    fixture.updater.by_default(Answer::Succeed);
    let is_answered = |node: &Node| node.labels().contains_key(labels::UPDATE_RESULT);
    fixture.kill_when("its answer", async || Ok(fixture.has_node(is_answered))).await?;
    fixture.kill_when("a machine to be updated", async || Ok(fixture.running("2").await? >= 1)).await?;
    fixture.kill_when("the second to be updated", async || Ok(fixture.running("2").await? >= 2)).await?;
    fixture.wait_for_version("2", 3).await?;
    fixture.stayed(3)?;
    fixture.came_and_went(0, 0)?;
    fixture.kept_within(2, 3)?;
    fixture.updated_once()?;
    assert_eq!(fixture.updater.most_at_once()?, 1);
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_up_during_an_update_adds_machines_of_the_new_template() -> TestResult {
    let fixture = Fixture::start(Environment::builder("grows"), &auto(0, 1), 3).await?;
    fixture.updater.by_default(Answer::Never);
    fixture.roll("2").await?;
    fixture.wait_for_asked(1).await?;
    fixture.env.scale("a", 5).await?;
    fixture.env.wait_for("two more machines", async || Ok(fixture.running("2").await? == 2)).await?;
    fixture.updater.by_default(Answer::Succeed);
    fixture.wait_for_version("2", 5).await?;
    fixture.stayed(3)?;
    fixture.came_and_went(2, 0)?;
    fixture.kept_within(2, 5)?;
    fixture.updated_once()?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_down_during_an_update_creates_nothing() -> TestResult {
    let fixture = Fixture::start(Environment::builder("shrinks"), &auto(0, 1), 5).await?;
    fixture.updater.by_default(Answer::Never);
    fixture.roll("2").await?;
    fixture.wait_for_asked(1).await?;
    fixture.env.scale("a", 2).await?;
    fixture.env.wait_for_machines("two machines to be left", |all| all.len() == 2).await?;
    fixture.updater.by_default(Answer::Succeed);
    fixture.wait_for_version("2", 2).await?;
    fixture.stayed(2)?;
    fixture.came_and_went(0, 3)?;
    fixture.kept_within(1, 5)?;
    fixture.env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_template_that_returns_updates_again_and_its_set_may_grow() -> TestResult {
    let fixture = Fixture::start(Environment::builder("returns"), &auto(0, 1), 2).await?;
    for version in ["2", "1"] {
        fixture.roll(version).await?;
        fixture.wait_for_version(version, 2).await?;
    }
    assert_eq!(fixture.updater.updates()?.len(), 4);
    fixture.stayed(2)?;
    fixture.came_and_went(0, 0)?;
    fixture.env.scale("a", 3).await?;
    fixture.wait_for_version("1", 3).await?;
    fixture.env.end().await
}
