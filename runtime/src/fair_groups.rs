//! Limits of calls that are in several groups at once: a call starts when each of its groups has a place for it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use crate::{effect::Group, fair::Flow};

/// The first pause of a group that was throttled, and the longest one. It doubles while the first call after a pause is throttled.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How many calls of a group may be in progress at once after a pause. Each answer doubles it up to the limit. It is more than
/// one, because one of them may hang.
const AFTER_PAUSE: usize = 4;

/// Limits the calls in progress of each group, round-robin across flows.
///
/// # Guarantees
/// * A call takes the places of all its groups at once, or none: one that waits holds no place that another could use.
/// * Calls of one flow with the same groups start in their order. Of several flows that want the same place, the one whose last
///   turn was longest ago gets it.
/// * A group whose calls are throttled pauses alone, for a growing and bounded time.
/// * Dropping a [`GroupPermit`] frees its places at once. A cancelled waiter takes none.
///
/// # Caveats
/// * If two groups of a call are full and neither contains the other, the call starts when both have a place at one moment.
///   Others may take these places one by one before it.
/// * Each end of a call looks at every flow that waits.
#[derive(Default)]
pub(crate) struct GroupSemaphore(Mutex<State>);

#[derive(Default)]
struct State {
    /// The groups with calls in progress, and those that were throttled.
    places: HashMap<Arc<str>, Places>,
    waiting: HashMap<Flow, VecDeque<Lane>>,
    turns: VecDeque<Flow>,
}

/// The waiting calls of one flow with the same groups.
struct Lane {
    groups: Arc<[Group]>,
    calls: VecDeque<oneshot::Sender<GroupPermit>>,
}

#[derive(Default)]
struct Places {
    taken: usize,
    throttling: Option<Throttling>,
}

/// A group that was throttled, until its limit applies again.
struct Throttling {
    until: Instant,
    /// How many pauses there were without an answer in between.
    pauses: u32,
    /// How many calls may be in progress after the pause.
    window: usize,
}

/// The answer to a call, as far as its groups are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There are too many calls.
    Throttled,
    /// Any other answer.
    Other,
}

/// The places of a call.
pub(crate) struct GroupPermit {
    semaphore: Arc<GroupSemaphore>,
    groups: Arc<[Group]>,
    started: Instant,
}

impl GroupPermit {
    /// Records the answer to the call. A call without an answer does not change them.
    pub(crate) fn answered(&self, answer: Answer) {
        let mut pauses = vec![];
        {
            let mut state = self.semaphore.0.lock();
            for group in self.groups.iter().filter(|group| group.pauses) {
                let places = state.places.entry(group.name.clone()).or_default();
                match answer {
                    Answer::Throttled => pauses.extend(places.throttle(self.started)),
                    Answer::Other => places.recover(self.started, group.limit),
                }
            }
        }
        for until in pauses {
            self.semaphore.admit_at(until);
        }
    }
}

impl Drop for GroupPermit {
    fn drop(&mut self) {
        let mut state = self.semaphore.0.lock();
        state.release(&self.groups);
        self.semaphore.admit(state);
    }
}

impl GroupSemaphore {
    /// Waits until all the groups have a place.
    pub(crate) async fn enter(self: &Arc<Self>, flow: &Flow, groups: Vec<Group>) -> Option<GroupPermit> {
        let groups: Arc<[Group]> = groups.into();
        let turn = {
            let mut state = self.0.lock();
            // Calls that wait already lack a place, so they have no right to one that is free.
            if !state.has_lane(flow, &groups) && has_room(&state.places, &groups, Instant::now()) {
                state.take(&groups);
                return Some(self.permit(groups));
            }
            let (sender, turn) = oneshot::channel();
            state.push(flow, groups, sender);
            turn
        };
        turn.await.ok()
    }

    fn permit(self: &Arc<Self>, groups: Arc<[Group]>) -> GroupPermit {
        GroupPermit { semaphore: self.clone(), groups, started: Instant::now() }
    }

    /// Starts the calls that have a place. The state is locked since it changed, so that no other call takes the place before.
    fn admit<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        while let Some((call, groups)) = state.next(Instant::now()) {
            drop(state);
            // If the waiter was just cancelled, the permit comes back, and its drop frees the places.
            drop(call.send(self.permit(groups)));
            state = self.0.lock();
        }
    }

    fn admit_at(self: &Arc<Self>, until: Instant) {
        let semaphore = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep_until(until).await;
            if let Some(semaphore) = semaphore.upgrade() {
                semaphore.admit(semaphore.0.lock());
            }
        });
    }
}

impl State {
    fn take(&mut self, groups: &[Group]) {
        for group in groups {
            self.places.entry(group.name.clone()).or_default().taken += 1;
        }
    }

    fn release(&mut self, groups: &[Group]) {
        for group in groups {
            let Some(places) = self.places.get_mut(&group.name) else { continue };
            places.taken = places.taken.saturating_sub(1);
            if places.taken == 0 && places.throttling.is_none() {
                self.places.remove(&group.name);
            }
        }
    }

    fn has_lane(&self, flow: &Flow, groups: &[Group]) -> bool {
        self.waiting.get(flow).is_some_and(|lanes| lanes.iter().any(|lane| *lane.groups == *groups))
    }

    fn push(&mut self, flow: &Flow, groups: Arc<[Group]>, call: oneshot::Sender<GroupPermit>) {
        let lanes = self.waiting.entry(flow.clone()).or_insert_with(|| {
            self.turns.push_back(flow.clone());
            VecDeque::new()
        });
        match lanes.iter_mut().find(|lane| lane.groups == groups) {
            Some(lane) => lane.calls.push_back(call),
            None => lanes.push_back(Lane { groups, calls: VecDeque::from([call]) }),
        }
    }

    /// Takes the places of the next call that has all of them. Its flow goes to the end of the line; one that lacks a place
    /// keeps its turn.
    fn next(&mut self, now: Instant) -> Option<(oneshot::Sender<GroupPermit>, Arc<[Group]>)> {
        let mut turn = 0;
        while let Some(flow) = self.turns.get(turn).cloned() {
            let found = self.next_of(&flow, now);
            let is_empty = self.waiting.get(&flow).is_none_or(VecDeque::is_empty);
            if is_empty {
                self.waiting.remove(&flow);
            }
            if found.is_none() && !is_empty {
                turn += 1;
                continue;
            }
            self.turns.remove(turn);
            if !is_empty {
                self.turns.push_back(flow);
            }
            if let Some(groups) = found.as_ref().map(|(_, groups)| groups.clone()) {
                self.take(&groups);
                return found;
            }
        }
        None
    }

    fn next_of(&mut self, flow: &Flow, now: Instant) -> Option<(oneshot::Sender<GroupPermit>, Arc<[Group]>)> {
        let Self { places, waiting, .. } = self;
        let lanes = waiting.get_mut(flow)?;
        lanes.retain_mut(Lane::has_call);
        let place = lanes.iter().position(|lane| has_room(places, &lane.groups, now))?;
        let mut lane = lanes.remove(place)?;
        let (call, groups) = (lane.calls.pop_front()?, lane.groups.clone());
        if !lane.calls.is_empty() {
            lanes.push_back(lane);
        }
        Some((call, groups))
    }
}

fn has_room(places: &HashMap<Arc<str>, Places>, groups: &[Group], now: Instant) -> bool {
    groups.iter().all(|group| places.get(&group.name).is_none_or(|places| places.has_room(group.limit, now)))
}

impl Lane {
    /// Whether a call waits. Cancelled waiters are dropped when they come first, not looked for among thousands.
    fn has_call(&mut self) -> bool {
        while self.calls.front().is_some_and(oneshot::Sender::is_closed) {
            self.calls.pop_front();
        }
        !self.calls.is_empty()
    }
}

impl Places {
    fn has_room(&self, limit: usize, now: Instant) -> bool {
        let limit = limit.max(1);
        match &self.throttling {
            Some(throttling) => now >= throttling.until && self.taken < limit.min(throttling.window),
            None => self.taken < limit,
        }
    }

    /// Begins a pause, and returns its end; `None` if the call was sent before the last pause, which counts it.
    fn throttle(&mut self, started: Instant) -> Option<Instant> {
        if self.throttling.as_ref().is_some_and(|throttling| started < throttling.until) {
            return None;
        }
        let before = self.throttling.as_ref().map_or(0, |throttling| throttling.pauses);
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(16)).min(LONGEST_PAUSE);
        let until = Instant::now() + pause;
        self.throttling = Some(Throttling { until, pauses: before + 1, window: AFTER_PAUSE });
        Some(until)
    }

    fn recover(&mut self, started: Instant, limit: usize) {
        let Some(throttling) = self.throttling.as_mut().filter(|throttling| started >= throttling.until) else {
            return;
        };
        throttling.pauses = 0;
        throttling.window = throttling.window.saturating_mul(2);
        if throttling.window >= limit {
            self.throttling = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::advance;

    use super::*;

    /// Calls in the order in which they start. Each stays in progress until its name is ended.
    #[derive(Default)]
    struct Calls {
        semaphore: Arc<GroupSemaphore>,
        started: Arc<Mutex<Vec<(&'static str, GroupPermit)>>>,
        log: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Calls {
        async fn begin(&self, name: &'static str, owner: &str, groups: &[Group]) {
            let (semaphore, started, log) = (self.semaphore.clone(), self.started.clone(), self.log.clone());
            let (flow, groups) = (Flow::of(owner), groups.to_vec());
            tokio::spawn(async move {
                if let Some(permit) = semaphore.enter(&flow, groups).await {
                    log.lock().push(name);
                    started.lock().push((name, permit));
                }
            });
            settle().await;
        }

        async fn end(&self, name: &str) {
            self.finish(name, None).await;
        }

        async fn finish(&self, name: &str, answer: Option<Answer>) {
            let found = self.started.lock().extract_if(.., |(known, _)| *known == name).next();
            let (_, permit) = found.expect("it is in progress");
            if let Some(answer) = answer {
                permit.answered(answer);
            }
            drop(permit);
            settle().await;
        }

        /// What has started since the last time.
        fn news(&self) -> Vec<&'static str> {
            std::mem::take(&mut self.log.lock())
        }

        fn is_at_rest(&self) -> bool {
            let state = self.semaphore.0.lock();
            state.places.is_empty() && state.waiting.is_empty() && state.turns.is_empty()
        }
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    fn group(name: &str, limit: usize) -> Group {
        Group::new(name, limit)
    }

    #[tokio::test]
    async fn a_call_that_waits_holds_no_place_that_another_could_use() {
        let calls = Calls::default();
        let (zone, other) = (group("zone", 1), group("other", 1));
        let all = group("all", 2);
        calls.begin("hangs", "a", &[all.clone(), zone.clone()]).await;
        for waits in ["waits-1", "waits-2", "waits-3"] {
            calls.begin(waits, "a", &[all.clone(), zone.clone()]).await;
        }
        calls.begin("free", "a", &[all.clone(), other.clone()]).await;
        assert_eq!(calls.news(), ["hangs", "free"], "the same owner's calls of another group go on");
        calls.begin("next", "b", &[all.clone(), other]).await;
        calls.end("free").await;
        assert_eq!(calls.news(), ["next"]);
        calls.end("next").await;
        assert!(calls.news().is_empty(), "one of the zone at a time, although there is room in all");
        for (ends, starts) in [("hangs", "waits-1"), ("waits-1", "waits-2"), ("waits-2", "waits-3")] {
            calls.end(ends).await;
            assert_eq!(calls.news(), [starts], "in their order");
        }
        calls.end("waits-3").await;
        assert!(calls.is_at_rest(), "an unused group is forgotten");
    }

    #[tokio::test]
    async fn owners_take_turns_and_one_that_lacks_a_place_keeps_its_turn() {
        let calls = Calls::default();
        let (all, slow) = (group("all", 1), group("slow", 1));
        calls.begin("first", "x", std::slice::from_ref(&all)).await;
        for (name, owner) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
            calls.begin(name, owner, std::slice::from_ref(&all)).await;
        }
        let mut order = calls.news();
        for _ in 0..5 {
            let last = *order.last().expect("one has started");
            calls.end(last).await;
            order.extend(calls.news());
        }
        assert_eq!(order, ["first", "a1", "b1", "a2", "b2", "a3"]);
        calls.end("a3").await;

        calls.begin("holds", "x", std::slice::from_ref(&slow)).await;
        calls.begin("full", "x", std::slice::from_ref(&all)).await;
        calls.begin("c1", "c", &[all.clone(), slow.clone()]).await;
        calls.begin("d1", "d", std::slice::from_ref(&all)).await;
        calls.begin("d2", "d", std::slice::from_ref(&all)).await;
        calls.end("full").await;
        assert_eq!(calls.news(), ["holds", "full", "d1"], "c lacks its place, and d does not wait for it");
        calls.end("holds").await;
        calls.end("d1").await;
        assert_eq!(calls.news(), ["c1"], "its turn came before the second one of d");
        for last in ["c1", "d2"] {
            calls.end(last).await;
        }
        assert!(calls.is_at_rest());
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_takes_no_place() {
        let (semaphore, flow) = (Arc::<GroupSemaphore>::default(), Flow::default());
        let enter = || semaphore.enter(&flow, vec![group("all", 1)]);
        let inside = enter().now_or_never().flatten().expect("there is room");
        let (mut second, mut third) = (Box::pin(enter()), Box::pin(enter()));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(second);
        drop(inside);
        let third = third.now_or_never().flatten().expect("its turn");
        let mut fourth = Box::pin(enter());
        assert!(fourth.as_mut().now_or_never().is_none(), "one at a time");
        drop(third);
        // It has its place, and is cancelled all the same.
        drop(fourth);
        assert!(enter().now_or_never().flatten().is_some());
        assert!(semaphore.0.lock().places.is_empty());
    }

    /// Ten calls at most, and the group pauses when one is throttled.
    fn account(name: &str) -> [Group; 1] {
        [group(name, 10).pausing()]
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_group_pauses_alone_and_begins_again_with_a_few() {
        let calls = Calls::default();
        for name in ["t1", "t2"] {
            calls.begin(name, "a", &account("throttled")).await;
        }
        calls.finish("t1", Some(Answer::Throttled)).await;
        calls.finish("t2", Some(Answer::Throttled)).await;
        for name in ["w1", "w2", "w3", "w4", "w5", "w6"] {
            calls.begin(name, "a", &account("throttled")).await;
        }
        calls.begin("other", "a", &account("other")).await;
        assert_eq!(calls.news(), ["t1", "t2", "other"], "only the throttled account pauses");
        advance(FIRST_PAUSE).await;
        settle().await;
        assert_eq!(calls.news(), ["w1", "w2", "w3", "w4"], "both were sent before the pause, which does not grow");
        calls.finish("w1", None).await;
        assert_eq!(calls.news(), ["w5"], "a call without an answer changes nothing: four at once");
        calls.finish("w2", Some(Answer::Other)).await;
        assert_eq!(calls.news(), ["w6"]);
        for name in ["v1", "v2", "v3", "v4", "v5"] {
            calls.begin(name, "a", &account("throttled")).await;
        }
        assert_eq!(calls.news(), ["v1", "v2", "v3", "v4"], "eight at once");
        calls.finish("w3", Some(Answer::Other)).await;
        assert_eq!(calls.news(), ["v5"]);
        for name in ["w4", "w5", "w6", "v1", "v2", "v3", "v4", "v5", "other"] {
            calls.finish(name, Some(Answer::Other)).await;
        }
        assert!(calls.is_at_rest(), "it is forgotten that it was throttled");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_of_a_group_grow_up_to_a_bound_and_an_answer_ends_that() {
        let mut pauses = vec![];
        let calls = Calls::default();
        calls.begin("call", "a", &account("throttled")).await;
        for _ in 0..9 {
            let throttled = Instant::now();
            calls.finish("call", Some(Answer::Throttled)).await;
            let (semaphore, groups) = (calls.semaphore.clone(), account("throttled").to_vec());
            let permit = semaphore.enter(&Flow::default(), groups).await.expect("it ends");
            pauses.push(throttled.elapsed().as_secs());
            calls.started.lock().push(("call", permit));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        calls.finish("call", Some(Answer::Other)).await;
        calls.begin("call", "a", &account("throttled")).await;
        let throttled = Instant::now();
        calls.finish("call", Some(Answer::Throttled)).await;
        let again = calls.semaphore.enter(&Flow::default(), account("throttled").to_vec()).await;
        assert_eq!((again.is_some(), throttled.elapsed()), (true, FIRST_PAUSE));
    }
}
