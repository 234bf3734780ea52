//! Waiting for a stage of the work, as API server and cloud show it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Resource, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachineDeployment, MachinePhase, MachineSet};
use nodewright_e2e_cloud::EventKind;
use nodewright_e2e_scenarios::{Change, Environment, TestResult, waits::is_running};

use crate::{
    controllers::Side,
    objects::{BROKEN, SMALL, pool_name},
};

/// A stage of the work. The numbers count what there is beyond the state before the work began.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// This many MachineSets exist.
    Sets(usize),
    /// This many Machines were created,
    Machines(usize),
    /// VMs were created (the answer may be in flight),
    Vms(usize),
    /// Machines know their VM,
    Linked(usize),
    /// Nodes joined,
    Joined(usize),
    /// new Machines are Running,
    Running(usize),
    /// Machines have a deletion timestamp,
    Deleting(usize),
    /// Nodes are cordoned,
    Cordoned(usize),
    /// VMs are being deleted or gone,
    VmsLeaving(usize),
    /// Nodes are being deleted or gone,
    NodesLeaving(usize),
    /// Machines are gone.
    Gone(usize),
    /// machine-controller-manager has frozen the MachineSet; Nodewright, which a scale-down does not freeze, has deleted this many.
    Frozen(usize),
    /// A machine of the broken class failed.
    Failed,
    /// The status of the pool says that it is paused.
    Paused,
    /// `spec.rollbackTo` was executed.
    RolledBack,
}

/// What there was before the work began.
pub(crate) struct Before {
    machines: usize,
    nodes: usize,
    created: u64,
    events: u64,
}

impl Before {
    pub(crate) async fn now(env: &Environment) -> TestResult<Self> {
        Ok(Self {
            machines: env.machines().mark(),
            nodes: env.nodes().mark(),
            created: env.cloud().stats().await?.created,
            events: env.cloud().events(0).await?.last().map_or(0, |event| event.number),
        })
    }
}

impl Moment {
    /// Waits for this moment in the work of `side`.
    pub(crate) async fn wait(self, env: &Environment, side: Side, before: &Before) -> TestResult {
        env.wait_for(&format!("the moment {self:?}"), async || self.has_come(env, side, before).await).await
    }

    async fn has_come(self, env: &Environment, side: Side, before: &Before) -> TestResult<bool> {
        let machines = |count: usize, is: &dyn Fn(&Change<Machine>) -> bool| -> TestResult<bool> {
            Ok(distinct(&env.machines().changes()?, before.machines, is) >= count)
        };
        let nodes = |count: usize, is: &dyn Fn(&Change<Node>) -> bool| -> TestResult<bool> {
            Ok(distinct(&env.nodes().changes()?, before.nodes, is) >= count)
        };
        // Deleted by Nodewright, machines also have to show it.
        let deleted = |count: usize| -> TestResult<bool> {
            Ok(machines(count, &|it| it.object.is_deleting())? && (side == Side::Mcm || deletions_show(env)))
        };
        match self {
            Self::Sets(count) => Ok(sets(env).await?.len() >= count),
            Self::Machines(count) => machines(count, &|_| true),
            Self::Vms(count) => Ok(env.cloud().stats().await?.created - before.created >= u64::try_from(count)?),
            Self::Linked(count) => machines(count, &|it| it.object.provider_id().is_some()),
            Self::Joined(count) => nodes(count, &|_| true),
            Self::Running(count) => machines(count, &|it| is_running(&it.object)),
            Self::Deleting(count) => deleted(count),
            Self::Cordoned(count) => {
                nodes(count, &|it| it.object.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)))
            }
            Self::VmsLeaving(count) => {
                let events = env.cloud().events(before.events).await?;
                Ok(events.iter().filter(|event| event.kind == EventKind::DeleteAccepted).count() >= count)
            }
            Self::NodesLeaving(count) => nodes(count, &|it| it.gone || it.object.metadata.deletion_timestamp.is_some()),
            Self::Gone(count) => machines(count, &|it| it.gone),
            Self::Frozen(count) if side == Side::Nodewright => deleted(count),
            Self::Frozen(_) => Ok(sets(env).await?.iter().any(is_frozen)),
            Self::Failed => machines(1, &|it| it.object.class_name() == BROKEN && has_failed(&it.object)),
            Self::Paused => {
                let pool = pool(env).await?;
                let conditions = pool.status.map(|status| status.conditions).unwrap_or_default();
                Ok(conditions.iter().any(|it| it.reason == "DeploymentPaused"))
            }
            Self::RolledBack => {
                let spec = pool(env).await?.spec;
                Ok(spec.rollback_to.is_none() && spec.template.spec.class.name == SMALL)
            }
        }
    }
}

/// The MachineSets of an environment.
pub(crate) async fn sets(env: &Environment) -> TestResult<Vec<MachineSet>> {
    let api: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    Ok(api.list(&ListParams::default()).await?.items)
}

/// The pool.
pub(crate) async fn pool(env: &Environment) -> TestResult<MachineDeployment> {
    Ok(Api::namespaced(env.client(), env.namespace()).get(&pool_name(env)).await?)
}

/// Whether machine-controller-manager has frozen the set.
pub(crate) fn is_frozen(set: &MachineSet) -> bool {
    set.labels().get("freeze").is_some_and(|value| value == "True")
}

/// Whether each Machine in deletion says so in its phase. machine-controller-manager goes by the phase alone: a Machine that was
/// deleted a moment before a take-over, and has yet to say it, counts as one too many, and another one is deleted for it.
fn deletions_show(env: &Environment) -> bool {
    let shows = |machine: &Machine| !machine.is_deleting() || *machine.phase() == MachinePhase::Terminating;
    env.machines().current().values().all(|machine| shows(machine))
}

fn has_failed(machine: &Machine) -> bool {
    machine.status.as_ref().is_some_and(|status| !status.last_operation.error_code.is_empty())
}

/// The number of objects with such a change since a mark, except for a change that only shows how the object was.
fn distinct<K: Resource>(all: &[Change<K>], since: usize, is: impl Fn(&Change<K>) -> bool) -> usize {
    let (old, new) = all.split_at(since.min(all.len()));
    let matching = |changes: &[Change<K>]| -> BTreeSet<String> {
        changes.iter().filter(|change| is(change)).filter_map(|change| change.object.uid()).collect()
    };
    matching(new).difference(&matching(old)).count()
}
