//! Metrics of calls outside Kubernetes. The ages of calls in progress are computed at each scrape, so that a hanging call is
//! visible while it hangs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::{
    Counters, DurationHistogram, Durations, Labels, Metrics, Seconds, add, add_histograms, observe, saturating, scrape,
};
use crate::trace::TraceContext;

#[derive(Debug)]
pub(super) struct Effects {
    running: Mutex<BTreeMap<&'static str, BTreeMap<u64, Instant>>>,
    results: Counters<Labels<2>>,
    durations: Durations<Labels<1>>,
}

impl Effects {
    pub(super) fn new(registry: &mut Registry) -> Arc<Self> {
        let help = "Time that calls outside Kubernetes took";
        let effects = Arc::new(Self {
            running: Mutex::default(),
            results: add(registry, "effects", "Calls outside Kubernetes by result"),
            durations: add_histograms(registry, "effect_duration_seconds", help, effect_buckets),
        });
        registry.register_collector(Box::new(effects.clone()));
        effects
    }

    /// Shows the results that calls have as 0, from the start of the first one: which there will be is not known before.
    fn show(&self, effect: &'static str) {
        for result in ["success", "error", "dropped"] {
            let _ = self.results.get_or_create(&[("effect", effect), ("result", result)]);
        }
    }
}

impl Metrics {
    /// Records the start of a call outside Kubernetes, in a trace if there is one. Dropping the returned value counts the call as
    /// `dropped`.
    #[must_use]
    pub fn effect_started(&self, effect: &'static str, trace: Option<TraceContext>) -> RunningEffect {
        let mut running = self.effects.running.lock();
        let is_first = !running.contains_key(effect);
        let by_id = running.entry(effect).or_default();
        // Ids increase, so the first one is always the longest call.
        let id = by_id.last_key_value().map_or(0, |(id, _)| id + 1);
        by_id.insert(id, Instant::now());
        if is_first {
            self.effects.show(effect);
        }
        RunningEffect { effects: self.effects.clone(), effect, id, trace, result: "dropped" }
    }
}

/// A call outside Kubernetes that is in progress.
#[derive(Debug)]
pub struct RunningEffect {
    effects: Arc<Effects>,
    effect: &'static str,
    id: u64,
    trace: Option<TraceContext>,
    result: &'static str,
}

impl RunningEffect {
    /// Ends the call with a result label, such as `success` or an error code.
    pub fn finish(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for RunningEffect {
    fn drop(&mut self) {
        let begun = self.effects.running.lock().get_mut(self.effect).and_then(|by_id| by_id.remove(&self.id));
        let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let effect = ("effect", self.effect);
        observe(&self.effects.durations.get_or_create(&[effect]), took.as_secs_f64(), self.trace);
        self.effects.results.get_or_create(&[effect, ("result", self.result)]).inc();
    }
}

impl Collector for Effects {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let (in_flight, longest) = (Family::<Labels<1>, Gauge>::default(), Seconds::<Labels<1>>::default());
        for (effect, by_id) in self.running.lock().iter() {
            let oldest = by_id.first_key_value().map_or(Duration::ZERO, |(_, begun)| begun.elapsed());
            in_flight.get_or_create(&[("effect", effect)]).set(saturating(by_id.len()));
            longest.get_or_create(&[("effect", effect)]).set(oldest.as_secs_f64());
        }
        scrape(&mut encoder, "effects_in_flight", "Calls outside Kubernetes under way", &in_flight)?;
        let help = "Age of the longest call outside Kubernetes under way";
        scrape(&mut encoder, "effects_longest_running_seconds", help, &longest)
    }
}

/// From the duration of a local answer to the deadline of a slow cloud.
fn effect_buckets() -> DurationHistogram {
    let bounds = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0];
    DurationHistogram::new(bounds.into_iter())
}
