//! Which lease, and the times of its election.

use std::time::Duration;

/// The longest part of the pause between two attempts that chance decides, so that contenders spread out.
pub(super) const JITTER: f64 = 0.2;

/// Which lease is contended for, by whom, and how long things take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who contends: unique for each process, restarts included.
    pub identity: String,
    /// After how much time without a renewal others may take the lease. In whole seconds.
    pub lease_duration: Duration,
    /// After how much time without a successful renewal the holder gives up. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two renewals, and between two attempts to acquire. Shorter than `renew_deadline`.
    pub retry_period: Duration,
}

impl LeaseConfig {
    /// The usual times (15 s, 10 s, 2 s), under an identity made of the host's name and a random part.
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
        // Client-go asks for the same margin: the longest pause with jitter has to fit into the deadline.
        if self.retry_period.is_zero() || self.renew_deadline <= self.retry_period.mul_f64(1.0 + JITTER) {
            return Err(LeaseConfigError::RetryTooLong(self.retry_period, self.renew_deadline));
        }
        Ok(())
    }

    /// The longest that one attempt may take: two fit into the renew deadline, so that one hung connection does
    /// not cost the lease.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

fn unique_identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:032x}", fastrand::u128(..))
}

/// Times or names that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseConfigError {
    /// The identity is empty, which on the wire means "held by nobody".
    #[error("leader election needs an identity that is not empty")]
    NoIdentity,
    /// The wire format knows whole seconds only.
    #[error("lease duration {0:?} must be a whole number of seconds")]
    NotInSeconds(Duration),
    /// The holder would go on after others may have begun.
    #[error("renew deadline {0:?} must be shorter than the lease duration {1:?}")]
    DeadlineTooLong(Duration, Duration),
    /// There would be no time for a second attempt.
    #[error("retry period {0:?} must be above zero and shorter than the renew deadline {1:?} by more than a fifth")]
    RetryTooLong(Duration, Duration),
}
