//! The requests that drivers make of their providers, counted for the manager's metrics.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The bounds of the buckets of durations, in seconds: those of Prometheus' client for Go, which machine-controller-manager's
/// providers use.
pub const REQUEST_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The requests of one kind since the driver has started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderRequests {
    /// What was requested, such as `instance_terminate`.
    pub service: String,
    /// How many were made, as the driver counts: those of machine-controller-manager's drivers mostly leave out what failed, and so
    /// does [`RequestCounter`].
    pub made: u64,
    /// How many have failed.
    pub failed: u64,
    /// How many have succeeded within each of [`REQUEST_BOUNDS`] and not within the one before, and at last those that took longer.
    pub succeeded: [u64; REQUEST_BOUNDS.len() + 1],
    /// How many seconds those that have succeeded took together.
    pub seconds: f64,
}

/// Counts the requests of a driver.
#[derive(Debug, Default)]
pub struct RequestCounter(Mutex<BTreeMap<&'static str, ProviderRequests>>);

impl RequestCounter {
    /// Counts a request that has ended.
    pub fn record(&self, service: &'static str, took: Duration, has_succeeded: bool) {
        let mut all = self.lock();
        let new = || ProviderRequests { service: service.to_owned(), ..ProviderRequests::default() };
        let of = all.entry(service).or_insert_with(new);
        if !has_succeeded {
            of.failed += 1;
            return;
        }
        of.made += 1;
        let seconds = took.as_secs_f64();
        of.succeeded[REQUEST_BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        of.seconds += seconds;
    }

    /// What was counted, by service.
    pub fn requests(&self) -> Vec<ProviderRequests> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, ProviderRequests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let counter = RequestCounter::default();
        for milliseconds in [0, 5, 6, 10_000, 10_001] {
            counter.record("b", Duration::from_millis(milliseconds), true);
        }
        counter.record("a", Duration::from_mins(1), false);
        let failed = ProviderRequests { service: "a".to_owned(), failed: 1, ..ProviderRequests::default() };
        let succeeded = [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
        let others = ProviderRequests { service: "b".to_owned(), made: 5, failed: 0, succeeded, seconds: 20.012 };
        assert_eq!(counter.requests(), [failed, others]);
    }
}
