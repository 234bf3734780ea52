//! The requests of drivers to their providers, as machine-controller-manager's providers count them in its process. Each driver has
//! counted them itself, since its process started: a restart of it begins again with nothing, as a restart of that would.

use std::fmt;

use nodewright_driver::{ProviderRequests, REQUEST_BOUNDS};
use nodewright_observability::metrics::Metrics;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Writes the sample of a service.
type Write = fn(&ProviderRequests, MetricEncoder<'_>) -> fmt::Result;

/// Registers the families of requests of a driver by its name, which have no series while it counts none.
pub(crate) fn register_provider_requests(
    metrics: &Metrics,
    driver: &str,
    counted: impl Fn() -> Option<Vec<ProviderRequests>> + Send + Sync + 'static,
) {
    let collector = Requests { counted, provider: driver.to_lowercase() };
    metrics.register(|registry| registry.register_collector(Box::new(collector)));
}

struct Requests<F> {
    counted: F,
    /// The label, in lower case as machine-controller-manager's providers write it.
    provider: String,
}

impl<F> fmt::Debug for Requests<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Requests").field(&self.provider).finish()
    }
}

impl<F> Collector for Requests<F>
where
    F: Fn() -> Option<Vec<ProviderRequests>> + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = (self.counted)().unwrap_or_default();
        let mut family = |name, help, kind: MetricType, of: &[ProviderRequests], write: Write| {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            of.iter().try_for_each(|requests| {
                let labels = [("provider", self.provider.as_str()), ("service", requests.service.as_str())];
                write(requests, family.encode_family(&labels)?)
            })
        };
        let help = "Requests to the provider, mostly without those that failed";
        family("mcm_cloud_api_requests", help, MetricType::Counter, &all, |requests, mut metric| {
            metric.encode_counter::<NoLabelSet, _, u64>(&requests.made, None)
        })?;
        let help = "Requests to the provider that failed";
        family("mcm_cloud_api_requests_failed", help, MetricType::Counter, &all, |requests, mut metric| {
            metric.encode_counter::<NoLabelSet, _, u64>(&requests.failed, None)
        })?;
        let has_durations = |requests: &&ProviderRequests| requests.succeeded.iter().any(|count| *count > 0);
        let timed: Vec<_> = all.iter().filter(has_durations).cloned().collect();
        let help = "Time that requests to the provider took which succeeded";
        family(
            "mcm_cloud_api_api_request_duration_seconds",
            help,
            MetricType::Histogram,
            &timed,
            |requests, mut metric| {
                let buckets: Vec<_> =
                    REQUEST_BOUNDS.into_iter().chain([f64::INFINITY]).zip(requests.succeeded).collect();
                metric.encode_histogram::<NoLabelSet>(requests.seconds, requests.succeeded.iter().sum(), &buckets, None)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_mcms_providers_count_theirs() {
        let metrics = Metrics::new();
        register_provider_requests(&metrics, "AWS", || {
            let succeeded = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4];
            let nova = ProviderRequests { service: "nova".to_owned(), made: 1, ..ProviderRequests::default() };
            Some(vec![
                nova,
                ProviderRequests {
                    service: "instance_terminate".to_owned(),
                    made: 9,
                    failed: 3,
                    succeeded,
                    seconds: 60.5,
                },
            ])
        });
        register_provider_requests(&metrics, "none", || None);
        let text = metrics.encode().unwrap();
        let of = r#"{provider="aws",service="instance_terminate""#;
        for (series, value) in [
            (format!("requests_total{of}}}"), "9"),
            (format!("requests_failed_total{of}}}"), "3"),
            (format!("api_request_duration_seconds_count{of}}}"), "7"),
            (format!("api_request_duration_seconds_sum{of}}}"), "60.5"),
            (format!("api_request_duration_seconds_bucket{{le=\"0.05\",{}}}", &of[1..]), "2"),
            (format!("api_request_duration_seconds_bucket{{le=\"0.1\",{}}}", &of[1..]), "3"),
            (format!("api_request_duration_seconds_bucket{{le=\"10.0\",{}}}", &of[1..]), "3"),
            (format!("api_request_duration_seconds_bucket{{le=\"+Inf\",{}}}", &of[1..]), "7"),
        ] {
            let line = format!("mcm_cloud_api_{series} {value}");
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        let without_durations = text.lines().filter(|line| line.contains("nova")).count();
        assert!(without_durations == 2 && !text.contains("provider=\"none\""), "{text}");
    }
}
