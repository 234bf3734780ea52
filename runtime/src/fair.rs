//! Round-robin across owners, FIFO within one: ten thousand creations of one set delay the three of another set by three turns.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

/// Requests that share turns: those of one owner, by its UID. Requests without an owner share the empty flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Flow(Arc<str>);

impl Flow {
    pub(crate) fn of(owner: &str) -> Self {
        Self(owner.into())
    }
}

pub(crate) struct FairQueue<T> {
    waiting: HashMap<Flow, VecDeque<T>>,
    turns: VecDeque<Flow>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn push(&mut self, flow: &Flow, item: T) {
        if let Some(waiting) = self.waiting.get_mut(flow) {
            waiting.push_back(item);
        } else {
            self.waiting.insert(flow.clone(), VecDeque::from([item]));
            self.turns.push_back(flow.clone());
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let flow = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&flow)?;
        let item = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&flow);
        } else {
            self.turns.push_back(flow);
        }
        item
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

/// A token bucket: an average per second (0: no limit), and a burst after idle time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) burst: u32,
}

/// Limits concurrency and rate.
///
/// # Guarantees
/// Dropping a [`Permit`] frees its place at once. A cancelled waiter takes no place.
///
/// # Caveats
/// A request holds a permit while it waits for the rate, so the rate slows all flows alike.
pub(crate) struct FairSemaphore {
    state: Mutex<State>,
    rate: Option<Rate>,
}

struct State {
    free: usize,
    waiting: FairQueue<oneshot::Sender<Permit>>,
    /// When the next permit would be due if all had been spread evenly.
    due: Option<Instant>,
}

impl State {
    fn take(&mut self) -> bool {
        let free = self.free > 0 && self.waiting.is_empty();
        self.free -= usize::from(free);
        free
    }
}

pub(crate) struct Permit(Option<Arc<FairSemaphore>>);

impl Permit {
    pub(crate) fn is_of(&self, semaphore: &Arc<FairSemaphore>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, semaphore))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(semaphore) = self.0.take() {
            semaphore.leave();
        }
    }
}

impl FairSemaphore {
    pub(crate) fn new(places: usize, rate: Option<Rate>) -> Arc<Self> {
        let rate = rate.filter(|rate| rate.per_second > 0.0);
        let state = State { free: places.max(1), waiting: FairQueue::default(), due: None };
        Arc::new(Self { state: Mutex::new(state), rate })
    }

    /// Waits for a permit and for the rate.
    pub(crate) async fn enter(self: &Arc<Self>, flow: &Flow) -> Permit {
        let permit = match self.line_up(flow) {
            Ok(permit) => permit,
            // The waiter keeps the semaphore alive, and the semaphore passes each permit on, so the sender is never dropped.
            Err(turn) => turn.await.unwrap_or(Permit(None)),
        };
        if let Some(due) = self.reserve() {
            sleep_until(due).await;
        }
        permit
    }

    /// A permit, if one is free and no request waits for it; ignores the rate.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Permit> {
        self.state.lock().take().then(|| Permit(Some(self.clone())))
    }

    fn line_up(self: &Arc<Self>, flow: &Flow) -> Result<Permit, oneshot::Receiver<Permit>> {
        let mut state = self.state.lock();
        if state.take() {
            return Ok(Permit(Some(self.clone())));
        }
        let (sender, turn) = oneshot::channel();
        state.waiting.push(flow, sender);
        Err(turn)
    }

    /// When the rate allows the next request, if not at once.
    fn reserve(&self) -> Option<Instant> {
        let rate = self.rate?;
        let interval = Duration::from_secs_f64(1.0 / rate.per_second);
        let now = Instant::now();
        let mut state = self.state.lock();
        let due = state.due.map_or(now, |due| due.max(now));
        state.due = Some(due + interval);
        let ahead = interval.saturating_mul(rate.burst.saturating_sub(1));
        (due > now + ahead).then(|| due - ahead)
    }

    fn leave(self: Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            let Some(next) = state.waiting.pop() else {
                state.free += 1;
                return;
            };
            drop(state);
            match next.send(Permit(Some(self.clone()))) {
                Ok(()) => return,
                // The waiter gave up. Pass the place on here: the permit's drop would re-enter this function.
                Err(mut permit) => permit.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};

    use super::*;

    #[test]
    fn flows_take_turns_and_keep_their_own_order() {
        let mut queue = FairQueue::default();
        let (many, few) = (Flow::of("many"), Flow::of("few"));
        for n in 0..5 {
            queue.push(&many, n);
        }
        queue.push(&few, 100);
        queue.push(&few, 101);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3, 4]);
        assert!(queue.is_empty() && queue.waiting.is_empty(), "a flow that waits for nothing costs nothing");
    }

    #[tokio::test]
    async fn a_cancelled_waiter_takes_no_place() {
        let semaphore = FairSemaphore::new(1, None);
        let flow = Flow::default();
        let inside = semaphore.enter(&flow).await;
        let mut second = Box::pin(semaphore.enter(&flow));
        let mut third = Box::pin(semaphore.enter(&flow));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(second);
        drop(inside);
        let third = third.now_or_never().expect("its turn");
        assert!(semaphore.enter(&flow).now_or_never().is_none(), "one at a time");
        drop(third);
        // A waiter that was dropped after it got its turn gives the place back.
        assert!(semaphore.enter(&flow).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_lets_a_burst_go_and_then_so_many_in_a_second() {
        let semaphore = FairSemaphore::new(100, Some(Rate { per_second: 10.0, burst: 5 }));
        let begun = Instant::now();
        let ends = join_all((0..25).map(|_| {
            let semaphore = semaphore.clone();
            async move {
                let _permit = semaphore.enter(&Flow::default()).await;
                begun.elapsed()
            }
        }))
        .await;
        assert_eq!(ends.iter().filter(|end| end.is_zero()).count(), 5);
        // Timers have millisecond resolution.
        let last = ends.iter().max().copied().unwrap_or_default();
        assert!((Duration::from_secs(2)..Duration::from_millis(2_010)).contains(&last), "{last:?}");
    }
}
