//! Calls outside Kubernetes, beside the reconciles.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    effect::{Effect, Lane, Perform},
    metrics::Metrics,
    term::Term,
};

type LaneLock = Arc<tokio::sync::Mutex<()>>;

/// Runs the effects of one controller.
///
/// # Guarantees
/// * Effects of one lane never overlap; a hung call delays its own lane and nobody else.
/// * A call is begun only while the term lasts, and dropped when the term ends. It is dropped at its deadline too, and
///   then its outcome is [`Effect::late`]; a panic counts as one.
///
/// # Caveats
/// A dropped call may still take effect outside. That is why effects are idempotent and their outcomes are asked for.
pub(crate) struct EffectRunner<E: Effect> {
    performer: Arc<dyn Perform<E>>,
    lanes: Mutex<HashMap<Lane, LaneLock>>,
    limit: Arc<Semaphore>,
    term: Term,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    controller: &'static str,
}

impl<E: Effect> EffectRunner<E> {
    pub(crate) fn new(
        controller: &'static str,
        performer: Arc<dyn Perform<E>>,
        limit: usize,
        term: Term,
        tasks: TaskTracker,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let limit = Arc::new(Semaphore::new(limit));
        Arc::new(Self { performer, lanes: Mutex::default(), limit, term, tasks, metrics, controller })
    }

    /// Begins a call; `done` learns its outcome. Without a term nothing begins and nothing is told.
    pub(crate) fn start(self: &Arc<Self>, effect: E, done: impl FnOnce(E::Outcome) + Send + 'static) {
        let runner = self.clone();
        self.tasks.spawn(async move {
            let lane = runner.lane(&effect);
            let turn = lane.lock().await;
            let outcome = runner.run(effect.clone()).await;
            drop(turn);
            drop(lane);
            runner.leave(&effect.lane());
            if let Some(outcome) = outcome {
                done(outcome);
            }
        });
    }

    async fn run(&self, effect: E) -> Option<E::Outcome> {
        let _permit = self.limit.acquire().await.ok()?;
        if self.term.is_over() {
            return None;
        }
        // Not what remains of the term: that is a few seconds at any time, and grows while the term is extended.
        let limit = effect.deadline();
        let measured = self.metrics.effect_started(effect.name());
        // A task of its own, so that a panic in a driver ends the call and not the runner.
        let mut call = tokio::spawn(self.performer.perform(effect.clone()));
        let ended = tokio::select! {
            biased;
            ended = timeout(limit, &mut call) => ended,
            () = self.term.ended() => {
                call.abort();
                return None;
            }
        };
        let outcome = match ended {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => {
                tracing::error!(controller = self.controller, effect = effect.name(), %panic, "a call panicked");
                effect.late()
            }
            Err(_) => {
                call.abort();
                tracing::warn!(controller = self.controller, ?effect, ?limit, "a call did not answer in time");
                effect.late()
            }
        };
        measured.finish(if E::succeeded(&outcome) { "success" } else { "error" });
        Some(outcome)
    }

    fn lane(&self, effect: &E) -> LaneLock {
        self.lanes.lock().entry(effect.lane()).or_default().clone()
    }

    /// Forgets a lane that nobody waits for.
    fn leave(&self, lane: &Lane) {
        let mut lanes = self.lanes.lock();
        if lanes.get(lane).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            lanes.remove(lane);
        }
    }
}
