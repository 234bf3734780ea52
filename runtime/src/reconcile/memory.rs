//! What a process remembers of an object beyond its caches. After a restart it is learnt again from new attempts.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    effect::{Effect, Never, Outcomes},
    execute::{Barrier, Execution, UnknownOutcome},
    fair::Flow,
    leadership::Clock,
    object::ObjectRef,
    plan::{Failure, Notes, Refusal, Wait, Waiting},
    request::RequestError,
    scoped_watch::ScopedWatch,
};

pub(super) struct Memory<E: Effect, N = Never> {
    pub(super) uid: String,
    pub(super) flow: Flow,
    pub(super) barriers: Vec<Barrier>,
    /// Since when the object waits for a cache to show a write.
    pub(super) parked: Option<Instant>,
    pub(super) unsure: Vec<UnknownOutcome>,
    pub(super) failure: Option<Failure>,
    pub(super) refusals: Vec<Refusal>,
    /// Each with when it was first left.
    pub(super) notes: BTreeMap<N, Timestamp>,
    pub(super) outcomes: Outcomes<E>,
    pub(super) status_written: Option<Timestamp>,
    /// Wall-clock time at monotonic zero, at the last reading; a change means that the clock was stepped.
    zero: Option<Timestamp>,
    pub(super) scoped_watches: Vec<ScopedWatch>,
    /// When the next plan that only changes objects would be due if all had been spread evenly.
    due: Option<Instant>,
    pub(super) waits: Vec<Waiting>,
}

/// How many plans in a row may only change existing objects, and then one per interval: two managers, or a manager and another
/// client, may undo each other's changes.
const IN_A_ROW: u32 = 20;
const EVENLY: Duration = Duration::from_millis(500);
/// Ignore smaller differences between the wall clock and the monotonic clock.
const NOTICED: SignedDuration = SignedDuration::from_secs(1);
/// Ignore smaller moves of a wait's end.
const MOVED: SignedDuration = SignedDuration::from_secs(5);

impl<E: Effect, N: Clone + Ord> Memory<E, N> {
    fn new(uid: &str, flow: Flow) -> Self {
        Self {
            uid: uid.to_owned(),
            flow,
            barriers: vec![],
            parked: None,
            unsure: vec![],
            failure: None,
            refusals: vec![],
            notes: BTreeMap::new(),
            outcomes: Outcomes::default(),
            status_written: None,
            zero: None,
            scoped_watches: vec![],
            due: None,
            waits: vec![],
        }
    }

    /// Returns the wall-clock time. When the clock was stepped, this shifts all remembered times with it.
    pub(super) fn now(&mut self, clock: &dyn Clock) -> Timestamp {
        let (now, elapsed) = (clock.wall(), clock.elapsed());
        let zero = SignedDuration::try_from(elapsed).ok().and_then(|elapsed| now.checked_sub(elapsed).ok());
        if let (Some(zero), Some(before)) = (zero, self.zero) {
            let jump = zero.duration_since(before);
            if jump.abs() < NOTICED {
                return now;
            }
            self.shift(jump);
        }
        self.zero = zero;
        now
    }

    fn shift(&mut self, by: SignedDuration) {
        self.outcomes.shift(by);
        let refused = self.refusals.iter_mut().flat_map(|refusal| [&mut refusal.since, &mut refusal.at]);
        let notes = self.notes.values_mut();
        let waiting = self.waits.iter_mut().map(|waiting| &mut waiting.since);
        for at in refused.chain(notes).chain(waiting).chain(&mut self.status_written) {
            *at = at.saturating_add(by).unwrap_or(*at);
        }
    }

    /// Records a plan that only changes existing objects. Returns how long to leave the object alone afterwards.
    pub(super) fn pace(&mut self, now: Instant) -> Duration {
        let due = self.due.map_or(now, |due| due.max(now)) + EVENLY;
        self.due = Some(due);
        (due - now).saturating_sub(EVENLY * IN_A_ROW)
    }

    fn is_blank(&self) -> bool {
        let Self {
            barriers, unsure, failure, refusals, notes, outcomes, status_written, scoped_watches, waits, ..
        } = self;
        barriers.is_empty()
            && unsure.is_empty()
            && failure.is_none()
            && refusals.is_empty()
            && notes.is_empty()
            && outcomes.is_empty()
            && status_written.is_none()
            && scoped_watches.is_empty()
            && self.due.is_none_or(|due| due <= Instant::now())
            && waits.is_empty()
    }

    /// Binds the memory to this UID. A new object under the same name starts empty and keeps only the scoped watches.
    fn is_about(&mut self, uid: &str, owner: &str) {
        if self.uid != uid {
            let scoped_watches = std::mem::take(&mut self.scoped_watches);
            *self = Self { scoped_watches, ..Self::new(uid, Flow::of(owner)) };
        }
    }

    /// The waits of a plan with a new reason or another end. Messages do not count: they may change with each plan.
    pub(super) fn begun<'a>(&mut self, waits: &'a [Wait], now: Timestamp) -> Vec<&'a Wait> {
        let former = std::mem::take(&mut self.waits);
        let mut news = vec![];
        for wait in waits {
            let known = former.iter().find(|known| known.reason == wait.reason);
            // Keep the logged time until the end has moved noticeably, so that many small moves add up to one large one.
            let logged = known.filter(|known| !has_moved(known.until, wait.until));
            let until = logged.map_or(wait.until, |logged| logged.until);
            let since = known.map_or(now, |known| known.since);
            self.waits.push(Waiting { reason: wait.reason, since, until });
            news.extend(logged.is_none().then_some(wait));
        }
        news
    }

    /// Keeps, clears or replaces the notes, as a new plan demands.
    pub(super) fn note(&mut self, notes: &Notes<N>, now: Timestamp) {
        if *notes != Notes::Keep {
            self.notes = notes.clone().after(std::mem::take(&mut self.notes), now);
        }
    }

    pub(super) fn keep(&mut self, execution: Execution, now: Timestamp) -> Option<Failure> {
        if self.barriers.is_empty() {
            self.barriers = execution.barriers;
        } else {
            self.barriers.extend(execution.barriers);
        }
        self.unsure.extend(execution.unsure);
        if execution.status_written {
            self.status_written = Some(now);
        }
        self.refusals.retain(|refusal| !execution.evicted.contains(&refusal.uid));
        for (uid, error) in execution.refused {
            let former = self.refusals.extract_if(.., |refusal| refusal.uid == uid).next();
            let since = former.map_or(now, |refusal| refusal.since);
            let RequestError { class, message, retry_after, .. } = error;
            self.refusals.push(Refusal { uid, since, at: now, class, message, retry_after });
        }
        self.failure.clone_from(&execution.failure);
        execution.failure
    }
}

fn has_moved(before: Option<Timestamp>, now: Option<Timestamp>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now.duration_since(before).abs() >= MOVED,
        (before, now) => before.is_some() != now.is_some(),
    }
}

/// The memories of all objects of one controller. No lock is held across an await, and that of the map only for a look-up.
pub(super) struct Memories<E: Effect, N>(pub(super) Mutex<HashMap<ObjectRef, Shared<E, N>>>);

type Shared<E, N> = Arc<Mutex<Memory<E, N>>>;

impl<E: Effect, N: Clone + Ord> Memories<E, N> {
    pub(super) fn get(&self, key: &ObjectRef) -> Option<Shared<E, N>> {
        self.0.lock().get(key).cloned()
    }

    /// The memory of the object with this UID. Its requests take turns as those of `owner`.
    pub(super) fn of(&self, key: &ObjectRef, uid: &str, owner: &str) -> Shared<E, N> {
        let fresh = || Arc::new(Mutex::new(Memory::new(uid, Flow::of(owner))));
        let memory = self.0.lock().entry(key.clone()).or_insert_with(fresh).clone();
        memory.lock().is_about(uid, owner);
        memory
    }

    pub(super) fn forget_blank(&self, key: &ObjectRef) {
        let mut all = self.0.lock();
        if all.get(key).is_some_and(|memory| memory.try_lock().is_some_and(|memory| memory.is_blank())) {
            all.remove(key);
        }
    }

    pub(super) fn forget(&self, key: &ObjectRef) -> Option<Shared<E, N>> {
        self.0.lock().remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{effect::Never, leadership::tokio_clock};

    #[tokio::test(start_paused = true)]
    async fn writes_in_a_row_are_slowed_down_and_a_rest_makes_up_for_them() {
        let mut memory = Memory::<Never>::new("uid", Flow::default());
        let now = Instant::now();
        let pauses: Vec<Duration> = (0..IN_A_ROW + 2).map(|_| memory.pace(now)).collect();
        assert!(pauses[..IN_A_ROW as usize].iter().all(Duration::is_zero), "{pauses:?}");
        assert_eq!(pauses[IN_A_ROW as usize..], [EVENLY, 2 * EVENLY]);
        assert!(!memory.is_blank(), "it is remembered");
        tokio::time::advance(EVENLY * (IN_A_ROW + 2)).await;
        assert!(memory.is_blank() && memory.pace(Instant::now()).is_zero());
    }

    #[test]
    fn a_wait_is_news_when_it_begins_and_when_its_end_moves() {
        let noon: Timestamp = "2026-06-01T12:00:00Z".parse().expect("it is a time");
        let mut memory = Memory::<Never>::new("uid", Flow::default());
        let mut begins = |reason, after: Option<i64>| {
            let until = after.map(|seconds| noon + SignedDuration::from_secs(seconds));
            let waits = [Wait { reason, message: String::new(), until }];
            !memory.begun(&waits, noon).is_empty()
        };
        assert!(begins("Unhealthy", Some(0)));
        assert!(!begins("Unhealthy", Some(3)), "the clocks differ a little");
        assert!(begins("Unhealthy", Some(6)), "since it was logged");
        assert!(!begins("Unhealthy", Some(6)));
        assert!(begins("Unhealthy", None));
        assert!(begins("Other", None) && !begins("Other", None));
    }

    #[test]
    fn a_wait_lasts_as_long_as_each_plan_has_it() {
        let noon: Timestamp = "2026-06-01T12:00:00Z".parse().expect("it is a time");
        let mut memory = Memory::<Never>::new("uid", Flow::default());
        let mut since = |reasons: &[&'static str], seconds| {
            let wait = |reason: &&'static str| Wait { reason, message: String::new(), until: None };
            memory.begun(&reasons.iter().map(wait).collect::<Vec<_>>(), noon + SignedDuration::from_secs(seconds));
            let since = |waiting: &Waiting| (waiting.reason, waiting.since.duration_since(noon).as_secs());
            memory.waits.iter().map(since).collect::<Vec<_>>()
        };
        assert_eq!(since(&["Joining"], 0), [("Joining", 0)]);
        assert_eq!(since(&["Joining", "Other"], 9), [("Joining", 0), ("Other", 9)]);
        assert_eq!(since(&["Other"], 20), [("Other", 9)]);
        assert_eq!(since(&["Joining"], 30), [("Joining", 30)], "it had ended");
    }

    #[test]
    fn an_object_with_notes_is_remembered() {
        let noon: Timestamp = "2026-06-01T12:00:00Z".parse().expect("it is a time");
        let mut memory = Memory::<Never, char>::new("uid", Flow::default());
        memory.note(&Notes::Replace(vec!['a']), noon);
        memory.note(&Notes::Keep, noon);
        assert!(!memory.is_blank());
        memory.note(&Notes::Clear, noon);
        assert!(memory.is_blank());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_moves_along_when_the_clock_is_set() {
        let [noon, earlier] = ["2026-06-01T12:00:00Z", "2026-06-01T11:50:00Z"]
            .map(|wall| tokio_clock(wall.parse().expect("it is a time")));
        let mut memory = Memory::<Never>::new("uid", Flow::default());
        memory.status_written = Some(memory.now(noon.as_ref()));
        for (clock, seconds) in [(&noon, 5), (&earlier, 10), (&noon, 15)] {
            tokio::time::advance(Duration::from_secs(5)).await;
            let ago = memory.now(clock.as_ref()).duration_since(memory.status_written.expect("it was written"));
            assert_eq!(ago, SignedDuration::from_secs(seconds));
        }
    }
}
