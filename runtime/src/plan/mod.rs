//! What a controller decides: steps, waits, events, and when to look again. Plain data, no I/O.

mod failure;
mod text;

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use json_patch::Patch;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;

use crate::{
    apply_configuration::{ApplyConfiguration, ReadBack, Subresource, read_back},
    effect::{Effect, Outcomes},
    events::Event,
    object::{Cluster, Kind, ObjectRef, ResourceType, Target},
    scoped_watch::ScopedWatch,
};
use nodewright_observability::trace::{SpanRecord, TraceContext};

pub use self::failure::{FailedStep, Failure, Refusal, StepVerb};
pub use crate::request::FailureClass;

/// All that a plan may know besides objects.
#[derive(Debug)]
pub struct Context<'a, E: Effect> {
    /// The time of the plan. A plan never reads a clock.
    pub now: Timestamp,
    /// Since when this process may write: whatever an earlier leader began was begun before this. As all times here that
    /// are in no object, it moves along with `now` when somebody sets the clock.
    pub leader_since: Timestamp,
    /// Since when there is contact with the API servers of the caches that were asked, without a break of more than a
    /// minute, and this process may write: what was reported before may be old, because nobody could report. Not before
    /// `leader_since`.
    pub connected_since: Timestamp,
    /// How many runs in a row have failed.
    pub attempt: u32,
    /// Why the last run failed, if it did.
    pub failure: Option<&'a Failure>,
    /// What is known of calls outside Kubernetes.
    pub outcomes: &'a Outcomes<E>,
    /// Requests that were refused for now, such as evictions that a disruption budget held back.
    pub refusals: &'a [Refusal],
    /// When this process last wrote the status of the object.
    pub status_written: Option<Timestamp>,
}

impl<E: Effect> Context<'_, E> {
    /// The refusal that stands against the object with this UID.
    pub fn refusal(&self, uid: &str) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| &*refusal.uid == uid)
    }
}

/// One change to the world.
#[derive(Clone, Debug)]
pub enum Step<E> {
    /// Server-side apply of all that this controller owns of an object that exists.
    Apply(Apply),
    /// A new object: answered 201 when the name is free and 409 when it is taken; never touches what is there.
    Create {
        /// The name that is asked for.
        key: ObjectRef,
        /// The kind.
        resource: ResourceType,
        /// The object.
        body: Value,
    },
    /// A tested JSON patch, for what is shared with others.
    Edit {
        /// The object.
        at: Target,
        /// The endpoint that takes the patch.
        part: Subresource,
        /// The operations.
        patch: Patch,
    },
    /// A consistent read of one object. If it is gone or being deleted, the plan ends there, and the next one sees what it
    /// has become.
    Confirm(Target),
    /// The same, if the object has another version than the one that was seen.
    ConfirmUnchanged(Target),
    /// Deletion of exactly the object that was seen.
    Delete(Target),
    /// Deletion of exactly the object that was seen, without grace.
    DeleteNow(Target),
    /// Eviction of exactly the Pod that was seen. A refusal is no failure: the object is planned for again at once, and
    /// that plan sees the [`Refusal`] and has to say when to try again.
    Evict(Target),
    /// A call outside Kubernetes.
    Call(E),
}

/// See [`Step::Apply`].
#[derive(Clone)]
pub struct Apply {
    pub(crate) at: Target,
    pub(crate) part: Subresource,
    pub(crate) fragment: Value,
    pub(crate) read_back: ReadBack,
}

impl fmt::Debug for Apply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apply")
            .field("at", &self.at)
            .field("part", &self.part)
            .field("fragment", &self.fragment)
            .finish_non_exhaustive()
    }
}

impl Apply {
    /// What is written.
    pub fn fragment(&self) -> &Value {
        &self.fragment
    }

    /// Where it is written.
    pub fn at(&self) -> &Target {
        &self.at
    }

    /// Through which endpoint.
    pub fn part(&self) -> Subresource {
        self.part
    }
}

impl<E> Step<E> {
    /// Applies `owned` to `live`; `None` when that would change nothing.
    pub fn apply<O: ApplyConfiguration>(cluster: Cluster, live: &O::Of, owned: &O) -> Option<Self> {
        Self::apply_to(Target::of(cluster, live), live, owned)
    }

    /// Applies `owned` to `live`, refused once anybody has changed it; `None` when that would change nothing.
    pub fn apply_if_unchanged<O: ApplyConfiguration>(cluster: Cluster, live: &O::Of, owned: &O) -> Option<Self> {
        Self::apply_to(Target::of(cluster, live).if_unchanged(), live, owned)
    }

    fn apply_to<O: ApplyConfiguration>(at: Target, live: &O::Of, owned: &O) -> Option<Self> {
        if *owned == owned.seen_like(live) {
            return None;
        }
        let fragment = serde_json::to_value(owned).ok()?;
        Some(Self::Apply(Apply { at, part: O::SUBRESOURCE, fragment, read_back: read_back(owned) }))
    }

    /// Creates `object` in `cluster`, under the name that it carries.
    pub fn create<K: Kind + serde::Serialize>(cluster: Cluster, object: &K) -> Option<Self> {
        let resource = ResourceType::of::<K>();
        let mut body = serde_json::to_value(object).ok()?;
        body["apiVersion"] = resource.api_version().into();
        body["kind"] = resource.kind.as_ref().into();
        Some(Self::Create { key: ObjectRef::of(cluster, object), resource, body })
    }

    /// Changes shared fields of `live`; `None` when there is nothing to do.
    pub fn edit<K: Kind>(cluster: Cluster, live: &K, patch: Patch) -> Option<Self> {
        let at = Target::of(cluster, live);
        (!patch.0.is_empty()).then_some(Self::Edit { at, part: Subresource::Main, patch })
    }

    /// Reads from the API server whether `live` is still there and is not being deleted. Before `live` takes something
    /// over, as `CanAdopt` of the controllers in Kubernetes: a cache may not have heard of the deletion of the owner whose
    /// children it sees without one.
    pub fn confirm<K: Kind>(cluster: Cluster, live: &K) -> Self {
        Self::Confirm(Target::of(cluster, live))
    }

    /// Reads from the API server whether `live` is as it was seen. A read, because an API server cannot patch every object
    /// that it can show.
    pub fn confirm_unchanged<K: Kind>(cluster: Cluster, live: &K) -> Self {
        Self::ConfirmUnchanged(Target::of(cluster, live))
    }

    /// Changes shared fields of the status of `live`; `None` when there is nothing to do.
    pub fn edit_status<K: Kind>(cluster: Cluster, live: &K, patch: Patch) -> Option<Self> {
        let at = Target::of(cluster, live);
        (!patch.0.is_empty()).then_some(Self::Edit { at, part: Subresource::Status, patch })
    }

    /// The object that it writes to or reads; `None` for a call outside Kubernetes.
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

    /// The cluster that it is sent to; `None` for a call outside Kubernetes.
    pub fn cluster(&self) -> Option<Cluster> {
        Some(self.key()?.cluster)
    }

    /// Deletes exactly the object that was seen.
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

/// Something that has to happen elsewhere before the plan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// A word for conditions and metrics.
    pub reason: &'static str,
    /// What is waited for, and what would end it.
    pub message: String,
    /// When it ends by itself, if it does. A move of this time is logged.
    pub until: Option<Timestamp>,
}

/// What a controller decided for one object.
///
/// Stages run in order; the steps of a stage run side by side, with a slow start, and fail alone. A failure ends the plan
/// after its stage and is part of the next [`Context`].
#[derive(Clone, Debug)]
pub struct Plan<E> {
    /// Steps, stage by stage.
    pub stages: Vec<Vec<Planned<E>>>,
    /// What is waited for.
    pub waits: Vec<Wait>,
    /// What is told to people once the steps have succeeded.
    pub events: Vec<Event>,
    /// What is told to the trace once the steps have succeeded.
    pub spans: Vec<SpanRecord>,
    /// When to look again even though nothing changes.
    pub wake: Option<Timestamp>,
    /// What else this object has to see, for as long as its plans say so.
    pub looks: Vec<ScopedWatch>,
    /// The trace that the plan's requests belong to.
    pub traceparent: Option<TraceContext>,
    /// That nothing that is known of calls outside Kubernetes matters any more. It is forgotten unless one is under way.
    /// Not for a plan that itself rests on an outcome: it would ask for it again, and again.
    pub forgets_outcomes: bool,
}

impl<E> Default for Plan<E> {
    fn default() -> Self {
        Self {
            stages: vec![],
            waits: vec![],
            events: vec![],
            spans: vec![],
            wake: None,
            looks: vec![],
            traceparent: None,
            forgets_outcomes: false,
        }
    }
}

impl<E> Plan<E> {
    /// A plan to do nothing.
    pub fn idle() -> Self {
        Self::default()
    }

    /// Whether it changes nothing. It may still wait.
    pub fn is_idle(&self) -> bool {
        self.stages.is_empty()
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
        let why = why.into();
        self.stage(step.into().map(|step| Planned { why, step }))
    }

    /// Adds a step to the last stage, or begins one.
    pub fn beside(&mut self, why: impl Into<Cow<'static, str>>, step: impl Into<Option<Step<E>>>) -> &mut Self {
        if let Some(step) = step.into() {
            let planned = Planned { why: why.into(), step };
            match self.stages.last_mut() {
                Some(stage) => stage.push(planned),
                None => self.stages.push(vec![planned]),
            }
        }
        self
    }

    /// Waits for something that will show in a watch.
    pub fn wait(&mut self, reason: &'static str, message: impl Into<String>) -> &mut Self {
        self.waits.push(Wait { reason, message: message.into(), until: None });
        self
    }

    /// Waits for something that will show in a watch, until `until` at the latest.
    pub fn wait_until(&mut self, until: Timestamp, reason: &'static str, message: impl Into<String>) -> &mut Self {
        self.waits.push(Wait { reason, message: message.into(), until: Some(until) });
        self.wake_at(until)
    }

    /// Looks again at `at` at the latest.
    pub fn wake_at(&mut self, at: Timestamp) -> &mut Self {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
        self
    }

    /// Tells people.
    pub fn event(&mut self, event: Event) -> &mut Self {
        self.events.push(event);
        self
    }

    /// Tells the trace.
    pub fn span(&mut self, span: SpanRecord) -> &mut Self {
        self.spans.push(span);
        self
    }

    /// Asks to see more.
    pub fn look(&mut self, look: ScopedWatch) -> &mut Self {
        self.looks.push(look);
        self
    }

    /// Adds another plan: its stages come after those that are there, and its trace is left out.
    pub fn append(&mut self, more: Self) {
        self.stages.extend(more.stages);
        self.waits.extend(more.waits);
        self.events.extend(more.events);
        self.spans.extend(more.spans);
        self.looks.extend(more.looks);
        self.forgets_outcomes |= more.forgets_outcomes;
        self.wake = self.wake.into_iter().chain(more.wake).min();
    }

    /// Makes all deletions so far such that they are refused once anybody has changed the object.
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
    let resource = ResourceType::of::<K>();
    ObjectReference {
        api_version: Some(resource.api_version()),
        kind: Some(resource.kind.into_owned()),
        namespace: object.meta().namespace.clone(),
        name: object.meta().name.clone(),
        uid: object.meta().uid.clone(),
        resource_version: object.meta().resource_version.clone(),
        ..ObjectReference::default()
    }
}
