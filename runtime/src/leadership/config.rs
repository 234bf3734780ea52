//! The lease, and the timing of its election.

use std::time::Duration;

/// The maximum jitter of the pause between two attempts, as a share of the pause, so that contenders spread out.
pub(super) const JITTER: f64 = 0.2;

/// The lease, the identity of the contender, and the timing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of the contender: unique for each process, also across restarts.
    pub identity: String,
    /// How long the lease must be without renewal before others may take it. In whole seconds.
    pub lease_duration: Duration,
    /// How long the holder continues without a successful renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two renewals, and between two attempts to acquire. Shorter than `renew_deadline`.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// The usual times (15 s, 10 s, 2 s), with an identity made of the host name and a random part.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: unique_identity(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Returns an error for people if leader election cannot work like this.
    pub(super) fn validate(&self) -> Result<(), String> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = self;
        if self.identity.is_empty() {
            // In the Lease it would mean that there is no holder.
            return Err("leader election needs an identity that is not empty".to_owned());
        }
        if lease_duration.subsec_nanos() != 0 || i32::try_from(lease_duration.as_secs()).is_err() {
            return Err(format!("lease duration {lease_duration:?} must be a whole number of seconds"));
        }
        if lease_duration <= renew_deadline {
            return Err(format!(
                "renew deadline {renew_deadline:?} must be shorter than the lease duration {lease_duration:?}"
            ));
        }
        // client-go requires the same margin: the longest pause with jitter must be shorter than the deadline.
        if retry_period.is_zero() || *renew_deadline <= retry_period.mul_f64(1.0 + JITTER) {
            return Err(format!(
                "retry period {retry_period:?} must be above zero and shorter than the renew deadline {renew_deadline:?} by \
                 more than a fifth"
            ));
        }
        Ok(())
    }

    /// The time limit of one attempt: one that hangs leaves time for another.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

fn unique_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:032x}", fastrand::u128(..))
}
