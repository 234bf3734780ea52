//! Calls outside Kubernetes: keyed, idempotent, beside the reconciles, never in their way.

use std::{collections::HashMap, fmt::Debug, hash::Hash, time::Duration};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};

/// Calls of one lane never overlap. A lane is one thing outside, such as one bucket or one DNS record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SerializationKey(pub std::sync::Arc<str>);

/// A call outside Kubernetes, as data.
///
/// Equality is identity: two equal effects are the same call, made once while it runs.
///
/// # Assumptions
/// It is idempotent, and its lost outcome can be learnt by asking again: outcomes live in memory only.
pub trait Effect: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// What comes back. Errors are outcomes too: a plan decides what they mean.
    type Outcome: Clone + Debug + Send + Sync + 'static;
    /// What it must not overlap with.
    fn lane(&self) -> SerializationKey;
    /// Name for metrics, logs and spans.
    fn name(&self) -> &'static str;
    /// How long it may take; then it is dropped and [`Effect::late`] is its outcome.
    fn deadline(&self) -> Duration;
    /// The outcome of a call that did not answer within its deadline, and may still take effect.
    fn timeout_outcome(&self) -> Self::Outcome;
    /// Whether an outcome is a success, for metrics.
    fn succeeded(outcome: &Self::Outcome) -> bool;
}

/// The effect of a controller that makes no calls outside Kubernetes.
pub use std::convert::Infallible as Never;

impl Effect for Never {
    type Outcome = ();
    fn lane(&self) -> SerializationKey {
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

/// Makes the calls of one kind of effect.
pub trait Perform<E: Effect>: Send + Sync + 'static {
    /// Makes the call. The runtime bounds it by its deadline and by the term of leadership.
    fn perform(&self, effect: E) -> BoxFuture<'static, E::Outcome>;
}

/// Performs the effects of controllers that have none.
pub(crate) struct NoEffects;

impl Perform<Never> for NoEffects {
    fn perform(&self, effect: Never) -> BoxFuture<'static, ()> {
        match effect {}
    }
}

/// What is known of one effect.
#[derive(Clone, Debug)]
pub struct Known<O> {
    /// When the newest call was made. For one that waits for its lane or a place: when it began to wait.
    pub begun: Timestamp,
    /// Whether a call is under way, or waits to be made.
    pub running: bool,
    /// How many calls in a row have ended without success.
    pub failures: u32,
    /// The newest outcome and when it came.
    pub last: Option<(Timestamp, O)>,
    /// The place of the newest outcome among all outcomes of the object. Clocks may step back; this does not.
    pub order: u64,
}

/// What this process knows of the effects of one object. Lost on restart, learnt again by trying.
#[derive(Clone, Debug)]
pub struct Outcomes<E: Effect> {
    known: HashMap<E, Known<E::Outcome>>,
    finished: u64,
}

impl<E: Effect> Default for Outcomes<E> {
    fn default() -> Self {
        Self { known: HashMap::new(), finished: 0 }
    }
}

impl<E: Effect> Outcomes<E> {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What is known of an effect.
    pub fn get(&self, effect: &E) -> Option<&Known<E::Outcome>> {
        self.known.get(effect)
    }

    /// An effect as it was asked for last: equal to `effect`, and yet what it carries may have changed since.
    pub fn asked(&self, effect: &E) -> Option<&E> {
        self.known.get_key_value(effect).map(|(asked, _)| asked)
    }

    /// The newest outcome of an effect, whether or not another call is under way.
    pub fn last(&self, effect: &E) -> Option<&E::Outcome> {
        self.known.get(effect)?.last.as_ref().map(|(_, outcome)| outcome)
    }

    /// Whether a call is under way.
    pub fn is_running(&self, effect: &E) -> bool {
        self.known.get(effect).is_some_and(|known| known.running)
    }

    /// Whether any call is under way.
    pub fn any_running(&self) -> bool {
        self.known.values().any(|known| known.running)
    }

    /// When a call began or ended last.
    pub fn latest(&self) -> Option<Timestamp> {
        let ended = |known: &Known<E::Outcome>| known.last.as_ref().map_or(known.begun, |(ended, _)| *ended);
        self.known.values().map(|known| known.begun.max(ended(known))).max()
    }

    /// Notes that a call begins. Returns false, and changes nothing, while one is under way.
    pub fn begin(&mut self, effect: &E, now: Timestamp) -> bool {
        if self.is_running(effect) {
            return false;
        }
        // Taken out and put back, because a map keeps the first of equal keys.
        let before = self.known.remove(effect);
        let (failures, last, order) = before.map_or((0, None, 0), |known| (known.failures, known.last, known.order));
        self.known.insert(effect.clone(), Known { begun: now, running: true, failures, last, order });
        true
    }

    /// Notes that a call that has waited is made now.
    pub fn started(&mut self, effect: &E, now: Timestamp) {
        if let Some(known) = self.known.get_mut(effect).filter(|known| known.running) {
            known.begun = now;
        }
    }

    /// The time of day has been set: what was so long ago stays so long ago.
    pub(crate) fn shift(&mut self, by: SignedDuration) {
        let moved = |at: Timestamp| at.saturating_add(by).unwrap_or(at);
        for known in self.known.values_mut() {
            known.begun = moved(known.begun);
            if let Some((ended, _)) = &mut known.last {
                *ended = moved(*ended);
            }
        }
    }

    /// Notes how a call ended.
    pub fn finish(&mut self, effect: &E, now: Timestamp, outcome: E::Outcome) {
        self.finished += 1;
        if let Some(known) = self.known.get_mut(effect) {
            known.order = self.finished;
            known.running = false;
            known.failures = if E::succeeded(&outcome) { 0 } else { known.failures.saturating_add(1) };
            known.last = Some((now, outcome));
        }
    }
}
