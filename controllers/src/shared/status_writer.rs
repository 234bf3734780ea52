//! What the statuses share: when they are written, and the list of Machines whose last operation failed.
//!
//! A status is written as a whole: at once if more than counts has changed, else at a limited rate.

use crate::shared::CONTROL;
use jiff::{SignedDuration, Timestamp};
use kube::core::object::HasStatus;
use nodewright_api::{
    ConditionStatus, LastOperation, Machine, MachineClassStatus, MachineDeploymentStatus, MachineSet, MachineSetStatus,
    MachineSummary, OperationState,
};
use nodewright_runtime::{
    apply_configuration::{ApplyConfiguration, Subresource},
    clip::clip,
    effect::Effect,
    object::{Kind, name},
    plan::{Context, Plan, Planned, Step},
};
use serde::Serialize;

/// The minimum time between two writes of a status in which only counts change. The cluster autoscaler updates the same objects,
/// and must not meet a conflict each time.
const PAUSE: SignedDuration = SignedDuration::from_secs(2);

pub(crate) trait Status: Serialize + PartialEq + Clone + Default + Send + Sync + 'static {
    fn generation(&self) -> i64;
    /// Type, status and reason of its conditions. Messages are left out, because they contain counts.
    fn headlines(&self) -> Vec<(&str, &ConditionStatus, &str)>;
}

macro_rules! status {
    ($($kind:ty),*) => {$(
        impl Status for $kind {
            fn generation(&self) -> i64 {
                self.observed_generation
            }

            fn headlines(&self) -> Vec<(&str, &ConditionStatus, &str)> {
                let all = self.conditions.iter();
                all.map(|it| (it.condition_type.as_str(), &it.status, it.reason.as_str())).collect()
            }
        }
    )*};
}

status!(MachineClassStatus, MachineDeploymentStatus, MachineSetStatus);

#[derive(Clone, PartialEq, Serialize)]
pub(crate) struct StatusPart<K: HasStatus> {
    pub(crate) status: K::Status,
}

impl<K> ApplyConfiguration for StatusPart<K>
where
    K: Kind + PartialEq + HasStatus<Status: Serialize + PartialEq + Clone + Default + Send + Sync>,
{
    type Of = K;
    const SUBRESOURCE: Subresource = Subresource::Status;

    fn extract(live: &K) -> Self {
        Self { status: live.status().cloned().unwrap_or_default() }
    }
}

#[derive(Debug)]
pub(crate) enum StatusWrite<E> {
    Never,
    Now(Box<Planned<E>>),
    Later(Timestamp),
}

impl<E> StatusWrite<E> {
    pub(crate) fn add_to(self, plan: &mut Plan<E>) {
        match self {
            Self::Never => {}
            Self::Now(planned) => drop(plan.beside(planned.why, planned.step)),
            Self::Later(at) => drop(plan.wake_at(at)),
        }
    }

    /// The write in a plan of its own.
    pub(crate) fn plan(self) -> Plan<E> {
        let mut plan = Plan::idle();
        self.add_to(&mut plan);
        plan
    }
}

/// Decides when the status of an object is written: at once if it `is_urgent`, or if more than counts has changed.
pub(crate) fn write_status<K, E>(
    context: &Context<'_, E>,
    live: &K,
    wanted: K::Status,
    is_urgent: bool,
) -> StatusWrite<E>
where
    K: Kind + PartialEq + HasStatus<Status: Status>,
    E: Effect,
{
    let before = live.status().cloned().unwrap_or_default();
    let is_new = before.generation() != wanted.generation() || before.headlines() != wanted.headlines();
    let Some(step) = Step::apply(CONTROL, live, &StatusPart::<K> { status: wanted }) else { return StatusWrite::Never };
    // Now as well if the clock was set back since the last write.
    let written = context.status_written.filter(|written| *written <= context.now);
    let next = written.and_then(|written| written.checked_add(PAUSE).ok()).filter(|next| *next > context.now);
    match next.filter(|_| !is_urgent && !is_new) {
        Some(later) => StatusWrite::Later(later),
        None => StatusWrite::Now(Box::new(Planned { why: "the status changed".into(), step })),
    }
}

/// How many objects there are, as statuses say it.
pub(crate) fn count<T>(objects: impl Iterator<Item = T>) -> i32 {
    i32::try_from(objects.count()).unwrap_or(i32::MAX)
}

/// The maximum number of listed machines. All of a large fleet would not fit into an object.
const LISTED: usize = 50;

#[derive(Clone, Debug, Default)]
pub(crate) struct FailedMachines {
    pub(crate) listed: Vec<MachineSummary>,
    all: usize,
}

impl FailedMachines {
    /// Collects failed Machines, each with its set. The order must be stable, or the status is rewritten each time.
    pub(crate) fn of<'a>(machines: impl IntoIterator<Item = (&'a Machine, &'a MachineSet)>) -> Self {
        let mut failed = Self::default();
        for (machine, set) in machines {
            let operation = machine.status.as_ref().map(|status| &status.last_operation);
            let Some(operation) = operation.filter(|it| it.state == OperationState::Failed) else { continue };
            failed.all += 1;
            if failed.listed.len() < LISTED {
                failed.listed.push(summary(machine, set, operation));
            }
        }
        failed
    }

    pub(crate) fn truncation(&self) -> Option<String> {
        let left_out = self.all - self.listed.len();
        (left_out > 0).then(|| {
            let (all, listed) = (self.all, self.listed.len());
            format!("the last operation of {all} machines failed; {listed} are listed in status.failedMachines, {left_out} are left out")
        })
    }
}

fn summary(machine: &Machine, set: &MachineSet, operation: &LastOperation) -> MachineSummary {
    MachineSummary {
        name: name(machine).to_owned(),
        provider_id: machine.spec.provider_id.clone(),
        // Another controller manager may have written a longer one.
        last_operation: LastOperation { description: clip(operation.description.as_str()), ..operation.clone() },
        owner_ref: name(set).to_owned(),
    }
}
