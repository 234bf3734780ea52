//! Calls outside Kubernetes: keyed, idempotent, and concurrent with the reconciles, which never wait for them.

use std::{fmt::Debug, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// A call outside Kubernetes, as data. Two equal effects are the same call, which is made once while it runs.
///
/// # Assumptions
/// The call is idempotent, and a repeated call returns a lost outcome: outcomes live in memory only.
pub trait Effect: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// The result of the call. Errors are outcomes too: a plan decides what they mean.
    type Outcome: Clone + Debug + Send + Sync + 'static;
    /// Calls with the same key never overlap. A key stands for one external object, such as a bucket or a DNS record.
    fn serialization_key(&self) -> Arc<str>;
    /// Name for metrics, logs and spans.
    fn name(&self) -> &'static str;
    /// The time limit. After it the call is dropped and [`Effect::timeout_outcome`] is its outcome.
    fn deadline(&self) -> Duration;
    /// The outcome of a call that did not answer within its deadline, and may still take effect.
    fn timeout_outcome(&self) -> Self::Outcome;
    /// Whether an outcome is a success, for metrics.
    fn succeeded(outcome: &Self::Outcome) -> bool;
    /// The groups that limit how many calls are in progress at once. The call starts when each has a place for it.
    fn groups(&self) -> Vec<Group> {
        vec![]
    }
    /// Whether the call was throttled. Then the groups of the call with [`Group::pauses`] pause.
    fn is_throttled(_outcome: &Self::Outcome) -> bool {
        false
    }
}

/// Calls that share a limit, such as those for one account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Calls whose groups have the same name share its places.
    pub name: Arc<str>,
    /// How many of its calls may be in progress at once; at least one.
    pub limit: usize,
    /// Whether it sends no call for a while after one was throttled.
    pub pauses: bool,
}

impl Group {
    /// A group that does not pause.
    pub fn new(name: impl Into<Arc<str>>, limit: usize) -> Self {
        Self { name: name.into(), limit, pauses: false }
    }

    /// The same group, which sends no call for a while after one was throttled.
    #[must_use]
    pub fn pausing(self) -> Self {
        Self { pauses: true, ..self }
    }
}

/// The effect of a controller that makes no calls outside Kubernetes.
#[doc(no_inline)]
pub use std::convert::Infallible as Never;

impl Effect for Never {
    type Outcome = ();
    fn serialization_key(&self) -> Arc<str> {
        match *self {}
    }
    fn name(&self) -> &'static str {
        match *self {}
    }
    fn deadline(&self) -> Duration {
        match *self {}
    }
    fn timeout_outcome(&self) {
        match *self {}
    }
    fn succeeded((): &()) -> bool {
        true
    }
}

/// A call that was queued for less than this is not worth a plan when it starts.
const LONG_QUEUED: SignedDuration = SignedDuration::from_secs(5);

/// The state of one effect.
#[derive(Clone, Debug)]
pub struct Known<O> {
    /// When the newest call started, or began to wait for its serialization key or for places in its groups.
    pub begun: Timestamp,
    /// Whether a call is in progress or queued.
    pub running: bool,
    /// Whether the call waits for its serialization key or for places in its groups.
    pub queued: bool,
    /// How many calls in a row have failed.
    pub failures: u32,
    /// The newest outcome and its time.
    pub last: Option<(Timestamp, O)>,
    /// The sequence number of the newest outcome among all of the object. Clocks may step back; this does not.
    pub order: u64,
}

/// The state of the effects of one object. It is lost on restart; new calls recreate it.
#[derive(Clone, Debug)]
pub struct Outcomes<E: Effect> {
    /// An object has few effects.
    known: Vec<(E, Known<E::Outcome>)>,
    finished: u64,
}

impl<E: Effect> Default for Outcomes<E> {
    fn default() -> Self {
        Self { known: vec![], finished: 0 }
    }
}

impl<E: Effect> Outcomes<E> {
    /// Whether no effect has a state.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The state of an effect.
    pub fn get(&self, effect: &E) -> Option<&Known<E::Outcome>> {
        self.known.iter().find(|(asked, _)| asked == effect).map(|(_, known)| known)
    }

    fn get_mut(&mut self, effect: &E) -> Option<&mut Known<E::Outcome>> {
        self.known.iter_mut().find(|(asked, _)| asked == effect).map(|(_, known)| known)
    }

    /// The effect as last requested: equal to `effect`, although fields outside the equality may have changed since.
    pub fn asked(&self, effect: &E) -> Option<&E> {
        self.known.iter().map(|(asked, _)| asked).find(|asked| *asked == effect)
    }

    /// Whether a call is in progress or queued.
    pub fn is_running(&self, effect: &E) -> bool {
        self.get(effect).is_some_and(|known| known.running)
    }

    fn known(&self) -> impl Iterator<Item = &Known<E::Outcome>> {
        self.known.iter().map(|(_, known)| known)
    }

    /// Whether any call is in progress or queued.
    pub fn any_running(&self) -> bool {
        self.running_since().is_some()
    }

    /// Since when the oldest of the calls in progress or queued has been so.
    pub fn running_since(&self) -> Option<Timestamp> {
        self.known().filter(|known| known.running).map(|known| known.begun).min()
    }

    /// When a call last began or ended.
    pub fn latest(&self) -> Option<Timestamp> {
        let ended = |known: &Known<E::Outcome>| known.last.as_ref().map_or(known.begun, |(ended, _)| *ended);
        self.known().map(|known| known.begun.max(ended(known))).max()
    }

    /// Records that a call begins. Returns false, and changes nothing, while one is in progress.
    pub fn begin(&mut self, effect: &E, now: Timestamp) -> bool {
        if self.is_running(effect) {
            return false;
        }
        // Fields outside the equality may have changed.
        let at = self.known.iter().position(|(asked, _)| asked == effect);
        let before = at.map(|at| self.known.swap_remove(at).1);
        let (failures, last, order) = before.map_or((0, None, 0), |known| (known.failures, known.last, known.order));
        let known = Known { begun: now, running: true, queued: true, failures, last, order };
        self.known.push((effect.clone(), known));
        true
    }

    /// Records that a queued call starts now. Returns whether it was queued for so long that a status may show it.
    pub fn started(&mut self, effect: &E, now: Timestamp) -> bool {
        let Some(known) = self.get_mut(effect).filter(|known| known.running) else { return false };
        let waited = now.duration_since(known.begun);
        (known.begun, known.queued) = (now, false);
        waited >= LONG_QUEUED
    }

    /// Shifts all times after a step of the wall clock, so that their ages stay the same.
    pub(crate) fn shift(&mut self, by: SignedDuration) {
        let moved = |at: Timestamp| at.saturating_add(by).unwrap_or(at);
        for (_, known) in &mut self.known {
            known.begun = moved(known.begun);
            if let Some((ended, _)) = &mut known.last {
                *ended = moved(*ended);
            }
        }
    }

    /// Records the outcome of a call.
    pub fn finish(&mut self, effect: &E, now: Timestamp, outcome: E::Outcome) {
        self.finished += 1;
        let order = self.finished;
        if let Some(known) = self.get_mut(effect) {
            known.order = order;
            (known.running, known.queued) = (false, false);
            known.failures = if E::succeeded(&outcome) { 0 } else { known.failures.saturating_add(1) };
            known.last = Some((now, outcome));
        }
    }
}
