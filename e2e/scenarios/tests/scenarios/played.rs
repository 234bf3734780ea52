//! The named runs of the simulation on a real control plane: the same data, with real processes and in real time.
//!
//! Faults of the API server, or between a manager and its watches, cannot be produced here: runs with such faults are left to
//! the simulation.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_e2e_scenarios::{Environment, Failure, Pool, TestResult, ensure, waits};
use nodewright_e2e_simulation::{
    Detail, Scenario,
    run::Run,
    scenarios,
    schedule::{Act, Edit, Trouble},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

/// The number of concurrent runs.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-slow"]
async fn what_has_a_name_in_the_simulation_holds_on_a_real_plane() -> TestResult {
    let all: Vec<Scenario> = scenarios::all().into_iter().filter(|scenario| can_be_played(&scenario.run)).collect();
    ensure(all.len() >= 6, || format!("only {} runs can be played", all.len()))?;
    let played = stream::iter(all.iter().enumerate()).map(async |(number, Scenario { name, run })| {
        let played = play(number, run).await;
        played.map_err(|failure| failure.and(&format!("in the run called {name:?}")))
    });
    played.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await.into_iter().collect()
}

fn can_be_played(run: &Run) -> bool {
    let plays = |act: &Act| match act {
        Act::Edit(Edit::RecreateMachine(_))
        | Act::WipeStatus(_)
        | Act::TakeOwners(_)
        | Act::Restore
        | Act::SetBack(_)
        | Act::SizeAhead
        | Act::SecondManager(_)
        | Act::JumpClock(_)
        | Act::JumpRival(_)
        | Act::DriftClock(_)
        | Act::Sleep(_)
        | Act::HoldWatches(..)
        | Act::LateWatches(..)
        | Act::LateRival(..)
        | Act::LaggingServer(_)
        | Act::CutWatches(_)
        | Act::Compact
        | Act::ApiDown(_)
        | Act::ApiSlow(_)
        | Act::ApiRefuses { .. }
        | Act::ApiSwallows { .. }
        | Act::TargetDown(_)
        | Act::RefusePods(..)
        | Act::StaleBudgets(_)
        | Act::EditBudgets(_)
        | Act::CloudDown(_)
        | Act::KillVm(_)
        | Act::VanishVm(_)
        | Act::LoseMachine(_)
        | Act::LoseVms(_)
        | Act::SilenceKubelet(..)
        | Act::Pool(_)
        | Act::Rollout(_)
        | Act::Err(..) => false,
        Act::Edit(_) | Act::OrphanMachines | Act::Disturb(_) | Act::DropManagedFields | Act::Crash | Act::Cloud(_) => {
            true
        }
    };
    let troubles = run.schedule.0.iter().all(|trouble| match trouble {
        Trouble::At { act, .. } => plays(act),
        Trouble::Step { .. } | Trouble::Request { .. } | Trouble::Edit { .. } => false,
    });
    // Nothing here updates VMs in place.
    let is_bare = run.workload.is_none() && run.rollout.is_none() && !run.cloud_nodes && run.in_place.is_none();
    troubles && is_bare && run.phases.iter().all(plays) && !run.elects && !run.heartbeats && !run.quiet
}

/// Plays a run: the user's acts, each after the cluster is at rest, and the faults in parallel.
async fn play(number: usize, run: &Run) -> TestResult {
    let env = Environment::builder(&format!("played{number}")).manager_flags(["--leader-elect=false"]).start().await?;
    for class in ["small", "large"] {
        env.apply_class(class).await?;
    }
    let stage = Stage { pool: pool(&env, run), env };
    let begun = Instant::now();
    stage.env.apply(&stage.pool).await?;
    let troubles = async {
        for (millis, act) in run.schedule.acts() {
            sleep_until(begun + Duration::from_millis(millis)).await;
            stage.perform(&act).await?;
        }
        Ok::<_, Failure>(())
    };
    let story = async {
        stage.settle("at the start").await?;
        for phase in &run.phases {
            stage.perform(phase).await?;
            stage.settle(&format!("after {phase:?}")).await?;
        }
        Ok::<_, Failure>(())
    };
    tokio::try_join!(troubles, story)?;
    stage.settle("in the end").await?;
    if run.schedule.is_controller_side() {
        stage.made_as_many_as(run).await?;
    }
    stage.env.end().await
}

fn pool(env: &Environment, run: &Run) -> Pool {
    let bounds = json!({"maxSurge": run.surge, "maxUnavailable": run.unavailable});
    env.pool("a", run.replicas).spec("strategy", json!({"type": "RollingUpdate", "rollingUpdate": bounds}))
}

/// An environment, and the pool of the run.
struct Stage {
    env: Environment,
    pool: Pool,
}

impl Stage {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.env.client(), self.env.namespace())
    }

    async fn perform(&self, act: &Act) -> TestResult {
        match act {
            Act::Edit(Edit::Scale(replicas)) => self.change(json!({"spec": {"replicas": replicas}})).await,
            Act::Edit(Edit::Roll(class)) => {
                let class = json!({"kind": "MachineClass", "name": class});
                self.change(json!({"spec": {"template": {"spec": {"class": class}}}})).await
            }
            Act::Edit(Edit::Relabel(name)) => {
                let template = json!({"metadata": {"labels": {"relabelled": name}}});
                self.change(json!({"spec": {"template": {"spec": {"nodeTemplate": template}}}})).await
            }
            Act::Edit(Edit::DeleteMachine(number)) => self.delete_machine(*number).await,
            Act::Edit(Edit::DeletePool) => {
                self.env.kubectl("delete machinedeployments --all --wait=false").await.map(drop)
            }
            Act::OrphanMachines => self.orphan_machines().await,
            Act::Disturb(times) => self.disturb(*times).await,
            Act::DropManagedFields => self.change_all(&json!({"metadata": {"managedFields": [{}]}})).await,
            Act::Crash => {
                let mut manager = self.env.manager().await?;
                manager.kill_9();
                Ok(manager.start_again().await?)
            }
            Act::Cloud(order) => Ok(self.env.cloud().fault(order).await.map(drop)?),
            other => Err(Failure::new(format!("{other:?} cannot be played"))),
        }
    }

    /// Changes the deployment, if it exists.
    async fn change(&self, change: Value) -> TestResult {
        let changed = self
            .api::<MachineDeployment>()
            .patch(self.pool.name(), &PatchParams::default(), &Patch::Merge(change))
            .await;
        unless_gone(changed)
    }

    async fn delete_machine(&self, number: usize) -> TestResult {
        let mut names: Vec<String> = self.env.machines().current().values().map(|it| it.name_any()).collect();
        names.sort();
        let Some(name) = number.checked_rem(names.len()).map(|place| &names[place]) else { return Ok(()) };
        unless_gone(self.api::<Machine>().delete(name, &DeleteParams::background()).await)
    }

    async fn orphan_machines(&self) -> TestResult {
        let Some(live) = self.api::<MachineDeployment>().get_opt(self.pool.name()).await? else { return Ok(()) };
        for kind in ["machinedeployments", "machinesets"] {
            let deletion = format!("delete {kind} --all --cascade=orphan");
            self.env.in_time(&format!("the end of {kind}"), self.env.kubectl(&deletion)).await??;
        }
        let again =
            self.pool.clone().spec("replicas", live.spec.replicas).class(live.spec.template.spec.class.name.as_str());
        self.env.apply(&again).await
    }

    async fn disturb(&self, times: u32) -> TestResult {
        for time in 0..times {
            self.change_all(&json!({"metadata": {"annotations": {"example.com/touched": time.to_string()}}})).await?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn change_all(&self, change: &Value) -> TestResult {
        change_each(&self.api::<Machine>(), change).await?;
        change_each(&self.api::<MachineSet>(), change).await?;
        change_each(&self.api::<MachineDeployment>(), change).await
    }

    /// Waits until the cluster matches the deployment, or is empty without one.
    async fn settle(&self, when: &str) -> TestResult {
        self.env
            .wait_for(&format!("all as it is wanted {when}"), async || {
                let pool = self.api::<MachineDeployment>().get_opt(self.pool.name()).await?;
                let vms = self.env.vms().await?.len();
                Ok(pool.map_or_else(|| self.is_empty() && vms == 0, |pool| self.is_as(&pool) && wanted(&pool) == vms))
            })
            .await
    }

    fn is_empty(&self) -> bool {
        self.env.machines().current().is_empty() && self.env.nodes().current().is_empty()
    }

    fn is_as(&self, pool: &MachineDeployment) -> bool {
        let (machines, nodes) = (self.env.machines().current(), self.env.nodes().current());
        let class = &pool.spec.template.spec.class.name;
        let is_well = |machine: &Arc<Machine>| waits::is_running(machine) && machine.class_name() == class;
        let status = pool.status.as_ref();
        let is_reported = status.is_some_and(|status| {
            Some(status.observed_generation) == pool.metadata.generation
                && usize::try_from(status.available_replicas) == Ok(wanted(pool))
        });
        is_reported
            && pool.metadata.deletion_timestamp.is_none()
            && machines.len() == wanted(pool)
            && machines.values().all(is_well)
            && nodes.len() == wanted(pool)
            && nodes.values().all(|node| waits::is_ready(node))
    }

    /// Checks that the numbers of created and deleted VMs equal those of the simulation.
    async fn made_as_many_as(&self, run: &Run) -> TestResult {
        let run = run.clone();
        let simulated = tokio::task::spawn_blocking(move || run.run(Detail::Brief)).await?;
        let expected = simulated.counts.0.get("vms").copied().unwrap_or_default();
        let stats = self.env.cloud().stats().await?;
        ensure((stats.created, stats.deleted) == expected, || {
            format!("VMs made and deleted: {} and {}, in the simulation {expected:?}", stats.created, stats.deleted)
        })
    }
}

fn wanted(pool: &MachineDeployment) -> usize {
    usize::try_from(pool.spec.replicas).unwrap_or(0)
}

async fn change_each<K>(api: &Api<K>, change: &Value) -> TestResult
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    for object in api.list_metadata(&ListParams::default()).await?.items {
        unless_gone(api.patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(change)).await)?;
    }
    Ok(())
}

/// Ignores objects that were deleted meanwhile.
fn unless_gone<T>(answer: Result<T, kube::Error>) -> TestResult {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
