//! What the statuses share: when they are written, and the list of Machines whose last operation failed.
//!
//! A status is written as a whole: at once if more than counts has changed, else at a limited rate. While the only news is that
//! Machines have become unhealthy, it waits whether that passes.

use crate::shared::{CONTROL, TARGET};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::object::HasStatus;
use nodewright_api::{
    ConditionStatus, LastOperation, Machine, MachineClassStatus, MachineDeploymentStatus, MachinePhase, MachineSet,
    MachineSetStatus, MachineSummary, OperationState,
    machine_config::{ControllerConfigStatus, KubeletConfigStatus, MachineConfigPoolStatus},
};
use nodewright_runtime::{
    apply_configuration::{ApplyConfiguration, STATUS},
    clip::clip,
    effect::{Effect, Never},
    object::{Cluster, Kind, is_deleting, name},
    plan::{Context, Plan, Planned, Step},
};
use serde::Serialize;

/// The minimum time between two writes of a status in which only counts change. The cluster autoscaler updates the same objects,
/// and must not meet a conflict each time.
const PAUSE: SignedDuration = SignedDuration::from_secs(2);
/// The same if only messages change.
const PAUSE_OF_MESSAGES: SignedDuration = SignedDuration::from_secs(30);
/// How long Machines may be unhealthy before a status says so.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// How soon a status has to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Urgency<N = Never> {
    /// At once: others wait for it.
    Now,
    /// At once if more than counts has changed.
    Normal,
    /// Only once it has lasted, which this note remembers: all that has changed is that Machines are unhealthy.
    MayPass(N),
}

/// The counts of a status by which a dip of health is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) generation: i64,
    pub(crate) replicas: i32,
    pub(crate) updated: i32,
    pub(crate) ready: i32,
    pub(crate) available: i32,
}

impl Health {
    /// Whether all that has changed is that some of the `unknown` Machines are no longer ready.
    pub(crate) fn is_dip(self, before: Self, unknown: i32) -> bool {
        let same = |health: Self| (health.generation, health.replicas, health.updated);
        let fewer = |after: i32, before: i32| after <= before && before - after <= unknown;
        same(self) == same(before)
            && fewer(self.ready, before.ready)
            && fewer(self.available, before.available)
            && (self.ready, self.available) != (before.ready, before.available)
    }
}

/// How many Machines are unhealthy and have not failed yet.
pub(crate) fn unknown<'a>(machines: impl Iterator<Item = &'a Machine>) -> i32 {
    count(machines.filter(|machine| *machine.phase() == MachinePhase::Unknown && !is_deleting(*machine)))
}

pub(crate) trait Status: Serialize + PartialEq + Clone + Default + Send + Sync + 'static {
    /// The cluster of the objects that have it.
    const CLUSTER: Cluster;
    fn generation(&self) -> i64;
    /// Type, status and reason of its conditions. Messages are left out, because they contain counts.
    fn headlines(&self) -> Vec<(&str, &ConditionStatus, &str)>;
    /// The same status without the messages of its conditions.
    fn without_messages(&self) -> Self;
    /// Notes when it is written, where it has a field for that.
    fn stamp(&mut self, _now: Timestamp) {}
}

macro_rules! status {
    ($cluster:expr, $($kind:ty $(=> $stamp:expr)?),*) => {$(
        impl Status for $kind {
            const CLUSTER: Cluster = $cluster;

            fn generation(&self) -> i64 {
                self.observed_generation
            }

            fn headlines(&self) -> Vec<(&str, &ConditionStatus, &str)> {
                let all = self.conditions.iter();
                all.map(|it| (it.condition_type.as_str(), &it.status, it.reason.as_str())).collect()
            }

            fn without_messages(&self) -> Self {
                let mut own = self.clone();
                own.conditions.iter_mut().for_each(|condition| condition.message.clear());
                own
            }

            $(fn stamp(&mut self, now: Timestamp) {
                let stamp: fn(&mut Self, Timestamp) = $stamp;
                stamp(self, now);
            })?
        }
    )*};
}

// As in machine-controller-manager, the last operation of a set has no other field.
status!(CONTROL, MachineClassStatus, MachineDeploymentStatus, MachineSetStatus => |status, now| {
    status.last_operation.last_update_time = Some(Time(now));
});
status!(TARGET, ControllerConfigStatus, KubeletConfigStatus, MachineConfigPoolStatus);

#[derive(Clone, PartialEq, Serialize)]
pub(crate) struct StatusPart<K: HasStatus> {
    pub(crate) status: K::Status,
}

impl<K> ApplyConfiguration for StatusPart<K>
where
    K: Kind + PartialEq + HasStatus<Status: Serialize + PartialEq + Clone + Default + Send + Sync>,
{
    type Of = K;
    const SUBRESOURCE: &'static str = STATUS;

    fn extract(live: &K) -> Self {
        Self { status: live.status().cloned().unwrap_or_default() }
    }

    fn is_in(&self, live: &K) -> bool {
        live.status().map_or_else(|| self.status == K::Status::default(), |status| *status == self.status)
    }
}

#[derive(Debug)]
pub(crate) enum StatusWrite<E, N = Never> {
    Never,
    Now(Box<Planned<E>>),
    Later(Timestamp),
    /// Unless what this note says passes before.
    Unless(N, Timestamp),
}

impl<E, N> StatusWrite<E, N> {
    pub(crate) fn add_to(self, plan: &mut Plan<E, N>) {
        match self {
            Self::Never => {}
            Self::Now(planned) => drop(plan.beside(planned.why, planned.step)),
            Self::Later(at) => drop(plan.wake_at(at)),
            Self::Unless(note, at) => {
                plan.notes.add(note);
                plan.wake_at(at);
            }
        }
    }

    /// The write in a plan of its own.
    pub(crate) fn plan(self) -> Plan<E, N> {
        let mut plan = Plan::idle();
        self.add_to(&mut plan);
        plan
    }
}

/// Decides when the status of an object is written.
pub(crate) fn write_status<K, E, N>(
    context: &Context<'_, E, N>,
    live: &K,
    mut wanted: K::Status,
    urgency: Urgency<N>,
) -> StatusWrite<E, N>
where
    K: Kind + PartialEq + HasStatus<Status: Status>,
    E: Effect,
    N: Ord + 'static,
{
    let none = K::Status::default();
    let before = live.status().unwrap_or(&none);
    if *before == wanted {
        return StatusWrite::Never;
    }
    let is_new = before.generation() != wanted.generation() || before.headlines() != wanted.headlines();
    let pause = if before.without_messages() == wanted.without_messages() { PAUSE_OF_MESSAGES } else { PAUSE };
    let is_urgent = matches!(urgency, Urgency::Now);
    if let Urgency::MayPass(unhealthy) = urgency {
        let since = context.noted_since(&unhealthy).unwrap_or(context.now);
        let over = since.checked_add(GRACE_PERIOD).unwrap_or(context.now);
        if over > context.now {
            return StatusWrite::Unless(unhealthy, over);
        }
    }
    // Now as well if the clock was set back since the last write.
    let written = context.status_written.filter(|written| *written <= context.now);
    let next = written.and_then(|written| written.checked_add(pause).ok()).filter(|next| *next > context.now);
    if let Some(later) = next.filter(|_| !is_urgent && !is_new) {
        return StatusWrite::Later(later);
    }
    wanted.stamp(context.now);
    let step = Step::apply(<K::Status as Status>::CLUSTER, live, StatusPart::<K> { status: wanted });
    Planned::new("the status changed", step).map_or(StatusWrite::Never, |step| StatusWrite::Now(Box::new(step)))
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

#[cfg(test)]
mod tests {
    use nodewright_api::{
        MachineClass, MachineDeployment,
        machine_config::{ControllerConfig, KubeletConfig, MachineConfigPool},
    };
    use serde_json::json;

    use super::*;

    /// The runtime decodes an answer once more, as a whole, if it cannot do so without the spec.
    #[test]
    fn an_answer_to_a_status_write_is_read_without_the_spec() {
        fn reads<K: Kind + HasStatus>() {
            let read = serde_json::from_value::<K>(json!({"metadata": {}, "spec": {}}));
            assert!(read.is_ok(), "{}: {:?}", K::kind(&()), read.err());
        }
        reads::<Machine>();
        reads::<MachineSet>();
        reads::<MachineDeployment>();
        reads::<MachineClass>();
        reads::<MachineConfigPool>();
        reads::<ControllerConfig>();
        reads::<KubeletConfig>();
    }
}
