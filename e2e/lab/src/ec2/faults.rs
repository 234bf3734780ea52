//! What goes wrong between a driver and EC2, of itself.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

/// How many changes EC2 takes at once before it throttles.
const BURST: f64 = 5.0;

/// What goes wrong. By default nothing does.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Faults {
    /// Seconds for which a new VM does not show
    #[arg(long, default_value = "0", value_parser = crate::cloud::command::seconds)]
    pub hidden_seconds: Duration,
    /// How many VMs may be made or ended in a second, after a burst of five; by default any number
    #[arg(long)]
    pub changes_per_second: Option<f64>,
    /// Share of requests that are carried out and not answered
    #[arg(long, default_value_t = 0.0)]
    pub lost: f64,
    /// Share of requests that are carried out at once and answered late
    #[arg(long, default_value_t = 0.0)]
    pub late: f64,
    /// Seconds after which a late answer comes
    #[arg(long, default_value = "10", value_parser = crate::cloud::command::seconds)]
    pub late_seconds: Duration,
    /// Seed of what is lost or late
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestResult {
    /// It is refused, and changes nothing.
    Throttled,
    /// It is carried out and answered.
    Answered,
    /// It is carried out, and answered after this time.
    Late(Duration),
    /// It is carried out, and its connection is closed.
    Lost,
}

/// Decides what becomes of requests, one after the other.
#[derive(Debug)]
pub(crate) struct RequestResults {
    faults: Faults,
    random: Rng,
    allowed: f64,
    since: Instant,
}

impl RequestResults {
    pub(crate) fn new(faults: Faults) -> Self {
        let random = Rng::with_seed(faults.seed);
        Self { faults, random, allowed: BURST, since: Instant::now() }
    }

    pub(crate) fn next(&mut self, is_change: bool, now: Instant) -> RequestResult {
        if is_change && self.is_throttled(now) {
            return RequestResult::Throttled;
        }
        let chance = self.random.f64();
        if chance < self.faults.lost {
            RequestResult::Lost
        } else if chance < self.faults.lost + self.faults.late {
            RequestResult::Late(self.faults.late_seconds)
        } else {
            RequestResult::Answered
        }
    }

    /// A bucket of permits that fills slowly, which is how EC2 throttles.
    fn is_throttled(&mut self, now: Instant) -> bool {
        let Some(rate) = self.faults.changes_per_second else { return false };
        let filled = rate * now.saturating_duration_since(self.since).as_secs_f64();
        self.allowed = (self.allowed + filled).min(BURST);
        self.since = now;
        if self.allowed < 1.0 {
            return true;
        }
        self.allowed -= 1.0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_and_then_so_many_in_a_second() {
        let mut request_results = RequestResults::new(Faults { changes_per_second: Some(2.0), ..Faults::default() });
        let mut at = |seconds: u64| {
            let now = request_results.since + Duration::from_secs(seconds);
            (0..20).filter(|_| request_results.next(true, now) == RequestResult::Answered).count()
        };
        assert_eq!([at(0), at(1), at(60)], [5, 2, 5]);
        assert_eq!(
            request_results.next(false, request_results.since),
            RequestResult::Answered,
            "only changes are throttled"
        );
    }

    #[test]
    fn a_seed_repeats_what_is_lost_and_late() {
        let run = |seed| {
            let faults = Faults { lost: 0.2, late: 0.2, seed, ..Faults::default() };
            let mut request_results = RequestResults::new(faults);
            (0..100).map(|_| request_results.next(true, Instant::now())).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let lost = run(7).iter().filter(|request_result| **request_result == RequestResult::Lost).count();
        assert!((10..30).contains(&lost), "{lost}");
    }
}
