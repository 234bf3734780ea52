//! Writes the whole status of an object: at once if more than counts has changed, else at a limited rate.

use crate::shared::clusters::CONTROL;
use jiff::{SignedDuration, Timestamp};
use kube::core::object::HasStatus;
use nodewright_api::{ConditionStatus, MachineClassStatus, MachineDeploymentStatus, MachineSetStatus};
use nodewright_runtime::{
    apply_configuration::{ApplyConfiguration, Subresource},
    effect::Effect,
    object::Kind,
    plan::{Context, Plan, Planned, Step},
};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// The minimum time between two writes of a status in which only counts change. The cluster autoscaler updates the same objects
/// with the version that it has cached, and must not meet a conflict each time.
const PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// The status of a kind with a controller.
pub(crate) trait Status: Serialize + PartialEq + Clone + Default + Send + Sync + 'static {
    /// `observedGeneration`.
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

/// The whole status of a kind, which one controller writes.
#[derive(Clone, Debug)]
struct StatusPart<K: HasStatus>(K::Status);

impl<K: HasStatus<Status: Status>> PartialEq for StatusPart<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: HasStatus<Status: Status>> Serialize for StatusPart<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("status", &self.0)?;
        map.end()
    }
}

impl<K: Kind + HasStatus<Status: Status>> ApplyConfiguration for StatusPart<K> {
    type Of = K;
    const SUBRESOURCE: Subresource = Subresource::Status;

    fn extract(live: &K) -> Self {
        Self(live.status().cloned().unwrap_or_default())
    }
}

/// When a status is written.
#[derive(Debug)]
pub(crate) enum StatusWrite<E> {
    /// Not at all: it is up to date.
    Never,
    /// Now.
    Now(Box<Planned<E>>),
    /// At this time, unless a change comes before.
    Later(Timestamp),
}

impl<E> StatusWrite<E> {
    /// Adds it to the last stage of a plan.
    pub(crate) fn add_to(self, plan: &mut Plan<E>) {
        match self {
            Self::Never => {}
            Self::Now(planned) => drop(plan.beside(planned.why, planned.step)),
            Self::Later(at) => drop(plan.wake_at(at)),
        }
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
    K: Kind + HasStatus<Status: Status>,
    E: Effect,
{
    let before = live.status().cloned().unwrap_or_default();
    let is_new = before.generation() != wanted.generation() || before.headlines() != wanted.headlines();
    let Some(step) = Step::apply(CONTROL, live, &StatusPart::<K>(wanted)) else { return StatusWrite::Never };
    match next_write(context).filter(|_| !is_urgent && !is_new) {
        Some(later) => StatusWrite::Later(later),
        None => StatusWrite::Now(Box::new(Planned { why: "the status changed".into(), step })),
    }
}

/// When a status in which only counts have changed may be written: `None` means now, also if the clock was set back
/// since the last write.
fn next_write<E: Effect>(context: &Context<'_, E>) -> Option<Timestamp> {
    let next = context.status_written.filter(|written| *written <= context.now)?.checked_add(PAUSE).ok()?;
    (next > context.now).then_some(next)
}
