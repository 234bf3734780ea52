//! Runs calls outside Kubernetes, concurrently with the reconciles.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use crate::{
    effect::{Effect, Group},
    fair::Flow,
    fair_groups::{Answer, GroupSemaphore},
    leadership::Leadership,
};
use nodewright_observability::{metrics::Metrics, trace::TraceContext};

/// The group of all calls of a controller.
const ALL: &str = "";
/// A call without an answer for so long is logged: most are answered at once.
const WORTH_LOGGING: Duration = Duration::from_secs(1);

pub(crate) type Perform<E> = Arc<dyn Fn(E) -> BoxFuture<'static, <E as Effect>::Outcome> + Send + Sync>;

/// Where a call belongs.
#[derive(Clone, Debug)]
pub(crate) struct CallSpan {
    /// The context of its log lines.
    pub(crate) log: Span,
    /// The trace of its object, if that is exported.
    pub(crate) trace: Option<TraceContext>,
}

/// Runs the effects of one controller.
///
/// # Guarantees
/// * Effects with the same serialization key never overlap. A hung call delays only the calls with its own key.
/// * Each group has its limit, and owners take turns, see [`GroupSemaphore`]. A call that waits delays no other one, except
///   those with its serialization key.
/// * A call starts only while this process leads, and is dropped when leadership ends, also in a process that was suspended.
/// * A call is dropped at its deadline. Its outcome is then [`Effect::timeout_outcome`], as it is after a panic.
pub(crate) struct EffectRunner<E: Effect> {
    perform: Perform<E>,
    /// For each serialization key that has calls.
    locks: Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>,
    limit: usize,
    groups: Arc<GroupSemaphore>,
    leadership: Leadership,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl<E: Effect> EffectRunner<E> {
    pub(crate) fn new(
        perform: Perform<E>,
        limit: usize,
        leadership: Leadership,
        tasks: TaskTracker,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let (locks, groups) = (Mutex::default(), Arc::default());
        Arc::new(Self { perform, locks, limit, groups, leadership, tasks, metrics })
    }

    /// Queues a call, which takes turns with the calls of other flows. Runs `begun` when it starts, and `done` with its outcome;
    /// neither if this process does not lead.
    pub(crate) fn start(
        self: &Arc<Self>,
        effect: E,
        flow: Flow,
        span: CallSpan,
        begun: impl FnOnce() + Send + 'static,
        done: impl FnOnce(E::Outcome) + Send + 'static,
    ) {
        let (runner, CallSpan { log, trace }) = (self.clone(), span);
        let task = async move {
            let key = effect.serialization_key();
            let lock = runner.locks.lock().entry(key.clone()).or_default().clone();
            let turn = lock.lock().await;
            let outcome = runner.run(effect, &flow, trace, begun).await;
            drop(turn);
            drop(lock);
            runner.forget_unused(&key);
            if let Some(outcome) = outcome {
                done(outcome);
            }
        };
        self.tasks.spawn(task.instrument(log));
    }

    async fn run(
        &self,
        effect: E,
        flow: &Flow,
        trace: Option<TraceContext>,
        begun: impl FnOnce(),
    ) -> Option<E::Outcome> {
        let mut groups = effect.groups();
        groups.push(Group::new(ALL, self.limit));
        let permit = self.groups.enter(flow, groups).await?;
        if self.leadership.is_over() {
            return None;
        }
        // The deadline does not include the remaining leadership: that is always a few seconds, and renewals extend it.
        let limit = effect.deadline();
        begun();
        let measured = self.metrics.effect_started(effect.name(), trace);
        // Run in a separate task, so that a panic in a driver ends the call and not the runner.
        let (perform, asked, leadership) = (self.perform.clone(), effect.clone(), self.leadership.clone());
        let call = async move { perform(asked).await };
        let mut call = tokio::spawn(async move { leadership.run(call).await }.in_current_span());
        let lasting = async {
            sleep(WORTH_LOGGING.min(limit)).await;
            tracing::info!(call = effect.name(), "a call has not answered within {WORTH_LOGGING:?}");
            sleep(limit.saturating_sub(WORTH_LOGGING)).await;
        };
        let ended = tokio::select! {
            biased;
            ended = &mut call => Ok(ended),
            () = lasting => Err(()),
            () = self.leadership.ended() => {
                call.abort();
                return None;
            }
        };
        let outcome = match ended {
            Ok(Ok(outcome)) => {
                let outcome = outcome?;
                permit.answered(if E::is_throttled(&outcome) { Answer::Throttled } else { Answer::Other });
                outcome
            }
            // Not what it said, which may quote a secret: the hook of the process prints where it was.
            Ok(Err(_)) => {
                tracing::error!(call = effect.name(), "a call panicked");
                effect.timeout_outcome()
            }
            Err(()) => {
                call.abort();
                tracing::warn!(?limit, "a call did not answer in time");
                effect.timeout_outcome()
            }
        };
        measured.finish(if E::succeeded(&outcome) { "success" } else { "error" });
        Some(outcome)
    }

    fn forget_unused(&self, key: &str) {
        let mut locks = self.locks.lock();
        if locks.get(key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        sync::Notify,
        time::{Instant, sleep},
    };

    use super::*;
    use crate::testing::HandClock;

    fn outside() -> CallSpan {
        CallSpan { log: Span::none(), trace: None }
    }

    /// A call: its name, its serialization key, and its duration in seconds. With a key such as `zone/1` it is in group `zone`,
    /// which has one place. The call `throttled` is throttled.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Call(&'static str, &'static str, u64);

    impl Effect for Call {
        type Outcome = bool;
        fn serialization_key(&self) -> Arc<str> {
            self.1.into()
        }
        fn name(&self) -> &'static str {
            "call"
        }
        fn deadline(&self) -> Duration {
            Duration::from_mins(1)
        }
        fn timeout_outcome(&self) -> bool {
            false
        }
        fn succeeded(outcome: &bool) -> bool {
            *outcome
        }
        fn groups(&self) -> Vec<Group> {
            self.1.split_once('/').map(|(group, _)| Group::new(group, 1).pausing()).into_iter().collect()
        }
        fn is_throttled(outcome: &bool) -> bool {
            !outcome
        }
    }

    /// Makes calls, and records when each begins.
    fn performer(begun: Arc<Mutex<Vec<(&'static str, u64)>>>) -> Perform<Call> {
        let start = Instant::now();
        Arc::new(move |Call(name, .., seconds)| {
            begun.lock().push((name, start.elapsed().as_secs()));
            Box::pin(async move {
                sleep(Duration::from_secs(seconds)).await;
                name != "throttled"
            })
        })
    }

    /// Makes calls with this concurrency limit. Returns when each began, and the remaining serialization keys at the end.
    async fn begun(limit: usize, leadership: Leadership, calls: &[Call]) -> (Vec<(&'static str, u64)>, usize) {
        let (tasks, begun) = (TaskTracker::new(), Arc::default());
        let performer = performer(Arc::clone(&begun));
        let runner = EffectRunner::new(performer, limit, leadership, tasks.clone(), Arc::default());
        for call in calls {
            runner.start(call.clone(), Flow::default(), outside(), || {}, |_| {});
            tokio::task::yield_now().await;
        }
        tasks.close();
        tasks.wait().await;
        let begun = begun.lock().clone();
        (begun, runner.locks.lock().len())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_with_one_key_follow_each_other_and_others_do_not_wait() {
        let calls = [Call("a", "vm-1", 10), Call("b", "vm-1", 10), Call("c", "vm-2", 10)];
        let (begun, keys) = begun(100, Leadership::unlimited(), &calls).await;
        assert_eq!(begun, [("a", 0), ("c", 0), ("b", 10)]);
        assert_eq!(keys, 0, "an unused key is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_call_counts_from_when_it_is_made_and_not_from_when_it_was_queued() {
        let (tasks, record) = (TaskTracker::new(), Arc::new(Mutex::new(vec![])));
        let runner =
            EffectRunner::new(performer(Arc::default()), 2, Leadership::unlimited(), tasks.clone(), Arc::default());
        let start = Instant::now();
        // Two calls hang until their deadline. The third waits for a permit, the fourth for the serialization key of the third.
        for call in [Call("a", "1", 900), Call("b", "2", 900), Call("c", "3", 50), Call("d", "3", 1)] {
            let (at_begin, at_end, name) = (record.clone(), record.clone(), call.0);
            let begun = move || at_begin.lock().push((name, "begun", start.elapsed().as_secs()));
            let done = move |_| at_end.lock().push((name, "done", start.elapsed().as_secs()));
            runner.start(call, Flow::default(), outside(), begun, done);
            tokio::task::yield_now().await;
        }
        tasks.close();
        tasks.wait().await;
        let record = record.lock().clone();
        assert_eq!(record.iter().find(|(name, what, _)| (*name, *what) == ("c", "begun")), Some(&("c", "begun", 60)));
        assert_eq!(record.iter().find(|(name, what, _)| (*name, *what) == ("c", "done")), Some(&("c", "done", 110)));
        assert_eq!(record.iter().find(|(name, what, _)| (*name, *what) == ("d", "begun")), Some(&("d", "begun", 110)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_for_its_group_blocks_no_other() {
        let calls = [Call("a", "zone/1", 10), Call("b", "zone/2", 10), Call("c", "other/1", 10), Call("d", "3", 10)];
        let (begun, _) = begun(2, Leadership::unlimited(), &calls).await;
        assert_eq!(begun, [("a", 0), ("c", 0), ("b", 10), ("d", 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_call_pauses_its_group_and_no_other() {
        let calls =
            [Call("throttled", "zone/1", 1), Call("b", "zone/2", 1), Call("c", "other/1", 5), Call("d", "other/2", 1)];
        let (begun, _) = begun(100, Leadership::unlimited(), &calls).await;
        assert_eq!(begun, [("throttled", 0), ("c", 0), ("b", 2), ("d", 5)]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_begins_after_the_end_of_leadership() {
        let leadership = Leadership::unlimited();
        let calls = [Call("a", "1", 30), Call("b", "2", 30)];
        let end = async {
            sleep(Duration::from_secs(10)).await;
            leadership.end();
        };
        let started = Instant::now();
        let ((begun, _), ()) = tokio::join!(begun(1, leadership.clone(), &calls), end);
        assert_eq!((begun, started.elapsed().as_secs()), (vec![("a", 0)], 10));
    }

    #[tokio::test]
    async fn a_call_that_has_slept_does_not_go_on() {
        let (clock, answer) = (Arc::new(HandClock::default()), Arc::new(Notify::new()));
        let leadership = Leadership::until(clock.clone(), Duration::from_secs(10));
        let requests = Arc::new(Mutex::new(vec![]));
        let (sent, answered) = (requests.clone(), answer.clone());
        let call = async move {
            sent.lock().push("first");
            answered.notified().await;
            sent.lock().push("second");
        };
        let going = tokio::spawn(async move { leadership.run(call).await });
        tokio::task::yield_now().await;
        clock.set(11);
        answer.notify_one();
        assert_eq!((going.await.unwrap(), requests.lock().clone()), (None, vec!["first"]));
    }
}
