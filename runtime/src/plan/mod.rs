//! What a controller decides: steps, waits, events, and the time of the next run. Plain data, no I/O.

mod failure;
mod notes;
mod text;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;

use crate::{
    apply_configuration::{ApplyConfiguration, Fields, STATUS},
    effect::{Effect, Never, Outcomes},
    events::Event,
    object::{Cluster, Kind, ObjectRef, ResourceType, Target},
    scoped_watch::ScopedWatch,
};
use nodewright_observability::trace::{SpanRecord, TraceContext};

pub use self::{
    failure::{Failure, Refusal, StepVerb},
    notes::Notes,
};
pub use crate::request::FailureClass;

/// Everything that a plan may know besides objects.
#[derive(Debug)]
pub struct Context<'a, E: Effect, N: 'static = Never> {
    /// The time of the plan. A plan never reads a clock.
    pub now: Timestamp,
    /// How far the clock of this computer is ahead of an API server's, at least; negative if it is behind. `now` is the earlier of
    /// both, see [`checked_clock`](crate::leadership::checked_clock).
    pub clock_skew: SignedDuration,
    /// Since when this process is the leader. When the clock is stepped, this time and all others here move along with `now`.
    pub leader_since: Timestamp,
    /// Since when this process has been connected to the servers of the caches that the snapshot read, without a gap of more
    /// than a minute: nothing could be reported before. Never before `leader_since`.
    pub connected_since: Timestamp,
    /// How many runs in a row have failed.
    pub attempt: u32,
    /// Why the last run failed, if it did.
    pub failure: Option<&'a Failure>,
    /// The outcomes of calls outside Kubernetes.
    pub outcomes: &'a Outcomes<E>,
    /// Requests that were refused for now, such as evictions that a disruption budget does not allow.
    pub refusals: &'a [Refusal],
    /// The notes of earlier plans, each since when.
    pub notes: &'a BTreeMap<N, Timestamp>,
    /// What the last plan waited for.
    pub waits: &'a [Waiting],
    /// When this process last wrote the status of the object.
    pub status_written: Option<Timestamp>,
    /// Whether spans are exported: a plan need not remember what they alone would say otherwise.
    pub traces: bool,
}

impl<'a, E: Effect, N: Ord + 'static> Context<'a, E, N> {
    const NO_NOTES: &'static BTreeMap<N, Timestamp> = &BTreeMap::new();

    /// What a process knows that begins to lead now, and of nothing that went before, except these outcomes. Tests and models of
    /// a controller set the rest.
    pub fn new(now: Timestamp, outcomes: &'a Outcomes<E>) -> Self {
        Self {
            now,
            clock_skew: SignedDuration::ZERO,
            leader_since: now,
            connected_since: now,
            attempt: 0,
            failure: None,
            outcomes,
            refusals: &[],
            notes: Self::NO_NOTES,
            waits: &[],
            status_written: None,
            traces: false,
        }
    }

    /// The current refusal for the object with this UID.
    pub fn refusal(&self, uid: &str) -> Option<&Refusal> {
        Refusal::of(self.refusals, uid)
    }

    /// Since when each plan has left this note.
    pub fn noted_since(&self, note: &N) -> Option<Timestamp> {
        self.notes.get(note).copied()
    }

    /// Since when plans have waited for this reason, one after the other; now if the last one did not.
    pub fn waiting_since(&self, reason: &str) -> Timestamp {
        self.waits.iter().find(|waiting| waiting.reason == reason).map_or(self.now, |waiting| waiting.since)
    }
}

/// One change to a cluster, or a call outside Kubernetes.
#[derive(Clone, Debug)]
pub enum Step<E> {
    /// Server-side apply of every field that this controller owns on an existing object.
    Apply(Apply),
    /// Creation of an object: 201 if the name is free, 409 if it is taken. Never changes an existing object.
    Create {
        /// The requested name.
        key: ObjectRef,
        /// The kind.
        resource: ResourceType,
        /// The object.
        body: Value,
        /// See [`Step::confidential`].
        is_confidential: bool,
    },
    /// A JSON patch with tests, for fields that have several writers.
    Edit {
        /// The object.
        at: Target,
        /// The subresource that takes the patch; empty for the object itself.
        subresource: &'static str,
        /// The operations.
        patch: Patch,
        /// See [`Step::confidential`].
        is_confidential: bool,
    },
    /// A consistent read of one object. If it is gone or being deleted, the plan ends here.
    Confirm(Target),
    /// As `Confirm`, and the plan also ends here if the version differs from the one in the snapshot.
    ConfirmUnchanged(Target),
    /// Deletion of exactly the object in the snapshot.
    Delete(Target),
    /// Deletion of exactly the object in the snapshot, without grace period.
    DeleteNow(Target),
    /// Eviction of exactly the Pod in the snapshot. A refusal is no failure: the next plan, which is made at once, sees the
    /// [`Refusal`] and must set the time of the retry.
    Evict(Target),
    /// A call outside Kubernetes.
    Call(E),
}

/// See [`Step::Apply`]. Only [`Step::apply`] and [`Step::apply_if_unchanged`] make it.
#[derive(Clone)]
pub struct Apply {
    /// The object to write to.
    pub at: Target,
    /// The subresource to write through; empty for the object itself.
    pub subresource: &'static str,
    pub(crate) fields: Arc<dyn Fields>,
}

impl Apply {
    /// The fields to write, in wire form; `null` if they have none.
    pub fn fragment(&self) -> Value {
        self.fields.fragment().unwrap_or_default()
    }
}

impl fmt::Debug for Apply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, subresource, .. } = self;
        let mut apply = f.debug_struct("Apply");
        apply
            .field("at", at)
            .field("subresource", subresource)
            .field("fragment", &self.fragment())
            .finish_non_exhaustive()
    }
}

impl<E> Step<E> {
    /// Applies `owned` to `live`; `None` when that would change nothing.
    pub fn apply<O: ApplyConfiguration>(cluster: Cluster, live: &O::Of, owned: O) -> Option<Self> {
        Self::apply_to(Target::of(cluster, live), live, owned)
    }

    /// As [`Step::apply`]; the API server refuses it if the object has changed since.
    pub fn apply_if_unchanged<O: ApplyConfiguration>(cluster: Cluster, live: &O::Of, owned: O) -> Option<Self> {
        Self::apply_to(Target::of(cluster, live).if_unchanged(), live, owned)
    }

    fn apply_to<O: ApplyConfiguration>(at: Target, live: &O::Of, owned: O) -> Option<Self> {
        (!owned.is_in(live)).then(|| Self::Apply(Apply { at, subresource: O::SUBRESOURCE, fields: Arc::new(owned) }))
    }

    /// Creates `object` in `cluster`, under the name in its metadata.
    pub fn create<K: Kind + serde::Serialize>(cluster: Cluster, object: &K) -> Option<Self> {
        let resource = ResourceType::of::<K>();
        let mut body = serde_json::to_value(object).ok()?;
        body["apiVersion"] = resource.api_version().into();
        body["kind"] = resource.kind.as_ref().into();
        Some(Self::Create { key: ObjectRef::of(cluster, object), resource, body, is_confidential: false })
    }

    /// Changes shared fields of `live`; `None` when there is nothing to do.
    pub fn edit<K: Kind>(cluster: Cluster, live: &K, patch: Patch) -> Option<Self> {
        Self::edit_at(cluster, live, "", patch)
    }

    /// Reads from the API server whether `live` still exists and is not being deleted. Do this before `live` adopts an object,
    /// as Kubernetes' `CanAdopt`: a cache may show an orphan and not yet the deletion of its owner.
    pub fn confirm<K: Kind>(cluster: Cluster, live: &K) -> Self {
        Self::Confirm(Target::of(cluster, live))
    }

    /// Reads from the API server whether `live` is unchanged. This is no patch, because some objects cannot be patched.
    pub fn confirm_unchanged<K: Kind>(cluster: Cluster, live: &K) -> Self {
        Self::ConfirmUnchanged(Target::of(cluster, live))
    }

    /// Changes shared fields of the status of `live`; `None` when there is nothing to do.
    pub fn edit_status<K: Kind>(cluster: Cluster, live: &K, patch: Patch) -> Option<Self> {
        Self::edit_at(cluster, live, STATUS, patch)
    }

    fn edit_at<K: Kind>(cluster: Cluster, live: &K, subresource: &'static str, patch: Patch) -> Option<Self> {
        // Most patches change nothing: then the target is not allocated.
        let is_needed = !patch.0.is_empty();
        is_needed.then(|| Self::Edit { at: Target::of(cluster, live), subresource, patch, is_confidential: false })
    }

    /// The same creation or edit, whose text, which stands in logs, has nothing of what it writes.
    #[must_use]
    pub fn confidential(mut self) -> Self {
        if let Self::Create { is_confidential, .. } | Self::Edit { is_confidential, .. } = &mut self {
            *is_confidential = true;
        }
        self
    }

    /// The object that the step writes or reads; `None` for a call outside Kubernetes.
    pub fn key(&self) -> Option<&ObjectRef> {
        match self {
            Self::Apply(apply) => Some(apply.at.key()),
            Self::Create { key, .. } => Some(key),
            Self::Edit { at, .. }
            | Self::Confirm(at)
            | Self::ConfirmUnchanged(at)
            | Self::Delete(at)
            | Self::DeleteNow(at)
            | Self::Evict(at) => Some(at.key()),
            Self::Call(_) => None,
        }
    }

    /// Whether the step at most changes an existing object: it creates and deletes nothing, and makes no call.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Self::Apply(_) | Self::Edit { .. } | Self::Confirm(_) | Self::ConfirmUnchanged(_))
    }

    /// The cluster that receives the request; `None` for a call outside Kubernetes.
    pub fn cluster(&self) -> Option<Cluster> {
        Some(self.key()?.cluster)
    }

    /// Deletes exactly the object in the snapshot.
    pub fn delete<K: Kind>(cluster: Cluster, live: &K) -> Self {
        Self::Delete(Target::of(cluster, live))
    }
}

/// A step and its reason.
#[derive(Clone, Debug)]
pub struct Planned<E> {
    /// The reason, for events, logs and the text of the plan.
    pub why: Cow<'static, str>,
    /// The step.
    pub step: Step<E>,
}

impl<E> Planned<E> {
    /// A step for this reason, if there is one.
    pub fn new(why: impl Into<Cow<'static, str>>, step: impl Into<Option<Step<E>>>) -> Option<Self> {
        Some(Self { why: why.into(), step: step.into()? })
    }
}

/// A condition elsewhere that must hold before the object can proceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// A short CamelCase word for conditions and metrics.
    pub reason: &'static str,
    /// What the object waits for, and what would end the wait.
    pub message: String,
    /// When the wait ends by itself, if it does. A change of this time is logged.
    pub until: Option<Timestamp>,
}

/// A wait of the last plan, and since when each plan has had one for that reason. A process that starts knows of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason.
    pub reason: &'static str,
    /// Since when.
    pub since: Timestamp,
    /// The logged end of the wait, if it ends by itself.
    pub(crate) until: Option<Timestamp>,
}

impl Waiting {
    /// A wait for this reason since that time.
    pub fn new(reason: &'static str, since: Timestamp) -> Self {
        Self { reason, since, until: None }
    }
}

/// What a controller decided for one object.
///
/// Stages run in order. The steps of a stage run concurrently and fail independently. A failure ends the plan after its stage
/// and is part of the next [`Context`].
#[derive(Clone, Debug)]
pub struct Plan<E, N = Never> {
    /// Steps, stage by stage.
    pub stages: Vec<Vec<Planned<E>>>,
    /// The waits.
    pub waits: Vec<Wait>,
    /// What the next plan of the object is to know.
    pub notes: Notes<N>,
    /// Events to publish once the steps have succeeded.
    pub events: Vec<Event>,
    /// Spans to record once the steps have succeeded.
    pub spans: Vec<SpanRecord>,
    /// When to plan again even though nothing changes.
    pub wake: Option<Timestamp>,
    /// Further objects that this object must see, for as long as its plans name them.
    pub scoped_watches: Vec<ScopedWatch>,
    /// The trace that the plan's requests belong to.
    pub traceparent: Option<TraceContext>,
    /// Whether the execution is a part of that trace. Otherwise it is a trace of its own that links to it: an operation that has ended
    /// must not grow.
    pub extends_trace: bool,
    /// Whether to drop the outcomes of all calls outside Kubernetes, unless a call is in progress. Do not set this in a plan
    /// that rests on an outcome: it would make the call again and again.
    pub forgets_outcomes: bool,
}

impl<E, N> Default for Plan<E, N> {
    fn default() -> Self {
        Self::idle()
    }
}

impl<E, N> Plan<E, N> {
    /// A plan without steps.
    pub fn idle() -> Self {
        Self {
            stages: vec![],
            waits: vec![],
            notes: Notes::Keep,
            events: vec![],
            spans: vec![],
            wake: None,
            scoped_watches: vec![],
            traceparent: None,
            extends_trace: false,
            forgets_outcomes: false,
        }
    }

    /// Whether the plan has no steps. It may still wait.
    pub fn is_idle(&self) -> bool {
        self.stages.is_empty()
    }

    /// The plan without all steps but those that write the status of this object.
    pub(crate) fn status_alone(mut self, key: &ObjectRef) -> Self {
        let is_own =
            |step: &Step<E>| matches!(step, Step::Apply(apply) if apply.subresource == STATUS && apply.at.key() == key);
        for stage in &mut self.stages {
            stage.retain(|planned| is_own(&planned.step));
        }
        self.stages.retain(|stage| !stage.is_empty());
        Self { notes: Notes::Keep, events: vec![], spans: vec![], forgets_outcomes: false, ..self }
    }

    /// Adds a stage; an empty one is left out.
    pub fn stage(&mut self, steps: impl IntoIterator<Item = Planned<E>>) -> &mut Self {
        let steps: Vec<_> = steps.into_iter().collect();
        if !steps.is_empty() {
            self.stages.push(steps);
        }
        self
    }

    /// Adds a stage of one step, if there is one.
    pub fn then(&mut self, why: impl Into<Cow<'static, str>>, step: impl Into<Option<Step<E>>>) -> &mut Self {
        self.stage(Planned::new(why, step))
    }

    /// Adds a step to the last stage, or begins one.
    pub fn beside(&mut self, why: impl Into<Cow<'static, str>>, step: impl Into<Option<Step<E>>>) -> &mut Self {
        let Some(last) = self.stages.last_mut() else { return self.then(why, step) };
        last.extend(Planned::new(why, step));
        self
    }

    /// Waits for something that a watch will show.
    pub fn wait(&mut self, reason: &'static str, message: impl Into<String>) -> &mut Self {
        self.waits.push(Wait { reason, message: message.into(), until: None });
        self
    }

    /// Waits for something that a watch will show, until `until` at the latest.
    pub fn wait_until(&mut self, until: Timestamp, reason: &'static str, message: impl Into<String>) -> &mut Self {
        self.waits.push(Wait { reason, message: message.into(), until: Some(until) });
        self.wake_at(until)
    }

    /// Plans again at `at` at the latest, if it is a time.
    pub fn wake_at(&mut self, at: impl Into<Option<Timestamp>>) -> &mut Self {
        self.wake = self.wake.into_iter().chain(at.into()).min();
        self
    }

    /// Adds an event, if there is one.
    pub fn event(&mut self, event: impl Into<Option<Event>>) -> &mut Self {
        self.events.extend(event.into());
        self
    }

    /// Adds a scoped watch, unless the plan has it.
    pub fn scoped_watch(&mut self, watch: ScopedWatch) -> &mut Self {
        if self.scoped_watches.iter().all(|known| known.key() != watch.key()) {
            self.scoped_watches.push(watch);
        }
        self
    }

    /// Appends the stages of another plan, and everything else in it except its trace.
    pub fn append(&mut self, more: Self) {
        self.stages.extend(more.stages);
        self.waits.extend(more.waits);
        self.notes.extend(more.notes);
        self.events.extend(more.events);
        self.spans.extend(more.spans);
        for watch in more.scoped_watches {
            self.scoped_watch(watch);
        }
        self.forgets_outcomes |= more.forgets_outcomes;
        self.wake_at(more.wake);
    }

    /// Adds the resource version to all deletions so far, so that the API server refuses them if the object has changed.
    pub fn pin_deletions(&mut self) {
        for planned in self.stages.iter_mut().flatten() {
            if let Step::Delete(target) = &mut planned.step {
                *target = target.clone().if_unchanged();
            }
        }
    }

    /// All steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Planned<E>> {
        self.stages.iter().flatten()
    }
}

/// A reference to `object` for events.
pub fn reference<K: Kind>(object: &K) -> ObjectReference {
    ObjectReference { resource_version: object.meta().resource_version.clone(), ..object.object_ref(&()) }
}
