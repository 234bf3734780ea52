//! The loop of one controller: check that the caches are fresh, take a snapshot, plan, execute, remember the outcome.

mod memory;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::Mutex;
use tokio::{task::coop::consume_budget, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span};

use self::memory::{Memories, Memory};
use crate::{
    cache::{AnyStore, Stores, Until},
    clip::clip_to,
    controller::Controller,
    counts,
    effect::{Effect, Outcomes},
    effect_runner::{CallSpan, EffectRunner},
    events::{Event, Recorder},
    execute::{Barrier, Executor, RequestContext},
    fair::{FairSemaphore, Flow, Permit},
    leadership::Clock,
    object::{Cluster, ObjectRef, controller, uid},
    offload::off_worker,
    plan::{Context, Failure, FailureClass, Plan, Step, Wait, reference},
    queue::{Priority, Queue, ReconcileResult, RequeueHandle},
    scoped_watch::ScopedWatches,
};
use nodewright_observability::{
    metrics::{Metrics, ReconcileOutcome},
    trace::{self, Spans, TraceContext},
};

/// How many plans of one controller run at once in one cluster: more than requests, which must not wait for a plan, but not many
/// more, because each stays in memory.
const EXECUTING: usize = 64;
/// The same for plans that evict. They wait for their turns at the API server, and must not keep other plans from theirs.
const EVICTING: usize = 512;
/// The shortest time between two plans of an object: a plan may ask for a time in the past again and again.
const SOONEST: Duration = Duration::from_millis(100);
/// How often an object that waits for the cache of another cluster asks whether it has to.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Conflicts are normal up to this many in a row.
const CONFLICTS: u32 = 5;
/// Limit of a message in a log line, in bytes.
const LONGEST_LINE: usize = 2_048;
/// Event reason for a request that the API server refuses and that would fail again unchanged.
const STEP_REFUSED: &str = "StepRefused";

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) executor: Executor,
    pub(crate) scoped_watches: Arc<ScopedWatches>,
    pub(crate) recorder: Recorder,
    pub(crate) spans: Spans,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Since when this process may write, in monotonic time.
    pub(crate) since: Duration,
    /// The same moment as a timer's instant. A cache counts only after a list that began later.
    pub(crate) gained: Instant,
}

/// The loop of one controller. It makes plans one after the other and executes them concurrently.
///
/// # Guarantees
/// * A run sees every write of earlier runs for the object. The object waits until the caches show them.
/// * A run sees only caches that were listed after this process gained leadership.
/// * The outcome of an unanswered write is read before the next plan. If another cluster does not answer that either, the object
///   is planned for its status alone, which may report that.
/// * A panic in one plan is caught, counted and backed off. Other objects continue.
/// * Each cluster has a limit of plans that write to it at once, and another one of plans that evict. Owners take turns.
///
/// # Assumptions
/// * Every kind that a plan reads or writes is watched. The loop does not wait for writes to other kinds.
/// * Plans take microseconds. A slow plan delays all others of its controller.
pub(crate) struct Reconciler<C: Controller> {
    controller: C,
    queue: Arc<Queue>,
    effects: Arc<EffectRunner<C::Effect>>,
    shared: Shared,
    memories: Memories<C::Effect, C::Note>,
    /// By cluster, and whether the plans evict.
    limits: Mutex<BTreeMap<(Cluster, bool), Arc<FairSemaphore>>>,
}

enum Work<E, N> {
    None(ReconcileResult),
    FindOut,
    Act(Box<Act<E, N>>),
}

struct Act<E, N> {
    plan: Plan<E, N>,
    /// How long to leave the object alone after the plan.
    pause: Duration,
    /// Whether the outcome of an earlier write is not known, and has to be read next.
    unsure: bool,
    sending: RequestContext,
    subject: Subject,
    /// Whether the caches show that the rest of the plan is no longer wanted.
    is_outdated: Box<dyn Fn() -> bool + Send + Sync>,
}

impl<C: Controller> Reconciler<C> {
    pub(crate) fn new(
        controller: C,
        queue: Arc<Queue>,
        effects: Arc<EffectRunner<C::Effect>>,
        shared: Shared,
    ) -> Arc<Self> {
        let (memories, limits) = (Memories(Mutex::default()), Mutex::default());
        shared.metrics.controller_starts(C::NAME);
        Arc::new(Self { controller, queue, effects, shared, memories, limits })
    }

    /// Plans until it is stopped. Separate tasks finish what is in progress.
    pub(crate) async fn run(self: Arc<Self>) {
        while let Some(key) = self.shared.stop.run_until_cancelled(self.queue.next()).await {
            self.begin(key, None);
            // With a long queue this loop never waits. Yield, so that other tasks run on this thread.
            consume_budget().await;
        }
    }

    /// Plans an object and executes the plan in a task, under `permit` if it is one for this plan.
    fn begin(self: &Arc<Self>, key: ObjectRef, permit: Option<Permit>) {
        let (this, begun) = (self.clone(), Instant::now());
        match self.prepare(&key) {
            Work::None(result) => self.end(&key, result, begun, None),
            Work::FindOut => drop(self.shared.tasks.spawn(async move {
                let result = this.find_out(&key).await;
                this.queue.done(&key, result);
            })),
            Work::Act(act) => {
                let limit = self.limit(&key, &act.plan);
                if let Some(permit) = permit.filter(|held| held.is_of(&limit)).or_else(|| limit.try_enter()) {
                    drop(self.shared.tasks.spawn(this.act(key, act, permit, begun)));
                    return;
                }
                // Drop the plan while the object waits: there may be very many, and the snapshot becomes stale.
                let flow = act.sending.flow.clone();
                drop(act);
                self.shared.tasks.spawn(async move {
                    let permit = this.shared.stop.run_until_cancelled(limit.enter(&flow)).await;
                    if permit.is_some() {
                        this.begin(key, permit);
                    }
                });
            }
        }
    }

    fn end(&self, key: &ObjectRef, result: ReconcileResult, begun: Instant, trace: Option<TraceContext>) {
        let outcome = match result {
            ReconcileResult::Failed { .. } => Some(ReconcileOutcome::Error),
            ReconcileResult::Done { wake: Some(_), .. } => Some(ReconcileOutcome::RequeueAfter),
            ReconcileResult::Done { .. } => Some(ReconcileOutcome::Success),
            ReconcileResult::Parked(_) | ReconcileResult::Again => None,
        };
        if let Some(outcome) = outcome {
            self.shared.metrics.reconciled(C::NAME, outcome, begun.elapsed(), trace);
        }
        self.queue.done(key, result);
    }

    fn prepare(self: &Arc<Self>, key: &ObjectRef) -> Work<C::Effect, C::Note> {
        if let Some(memory) = self.memories.get(key) {
            let mut memory = memory.lock();
            self.drop_tolerated(key, &mut memory);
            if !memory.unsure.is_empty() {
                let reports = self.reports_outage(key, &memory);
                drop(memory);
                return if reports { self.decided(key, true) } else { Work::FindOut };
            }
            if !self.is_fresh(key, &mut memory) {
                self.shared.metrics.stale_skipped(C::NAME);
                // The controller may not wait for another cluster for ever.
                let is_apart = memory.barriers.iter().any(|barrier| barrier.key.cluster != key.cluster);
                return Work::None(ReconcileResult::Parked(is_apart.then(|| Instant::now() + LOOK_AGAIN)));
            }
        }
        self.decided(key, false)
    }

    fn decided(self: &Arc<Self>, key: &ObjectRef, unsure: bool) -> Work<C::Effect, C::Note> {
        catch_unwind(AssertUnwindSafe(|| self.decide(key, unsure))).unwrap_or_else(|_| {
            tracing::error!(controller = C::NAME, object = %key, "the plan panicked");
            self.shared.metrics.reconcile_panicked(C::NAME);
            Work::None(ReconcileResult::FAILED)
        })
    }

    /// Whether the object's status may report that another cluster does not answer. In every other attempt that cluster is asked.
    fn reports_outage(&self, key: &ObjectRef, memory: &Memory<C::Effect, C::Note>) -> bool {
        let of_home = memory.barriers.iter().filter(|barrier| barrier.key.cluster == key.cluster);
        let shows = |Barrier { resource, key: written, until }: &Barrier| {
            self.wait(key, &self.shared.stores.showing(resource, written, until, &memory.scoped_watches), until)
        };
        !self.queue.failures(key).is_multiple_of(2)
            && memory.unsure.iter().all(|unsure| unsure.key.cluster != key.cluster)
            && of_home.into_iter().all(shows)
    }

    /// Drops the barriers that the object no longer waits for, see [`Controller::tolerates_unavailable`].
    fn drop_tolerated(&self, key: &ObjectRef, memory: &mut Memory<C::Effect, C::Note>) {
        if memory.unsure.is_empty() && memory.barriers.is_empty() {
            return;
        }
        let Some(live) = self.shared.stores.of::<C::Primary>(key.cluster).get(key) else { return };
        let now = memory.now(self.shared.clock.as_ref());
        let waits_for = |cluster: Cluster| !self.controller.tolerates_unavailable(&live, cluster, now);
        memory.unsure.retain(|unsure| waits_for(unsure.key.cluster));
        memory.barriers.retain(|barrier| waits_for(barrier.key.cluster));
    }

    /// Reads the outcome of writes whose answer was lost.
    async fn find_out(&self, key: &ObjectRef) -> ReconcileResult {
        let Some(memory) = self.memories.get(key) else { return ReconcileResult::Again };
        let unsure = memory.lock().unsure.clone();
        for one in unsure {
            match self.shared.executor.find_out(&one).await {
                Ok(barrier) => {
                    let mut memory = memory.lock();
                    memory.unsure.retain(|other| *other != one);
                    memory.barriers.extend(barrier);
                }
                Err(error) => {
                    tracing::warn!(controller = C::NAME, object = %key, unsure = %one.key, %error,
                        "failed to read the outcome of a write, retrying");
                    let retry_after = error.retry_after;
                    memory.lock().failure = Some(one.failure(error));
                    return ReconcileResult::Failed { retry_after, wake: None };
                }
            }
        }
        ReconcileResult::Again
    }

    /// Whether the caches show every write for the object. If not, the caches wake it when they do.
    fn is_fresh(&self, key: &ObjectRef, memory: &mut Memory<C::Effect, C::Note>) -> bool {
        while let Some(barrier) = memory.barriers.last() {
            let Barrier { resource, key: written, until } = barrier;
            let stores = self.shared.stores.showing(resource, written, until, &memory.scoped_watches);
            if !self.wait(key, &stores, until) {
                memory.parked.get_or_insert_with(Instant::now);
                return false;
            }
            memory.barriers.pop();
        }
        // There may be thousands of objects at rest: they keep no room for barriers.
        memory.barriers = vec![];
        if let Some(since) = memory.parked.take() {
            self.shared.metrics.freshness_waited(C::NAME, since.elapsed());
        }
        true
    }

    /// Whether all of these stores have got there. Each of the others wakes the object when it has: the object may go on before
    /// the last of them.
    fn wait(&self, key: &ObjectRef, stores: &[Arc<dyn AnyStore>], until: &Until) -> bool {
        let waiter = RequeueHandle::new(&self.queue, key);
        stores.iter().filter(|store| !store.wait(until, &waiter)).count() == 0
    }

    /// `unsure`: the outcome of a write is not known, and only the object's status may be written.
    fn decide(self: &Arc<Self>, key: &ObjectRef, unsure: bool) -> Work<C::Effect, C::Note> {
        let stores = self.shared.stores.since(self.shared.gained);
        let live = stores.of::<C::Primary>(key.cluster).get(key);
        let snapshot = self.controller.snapshot(&stores, key);
        let reads = stores.reads();
        if let Some(result) = self.until_listed(key, live.as_deref(), &reads.behind) {
            return Work::None(result);
        }
        let (Some(snapshot), Some(live)) = (snapshot, live) else {
            self.forget(key);
            return Work::None(ReconcileResult::DONE);
        };
        let owner = controller(live.as_ref());
        let memory = self.memories.of(key, uid(live.as_ref()), owner.map_or(uid(live.as_ref()), |owner| &owner.uid));
        let mut memory = memory.lock();
        let context = self.context(key, &mut memory, reads.connected_since);
        let plan = || C::plan(&context, &snapshot);
        let plan = if C::COMPUTES { off_worker(plan) } else { plan() };
        let plan = if unsure { plan.status_alone(key) } else { plan };
        counts::planned(C::NAME, plan.is_idle());
        let former = std::mem::take(&mut memory.scoped_watches);
        memory.scoped_watches = self.shared.scoped_watches.set(&self.queue, key, &former, &plan.scoped_watches);
        if self.shared.stores.have_moved(&reads) {
            RequeueHandle::new(&self.queue, key).wake();
        }
        if plan.forgets_outcomes && !memory.outcomes.any_running() {
            memory.outcomes = Outcomes::default();
        }
        let pause = pause_after(self.controller.children(&snapshot));
        let now = memory.now(self.shared.clock.as_ref());
        memory.note(&plan.notes, now);
        let begun = memory.begun(&plan.waits, now);
        if !begun.is_empty() {
            let _entered = Subject::new::<C>(key, owner, &plan).line().entered();
            for Wait { reason, message, .. } in begun.into_iter().filter(|wait| wait.reason != C::CALL_WAIT) {
                tracing::info!(reason, "waiting: {}", clip_to(LONGEST_LINE, message.as_str()));
            }
        }
        if plan.is_idle() && unsure {
            return Work::FindOut;
        }
        if plan.is_idle() {
            memory.failure = None;
            drop(memory);
            self.memories.forget_blank(key);
            if tracing::enabled!(tracing::Level::DEBUG) {
                Subject::new::<C>(key, owner, &plan).line().in_scope(|| log_plan(&plan));
            }
            return Work::None(self.conclude(plan, pause, false));
        }
        // A plan that only changes existing objects makes no progress that would have to continue at once.
        let only_changes = plan.steps().all(|planned| planned.step.is_change());
        let pause = if only_changes { pause.max(memory.pace(Instant::now())) } else { pause };
        let subject = Subject::new::<C>(key, owner, &plan);
        let object = Flow::of(uid(live.as_ref()));
        let sending = RequestContext { traceparent: plan.traceparent, flow: memory.flow.clone(), object };
        let this = self.clone();
        let is_outdated = Box::new(move || this.controller.is_outdated(&this.shared.stores, &snapshot));
        Work::Act(Box::new(Act { plan, pause, unsure, sending, subject, is_outdated }))
    }

    /// The end of a run whose snapshot read stores that have yet to be listed, unless the object is planned without them.
    fn until_listed(
        &self,
        key: &ObjectRef,
        live: Option<&C::Primary>,
        behind: &[Arc<dyn AnyStore>],
    ) -> Option<ReconcileResult> {
        if behind.is_empty() {
            return None;
        }
        // Wait even if the stores have been listed meanwhile: the snapshot is older than that list.
        let until = |store: &Arc<dyn AnyStore>| {
            Until::Listed(self.shared.stores.fresh_since(store.cluster(), self.shared.gained))
        };
        let unlisted = behind.iter().filter(|store| !self.wait(key, std::slice::from_ref(store), &until(store)));
        if unlisted.count() == 0 {
            return Some(ReconcileResult::Again);
        }
        let plans =
            |store: &Arc<dyn AnyStore>| live.is_some_and(|live| self.controller.plans_unlisted(live, store.cluster()));
        (!behind.iter().all(plans)).then_some(ReconcileResult::Parked(None))
    }

    fn context<'a>(
        &self,
        key: &ObjectRef,
        memory: &'a mut Memory<C::Effect, C::Note>,
        connected_since: Option<Instant>,
    ) -> Context<'a, C::Effect, C::Note> {
        let clock = self.shared.clock.as_ref();
        let now = memory.now(clock);
        // A step of the wall clock does not change how long ago something was.
        let ago = |time: Duration| SignedDuration::try_from(time).ok().and_then(|time| now.checked_sub(time).ok());
        let since = ago(clock.elapsed().saturating_sub(self.shared.since)).unwrap_or(now);
        Context {
            now,
            clock_skew: clock.skew(),
            leader_since: since,
            connected_since: connected_since.and_then(|since| ago(since.elapsed())).unwrap_or(now).max(since),
            attempt: self.queue.failures(key),
            failure: memory.failure.as_ref(),
            outcomes: &memory.outcomes,
            refusals: &memory.refusals,
            notes: &memory.notes,
            waits: &memory.waits,
            status_written: memory.status_written,
            traces: self.shared.spans.are_exported(),
        }
    }

    /// The semaphore for a plan: that of another cluster if it writes there.
    fn limit(&self, key: &ObjectRef, plan: &Plan<C::Effect, C::Note>) -> Arc<FairSemaphore> {
        let mut clusters = plan.steps().filter_map(|planned| planned.step.cluster());
        let cluster = clusters.find(|cluster| *cluster != key.cluster).unwrap_or(key.cluster);
        let evicts = plan.steps().any(|planned| matches!(planned.step, Step::Evict(_)));
        let places = if evicts { EVICTING } else { EXECUTING };
        self.limits.lock().entry((cluster, evicts)).or_insert_with(|| FairSemaphore::new(places, None)).clone()
    }

    async fn act(self: Arc<Self>, key: ObjectRef, act: Box<Act<C::Effect, C::Note>>, permit: Permit, begun: Instant) {
        let sends = act.plan.steps().any(|planned| !matches!(planned.step, Step::Call(_)));
        let span = if sends { act.subject.reconcile() } else { act.subject.calling() };
        let trace = trace::of(&span);
        let executed = AssertUnwindSafe(self.execute(&key, act)).catch_unwind().instrument(span).await;
        let result = executed.unwrap_or_else(|_| {
            tracing::error!(controller = C::NAME, object = %key, "the execution of a plan panicked");
            self.shared.metrics.reconcile_panicked(C::NAME);
            ReconcileResult::FAILED
        });
        drop(permit);
        self.end(&key, result, begun, trace);
    }

    async fn execute(self: &Arc<Self>, key: &ObjectRef, act: Box<Act<C::Effect, C::Note>>) -> ReconcileResult {
        let Act { plan, pause, unsure, mut sending, subject, is_outdated } = *act;
        log_plan(&plan);
        if subject.extends_trace && self.shared.spans.are_exported() {
            sending.traceparent = trace::current().or(sending.traceparent);
        }
        let call = |effect: &C::Effect| self.call(key, effect, &sending.flow, &subject);
        let attempt = self.queue.failures(key);
        let execution = self.shared.executor.run(&plan.stages, attempt, &sending, call, &*is_outdated).await;
        let is_cut_short = execution.is_cut_short;
        let refused = !execution.refused.is_empty();
        let failed = self.memories.get(key).and_then(|memory| {
            let mut memory = memory.lock();
            let now = memory.now(self.shared.clock.as_ref());
            let unanswered = memory.failure.take().filter(|_| unsure);
            let failed = memory.keep(execution, now);
            memory.failure = memory.failure.take().or(unanswered);
            // Begin the wait now, because nothing else may wake the object. This detects a cache that stopped making progress.
            self.is_fresh(key, &mut memory);
            failed
        });
        match failed {
            Some(failure) => {
                self.report(key, &failure);
                // A warning is about the snapshot. Other events report that the steps succeeded.
                let warnings = plan.events.into_iter().filter(|event| event.is_warning && !failure.is_passing());
                warnings.for_each(|event| self.shared.recorder.publish(event));
                ReconcileResult::Failed { retry_after: failure.retry_after, wake: self.instant(plan.wake) }
            }
            None if unsure => ReconcileResult::Failed { retry_after: None, wake: self.instant(plan.wake) },
            // The events would report steps that were left out.
            None if is_cut_short => ReconcileResult::Again,
            None => self.conclude(plan, pause, refused),
        }
    }

    fn conclude(&self, plan: Plan<C::Effect, C::Note>, pause: Duration, refused: bool) -> ReconcileResult {
        plan.events.into_iter().for_each(|event| self.shared.recorder.publish(event));
        plan.spans.into_iter().for_each(|span| self.shared.spans.record(span));
        // A plan made before a refusal cannot set the time of the retry; the next one can.
        let due = if refused { Some(self.shared.clock.wall()) } else { plan.wake };
        ReconcileResult::Done { wake: self.instant(due), pause }
    }

    /// When to wake an object whose plan asks for this time.
    fn instant(&self, due: Option<Timestamp>) -> Option<Instant> {
        let after = Duration::try_from(due?.duration_since(self.shared.clock.wall())).unwrap_or_default();
        Some(Instant::now() + after.max(SOONEST))
    }

    fn call(self: &Arc<Self>, key: &ObjectRef, effect: &C::Effect, flow: &Flow, subject: &Subject) {
        if self.note_outcome(key, |outcomes, now| outcomes.begin(effect, now)) != Some(true) {
            return;
        }
        let (this, at, called) = (self.clone(), key.clone(), effect.clone());
        // Start the deadline now: the call may have waited for its serialization key and for its groups.
        let begun = move || {
            if this.note_outcome(&at, |outcomes, now| outcomes.started(&called, now)) == Some(true) {
                counts::woken(C::NAME, "call", 1);
                this.queue.add(at, Priority::Live);
            }
        };
        let (this, key, called) = (self.clone(), key.clone(), effect.clone());
        let trace = subject.context.filter(|_| self.shared.spans.are_exported());
        let span = CallSpan { log: subject.call(effect.name()), trace };
        self.effects.start(effect.clone(), flow.clone(), span, begun, move |outcome| {
            // Do not log the outcome itself: it may hold data that the driver keeps confidential.
            let succeeded = C::Effect::succeeded(&outcome);
            tracing::debug!(succeeded, "a call ended");
            this.note_outcome(&key, |outcomes, now| outcomes.finish(&called, now, outcome));
            counts::woken(C::NAME, "call", 1);
            this.queue.add(key, Priority::Live);
        });
    }

    fn note_outcome<T>(
        &self,
        key: &ObjectRef,
        note: impl FnOnce(&mut Outcomes<C::Effect>, Timestamp) -> T,
    ) -> Option<T> {
        let memory = self.memories.get(key)?;
        let mut memory = memory.lock();
        let now = memory.now(self.shared.clock.as_ref());
        Some(note(&mut memory.outcomes, now))
    }

    fn report(&self, key: &ObjectRef, failure: &Failure) {
        match failure.class {
            // Normal with several writers: the next run sees the other writer's change.
            FailureClass::Conflict | FailureClass::AlreadyExists if self.queue.failures(key) < CONFLICTS => {
                tracing::debug!(%failure, "another writer was faster");
            }
            FailureClass::Invalid | FailureClass::Forbidden => {
                tracing::warn!(%failure, "a step was refused");
                // A retry does not help; report it to people in an event.
                if let Some(object) = self.shared.stores.of::<C::Primary>(key.cluster).get(key) {
                    let regarding = reference(object.as_ref());
                    let event = Event::warning(regarding, STEP_REFUSED, failure.to_string());
                    self.shared.recorder.publish(event.of(key.cluster));
                }
            }
            _ => tracing::warn!(%failure, "a step failed"),
        }
    }

    fn forget(&self, key: &ObjectRef) {
        if let Some(memory) = self.memories.forget(key) {
            let former = std::mem::take(&mut memory.lock().scoped_watches);
            self.shared.scoped_watches.set(&self.queue, key, &former, &[]);
        }
    }
}

/// The object, for the log lines of a plan or a call.
#[derive(Clone, Debug)]
struct Subject {
    controller: &'static str,
    object: ObjectRef,
    owner: Option<String>,
    context: Option<TraceContext>,
    extends_trace: bool,
}

impl Subject {
    fn new<C: Controller>(key: &ObjectRef, owner: Option<&OwnerReference>, plan: &Plan<C::Effect, C::Note>) -> Self {
        let owner = owner.map(|owner| format!("{}/{}", owner.kind, owner.name));
        let (context, extends_trace) = (plan.traceparent, plan.extends_trace);
        Self { controller: C::NAME, object: key.clone(), owner, context, extends_trace }
    }

    /// The span of an execution: a part of the object's trace, or a trace of its own that links to it.
    fn reconcile(&self) -> Span {
        let Self { controller, object, owner, context, extends_trace } = self;
        let span = tracing::info_span!("reconcile", controller, %object, owner, trace_id = self.trace_id());
        match context {
            Some(context) if *extends_trace => trace::set_parent(&span, *context),
            Some(context) => trace::link(&span, *context),
            None => {}
        }
        span
    }

    /// The span of an execution that sends nothing. Outside a trace of the object it would be a trace of one span, which says nothing:
    /// then it is for the log only.
    fn calling(&self) -> Span {
        if self.context.is_some() { self.reconcile() } else { self.line() }
    }

    /// The span of log lines of a plan that has no execution of its own, for the log only.
    fn line(&self) -> Span {
        let Self { controller, object, owner, .. } = self;
        let trace_id = self.trace_id();
        tracing::info_span!(target: trace::LOG_ONLY, "plan", controller, %object, owner, trace_id)
    }

    /// The span of a call, for the log only. The performer records the call in the trace.
    fn call(&self, effect: &'static str) -> Span {
        let Self { controller, object, owner, .. } = self;
        let trace_id = self.trace_id();
        tracing::info_span!(target: trace::LOG_ONLY, "call", effect, controller, %object, owner, trace_id)
    }

    fn trace_id(&self) -> Option<impl tracing::Value> {
        self.context.map(|context| tracing::field::display(context.trace_id))
    }
}

fn log_plan<E: Effect, N>(plan: &Plan<E, N>) {
    for planned in plan.steps() {
        tracing::debug!(why = %planned.why, step = format_args!("{:#}", planned.step), "step");
    }
    for Wait { reason, message, .. } in &plan.waits {
        tracing::debug!(reason, "still waiting: {message}");
    }
}

/// A plan of n children takes about 10 µs for each, so with this pause plans take a twentieth of a processor, however often the
/// children change.
const PAUSE_PER_CHILD: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

fn pause_after(children: usize) -> Duration {
    let children = u32::try_from(children).unwrap_or(u32::MAX);
    let pause = PAUSE_PER_CHILD.saturating_mul(children).min(LONGEST_PAUSE);
    if pause < Duration::from_millis(1) { Duration::ZERO } else { pause }
}
