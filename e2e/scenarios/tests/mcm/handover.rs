//! One side is killed (`kill -9`) at each stage of its work, and the other side continues: machine-controller-manager's work by
//! Nodewright, and Nodewright's by machine-controller-manager.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use nodewright_api::{ConditionStatus, Machine};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, history::State};
use serde_json::json;

use crate::{
    controllers::{Controllers, Side},
    environment, exactness,
    moments::{Before, Moment, is_frozen, pool, sets},
    objects::{self, BROKEN, LARGE, PODS, SMALL},
};

/// Nothing may happen in a paused pool for this long. machine-controller-manager tries again after five seconds.
const QUIET: Duration = Duration::from_secs(8);

/// What users do while the first side runs.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Apply the pool with this many replicas. (It has none before.)
    Create(u32),
    /// Scale the pool.
    Scale(u32),
    /// Delete the pool.
    Delete,
    /// Roll the pool to another class.
    Roll,
    /// Begin a roll, and pause the pool when the first new machine exists.
    RollAndPause,
    /// Roll to a class whose VMs the cloud refuses, and back to the first class.
    RollAndUndo,
    /// Roll, and return to the first revision by `spec.rollbackTo`.
    RollBackTo,
}

/// A stage of the work at which the first side is killed.
#[derive(Clone, Copy, Debug)]
struct Stage {
    /// The machines that run before.
    machines: u32,
    /// Whether Pods run on them.
    pods: bool,
    act: Act,
    /// When the first side is killed.
    until: Moment,
}

impl Stage {
    const fn of(machines: u32, act: Act, until: Moment) -> Self {
        Self { machines, pods: false, act, until }
    }

    const fn with_pods(self) -> Self {
        Self { pods: true, ..self }
    }
}

/// A module of tests for each direction, with a test for each stage.
macro_rules! stages {
    ($($name:ident: $stage:expr;)*) => {
        mod from_mcm_to_nodewright {
            use super::{Act, Moment, Side, Stage, TestResult, play};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    Box::pin(play(stringify!($name), $stage, [Side::Mcm, Side::Nodewright])).await
                }
            )*
        }

        mod from_nodewright_to_mcm {
            use super::{Act, Moment, Side, Stage, TestResult, play};
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes: make test-mcm"]
                async fn $name() -> TestResult {
                    Box::pin(play(stringify!($name), $stage, [Side::Nodewright, Side::Mcm])).await
                }
            )*
        }
    };
}

stages! {
    create_when_the_set_exists: Stage::of(0, Act::Create(3), Moment::Sets(1));
    create_when_a_machine_exists: Stage::of(0, Act::Create(3), Moment::Machines(1));
    create_when_a_vm_exists: Stage::of(0, Act::Create(3), Moment::Vms(1));
    create_when_a_machine_knows_its_vm: Stage::of(0, Act::Create(3), Moment::Linked(1));
    create_when_a_node_has_joined: Stage::of(0, Act::Create(3), Moment::Joined(1));
    create_when_a_machine_runs: Stage::of(0, Act::Create(3), Moment::Running(1));
    scale_up_when_a_machine_exists: Stage::of(1, Act::Scale(4), Moment::Machines(1));
    scale_up_when_a_vm_exists: Stage::of(1, Act::Scale(4), Moment::Vms(2));
    scale_down_when_a_machine_is_deleted: Stage::of(3, Act::Scale(1), Moment::Deleting(1));
    delete_with_pods_when_a_machine_is_deleted: Stage::of(2, Act::Scale(1), Moment::Deleting(1)).with_pods();
    delete_with_pods_when_its_node_is_cordoned: Stage::of(2, Act::Scale(1), Moment::Cordoned(1)).with_pods();
    delete_with_pods_when_its_vm_is_deleted: Stage::of(2, Act::Scale(1), Moment::VmsLeaving(1)).with_pods();
    delete_with_pods_when_its_node_is_deleted: Stage::of(2, Act::Scale(1), Moment::NodesLeaving(1)).with_pods();
    delete_with_pods_when_it_is_gone: Stage::of(2, Act::Scale(1), Moment::Gone(1)).with_pods();
    delete_the_pool_when_a_machine_is_deleted: Stage::of(2, Act::Delete, Moment::Deleting(1));
    roll_when_the_new_set_exists: Stage::of(2, Act::Roll, Moment::Sets(2));
    roll_when_a_new_machine_exists: Stage::of(2, Act::Roll, Moment::Machines(1));
    roll_when_a_new_machine_runs: Stage::of(2, Act::Roll, Moment::Running(1));
    roll_when_an_old_machine_is_deleted: Stage::of(2, Act::Roll, Moment::Deleting(1));
    freeze: Stage::of(6, Act::Scale(2), Moment::Frozen(4));
    paused: Stage::of(2, Act::RollAndPause, Moment::Paused);
    rollback: Stage::of(2, Act::RollAndUndo, Moment::Deleting(1));
    rollback_to: Stage::of(1, Act::RollBackTo, Moment::RolledBack);
}

/// How a stage ends.
struct End {
    running: usize,
    class: &'static str,
    /// Machines and VMs that were created from the beginning to the end.
    machines: usize,
    vms: usize,
}

impl Stage {
    fn end(self) -> End {
        let before = self.machines as usize;
        let end = |running, class, created| End { running, class, machines: created, vms: created };
        match self.act {
            Act::Create(count) => end(count as usize, SMALL, count as usize),
            // After the freeze, the pool is scaled up by one.
            Act::Scale(count) if matches!(self.until, Moment::Frozen(_)) => end(count as usize + 1, SMALL, before + 1),
            Act::Scale(count) => end(count as usize, SMALL, before.max(count as usize)),
            Act::Delete => end(0, SMALL, before),
            Act::Roll | Act::RollAndPause => end(before, LARGE, 2 * before),
            // The machine of the broken class has no VM.
            Act::RollAndUndo => End { running: before, class: SMALL, machines: before + 1, vms: before },
            Act::RollBackTo => end(before, SMALL, 3 * before),
        }
    }

    /// The machines that must be the same at the end.
    fn staying(self, before: &State<Machine>, at_handover: &State<Machine>) -> State<Machine> {
        let has_vm = |machine: &Machine| machine.provider_id().is_some() && !machine.is_deleting();
        let keep = |state: &State<Machine>, is: &dyn Fn(&Machine) -> bool| -> State<Machine> {
            state.iter().filter(|(_, machine)| is(machine)).map(|(name, it)| (name.clone(), it.clone())).collect()
        };
        match self.act {
            Act::Create(_) => keep(at_handover, &has_vm),
            Act::Scale(count) if count > self.machines => keep(at_handover, &has_vm),
            Act::Roll | Act::RollAndPause => keep(at_handover, &|it| has_vm(it) && it.class_name() == LARGE),
            Act::RollAndUndo => before.clone(),
            Act::Scale(_) | Act::Delete | Act::RollBackTo => State::new(),
        }
    }
}

async fn play(name: &str, stage: Stage, sides: [Side; 2]) -> TestResult {
    let scenario = format!("{name}, from {:?} to {:?}", sides[0], sides[1]);
    environment::play(&scenario, "swap", async |env| played(env, stage, sides).await).await
}

async fn played(env: &Environment, stage: Stage, [first, second]: [Side; 2]) -> TestResult {
    objects::apply_classes(env).await?;
    let controllers = Controllers::start(env, first).await?;
    let before = prepare(env, stage).await?;
    let mark = Before::now(env).await?;
    act(env, stage, first, &mark).await?;
    stage.until.wait(env, first, &mark).await?;
    controllers.kill_9();
    let at_handover = env.machines().current();

    let mut controllers = Controllers::start(env, second).await?;
    let end = stage.end();
    go_on(env, stage, &at_handover).await?;
    if end.running == 0 {
        env.wait_for_nothing().await?;
    } else {
        env.wait_for_running_of_any_manager(end.running).await?;
        is_reported(env, end.running).await?;
    }
    if stage.pods {
        pods_run(env).await?;
    }
    controllers.check()?;
    exactness::all_stay(env, &stage.staying(&before, &at_handover))?;
    exactness::check(env, end.running, end.class, end.machines, end.vms).await
}

/// Has the first side make what there is before the act.
async fn prepare(env: &Environment, stage: Stage) -> TestResult<State<Machine>> {
    if stage.machines == 0 {
        return Ok(State::new());
    }
    env.apply(&objects::pool(env, stage.machines)).await?;
    let machines = env.wait_for_running_of_any_manager(stage.machines as usize).await?;
    if stage.pods {
        env.apply(&objects::workload(env)).await?;
        pods_run(env).await?;
    }
    Ok(machines)
}

async fn act(env: &Environment, stage: Stage, side: Side, mark: &Before) -> TestResult {
    match stage.act {
        Act::Create(count) => env.apply(&objects::pool(env, count)).await,
        Act::Scale(count) => env.scale(objects::POOL, count).await,
        Act::Delete => objects::delete_pool(env).await,
        Act::Roll => objects::roll(env, LARGE).await,
        Act::RollAndPause => {
            objects::roll(env, LARGE).await?;
            Moment::Machines(1).wait(env, side, mark).await?;
            objects::patch_pool(env, &json!({"paused": true})).await
        }
        Act::RollAndUndo => {
            objects::roll(env, BROKEN).await?;
            Moment::Failed.wait(env, side, mark).await?;
            objects::roll(env, SMALL).await
        }
        Act::RollBackTo => {
            objects::roll(env, LARGE).await?;
            let count = stage.machines as usize;
            env.wait_for_machines("the end of the roll", |all| {
                all.len() == count && all.values().all(|machine| machine.class_name() == LARGE)
            })
            .await?;
            env.wait_for_running_of_any_manager(count).await?;
            objects::patch_pool(env, &json!({"rollbackTo": {"revision": 1}})).await
        }
    }
}

/// What users do when the second side runs.
async fn go_on(env: &Environment, stage: Stage, at_handover: &State<Machine>) -> TestResult {
    match (stage.act, stage.until) {
        (Act::RollAndPause, _) => {
            tokio::time::sleep(QUIET).await;
            let machines = env.machines().current();
            let same =
                machines.keys().eq(at_handover.keys()) && !machines.values().any(|machine| machine.is_deleting());
            ensure(same, || format!("a paused pool went on: {:?}", machines.keys()))?;
            objects::patch_pool(env, &json!({"paused": false})).await
        }
        (Act::Scale(count), Moment::Frozen(_)) => {
            env.wait_for_running_of_any_manager(count as usize).await?;
            env.wait_for("the end of the freeze", async || Ok(!sets(env).await?.iter().any(is_frozen))).await?;
            env.scale(objects::POOL, count + 1).await
        }
        _ => Ok(()),
    }
}

/// Waits until the status of the pool says that all is done.
async fn is_reported(env: &Environment, running: usize) -> TestResult {
    let count = i32::try_from(running)?;
    env.wait_for("a status that says so", async || {
        let pool = pool(env).await?;
        let Some(status) = &pool.status else { return Ok(false) };
        let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
        let is_frozen = status
            .conditions
            .iter()
            .any(|condition| condition.condition_type == "Frozen" && condition.status == ConditionStatus::True);
        Ok(Some(status.observed_generation) == pool.metadata.generation && counts == [count; 4] && !is_frozen)
    })
    .await
}

async fn pods_run(env: &Environment) -> TestResult {
    let api: Api<Pod> = Api::namespaced(env.target_client(), env.namespace());
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
            && pod.metadata.deletion_timestamp.is_none()
    };
    env.wait_for("all pods to run", async || {
        Ok(api.list(&ListParams::default()).await?.items.iter().filter(|pod| is_ready(pod)).count() == PODS)
    })
    .await
    .map_err(|failure: Failure| failure.and("pods do not run"))
}
