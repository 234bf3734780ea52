//! Leader election with a `coordination.k8s.io/v1` Lease and client-go's protocol.
//!
//! # Guarantees
//! - A contender takes over a lease only after it has stood unchanged for its whole duration *as seen by this process*: the
//!   clocks of two hosts are never compared.
//! - Every change of the lease is a PUT with the version that was read, or a POST. Of two concurrent attempts, one is refused.
//!   No PATCH is sent: roles made for client-go do not allow it.
//! - A leadership counts from before its last request, and ends before another process may lead.
//!
//! # Assumptions
//! - The [`Clock`]s of all contenders run at about the same speed: 15 s and 10 s tolerate one that is half as fast again.
//! - The [`kube::Client`] does not retry by itself: a repeated write would be measured from the wrong moment.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use tokio::{sync::Mutex, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

use super::{
    Clock, Leadership, boot_clock,
    protocol::{Attempt, LeaseError, Protocol},
    thread::ElectionThread,
};
use nodewright_observability::metrics::Metrics;

/// The maximum jitter of the pause between two attempts, as a share of the pause.
const JITTER: f64 = 0.2;

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
        let host = rustix::system::uname();
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: format!("{}_{:032x}", host.nodename().to_string_lossy(), fastrand::u128(..)),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    fn validate(&self) -> Result<(), String> {
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
    fn attempt_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// How long [`Election::release`] tries. After that the lease expires by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// One contender for one lease. Dropping it ends the leadership without releasing the lease.
pub struct Election {
    protocol: Arc<Protocol>,
    metrics: Arc<Metrics>,
    seed: u64,
    renewal: Mutex<Option<Renewal>>,
    /// Where it works, if not in the runtime of its caller.
    thread: Option<ElectionThread>,
}

/// The lease is held, and a task renews it.
struct Renewal {
    leadership: Leadership,
    task: AbortOnDropHandle<()>,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // The renewals stop here.
        self.leadership.end();
    }
}

impl Election {
    /// A contender. Returns an error for people if it cannot work with this configuration.
    pub fn new(client: kube::Client, user_agent: HeaderValue, config: LeaseConfig) -> Result<Self, String> {
        config.validate()?;
        let protocol = Protocol { client, user_agent, config, clock: boot_clock(), seen: Mutex::default() };
        let (protocol, metrics, seed) = (Arc::new(protocol), Arc::default(), fastrand::u64(..));
        Ok(Self { protocol, metrics, seed, renewal: Mutex::default(), thread: None })
    }

    /// Contenders that send their requests on a thread of their own, so that busy workers delay no renewal. The client is made on
    /// that thread, which also drives its connections.
    pub fn on_thread(
        client: impl FnOnce() -> Result<kube::Client, BoxError>,
        user_agent: &HeaderValue,
        configs: impl IntoIterator<Item = LeaseConfig>,
    ) -> Result<Vec<Self>, BoxError> {
        let failed = |error| format!("failed to start a thread for leader election: {error}");
        let thread = ElectionThread::start().map_err(failed)?;
        let client = thread.make(client)?;
        let on_thread = |config| {
            let contender = Self::new(client.clone(), user_agent.clone(), config)?;
            Ok(Self { thread: Some(thread.clone()), ..contender })
        };
        configs.into_iter().map(on_thread).collect()
    }

    /// Does the work on the thread of the contender, if it has one. Dropping the future ends the work.
    async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let Some(thread) = &self.thread else { return work.await };
        match AbortOnDropHandle::new(thread.spawn(work)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The thread has ended, and with it the process.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// The same contender, not yet started, with what its manager has. Contenders may share the seed.
    pub(crate) fn in_manager(mut self, seed: u64, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let LeaseConfig { namespace, name, identity, .. } = self.config();
        // Deterministic: its keys are fixed.
        let mut hasher = DefaultHasher::new();
        (seed, namespace, name, identity).hash(&mut hasher);
        self.seed = hasher.finish();
        self.metrics = metrics;
        if let Some(protocol) = Arc::get_mut(&mut self.protocol) {
            protocol.clock = clock;
        }
        self
    }

    fn config(&self) -> &LeaseConfig {
        &self.protocol.config
    }

    /// Waits until the lease is held, then renews it in the background until it is lost or released.
    ///
    /// Failures are logged and retried: a missing permission, namespace or API server may appear later. The future may be
    /// dropped. A lease that is held already returns its leadership.
    pub async fn acquire(&self) -> Leadership {
        let mut renewal = self.renewal.lock().await;
        if let Some(held) = renewal.as_ref().filter(|held| !held.leadership.is_over()) {
            return held.leadership.clone();
        }
        *renewal = None;
        self.metrics.leading(&self.config().name, false);
        let (protocol, metrics) = (self.protocol.clone(), self.metrics.clone());
        let seed = self.seed;
        // In one piece with the first renewals: a caller that has no time to take note of the lease must not let it expire.
        let (leadership, task) = self
            .run(async move {
                let leadership = contend(&protocol, seed).await;
                let task = tokio::spawn(renew(protocol, metrics, leadership.clone()));
                (leadership, AbortOnDropHandle::new(task))
            })
            .await;
        self.metrics.leading(&self.config().name, true);
        *renewal = Some(Renewal { leadership: leadership.clone(), task });
        leadership
    }

    /// Watches the lease without acquiring it, so that it need not stand unchanged for its whole duration once it is its turn.
    pub async fn observe(&self) {
        let protocol = self.protocol.clone();
        self.run(async move {
            loop {
                protocol.read(protocol.config.attempt_timeout()).await;
                tokio::time::sleep(protocol.config.retry_period).await;
            }
        })
        .await;
    }

    /// Ends the leadership and releases the lease, so that another process may take it at once. Tries for a second. Drop
    /// the future of [`Election::acquire`] first.
    pub async fn release(&self) {
        let Some(mut renewal) = self.renewal.lock().await.take() else { return };
        let was_over = renewal.leadership.is_over();
        renewal.leadership.end();
        self.metrics.leading(&self.config().name, false);
        renewal.task.abort();
        // Ignore the result: the task was aborted, or it ended with the leadership.
        let _ = (&mut renewal.task).await;
        if was_over {
            return;
        }
        let name = &self.config().name;
        let protocol = self.protocol.clone();
        let giving_back = self.run(async move { protocol.give_back().await });
        match tokio::time::timeout(RELEASE_TIMEOUT, giving_back).await {
            Ok(Ok(())) => tracing::info!(lease = name, "released lease"),
            Ok(Err(error)) => tracing::warn!(lease = name, %error, "failed to release lease, it will expire"),
            Err(_) => tracing::warn!(lease = name, "failed to release lease in time, it will expire"),
        }
    }
}

/// Tries until the lease is held.
async fn contend(protocol: &Protocol, seed: u64) -> Leadership {
    let config = &protocol.config;
    let (mut report, mut jitter) = (Report::default(), fastrand::Rng::with_seed(seed));
    loop {
        let begun = protocol.clock.elapsed();
        match protocol.attempt(config.attempt_timeout()).await {
            Ok(Attempt::Held { transitions }) => {
                let leadership = Leadership::until(protocol.clock.clone(), begun + config.renew_deadline);
                if !leadership.is_over() {
                    tracing::info!(lease = config.name, identity = config.identity, transitions, "acquired lease");
                    return leadership;
                }
            }
            Ok(Attempt::Taken { holder }) if report.is_news(&holder) => {
                tracing::info!(lease = config.name, holder, "waiting for leader election");
            }
            Ok(Attempt::Taken { .. }) => {}
            Err(error) => report.failure(config, &error),
        }
        tokio::time::sleep(config.retry_period.mul_f64(1.0 + JITTER * jitter.f64())).await;
    }
}

/// Logs each change of the error, and a lasting error once a minute: attempts come every other second.
#[derive(Default)]
struct Report {
    last: Option<(String, Instant)>,
}

impl Report {
    const REPEAT: Duration = Duration::from_mins(1);

    /// What the newest attempt failed with, if it failed.
    fn last_error(&self) -> Option<&str> {
        self.last.as_ref().map(|(error, _)| error.as_str())
    }

    fn failure(&mut self, config: &LeaseConfig, error: &LeaseError) {
        if error.is_conflict() {
            tracing::debug!(lease = config.name, %error);
        } else if self.is_news(&error.to_string()) {
            if error.is_fatal() {
                tracing::error!(lease = config.name, "{error}; retrying until it is permitted");
            } else {
                tracing::warn!(lease = config.name, "{error}; retrying");
            }
        }
    }

    fn is_news(&mut self, text: &str) -> bool {
        let known = self.last.as_ref().is_some_and(|(last, at)| last == text && at.elapsed() < Self::REPEAT);
        if !known {
            self.last = Some((text.to_owned(), Instant::now()));
        }
        !known
    }
}

/// Renews the lease until the leadership ends, and ends the leadership once another process holds the lease.
async fn renew(protocol: Arc<Protocol>, metrics: Arc<Metrics>, leadership: Leadership) {
    let config = protocol.config.clone();
    let mut report = Report::default();
    loop {
        tokio::select! {
            biased;
            () = leadership.ended() => break,
            () = tokio::time::sleep(config.retry_period) => {}
        }
        let begun = protocol.clock.elapsed();
        match protocol.attempt(config.attempt_timeout().min(leadership.remaining())).await {
            Ok(Attempt::Held { .. }) if leadership.extend(begun + config.renew_deadline) => report = Report::default(),
            Ok(Attempt::Held { .. }) => break,
            Ok(Attempt::Taken { holder }) => {
                tracing::error!(lease = config.name, holder, "lost lease to another holder");
                break;
            }
            Err(error) => report.failure(&config, &error),
        }
    }
    if leadership.has_lapsed() {
        let why = report.last_error().unwrap_or("no attempt failed, so this process was stopped, or had no CPU time");
        tracing::error!(lease = config.name, "lost lease: it was not renewed for {:?}: {why}", config.renew_deadline);
    }
    tracing::warn!(lease = config.name, "leadership is over");
    leadership.end();
    metrics.leading(&config.name, false);
}

#[cfg(test)]
mod tests;
