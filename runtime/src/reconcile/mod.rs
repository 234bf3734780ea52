//! The loop of one controller: fresh enough? observe, plan, act, remember.

mod memory;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use jiff::SignedDuration;
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
    effect::{Effect, Outcomes},
    effect_runner::EffectRunner,
    events::{Event, Recorder},
    execute::{Executor, RequestContext},
    fair::{FairSemaphore, Flow, Permit},
    leadership::Clock,
    object::{Cluster, ObjectRef, controller, uid},
    plan::{Context, Failure, FailureClass, Plan, Wait, reference},
    queue::{Priority, Queue, ReconcileResult, RequeueHandle},
    scoped_watch::ScopedWatches,
};
use nodewright_observability::{
    metrics::{Metrics, ReconcileOutcome},
    trace::{self, Spans, TraceContext},
};

/// How many plans of one controller are executed at once in one cluster: more than there are requests under way, so that
/// none of these waits for a plan; and not many more, because a plan that waits for its requests is all there in memory.
const EXECUTING: usize = 64;
/// An object is looked at again no sooner than after this, whenever its plan wants to be made again: a plan that names a
/// moment in the past each time costs little.
const SOONEST: Duration = Duration::from_millis(100);
/// Conflicts are ordinary, but for so many in a row.
const CONFLICTS: u32 = 5;

/// The most bytes of a message in a line of the log.
const LONGEST_LINE: usize = 2_048;

/// Reason of the event of an object for which the API server refuses a request that will not do as it is.
const STEP_REFUSED: &str = "StepRefused";

/// What the loops of all controllers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) executor: Executor,
    pub(crate) looks: Arc<ScopedWatches>,
    pub(crate) recorder: Recorder,
    pub(crate) spans: Spans,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Since when this process may write, in the time of the clock that nobody sets.
    pub(crate) since: Duration,
    /// The same moment in the time of timers: a cache counts once it has shown a list that was begun after it.
    pub(crate) gained: Instant,
}

/// The loop of one controller. Plans are made one after the other, and executed side by side.
///
/// # Guarantees
/// * A run sees everything that earlier runs for the object wrote: until the caches show it, the object waits.
/// * A run sees only caches that were listed after this process may write. One that is not, because its cluster is away,
///   holds up those who ask it, and nobody else.
/// * What became of an unanswered write is read before the next plan.
/// * After a refusal there is a plan that knows of it, and can say when to try again.
/// * A panic in one plan is caught, counted and backed off; other objects go on.
/// * So many plans are executed at once for each cluster that they write to; owners take turns.
/// * A wait is logged when it begins.
///
/// # Assumptions
/// * Whatever a plan sees or writes is in a kind that is watched: a write to another is not waited for.
/// * Plans take microseconds: one that takes long holds up all others of its controller.
///
/// # Caveats
/// What it remembers of an object (failures, refusals, outcomes of calls, what was written) is lost with the process.
pub(crate) struct Reconciler<C: Controller> {
    controller: C,
    queue: Arc<Queue>,
    effects: Arc<EffectRunner<C::Effect>>,
    shared: Shared,
    memories: Memories<C::Effect>,
    /// Bound the plans that are executed at once.
    gates: Mutex<BTreeMap<Cluster, Arc<FairSemaphore>>>,
}

/// What there is to do for an object.
enum Work<E> {
    /// Nothing, or nothing that could be done now.
    None(ReconcileResult),
    /// To learn what became of writes whose answer was lost.
    FindOut,
    /// To execute a plan.
    Act(Box<Act<E>>),
}

struct Act<E> {
    plan: Plan<E>,
    /// How long to leave the object alone after it.
    pause: Duration,
    sending: RequestContext,
    subject: Subject,
}

impl<C: Controller> Reconciler<C> {
    pub(crate) fn new(
        controller: C,
        queue: Arc<Queue>,
        effects: Arc<EffectRunner<C::Effect>>,
        shared: Shared,
    ) -> Arc<Self> {
        let (memories, gates) = (Memories::default(), Mutex::default());
        Arc::new(Self { controller, queue, effects, shared, memories, gates })
    }

    /// Takes keys from the queue until told to stop; what is under way is finished by tasks of its own.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let key = tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return,
                key = self.queue.next() => key,
            };
            self.begin(key);
            // With a long queue there is nothing to wait for, and others want to run on this thread, too.
            consume_budget().await;
        }
    }

    fn begin(self: &Arc<Self>, key: ObjectRef) {
        let begun = Instant::now();
        let this = self.clone();
        match self.prepare(&key) {
            Work::None(verdict) => self.end(&key, verdict, begun),
            Work::FindOut => drop(self.shared.tasks.spawn(async move {
                let verdict = this.find_out(&key).await;
                this.queue.done(&key, verdict);
            })),
            Work::Act(act) => {
                let gate = self.gate(&key, &act.plan);
                if let Some(pass) = gate.try_enter() {
                    drop(self.shared.tasks.spawn(async move { this.act(key, act, pass, begun).await }));
                } else {
                    // The plan is not kept: there may be very many, and the world goes on.
                    let flow = act.sending.flow.clone();
                    drop(act);
                    drop(self.shared.tasks.spawn(this.begin_in_turn(key, gate, flow)));
                }
            }
        }
    }

    /// Goes on with an object once there is a place. Whatever is not a plan for that place comes back through the queue.
    async fn begin_in_turn(self: Arc<Self>, key: ObjectRef, gate: Arc<FairSemaphore>, flow: Flow) {
        let pass = tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => return,
            pass = gate.enter(&flow) => pass,
        };
        let begun = Instant::now();
        match self.prepare(&key) {
            Work::None(verdict) => self.end(&key, verdict, begun),
            Work::FindOut => self.queue.done(&key, self.find_out(&key).await),
            Work::Act(act) if Arc::ptr_eq(&gate, &self.gate(&key, &act.plan)) => self.act(key, act, pass, begun).await,
            Work::Act(_) => self.queue.done(&key, ReconcileResult::Again),
        }
    }

    fn end(&self, key: &ObjectRef, verdict: ReconcileResult, begun: Instant) {
        let result = match verdict {
            ReconcileResult::Failed(_) => Some(ReconcileOutcome::Error),
            ReconcileResult::Done { wake: Some(_), .. } => Some(ReconcileOutcome::RequeueAfter),
            ReconcileResult::Done { .. } => Some(ReconcileOutcome::Success),
            ReconcileResult::Parked | ReconcileResult::Again => None,
        };
        if let Some(result) = result {
            self.shared.metrics.reconciled(C::NAME, result, begun.elapsed());
        }
        self.queue.done(key, verdict);
    }

    /// All that needs no waiting: is it fresh, what does it see, what does it decide.
    fn prepare(self: &Arc<Self>, key: &ObjectRef) -> Work<C::Effect> {
        if let Some(memory) = self.memories.get(key) {
            let mut memory = memory.lock();
            self.go_on_without(key, &mut memory);
            if !memory.unsure.is_empty() {
                return Work::FindOut;
            }
            if !self.is_fresh(key, &mut memory) {
                self.shared.metrics.stale_skipped(C::NAME);
                return Work::None(ReconcileResult::Parked);
            }
        }
        catch_unwind(AssertUnwindSafe(|| self.decide(key))).unwrap_or_else(|_| {
            tracing::error!(controller = C::NAME, object = %key, "the plan panicked");
            self.shared.metrics.reconcile_panicked(C::NAME);
            Work::None(ReconcileResult::Failed(None))
        })
    }

    /// Forgets what an object does not wait for any more, see [`Controller::goes_on_without`].
    fn go_on_without(&self, key: &ObjectRef, memory: &mut Memory<C::Effect>) {
        if memory.unsure.is_empty() && memory.barriers.is_empty() {
            return;
        }
        let Some(live) = self.shared.stores.of::<C::Primary>(key.cluster).get(key) else { return };
        let waits_for = |cluster: Cluster| !self.controller.goes_on_without(&live, cluster);
        memory.unsure.retain(|unsure| waits_for(unsure.key.cluster));
        memory.barriers.retain(|barrier| waits_for(barrier.key.cluster));
    }

    /// Reads what became of writes whose answer was lost. The object is looked at again at once, or after a back-off
    /// where that cannot be learnt.
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
                        "cannot learn what became of a write; trying again");
                    return ReconcileResult::Failed(error.retry_after);
                }
            }
        }
        ReconcileResult::Again
    }

    /// Whether the caches show everything that was written for the object; if not, it is woken when they do.
    fn is_fresh(&self, key: &ObjectRef, memory: &mut Memory<C::Effect>) -> bool {
        while let Some(barrier) = memory.barriers.last() {
            let mut stores = self.shared.stores.showing(&barrier.resource, &barrier.key);
            if stores.is_empty() && !matches!(barrier.until, Until::Version(..)) {
                stores = self.shared.stores.looking_at(&barrier.resource, barrier.key.cluster);
            }
            stores.extend(self.shared.stores.of_looks(&memory.looks, &barrier.resource, &barrier.key));
            if !self.wait(key, &stores, &barrier.until) {
                memory.parked.get_or_insert_with(Instant::now);
                return false;
            }
            memory.barriers.pop();
        }
        if let Some(since) = memory.parked.take() {
            self.shared.metrics.freshness_waited(C::NAME, since.elapsed());
        }
        true
    }

    /// Whether stores show something. If not, the first that does not wakes the object when it does.
    fn wait(&self, key: &ObjectRef, stores: &[Arc<dyn AnyStore>], until: &Until) -> bool {
        let sleeper = RequeueHandle::new(&self.queue, key);
        stores.iter().all(|store| store.wait(until, &sleeper))
    }

    fn decide(self: &Arc<Self>, key: &ObjectRef) -> Work<C::Effect> {
        let stores = self.shared.stores.since(self.shared.gained);
        let live = stores.of::<C::Primary>(key.cluster).get(key);
        let snapshot = self.controller.snapshot(&stores, key);
        let asked = stores.asked();
        if !asked.behind.is_empty() {
            // Even if they have been listed meanwhile: this world was seen before.
            let listed = self.wait(key, &asked.behind, &Until::Listed(self.shared.gained));
            return Work::None(if listed { ReconcileResult::Again } else { ReconcileResult::Parked });
        }
        let (Some(snapshot), Some(live)) = (snapshot, live) else {
            self.forget(key);
            return Work::None(ReconcileResult::DONE);
        };
        let owner = controller(live.as_ref());
        let memory = self.memories.of(key, uid(live.as_ref()), owner.map_or(uid(live.as_ref()), |owner| &owner.uid));
        let mut memory = memory.lock();
        let plan = self.controller.plan(&self.moment(key, &mut memory, asked.connected_since), &snapshot);
        let former = std::mem::take(&mut memory.looks);
        memory.looks = self.shared.looks.set(&self.queue, key, &former, &plan.looks);
        if self.shared.stores.have_moved(&asked.looked) {
            RequeueHandle::new(&self.queue, key).wake();
        }
        if plan.forgets_outcomes && !memory.outcomes.any_running() {
            memory.outcomes = Outcomes::default();
        }
        let pause = pause_after(self.controller.children(&snapshot));
        let begun = memory.begun(&plan.waits);
        if !begun.is_empty() {
            Subject::new::<C>(key, owner, &plan).line().in_scope(|| tell_waits(&begun));
        }
        if plan.is_idle() {
            memory.failure = None;
            drop(memory);
            self.memories.forget_blank(key);
            if tracing::enabled!(tracing::Level::DEBUG) {
                Subject::new::<C>(key, owner, &plan).reconcile().in_scope(|| tell(&plan));
            }
            return Work::None(self.conclude(plan, pause, false));
        }
        // Whoever writes to nothing but the object itself makes no progress elsewhere that would have to go on.
        let only_itself = plan.steps().all(|planned| planned.step.key() == Some(key));
        let pause = if only_itself { pause.max(memory.pace(Instant::now())) } else { pause };
        let subject = Subject::new::<C>(key, owner, &plan);
        let sending = RequestContext { traceparent: plan.traceparent, flow: memory.flow.clone() };
        Work::Act(Box::new(Act { plan, pause, sending, subject }))
    }

    fn moment<'a>(
        &self,
        key: &ObjectRef,
        memory: &'a mut Memory<C::Effect>,
        connected_since: Option<Instant>,
    ) -> Context<'a, C::Effect> {
        let clock = self.shared.clock.as_ref();
        let now = memory.now(clock);
        // Whoever sets the time of day changes nothing in how long ago it was.
        let ago = |time: Duration| SignedDuration::try_from(time).ok().and_then(|time| now.checked_sub(time).ok());
        let since = ago(clock.elapsed().saturating_sub(self.shared.since)).unwrap_or(now);
        Context {
            now,
            leader_since: since,
            connected_since: connected_since.and_then(|since| ago(since.elapsed())).unwrap_or(now).max(since),
            attempt: self.queue.failures(key),
            failure: memory.failure.as_ref(),
            outcomes: &memory.outcomes,
            refusals: &memory.refusals,
            status_written: memory.status_written,
        }
    }

    /// A plan that writes to another cluster than its object's waits for that one's answers, and takes places there.
    fn gate(&self, key: &ObjectRef, plan: &Plan<C::Effect>) -> Arc<FairSemaphore> {
        let mut clusters = plan.steps().filter_map(|planned| planned.step.cluster());
        let cluster = clusters.find(|cluster| *cluster != key.cluster).unwrap_or(key.cluster);
        self.gates.lock().entry(cluster).or_insert_with(|| FairSemaphore::new(EXECUTING, None)).clone()
    }

    async fn act(self: Arc<Self>, key: ObjectRef, act: Box<Act<C::Effect>>, pass: Permit, begun: Instant) {
        let span = act.subject.reconcile();
        let executed = AssertUnwindSafe(self.execute(&key, act)).catch_unwind().instrument(span).await;
        let verdict = executed.unwrap_or_else(|_| {
            tracing::error!(controller = C::NAME, object = %key, "the execution of a plan panicked");
            self.shared.metrics.reconcile_panicked(C::NAME);
            ReconcileResult::Failed(None)
        });
        drop(pass);
        self.end(&key, verdict, begun);
    }

    async fn execute(self: &Arc<Self>, key: &ObjectRef, act: Box<Act<C::Effect>>) -> ReconcileResult {
        let Act { plan, pause, sending, subject } = *act;
        tell(&plan);
        let call = |effect: &C::Effect| self.call(key, effect, &subject);
        let attempt = self.queue.failures(key);
        let execution = self.shared.executor.run(&plan.stages, attempt, &sending, call).await;
        let refused = !execution.refused.is_empty();
        let failed = self.memories.get(key).and_then(|memory| {
            let mut memory = memory.lock();
            let now = memory.now(self.shared.clock.as_ref());
            let failed = memory.keep(execution, now);
            // The wait begins now, though nothing else may wake the object: a cache that does not go on is noticed.
            self.is_fresh(key, &mut memory);
            failed
        });
        match failed {
            Some(failure) => {
                self.report(key, &failure);
                ReconcileResult::Failed(failure.retry_after)
            }
            None => self.conclude(plan, pause, refused),
        }
    }

    /// Tells what a plan that succeeded has to tell.
    fn conclude(&self, plan: Plan<C::Effect>, pause: Duration, refused: bool) -> ReconcileResult {
        plan.events.into_iter().for_each(|event| self.shared.recorder.publish(event));
        plan.spans.into_iter().for_each(|span| self.shared.spans.record(span));
        let now = self.shared.clock.wall();
        // A plan that is made before a refusal does not know when to try again; the one after it does.
        let due = if refused { Some(now) } else { plan.wake };
        let wake = due.map(|at| {
            let after = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            Instant::now() + after.max(SOONEST)
        });
        ReconcileResult::Done { wake, pause }
    }

    fn call(self: &Arc<Self>, key: &ObjectRef, effect: &C::Effect, subject: &Subject) {
        let Some(memory) = self.memories.get(key) else { return };
        let mut memory = memory.lock();
        let now = memory.now(self.shared.clock.as_ref());
        if !memory.outcomes.begin(effect, now) {
            return;
        }
        drop(memory);
        let (this, key, same) = (self.clone(), key.clone(), effect.clone());
        let (starting, at, asked) = (self.clone(), key.clone(), effect.clone());
        // It may have waited for its lane and for a place: its deadline counts from now.
        let begun = move || {
            if let Some(memory) = starting.memories.get(&at) {
                let mut memory = memory.lock();
                let now = memory.now(starting.shared.clock.as_ref());
                memory.outcomes.started(&asked, now);
            }
        };
        self.effects.start(effect.clone(), subject.call(effect.name()), begun, move |outcome| {
            // Not the outcome itself: it may carry what a driver keeps to itself.
            let succeeded = C::Effect::succeeded(&outcome);
            tracing::debug!(succeeded, "a call ended");
            if let Some(memory) = this.memories.get(&key) {
                let mut memory = memory.lock();
                let now = memory.now(this.shared.clock.as_ref());
                memory.outcomes.finish(&same, now, outcome);
            }
            this.queue.add(key, Priority::Live);
        });
    }

    fn report(&self, key: &ObjectRef, failure: &Failure) {
        match failure.class {
            // Ordinary among several writers: the next run sees what the other one wrote.
            FailureClass::Conflict | FailureClass::AlreadyExists if self.queue.failures(key) < CONFLICTS => {
                tracing::debug!(%failure, "somebody else was faster");
            }
            FailureClass::Invalid | FailureClass::Forbidden => {
                tracing::warn!(%failure, "a step was refused");
                // Trying again does not help: somebody has to see it.
                if let Some(object) = self.shared.stores.of::<C::Primary>(key.cluster).get(key) {
                    let regarding = reference(object.as_ref());
                    self.shared.recorder.publish(Event::warning(regarding, STEP_REFUSED, failure.to_string()));
                }
            }
            _ => tracing::warn!(%failure, "a step failed"),
        }
    }

    fn forget(&self, key: &ObjectRef) {
        if let Some(memory) = self.memories.forget(key) {
            let looks = std::mem::take(&mut memory.lock().looks);
            self.shared.looks.set(&self.queue, key, &looks, &[]);
        }
    }
}

/// What each line of the log says that is written while a plan is executed, or a call made: what it is about.
#[derive(Clone, Debug)]
struct Subject {
    controller: &'static str,
    object: ObjectRef,
    owner: Option<String>,
    context: Option<TraceContext>,
}

impl Subject {
    fn new<C: Controller>(key: &ObjectRef, owner: Option<&OwnerReference>, plan: &Plan<C::Effect>) -> Self {
        let owner = owner.map(|owner| format!("{}/{}", owner.kind, owner.name));
        Self { controller: C::NAME, object: key.clone(), owner, context: plan.traceparent }
    }

    /// The span of an execution. In the traces it is one of its own, linked to that of the object: were it a child, that
    /// trace would never end.
    fn reconcile(&self) -> Span {
        let Self { controller, object, owner, context } = self;
        let trace_id = context.map(|context| tracing::field::display(context.trace_id));
        let span = tracing::info_span!("reconcile", controller, %object, owner, trace_id);
        if let Some(context) = context {
            trace::link(&span, *context);
        }
        span
    }

    /// The span of lines that are written before anything is executed, for the log only.
    fn line(&self) -> Span {
        let Self { controller, object, owner, context } = self;
        let trace_id = context.map(|context| tracing::field::display(context.trace_id));
        tracing::info_span!(target: trace::LOG_ONLY, "plan", controller, %object, owner, trace_id)
    }

    /// The span of a call, for the log only: what a call means to the trace, its performer knows.
    fn call(&self, effect: &'static str) -> Span {
        let Self { controller, object, owner, context } = self;
        let trace_id = context.map(|context| tracing::field::display(context.trace_id));
        tracing::info_span!(target: trace::LOG_ONLY, "call", effect, controller, %object, owner, trace_id)
    }
}

fn tell<E: Effect>(plan: &Plan<E>) {
    for planned in plan.steps() {
        tracing::debug!(why = %planned.why, step = format_args!("{:#}", planned.step), "step");
    }
    for Wait { reason, message, .. } in &plan.waits {
        tracing::debug!(reason, "still waiting: {message}");
    }
}

/// A wait is news when it begins, and when the time of its end moves. What ends it shows in what the object does next.
fn tell_waits(begun: &[&Wait]) {
    for Wait { reason, message, .. } in begun {
        tracing::info!(reason, "waiting: {}", clip_to(LONGEST_LINE, message.as_str()));
    }
}

/// A plan over very many children is made the less often: n changes then cost n plans of n children at most once.
fn pause_after(children: usize) -> Duration {
    let children = u64::try_from(children).unwrap_or(u64::MAX);
    let micros = children.saturating_mul(children) / 1_000;
    if micros < 1_000 { Duration::ZERO } else { Duration::from_micros(micros).min(Duration::from_secs(1)) }
}
