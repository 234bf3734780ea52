//! The work queue: which object is reconciled next.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{counts, object::ObjectRef};
use nodewright_observability::metrics::{Metrics, Unfinished};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// The object has just changed.
    Live,
    /// The object existed when the watch began.
    Initial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReconcileResult {
    /// Nothing more to do until a change or until `wake`, but never before the pause is over.
    Done { wake: Option<Instant>, pause: Duration },
    /// The run failed: retry after the back-off, and not before the given pause. A `wake` within the back-off ends it, but for a
    /// quarter of it.
    Failed { retry_after: Option<Duration>, wake: Option<Instant> },
    /// The object waits for a cache. The store adds the key again, or this time comes first.
    Parked(Option<Instant>),
    /// Not done yet: run again at once.
    Again,
}

impl ReconcileResult {
    pub(crate) const DONE: Self = Self::Done { wake: None, pause: Duration::ZERO };
    pub(crate) const FAILED: Self = Self::Failed { retry_after: None, wake: None };
}

/// Adds the key of one object to the queue of its controller, without keeping the queue alive.
#[derive(Clone, Debug)]
pub(crate) struct RequeueHandle {
    queue: Weak<Queue>,
    /// Controller names are unique in a manager.
    controller: &'static str,
    key: ObjectRef,
}

impl RequeueHandle {
    pub(crate) fn new(queue: &Arc<Queue>, key: &ObjectRef) -> Self {
        Self { queue: Arc::downgrade(queue), controller: queue.name, key: key.clone() }
    }

    pub(crate) fn wake(&self) {
        if let Some(queue) = self.queue.upgrade() {
            counts::woken(self.controller, "cache", 1);
            queue.add(self.key.clone(), Priority::Live);
        }
    }
}

impl PartialEq for RequeueHandle {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for RequeueHandle {}
impl PartialOrd for RequeueHandle {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for RequeueHandle {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.controller, &self.key).cmp(&(other.controller, &other.key))
    }
}

const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MOST: Duration = Duration::from_mins(1);

/// A queue of keys without duplicates.
///
/// # Guarantees
/// * One run at a time per key. A change during a run leads to another run after it.
/// * Failures back off exponentially with jitter, per key. Success and [`Queue::reset`] end the back-off; a wake-up time of the
///   failed run may cut it to a quarter.
/// * Of several requested wake-up times the earliest wins. A ready key is returned at once, without a timer.
/// * Live changes go before the first list. Even so, every eighth key comes from the first list.
///
/// # Assumptions
/// A caller that takes a key with [`Queue::next`] hands it back with [`Queue::done`].
pub(crate) struct Queue {
    pub(crate) name: &'static str,
    state: Mutex<State>,
    ready: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    entries: HashMap<ObjectRef, Entry>,
    live: VecDeque<ObjectRef>,
    initial: VecDeque<ObjectRef>,
    timers: BinaryHeap<Reverse<(Instant, ObjectRef)>>,
    /// How many keys have joined the queue, whatever the reason, and are not recorded yet.
    joined: usize,
    taken: u64,
    jitter: fastrand::Rng,
}

#[derive(Default)]
struct Entry {
    queued: Option<Instant>,
    running: Option<Instant>,
    dirty: bool,
    wake: Option<Instant>,
    not_before: Option<Instant>,
    failures: u32,
}

impl Queue {
    /// `seed` decides the jitter.
    pub(crate) fn new(name: &'static str, seed: u64, metrics: Arc<Metrics>) -> Self {
        let state = State { jitter: fastrand::Rng::with_seed(seed), ..State::default() };
        metrics.queue_starts(name);
        Self { name, state: Mutex::new(state), ready: Notify::new(), metrics }
    }

    /// Queues a key. It becomes ready as soon as its back-off allows.
    pub(crate) fn add(&self, key: ObjectRef, priority: Priority) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let entry = state.entries.entry(key.clone()).or_default();
        if entry.running.is_some() {
            entry.dirty = true;
            return;
        }
        if let Some(at) = entry.paused_until(now) {
            state.wake_at(key, at);
        } else {
            state.enqueue(key, priority, now);
            if state.joined == 0 {
                return;
            }
            self.record_joined(&mut state);
        }
        drop(state);
        self.ready.notify_one();
    }

    fn record_joined(&self, state: &mut State) {
        for _ in 0..std::mem::take(&mut state.joined) {
            self.metrics.queue_added(self.name, state.depth());
        }
    }

    /// Forgets the failures of a key, whose user has changed the object.
    pub(crate) fn reset(&self, key: &ObjectRef) {
        if let Some(entry) = self.state.lock().entries.get_mut(key) {
            entry.failures = 0;
            entry.not_before = None;
        }
    }

    pub(crate) fn failures(&self, key: &ObjectRef) -> u32 {
        self.state.lock().entries.get(key).map_or(0, |entry| entry.failures)
    }

    pub(crate) async fn next(&self) -> ObjectRef {
        loop {
            let timer = {
                let mut state = self.state.lock();
                counts::woken(self.name, "timer", state.ring(Instant::now()));
                self.record_joined(&mut state);
                if let Some((key, waited)) = state.take() {
                    self.metrics.queue_taken(self.name, state.depth(), waited);
                    return key;
                }
                state.timers.peek().map(|Reverse((at, _))| *at)
            };
            match timer {
                None => self.ready.notified().await,
                Some(at) => drop(timeout_at(at, self.ready.notified()).await),
            }
        }
    }

    pub(crate) fn done(&self, key: &ObjectRef, result: ReconcileResult) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let jitter = 0.8 + 0.4 * state.jitter.f64();
        let Some(entry) = state.entries.get_mut(key) else { return };
        let ran = entry.running.take().map_or(Duration::ZERO, |since| now - since);
        let again = std::mem::take(&mut entry.dirty);
        let wake = match result {
            ReconcileResult::Done { wake, pause } => {
                entry.failures = 0;
                entry.not_before = (!pause.is_zero()).then(|| now + pause);
                wake.map(|at| at.max(now + pause))
            }
            ReconcileResult::Failed { retry_after, wake } => {
                let pause = backoff(entry.failures).mul_f64(jitter);
                // A deadline does not wait for the API server to answer again. A plan that always asks for the next second waits
                // longer and longer all the same.
                let pause = wake.map_or(pause, |at| (at - now).clamp(pause / 4, pause));
                let at = now + pause.max(retry_after.unwrap_or_default());
                entry.failures = entry.failures.saturating_add(1);
                entry.not_before = Some(at);
                Some(at)
            }
            ReconcileResult::Parked(look) => look,
            ReconcileResult::Again => Some(now),
        };
        let soonest = if again { Some(entry.not_before.unwrap_or(now)) } else { wake };
        if let Some(at) = soonest.filter(|at| *at > now) {
            state.wake_at(key.clone(), at);
        } else if soonest.is_some() {
            state.enqueue(key.clone(), Priority::Live, now);
        } else {
            state.forget(key, now);
        }
        self.record_joined(&mut state);
        let depth = state.depth();
        drop(state);
        self.metrics.queue_done(self.name, depth, ran, matches!(result, ReconcileResult::Failed { .. }));
        self.ready.notify_one();
    }

    pub(crate) fn unfinished(&self) -> Unfinished {
        let now = Instant::now();
        let state = self.state.lock();
        let ages = state.entries.values().filter_map(|entry| entry.running).map(|since| now - since);
        Unfinished { total: ages.clone().sum(), longest: ages.max().unwrap_or_default() }
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << failures.min(16)).min(BACKOFF_MOST)
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.queued.is_none() && self.running.is_none() && self.wake.is_none() && self.failures == 0
    }

    fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }
}

impl State {
    fn depth(&self) -> usize {
        self.live.len() + self.initial.len()
    }

    fn enqueue(&mut self, key: ObjectRef, priority: Priority, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.queued.is_some() || entry.running.is_some() {
            return;
        }
        entry.queued = Some(now);
        entry.wake = None;
        self.joined += 1;
        match priority {
            Priority::Live => self.live.push_back(key),
            Priority::Initial => self.initial.push_back(key),
        }
    }

    fn wake_at(&mut self, key: ObjectRef, at: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.queued.is_none() && entry.wake.is_none_or(|earlier| at < earlier) {
            entry.wake = Some(at);
            self.timers.push(Reverse((at, key)));
        }
    }

    /// Drops an idle entry. An entry with a pause stays until the pause is over, because a change meanwhile must wait too.
    fn forget(&mut self, key: &ObjectRef, now: Instant) {
        let Some(entry) = self.entries.get(key).filter(|entry| entry.is_idle()) else { return };
        match entry.paused_until(now) {
            Some(at) => self.timers.push(Reverse((at, key.clone()))),
            None => drop(self.entries.remove(key)),
        }
    }

    /// Moves due keys to the ready list, and returns their number. A timer that was superseded or only ends a pause does not match
    /// its entry.
    fn ring(&mut self, now: Instant) -> usize {
        let mut due = 0;
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, key))) = self.timers.pop() else { break };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if entry.wake != Some(at) {
                if entry.is_idle() && entry.paused_until(now).is_none() {
                    self.entries.remove(&key);
                }
                continue;
            }
            entry.wake = None;
            due += 1;
            if entry.running.is_some() {
                entry.dirty = true;
            } else {
                self.enqueue(key, Priority::Live, now);
            }
        }
        due
    }

    fn take(&mut self) -> Option<(ObjectRef, Duration)> {
        self.taken += 1;
        let Self { live, initial, .. } = self;
        let (first, second) = if self.taken.is_multiple_of(8) { (initial, live) } else { (live, initial) };
        let key = first.pop_front().or_else(|| second.pop_front())?;
        let now = Instant::now();
        let entry = self.entries.entry(key.clone()).or_default();
        let waited = entry.queued.take().map_or(Duration::ZERO, |since| now - since);
        entry.running = Some(now);
        Some((key, waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::HOME;

    fn key(name: &str) -> ObjectRef {
        ObjectRef::new(HOME, "default", name)
    }

    fn queue() -> Queue {
        Queue::new("test", 1, Arc::new(Metrics::new()))
    }

    async fn is_empty(queue: &Queue) -> bool {
        tokio::time::timeout(Duration::from_millis(1), queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handed_out_once_however_often_it_is_added() {
        let queue = queue();
        queue.add(key("a"), Priority::Live);
        queue.add(key("a"), Priority::Live);
        assert_eq!(queue.next().await, key("a"));
        assert!(is_empty(&queue).await);
        queue.add(key("a"), Priority::Live);
        assert!(is_empty(&queue).await, "one run at a time");
        queue.done(&key("a"), ReconcileResult::DONE);
        assert_eq!(queue.next().await, key("a"), "the change during the run is kept");
        queue.done(&key("a"), ReconcileResult::DONE);
        assert!(is_empty(&queue).await);
        assert!(queue.state.lock().entries.is_empty(), "an idle key costs nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_taken_was_counted_as_added_whatever_brought_it_back() {
        let metrics = Arc::new(Metrics::new());
        let queue = Queue::new("test", 1, metrics.clone());
        let in_a_second =
            ReconcileResult::Done { wake: Some(Instant::now() + Duration::from_secs(1)), pause: Duration::ZERO };
        queue.add(key("a"), Priority::Live);
        for result in [in_a_second, ReconcileResult::Again, ReconcileResult::FAILED, ReconcileResult::DONE] {
            queue.next().await;
            queue.done(&key("a"), result);
        }
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        queue.add(key("a"), Priority::Live);
        queue.done(&key("a"), ReconcileResult::DONE);
        queue.next().await;
        let text = metrics.encode().unwrap();
        for line in ["workqueue_adds_total", "workqueue_queue_duration_seconds_count"]
            .map(|it| format!("{it}{{name=\"test\"}} 6"))
        {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_changes_do_not_cut_them_short() {
        let queue = queue();
        let mut pauses = vec![];
        queue.add(key("a"), Priority::Live);
        for _ in 0..4 {
            let begun = Instant::now();
            queue.next().await;
            pauses.push(begun.elapsed());
            queue.done(&key("a"), ReconcileResult::FAILED);
            queue.add(key("a"), Priority::Live);
        }
        assert!(pauses[1] < pauses[2] && pauses[2] < pauses[3], "{pauses:?}");
        queue.reset(&key("a"));
        queue.add(key("a"), Priority::Live);
        let begun = Instant::now();
        queue.next().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "a new generation starts afresh");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_cuts_a_back_off_short_but_not_below_a_quarter() {
        let pause_after = async |failures: usize, wake: Option<Duration>, retry_after: Option<Duration>| {
            let queue = queue();
            queue.add(key("a"), Priority::Live);
            for _ in 0..failures {
                queue.next().await;
                queue.done(&key("a"), ReconcileResult::FAILED);
            }
            queue.next().await;
            let begun = Instant::now();
            let wake = wake.map(|after| begun + after);
            queue.done(&key("a"), ReconcileResult::Failed { retry_after, wake });
            // A change comes no earlier.
            queue.add(key("a"), Priority::Live);
            queue.next().await;
            begun.elapsed()
        };
        let seconds = Duration::from_secs;
        let whole = pause_after(12, None, None).await;
        assert!((seconds(48)..=seconds(72)).contains(&whole), "{whole:?}");
        assert_eq!(pause_after(12, Some(seconds(20)), None).await, seconds(20));
        assert_eq!(pause_after(12, Some(seconds(90)), None).await, whole, "a later deadline changes nothing");
        let soon = pause_after(12, Some(seconds(1)), None).await;
        assert!((seconds(12)..=seconds(18)).contains(&soon), "{soon:?}");
        assert_eq!(pause_after(12, Some(seconds(20)), Some(seconds(30))).await, seconds(30), "Retry-After counts");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_differ_from_key_to_key_and_are_the_same_from_the_same_seed() {
        let pauses = async |seed| {
            let (queue, begun) = (Queue::new("test", seed, Arc::new(Metrics::new())), Instant::now());
            for n in 0..100 {
                queue.add(key(&format!("{n:03}")), Priority::Live);
            }
            for _ in 0..100 {
                queue.done(&queue.next().await, ReconcileResult::FAILED);
            }
            let mut pauses = vec![];
            for _ in 0..100 {
                pauses.push((queue.next().await, begun.elapsed().as_millis()));
            }
            pauses
        };
        let (all, again, other) = (pauses(1).await, pauses(1).await, pauses(2).await);
        let (first, last) = (all[0].1, all[99].1);
        assert!((160..180).contains(&first) && (220..=240).contains(&last), "{first}–{last} ms around 200");
        assert_eq!(all, again);
        assert_ne!(all, other);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_wake_wins() {
        let queue = queue();
        let now = Instant::now();
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        queue
            .done(&key("a"), ReconcileResult::Done { wake: Some(now + Duration::from_mins(1)), pause: Duration::ZERO });
        queue.state.lock().wake_at(key("a"), now + Duration::from_secs(5));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(Instant::now() - now, Duration::from_secs(5));
        queue.done(&key("a"), ReconcileResult::DONE);
        assert!(tokio::time::timeout(Duration::from_mins(2), queue.next()).await.is_err(), "the later one was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn live_changes_go_first_but_the_first_list_does_not_starve() {
        let queue = queue();
        queue.add(key("old"), Priority::Initial);
        for n in 0..20 {
            queue.add(key(&format!("live-{n}")), Priority::Live);
        }
        let mut order = vec![];
        for _ in 0..21 {
            order.push(queue.next().await);
        }
        let place = order.iter().position(|name| *name == key("old")).unwrap();
        assert_eq!(place, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_key_is_left_alone_and_then_sees_the_change() {
        let queue = queue();
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        queue.add(key("a"), Priority::Live);
        let begun = Instant::now();
        queue.done(&key("a"), ReconcileResult::Done { wake: None, pause: Duration::from_millis(100) });
        queue.next().await;
        assert_eq!(begun.elapsed(), Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_for_a_change_after_the_run_as_well() {
        let queue = queue();
        let pausing = ReconcileResult::Done { wake: None, pause: Duration::from_millis(100) };
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        queue.done(&key("a"), pausing);
        let begun = Instant::now();
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        assert_eq!(begun.elapsed(), Duration::from_millis(100));
        queue.done(&key("a"), pausing);
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err(), "nothing has changed");
        assert!(queue.state.lock().entries.is_empty(), "a key whose pause is over costs nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_key_waits_until_it_is_added() {
        let queue = queue();
        queue.add(key("a"), Priority::Live);
        queue.next().await;
        queue.done(&key("a"), ReconcileResult::Parked(None));
        assert!(is_empty(&queue).await);
        queue.add(key("a"), Priority::Live);
        assert_eq!(queue.next().await, key("a"));
    }
}
