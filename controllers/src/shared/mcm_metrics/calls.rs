//! The calls of the driver.

use std::{sync::Arc, time::Duration};

use nodewright_api::Code;
use nodewright_driver::{DriverError, REQUEST_BOUNDS};
use nodewright_observability::{
    metrics::{DurationHistogram, Metrics, observe},
    trace::TraceContext,
};
use nodewright_runtime::leadership::Clock;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Succeeded {
    provider: Arc<str>,
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    provider: Arc<str>,
    operation: &'static str,
    /// gRPC's number of the code.
    error_code: u8,
}

/// How long calls that succeeded took, and how many failed, by machine-controller-manager's names.
#[derive(Clone, Debug)]
pub(crate) struct DriverCalls {
    provider: Arc<str>,
    durations: Family<Succeeded, DurationHistogram, fn() -> DurationHistogram>,
    failures: Family<Failed, Counter>,
    /// The trace that the calls are a part of.
    trace: Option<TraceContext>,
}

impl Default for DriverCalls {
    fn default() -> Self {
        Self::of("")
    }
}

impl DriverCalls {
    fn of(provider: &str) -> Self {
        let durations = Family::new_with_constructor(buckets as fn() -> DurationHistogram);
        Self { provider: provider.to_lowercase().into(), durations, failures: Family::default(), trace: None }
    }

    /// `provider`: the driver's name. machine-controller-manager's providers write theirs in lower case.
    pub(crate) fn register(metrics: &Metrics, provider: &str) -> Self {
        let this = Self::of(provider);
        metrics.register(|registry| {
            let help = "Time that calls of the driver took which succeeded";
            registry.register("mcm_cloud_api_driver_request_duration_seconds", help, this.durations.clone());
            let help = "Calls of the driver that failed, by code";
            registry.register("mcm_cloud_api_driver_requests_failed", help, this.failures.clone());
        });
        this
    }

    /// The same metrics, for calls that are a part of this trace.
    #[must_use]
    pub(crate) fn within(&self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self.clone() }
    }

    /// Makes a call of the driver, and records it. One that the driver does not implement is none.
    pub(crate) async fn measure<T>(
        &self,
        operation: &'static str,
        clock: &dyn Clock,
        call: impl Future<Output = Result<T, DriverError>>,
    ) -> Result<T, DriverError> {
        let begun = clock.elapsed();
        let answer = call.await;
        if !answer.as_ref().is_err_and(|error| error.code == Code::Unimplemented) {
            self.ended(operation, clock.elapsed().saturating_sub(begun), answer.as_ref().err());
        }
        answer
    }

    fn ended(&self, operation: &'static str, took: Duration, error: Option<&DriverError>) {
        let provider = self.provider.clone();
        match error {
            None => {
                let durations = self.durations.get_or_create(&Succeeded { provider, operation });
                observe(&durations, took.as_secs_f64(), self.trace);
            }
            Some(error) => {
                let failed = Failed { provider, operation, error_code: error.code as u8 };
                self.failures.get_or_create(&failed).inc();
            }
        }
    }
}

/// Those of Prometheus' client for Go.
fn buckets() -> DurationHistogram {
    DurationHistogram::new(REQUEST_BOUNDS.into_iter())
}
