//! Wrappers for the SDK: a processor for two users that bounds and counts its queue, and an exporter that counts and logs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::SpanCounts;

const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A processor whose clones the provider and [`crate::trace::Spans`] have. It drops what does not fit into the queue of the SDK's one,
/// which would do so without a count.
#[derive(Clone, Debug)]
pub(super) struct Bounded {
    processor: Arc<dyn SpanProcessor>,
    counts: SpanCounts,
    is_shut_down: Arc<AtomicBool>,
}

impl Bounded {
    pub(super) fn new(processor: impl SpanProcessor + 'static, counts: SpanCounts) -> Self {
        Self { processor: Arc::new(processor), counts, is_shut_down: Arc::default() }
    }
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.is_shut_down.load(Acquire) {
            self.counts.ended_too_late();
        } else if self.counts.enqueue() {
            self.processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.is_shut_down.store(true, Release);
        self.processor.shutdown_with_timeout(timeout)
    }
}

/// An exporter that counts, and logs lost spans once a minute; the SDK would log each failure.
#[derive(Debug)]
pub(super) struct Counted<E> {
    exporter: E,
    counts: SpanCounts,
    logged: Mutex<Option<Instant>>,
}

impl<E> Counted<E> {
    pub(super) fn new(exporter: E, counts: SpanCounts) -> Self {
        Self { exporter, counts, logged: Mutex::new(None) }
    }

    /// After a failed export, or one while which spans were dropped.
    fn log(&self, error: Option<OTelSdkError>) {
        let mut logged = self.logged.lock();
        if logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return;
        }
        let lost = self.counts.take_lost();
        match error {
            Some(error) => tracing::warn!(lost, %error, "failed to export spans, is the collector reachable?"),
            None if lost > 0 => tracing::warn!(lost, "dropped spans, the collector is too slow"),
            None => return,
        }
        *logged = Some(Instant::now());
    }
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.counts.processed(spans);
        let error = self.exporter.export(batch).await.err();
        self.counts.exported(spans, error.as_ref());
        self.log(error);
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
