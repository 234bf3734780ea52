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

    pub(super) fn validate(&self) -> Result<(), LeaseConfigError> {
        if self.identity.is_empty() {
            return Err(LeaseConfigError::NoIdentity);
        }
        if self.lease_duration.subsec_nanos() != 0 || i32::try_from(self.lease_duration.as_secs()).is_err() {
            return Err(LeaseConfigError::NotInSeconds(self.lease_duration));
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(LeaseConfigError::DeadlineTooLong(self.renew_deadline, self.lease_duration));
        }
        // client-go requires the same margin: the longest pause with jitter must be shorter than the deadline.
        if self.retry_period.is_zero() || self.renew_deadline <= self.retry_period.mul_f64(1.0 + JITTER) {
            return Err(LeaseConfigError::RetryTooLong(self.retry_period, self.renew_deadline));
        }
        Ok(())
    }

    /// The time limit of one attempt. Two attempts fit into the renew deadline, so that one hung connection does not lose the
    /// lease.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

fn unique_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:032x}", fastrand::u128(..))
}

/// An invalid lease configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseConfigError {
    /// The identity is empty, which in the Lease means that it has no holder.
    #[error("leader election needs an identity that is not empty")]
    NoIdentity,
    /// The Lease holds whole seconds only.
    #[error("lease duration {0:?} must be a whole number of seconds")]
    NotInSeconds(Duration),
    /// The holder would continue after others may have taken the lease.
    #[error("renew deadline {0:?} must be shorter than the lease duration {1:?}")]
    DeadlineTooLong(Duration, Duration),
    /// There would be no time for a second attempt.
    #[error("retry period {0:?} must be above zero and shorter than the renew deadline {1:?} by more than a fifth")]
    RetryTooLong(Duration, Duration),
}
