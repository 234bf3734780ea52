//! Metrics of finished spans: those that OpenTelemetry's semantic conventions have for its SDKs, by the names that they get for
//! Prometheus. The SDK counts the same only for an exporter of its own metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU64};

use opentelemetry_sdk::error::OTelSdkError;
use prometheus_client::metrics::gauge::Gauge;

use super::{Counters, Labels, Metrics, saturating};

const ERROR_TYPE: &str = "error_type";
/// The value of a label that is not there.
const NONE: &str = "";
const QUEUE_FULL: &str = "queue_full";
const ALREADY_SHUTDOWN: &str = "already_shutdown";
const TIMEOUT: &str = "timeout";
/// What the conventions call an error that has no name.
const OTHER: &str = "_OTHER";

/// What became of finished spans. Clones share their counts.
#[derive(Clone, Debug)]
pub(crate) struct SpanCounts {
    capacity: i64,
    queued: Gauge<i64, AtomicI64>,
    processed: Counters<Labels<1>>,
    exported: Counters<Labels<1>>,
    /// Those that were lost since [`Self::take_lost`].
    lost: Arc<AtomicU64>,
}

impl SpanCounts {
    /// For a queue of this length.
    pub(crate) fn new(capacity: usize) -> Self {
        let counts = Self {
            capacity: saturating(capacity),
            queued: Gauge::default(),
            processed: Counters::default(),
            exported: Counters::default(),
            lost: Arc::default(),
        };
        // From the first scrape on, so that a rate sees the first span that is dropped.
        for (family, errors) in
            [(&counts.processed, [NONE, QUEUE_FULL, ALREADY_SHUTDOWN]), (&counts.exported, [NONE, TIMEOUT, OTHER])]
        {
            for error in errors {
                drop(family.get_or_create(&[(ERROR_TYPE, error)]));
            }
        }
        counts
    }

    /// Takes a place in the queue. Returns false, and counts the span as dropped, if all are taken.
    pub(crate) fn enqueue(&self) -> bool {
        let place = |queued: i64| (queued < self.capacity).then_some(queued + 1);
        let has_place = self.queued.inner().fetch_update(AcqRel, Acquire, place).is_ok();
        if !has_place {
            self.dropped(QUEUE_FULL);
        }
        has_place
    }

    /// Counts a span that has ended after the shutdown.
    pub(crate) fn ended_too_late(&self) {
        self.dropped(ALREADY_SHUTDOWN);
    }

    fn dropped(&self, error: &'static str) {
        self.processed.get_or_create(&[(ERROR_TYPE, error)]).inc();
        self.lost.fetch_add(1, Relaxed);
    }

    /// Counts spans that have left the queue for the exporter.
    pub(crate) fn processed(&self, spans: usize) {
        self.queued.dec_by(saturating(spans));
        self.processed.get_or_create(&[(ERROR_TYPE, NONE)]).inc_by(spans as u64);
    }

    /// Counts spans that were exported, or were not because of this error.
    pub(crate) fn exported(&self, spans: usize, error: Option<&OTelSdkError>) {
        let error = match error {
            None => NONE,
            Some(OTelSdkError::Timeout(_)) => TIMEOUT,
            Some(_) => OTHER,
        };
        self.exported.get_or_create(&[(ERROR_TYPE, error)]).inc_by(spans as u64);
        if error != NONE {
            self.lost.fetch_add(spans as u64, Relaxed);
        }
    }

    /// How many spans were dropped or not exported since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Relaxed)
    }

    /// Adds the metrics to those of a process.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            let help = "Spans that went to the exporter, or were dropped before, by the reason";
            registry.register("otel_sdk_processor_span_processed", help, self.processed.clone());
            let help = "Spans that the collector has taken, or that were not exported, by the reason";
            registry.register("otel_sdk_exporter_span_exported", help, self.exported.clone());
            registry.register("otel_sdk_processor_span_queue_size", "Spans in the queue", self.queued.clone());
            let capacity = Gauge::<i64, AtomicI64>::default();
            capacity.set(self.capacity);
            registry.register("otel_sdk_processor_span_queue_capacity", "Places in the queue of spans", capacity);
        });
    }
}
