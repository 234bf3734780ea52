//! One side begins an update in place and is killed at each of its stages, and the other side continues; and both together, one process
//! of each.
//!
//! machine-controller-manager 0.62 cannot do two things, which the scenarios do not ask of it:
//! * It never replaces a machine whose update has failed, because it takes the machine itself for another one that is being replaced.
//!   Under it, a user deletes the machine.
//! * It stops an update in place for ever when the pool is scaled meanwhile. The pool is scaled afterwards.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::{Machine, MachinePhase, MachineSet, labels};
use nodewright_e2e_scenarios::{
    Answer, Change, Environment, Failure, NodeUpdater, TestResult, ensure, held,
    history::State,
    node_updater::{is_being_updated, is_cordoned, is_labelled, marks},
    waits::{is_of, is_running},
};

use crate::{
    controllers::{Controllers, Side},
    environment::play,
    exactness,
    moments::sets,
    objects::{self, POOL, SMALL, VERSION},
};

/// The first part of the names of environments.
const PREFIX: &str = "updated";
const MACHINES: u32 = 3;
/// Why an update fails.
const REASON: &str = "the disk is full";

/// Who selects the Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orchestration {
    Auto,
    Manual,
}

/// How far the first side gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The Nodes are candidates.
    Candidate,
    /// One is selected, and its Pod may not be evicted.
    Selected,
    /// The program on one is asked, and does not answer.
    Updating,
    /// The same, and it answers when the first side is dead.
    Answered,
    /// The same, and it has failed.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    orchestration: Orchestration,
    stage: Stage,
}

macro_rules! cases {
    ($($name:ident: $orchestration:ident, $stage:ident;)*) => {
        mod from_mcm_to_nodewright {
            use super::{Case, Orchestration, Side, Stage, TestResult, hand_over};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { orchestration: Orchestration::$orchestration, stage: Stage::$stage };
                    Box::pin(hand_over(stringify!($name), case, [Side::Mcm, Side::Nodewright])).await
                }
            )*
        }

        mod from_nodewright_to_mcm {
            use super::{Case, Orchestration, Side, Stage, TestResult, hand_over};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    let case = Case { orchestration: Orchestration::$orchestration, stage: Stage::$stage };
                    Box::pin(hand_over(stringify!($name), case, [Side::Nodewright, Side::Mcm])).await
                }
            )*
        }
    };
}

cases! {
    auto_when_the_nodes_are_candidates: Auto, Candidate;
    auto_when_a_node_is_selected: Auto, Selected;
    auto_while_a_node_is_updated: Auto, Updating;
    auto_when_a_node_is_updated_meanwhile: Auto, Answered;
    auto_when_an_update_fails_meanwhile: Auto, Failed;
    manual_when_the_nodes_are_candidates: Manual, Candidate;
    manual_when_a_node_is_selected: Manual, Selected;
    manual_while_a_node_is_updated: Manual, Updating;
    manual_when_a_node_is_updated_meanwhile: Manual, Answered;
    manual_when_an_update_fails_meanwhile: Manual, Failed;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn our_sets_with_their_machines_auto() -> TestResult {
    Box::pin(together("our-sets-auto", Orchestration::Auto, Side::Nodewright, Side::Mcm)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn our_sets_with_their_machines_manual() -> TestResult {
    Box::pin(together("our-sets-manual", Orchestration::Manual, Side::Nodewright, Side::Mcm)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn their_sets_with_our_machines_auto() -> TestResult {
    Box::pin(together("their-sets-auto", Orchestration::Auto, Side::Mcm, Side::Nodewright)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn their_sets_with_our_machines_manual() -> TestResult {
    Box::pin(together("their-sets-manual", Orchestration::Manual, Side::Mcm, Side::Nodewright)).await
}

async fn hand_over(name: &str, case: Case, [first, second]: [Side; 2]) -> TestResult {
    let scenario = format!("{name}, from {first:?} to {second:?}");
    play(&scenario, PREFIX, async |env| {
        objects::apply_classes(env).await?;
        let controllers = Controllers::start(env, first).await?;
        let update = Box::pin(Update::prepare(env, case.orchestration)).await?;
        Box::pin(update.reach(case.stage)).await?;
        controllers.kill_9();
        let failed = update.answer_at(case.stage).await?;
        let mut controllers = Controllers::start(env, second).await?;
        if case.stage == Stage::Selected {
            held::release(env).await?;
        }
        Box::pin(update.end(failed.as_deref(), second)).await?;
        controllers.check()
    })
    .await
}

async fn together(name: &str, orchestration: Orchestration, sets: Side, machines: Side) -> TestResult {
    play(name, PREFIX, async |env| {
        objects::apply_classes(env).await?;
        let mut controllers = Controllers::start_halves(env, sets, machines).await?;
        let update = Box::pin(Update::prepare(env, orchestration)).await?;
        objects::set_version(env, "2").await?;
        Box::pin(update.end(None, machines)).await?;
        controllers.check()
    })
    .await
}

/// An update from version 1 to version 2.
struct Update<'a> {
    env: &'a Environment,
    orchestration: Orchestration,
    updater: NodeUpdater,
    before: State<Machine>,
    mark: usize,
}

impl<'a> Update<'a> {
    /// Machines of version 1, and the programs on their Nodes.
    async fn prepare(env: &'a Environment, orchestration: Orchestration) -> TestResult<Self> {
        let updater = NodeUpdater::start(env).await?;
        env.apply(&objects::in_place_pool(env, MACHINES, &format!("{orchestration:?}"))).await?;
        let before = env.wait_for_running_of_any_manager(MACHINES as usize).await?;
        Ok(Self { env, orchestration, updater, before, mark: env.machines().mark() })
    }

    /// Begins the update, and waits until the first side has got this far.
    async fn reach(&self, stage: Stage) -> TestResult {
        self.updater.by_default(Answer::Never);
        if stage == Stage::Selected {
            held::hold(self.env).await?;
        }
        objects::set_version(self.env, "2").await?;
        self.env.wait_for("all nodes to be candidates", async || self.are_candidates().await).await?;
        if self.orchestration == Orchestration::Manual && stage != Stage::Candidate {
            self.select_one().await?;
        }
        let is_drained = |node: &Node| is_labelled(node, labels::SELECTED_FOR_UPDATE) && is_cordoned(node);
        match stage {
            Stage::Candidate => Ok(()),
            Stage::Selected => self.env.wait_for("a drain to begin", async || Ok(self.has_node(is_drained))).await,
            Stage::Updating | Stage::Answered | Stage::Failed => {
                self.env.wait_for("the program on a node to be asked", async || self.is_asked()).await
            }
        }
    }

    /// The program on the asked Node answers although nobody is there. Returns the machine whose update it has failed in.
    async fn answer_at(&self, stage: Stage) -> TestResult<Option<String>> {
        let answer = match stage {
            Stage::Candidate | Stage::Selected | Stage::Updating => return Ok(None),
            Stage::Answered => Answer::Succeed,
            Stage::Failed => Answer::Fail(REASON.to_owned()),
        };
        let node = self.updater.updates()?.pop().ok_or_else(|| Failure::new("no program was asked"))?;
        self.updater.on(&node, answer);
        let is_answered = |node: &Node| node.labels().contains_key(labels::UPDATE_RESULT);
        self.env.wait_for("the answer", async || Ok(self.has_node(is_answered))).await?;
        let is_its = |machine: &Machine| machine.node_name() == Some(node.as_str());
        let machine = self.before.iter().find(|(_, machine)| is_its(machine)).map(|(name, _)| name.clone());
        Ok(machine.filter(|_| stage == Stage::Failed))
    }

    /// Waits for the end of the update, and scales up.
    async fn end(&self, failed: Option<&str>, machines: Side) -> TestResult {
        self.updater.by_default(Answer::Succeed);
        if let Some(name) = failed {
            self.replace(name, machines).await?;
        }
        // One by one: each takes machine-controller-manager half a minute.
        for count in 1..=MACHINES as usize {
            self.env.wait_for(&format!("{count} updated machines"), async || self.have_come(count).await).await?;
        }
        self.env.wait_for("the former set to be empty", async || self.is_former_empty().await).await?;
        self.kept_within_bounds(failed)?;

        self.env.scale(POOL, MACHINES + 1).await?;
        self.env.wait_for_running_of_any_manager(MACHINES as usize + 1).await?;
        let is_nothing_left = async || {
            let has_mark = |machine: &Machine| machine.labels().contains_key(labels::UPDATE_RESULT);
            let machines = self.env.machines().current();
            Ok(!self.has_node(|node| !marks(node).is_empty()) && !machines.values().any(|machine| has_mark(machine)))
        };
        self.env.wait_for("nothing to be left of the update", is_nothing_left).await?;
        let created = MACHINES as usize + 1 + usize::from(failed.is_some());
        exactness::check(self.env, MACHINES as usize + 1, SMALL, created, created).await
    }

    /// A machine whose update has failed says why, and is replaced.
    async fn replace(&self, name: &str, machines: Side) -> TestResult {
        let says_why = |change: &Change<Machine>| {
            let operation = change.object.status.as_ref().map(|status| &status.last_operation);
            change.object.name_any() == name
                && *change.object.phase() == MachinePhase::InPlaceUpdateFailed
                && operation.is_some_and(|operation| operation.description.contains(REASON))
        };
        let is_said = async || TestResult::Ok(self.env.machines().changes()?.iter().any(says_why));
        self.env.wait_for("the machine to say why its update has failed", is_said).await?;
        if machines == Side::Mcm {
            self.env.kubectl(&format!("delete machine {name} --wait=false")).await?;
        }
        self.env.wait_for_machines("the machine to go", |all| !all.contains_key(name)).await.map(drop)
    }

    /// No machine was replaced but one whose update has failed, and at no time were there too many.
    fn kept_within_bounds(&self, failed: Option<&str>) -> TestResult {
        let machines = self.env.machines();
        machines.states(self.mark, |at, state| {
            let count = state.values().filter(|machine| !machine.is_deleting()).count();
            ensure(count <= MACHINES as usize, || format!("at {at} there were {count} machines"))
        })?;
        let (counts, replaced) =
            ((machines.born_since(self.mark)?, machines.gone_since(self.mark)?), usize::from(failed.is_some()));
        ensure(counts == (replaced, replaced), || format!("{counts:?} machines came and went, not {replaced}"))?;
        let mut staying = self.before.clone();
        staying.retain(|name, _| Some(name.as_str()) != failed);
        exactness::all_stay(self.env, &staying)
    }

    /// The Nodes are candidates, and the sets are as they are when none of them is updated.
    async fn are_candidates(&self) -> TestResult<bool> {
        let nodes = self.env.nodes().current();
        let candidates = nodes.values().filter(|node| is_labelled(node, labels::CANDIDATE_FOR_UPDATE)).count();
        let sets = sets(self.env).await?;
        let is_new_empty = sets.iter().any(|set| is_of_version(set, "2") && set.spec.replicas == 0);
        let may_not_grow = |set: &MachineSet| set.labels().contains_key(labels::SCALE_UP_DISABLED);
        let is_former_held = sets.iter().any(|set| is_of_version(set, "1") && may_not_grow(set));
        Ok(candidates == MACHINES as usize && is_new_empty && is_former_held)
    }

    fn is_asked(&self) -> TestResult<bool> {
        let machines = self.env.machines().current();
        let is_updating = machines.values().any(|machine| *machine.phase() == MachinePhase::InPlaceUpdating);
        Ok(is_updating && !self.updater.updates()?.is_empty())
    }

    /// Whether this many machines of the new template run. If users select Nodes, one does.
    async fn have_come(&self, count: usize) -> TestResult<bool> {
        if self.orchestration == Orchestration::Manual {
            self.select_one().await?;
        }
        let sets = sets(self.env).await?;
        let Some(set) = sets.iter().find(|set| is_of_version(set, "2")) else { return Ok(false) };
        let machines = self.env.machines().current();
        Ok(machines.values().filter(|machine| is_running(machine) && is_of(machine, set)).count() >= count)
    }

    /// As a user does: selects a Node that is a candidate, unless one is being updated.
    async fn select_one(&self) -> TestResult {
        if self.has_node(is_being_updated) {
            return Ok(());
        }
        let nodes = self.env.nodes().current();
        let key = labels::SELECTED_FOR_UPDATE;
        let is_free = |node: &Node| is_labelled(node, labels::CANDIDATE_FOR_UPDATE) && !is_labelled(node, key);
        let Some((name, _)) = nodes.iter().find(|(_, node)| is_free(node)) else { return Ok(()) };
        let mark = self.env.nodes().mark();
        self.env.kubectl(&format!("label node {name} {key}={}", labels::UPDATE_LABEL_VALUE)).await?;
        let shows = |change: &Change<Node>| change.object.name_any() == *name && is_labelled(&change.object, key);
        let is_seen = async || TestResult::Ok(self.env.nodes().changes()?.iter().skip(mark).any(shows));
        self.env.wait_for("the selection", is_seen).await
    }

    /// Whether the new set has all machines, and no other set has any.
    async fn is_former_empty(&self) -> TestResult<bool> {
        let wanted = |set: &MachineSet| if is_of_version(set, "2") { MACHINES } else { 0 };
        let sets = sets(self.env).await?;
        Ok(sets.iter().all(|set| u32::try_from(set.spec.replicas) == Ok(wanted(set))))
    }

    fn has_node(&self, is_so: impl Fn(&Node) -> bool) -> bool {
        self.env.nodes().current().values().any(|node| is_so(node))
    }
}

fn is_of_version(set: &MachineSet, version: &str) -> bool {
    let labels = set.spec.template.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.get(VERSION).is_some_and(|is| is == version))
}
