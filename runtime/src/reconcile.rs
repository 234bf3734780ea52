//! The loop of one controller: fresh enough? observe, plan, act, remember.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cache::Stores,
    controller::Controller,
    effect::{Effect, Outcomes},
    effect_runner::EffectRunner,
    events::{Event, Recorder},
    execute::{Barrier, Execution, Executor, Unsure},
    look::{Look, Looks},
    metrics::{Metrics, ReconcileResult},
    object::{Key, uid},
    plan::{Failure, FailureClass, Moment, Plan, Refusal, reference},
    queue::{Class, Queue, Verdict},
    term::Clock,
    trace::Spans,
};

/// How many objects of one controller are worked on at once.
const RUNNING: usize = 512;
/// An object is looked at again no sooner than after this, whenever its plan wants to be made again: a plan that names a
/// moment in the past each time costs little.
const SOONEST: Duration = Duration::from_millis(100);
/// Conflicts are ordinary, but for so many in a row.
const CONFLICTS: u32 = 5;

/// Reason of the event of an object for which the API server refuses a request that will not do as it is.
const STEP_REFUSED: &str = "StepRefused";

/// What this process knows of one object besides what the caches show. Lost on restart, learnt again by trying.
struct Memory<E: Effect> {
    uid: String,
    barriers: Vec<Barrier>,
    /// Since when it waits for a cache to show what was written.
    parked: Option<Instant>,
    unsure: Vec<Unsure>,
    failure: Option<Failure>,
    refusals: Vec<Refusal>,
    outcomes: Outcomes<E>,
    status_written: Option<Timestamp>,
    looks: Vec<Look>,
}

impl<E: Effect> Memory<E> {
    fn of(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            barriers: vec![],
            parked: None,
            unsure: vec![],
            failure: None,
            refusals: vec![],
            outcomes: Outcomes::default(),
            status_written: None,
            looks: vec![],
        }
    }
}

/// What the loops of all controllers share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) executor: Executor,
    pub(crate) looks: Arc<Looks>,
    pub(crate) recorder: Recorder,
    pub(crate) spans: Spans,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Since when this process may write.
    pub(crate) since: Timestamp,
}

/// The loop of one controller.
///
/// # Guarantees
/// * A run sees everything that earlier runs for the object wrote: until the caches show it, the object waits.
/// * What became of an unanswered write is read before the next plan.
/// * After a refusal there is a plan that knows of it, and can say when to try again.
/// * A panic in one plan is caught, counted and backed off; other objects go on.
pub(crate) struct Reconciler<C: Controller> {
    pub(crate) controller: C,
    pub(crate) queue: Arc<Queue>,
    pub(crate) effects: Arc<EffectRunner<C::Effect>>,
    pub(crate) shared: Shared,
    memories: Mutex<HashMap<Key, Memory<C::Effect>>>,
}

impl<C: Controller> Reconciler<C> {
    pub(crate) fn new(
        controller: C,
        queue: Arc<Queue>,
        effects: Arc<EffectRunner<C::Effect>>,
        shared: Shared,
    ) -> Arc<Self> {
        Arc::new(Self { controller, queue, effects, shared, memories: Mutex::default() })
    }

    /// Takes keys from the queue until told to stop; runs that are under way are finished by their own tasks.
    pub(crate) async fn run(self: Arc<Self>) {
        let permits = Arc::new(Semaphore::new(RUNNING));
        loop {
            let key = tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return,
                key = self.queue.next() => key,
            };
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let this = self.clone();
            self.shared.tasks.spawn(async move {
                let verdict = this.reconcile(&key).await;
                this.queue.done(&key, verdict);
                drop(permit);
            });
        }
    }

    async fn reconcile(self: &Arc<Self>, key: &Key) -> Verdict {
        let begun = Instant::now();
        if let Some(failed) = self.settle(key).await {
            return failed;
        }
        if !self.is_fresh(key) {
            self.shared.metrics.stale_skipped(C::NAME);
            return Verdict::Parked;
        }
        let Some(world) = self.controller.observe(&self.shared.stores, key) else {
            self.forget(key);
            return Verdict::Done { wake: None, pause: Duration::ZERO };
        };
        let Some(plan) = self.plan(key, &world) else {
            self.shared.metrics.reconcile_panicked(C::NAME);
            return Verdict::Failed(None);
        };
        let pause = pause_after(self.controller.children(&world));
        drop(world);
        let verdict = self.act(key, plan, pause).await;
        let result = match verdict {
            Verdict::Failed(_) => ReconcileResult::Error,
            Verdict::Done { wake: Some(_), .. } => ReconcileResult::RequeueAfter,
            _ => ReconcileResult::Success,
        };
        self.shared.metrics.reconciled(C::NAME, result, begun.elapsed());
        verdict
    }

    /// Reads what became of writes whose answer was lost. `Some` when that fails.
    async fn settle(&self, key: &Key) -> Option<Verdict> {
        let unsure = self.memories.lock().get(key).map(|memory| memory.unsure.clone()).unwrap_or_default();
        for one in unsure {
            match self.shared.executor.find_out(&one).await {
                Ok(barrier) => {
                    if let Some(memory) = self.memories.lock().get_mut(key) {
                        memory.unsure.retain(|other| *other != one);
                        memory.barriers.extend(barrier);
                    }
                }
                Err(error) => {
                    tracing::warn!(controller = C::NAME, object = %key, unsure = %one.key, %error,
                        "cannot learn what became of a write; trying again");
                    return Some(Verdict::Failed(error.retry_after));
                }
            }
        }
        None
    }

    /// Whether the caches show everything that was written for the object; if not, it is woken when they do.
    fn is_fresh(self: &Arc<Self>, key: &Key) -> bool {
        let mut memories = self.memories.lock();
        let Some(memory) = memories.get_mut(key) else { return true };
        let (queue, woken) = (self.queue.clone(), key.clone());
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(move || queue.add(woken.clone(), Class::Live));
        while let Some(barrier) = memory.barriers.last() {
            let mut stores = self.shared.stores.showing(&barrier.resource, &barrier.key);
            if stores.is_empty() && !matches!(barrier.until, crate::cache::Until::Version(..)) {
                stores = self.shared.stores.looking_at(&barrier.resource, barrier.key.cluster);
            }
            if !stores.iter().all(|store| store.wait(&barrier.until, &wake)) {
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

    fn plan(&self, key: &Key, world: &C::World) -> Option<Plan<C::Effect>> {
        let snapshot = {
            let store = self.shared.stores.of::<C::Primary>(key.cluster);
            let live = store.get(key);
            let uid = live.as_deref().map(uid).unwrap_or_default();
            let mut memories = self.memories.lock();
            let memory = memories.entry(key.clone()).or_insert_with(|| Memory::of(uid));
            if memory.uid != uid {
                // Another object under the same name.
                let looks = std::mem::take(&mut memory.looks);
                *memory = Memory { looks, ..Memory::of(uid) };
            }
            (memory.failure.clone(), memory.refusals.clone(), memory.outcomes.clone(), memory.status_written)
        };
        let (failure, refusals, outcomes, status_written) = &snapshot;
        let moment = Moment {
            now: self.shared.clock.wall(),
            since: self.shared.since,
            attempt: self.queue.failures(key),
            failure: failure.as_ref(),
            outcomes,
            refusals,
            status_written: *status_written,
        };
        let planned = catch_unwind(AssertUnwindSafe(|| self.controller.plan(&moment, world)));
        planned.inspect_err(|_| tracing::error!(controller = C::NAME, object = %key, "the plan panicked")).ok()
    }

    async fn act(self: &Arc<Self>, key: &Key, plan: Plan<C::Effect>, pause: Duration) -> Verdict {
        let former = self.memories.lock().get_mut(key).map(|memory| std::mem::take(&mut memory.looks));
        let looks = self.shared.looks.set(&self.queue, key, &former.unwrap_or_default(), &plan.looks);
        if let Some(memory) = self.memories.lock().get_mut(key) {
            memory.looks = looks;
        }
        for planned in plan.steps() {
            tracing::debug!(controller = C::NAME, object = %key, why = %planned.why, step = ?planned.step, "step");
        }
        for wait in &plan.waits {
            tracing::debug!(controller = C::NAME, object = %key, reason = wait.reason, message = wait.message, "waiting");
        }
        let call = |effect: &C::Effect| self.call(key, effect);
        let execution = self.shared.executor.run(&plan.stages, plan.traceparent.as_deref(), call).await;
        let now = self.shared.clock.wall();
        let refused = !execution.refused.is_empty();
        let failed = self.remember(key, execution, now);
        if let Some(failure) = failed {
            self.report(key, &failure);
            return Verdict::Failed(failure.retry_after);
        }
        plan.events.into_iter().for_each(|event| self.shared.recorder.publish(event));
        plan.spans.into_iter().for_each(|span| self.shared.spans.record(span));
        // A plan that is made before a refusal does not know when to try again; the one after it does.
        let due = if refused { Some(now) } else { plan.wake };
        let wake = due.map(|at| {
            let after = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            Instant::now() + after.max(SOONEST)
        });
        Verdict::Done { wake, pause }
    }

    fn call(self: &Arc<Self>, key: &Key, effect: &C::Effect) {
        let begun = {
            let mut memories = self.memories.lock();
            let now = self.shared.clock.wall();
            memories.get_mut(key).is_some_and(|memory| memory.outcomes.begin(effect, now))
        };
        if !begun {
            return;
        }
        let (this, key, same) = (self.clone(), key.clone(), effect.clone());
        self.effects.start(effect.clone(), move |outcome| {
            // Not the outcome itself: it may carry what a driver keeps to itself.
            let succeeded = C::Effect::succeeded(&outcome);
            tracing::debug!(controller = C::NAME, object = %key, effect = same.name(), succeeded, "a call ended");
            let now = this.shared.clock.wall();
            if let Some(memory) = this.memories.lock().get_mut(&key) {
                memory.outcomes.finish(&same, now, outcome);
            }
            this.queue.add(key, Class::Live);
        });
    }

    fn remember(&self, key: &Key, execution: Execution, now: Timestamp) -> Option<Failure> {
        let mut memories = self.memories.lock();
        let memory = memories.get_mut(key)?;
        memory.barriers.extend(execution.barriers);
        memory.unsure.extend(execution.unsure);
        if execution.status_written {
            memory.status_written = Some(now);
        }
        memory.refusals.retain(|refusal| !execution.evicted.contains(&refusal.uid));
        for (uid, error) in execution.refused {
            let times = memory.refusals.iter().find(|refusal| refusal.uid == uid).map_or(0, |refusal| refusal.times);
            memory.refusals.retain(|refusal| refusal.uid != uid);
            let times = times.saturating_add(1);
            let refusal = Refusal { uid, at: now, times, message: error.message, retry_after: error.retry_after };
            memory.refusals.push(refusal);
        }
        memory.failure = execution.failure.map(|(step, error)| Failure {
            at: now,
            step,
            class: error.class,
            message: error.message,
            retry_after: error.retry_after,
        });
        memory.failure.clone()
    }

    fn report(&self, key: &Key, failure: &Failure) {
        match failure.class {
            // Ordinary among several writers: the next run sees what the other one wrote.
            FailureClass::Conflict | FailureClass::Taken if self.queue.failures(key) < CONFLICTS => {
                tracing::debug!(controller = C::NAME, object = %key, %failure, "somebody else was faster");
            }
            FailureClass::Invalid | FailureClass::Forbidden => {
                tracing::warn!(controller = C::NAME, object = %key, %failure, "a step was refused");
                // Trying again does not help: somebody has to see it.
                if let Some(object) = self.shared.stores.of::<C::Primary>(key.cluster).get(key) {
                    let regarding = reference(object.as_ref());
                    self.shared.recorder.publish(Event::warning(regarding, STEP_REFUSED, failure.to_string()));
                }
            }
            _ => tracing::warn!(controller = C::NAME, object = %key, %failure, "a step failed"),
        }
    }

    fn forget(&self, key: &Key) {
        let memory = self.memories.lock().remove(key);
        if let Some(memory) = memory {
            self.shared.looks.set(&self.queue, key, &memory.looks, &[]);
        }
    }
}

/// A plan over very many children is made the less often: n changes then cost n plans of n children at most once.
fn pause_after(children: usize) -> Duration {
    let children = u64::try_from(children).unwrap_or(u64::MAX);
    let micros = children.saturating_mul(children) / 1_000;
    if micros < 1_000 { Duration::ZERO } else { Duration::from_micros(micros).min(Duration::from_secs(1)) }
}
