//! Wrappers for the SDK: a processor for two users, and an exporter with rate-limited logging.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use parking_lot::Mutex;
use tokio::time::Instant;

const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A processor that the provider and [`crate::trace::Spans`] share.
#[derive(Debug)]
pub(super) struct Shared<P>(pub(super) Arc<P>);

impl<P: SpanProcessor> SpanProcessor for Shared<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.0.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        self.0.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }
}

/// An exporter that counts failures and logs them once a minute; the SDK would log each.
#[derive(Debug)]
pub(super) struct Bounded<E> {
    exporter: E,
    lost: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

impl<E> Bounded<E> {
    pub(super) fn new(exporter: E) -> Self {
        Self { exporter, lost: AtomicU64::new(0), logged: Mutex::new(None) }
    }

    fn log(&self, count: usize, error: &dyn std::fmt::Display) {
        self.lost.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
        let mut logged = self.logged.lock();
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            let lost = self.lost.swap(0, Ordering::Relaxed);
            tracing::warn!(lost, %error, "failed to export spans, is the collector reachable?");
        }
    }
}

impl<E: SpanExporter> SpanExporter for Bounded<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        if let Err(error) = self.exporter.export(batch).await {
            self.log(count, &error);
        }
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
