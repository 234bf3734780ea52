//! Leader election by a `coordination.k8s.io/v1` Lease, with client-go's protocol.
//!
//! # Guarantees
//!
//! - A lease is taken over only after it has stood unchanged for its whole duration *as seen by this process*: the
//!   clocks of two hosts are never compared.
//! - Every change of the lease is a PUT under the version that was read, or a POST where there was none: of two
//!   that try at once, one is refused. No PATCH is sent; roles made for client-go permit none.
//! - The term that is handed out counts from before the request that won or renewed it was sent, and ends after
//!   the renew deadline, which is shorter than the lease duration: it is over before anybody else may begin.
//! - A renewal that hangs is given up while there is time for another.
//! - A term that is over stays over; [`Election::acquire`] starts a new one.
//!
//! # Assumptions
//!
//! - The [`Clock`]s of all contenders run at about the same speed (a lease of 15 s and a deadline of 10 s bear
//!   one running half as fast again as the other).
//! - The [`kube::Client`] does not retry by itself (`Config::default_retry = false`): a write repeated behind this
//!   protocol's back is measured from the wrong moment.
//!
//! # Caveats
//!
//! - A write begun in the last moment of a term may be committed after it. See [`super::Leadership`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::clock::{BootClock, Clock};
use super::config::{JITTER, LeaseConfig, LeaseConfigError};
use super::error::Report;
use super::protocol::{Claim, Protocol};
use super::term::Leadership;
use nodewright_observability::metrics::Metrics;

/// How long [`Election::release`] tries to give the lease back. The process is about to end, and others take the
/// lease over by themselves once it has expired.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// One contender for one lease. A process that needs several leases makes one of these for each, and joins the
/// terms by [`Leadership::all`].
///
/// Dropping it ends the term without giving the lease back.
#[derive(Debug)]
pub struct Election {
    protocol: Arc<Protocol>,
    metrics: Arc<Metrics>,
    /// What the jitter is drawn from.
    seed: u64,
    renewal: Mutex<Option<Renewal>>,
}

/// The lease is held, and renewed by a task.
#[derive(Debug)]
struct Renewal {
    term: Leadership,
    task: Option<AbortOnDropHandle<()>>,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        // Nobody renews from here on.
        self.term.end();
    }
}

impl Election {
    /// A contender. Its requests carry `user_agent`.
    pub fn new(client: kube::Client, user_agent: HeaderValue, config: LeaseConfig) -> Result<Self, LeaseConfigError> {
        config.validate()?;
        let protocol = Protocol::new(client, user_agent, config, Arc::new(BootClock));
        let (protocol, metrics, seed) = (Arc::new(protocol), Arc::default(), fastrand::u64(..));
        Ok(Self { protocol, metrics, seed, renewal: Mutex::default() })
    }

    /// The same contender, not yet started, on another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { protocol: Arc::new(self.protocol.on(clock)), ..self }
    }

    /// The same contender, reporting whether it leads.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// The same contender, whose jitter comes from a seed, and from its name: several may be given the same one. Without
    /// it the jitter is another one each time. A manager gives its own.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        let LeaseConfig { namespace, name, identity, .. } = self.config();
        // Always the same: its keys are fixed.
        let mut hasher = DefaultHasher::new();
        (seed, namespace, name, identity).hash(&mut hasher);
        Self { seed: hasher.finish(), ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &LeaseConfig {
        self.protocol.config()
    }

    /// Waits until the lease is held, then renews it in the background until it is lost or released.
    ///
    /// Failures are logged and retried for as long as this is waited for: what is missing (a permission, a
    /// namespace, the API server) may come. May be dropped at any time. While the lease is held already, the term
    /// under way is returned.
    pub async fn acquire(&self) -> Leadership {
        let mut renewal = self.renewal.lock().await;
        if let Some(held) = renewal.as_ref().filter(|held| !held.term.is_over()) {
            return held.term.clone();
        }
        *renewal = None;
        self.metrics.leading(&self.config().name, false);
        let term = self.contend().await;
        self.metrics.leading(&self.config().name, true);
        let task = tokio::spawn(renew(self.protocol.clone(), self.metrics.clone(), term.clone()));
        *renewal = Some(Renewal { term: term.clone(), task: Some(AbortOnDropHandle::new(task)) });
        term
    }

    /// Watches the lease without asking for it, for as long as this is waited for. Whoever needs several leases asks
    /// for one after the other; watching the later ones meanwhile, it need not wait for each to expire in turn.
    pub async fn observe(&self) {
        let config = self.config();
        loop {
            self.protocol.look(config.attempt_timeout()).await;
            tokio::time::sleep(config.retry_period).await;
        }
    }

    async fn contend(&self) -> Leadership {
        let config = self.config();
        let (mut report, mut jitter) = (Report::default(), fastrand::Rng::with_seed(self.seed));
        loop {
            let begun = self.protocol.clock().elapsed();
            match self.protocol.attempt(config.attempt_timeout()).await {
                Ok(Claim::Held { transitions }) => {
                    let term = Leadership::until(self.protocol.clock().clone(), begun + config.renew_deadline);
                    if !term.is_over() {
                        tracing::info!(lease = config.name, identity = config.identity, transitions, "acquired lease");
                        return term;
                    }
                }
                Ok(Claim::Taken { holder }) => report.waiting(config, &holder),
                Err(error) => report.failure(config, &error),
            }
            tokio::time::sleep(config.retry_period.mul_f64(1.0 + JITTER * jitter.f64())).await;
        }
    }

    /// Ends the term and gives the lease back, so that another may take it at once.
    ///
    /// Does nothing when the lease is not held. Gives up after a second: the lease then expires by itself. Not to be
    /// called while [`Election::acquire`] is waited for; drop that first.
    pub async fn release(&self) {
        let Some(mut renewal) = self.renewal.lock().await.take() else { return };
        let was_over = renewal.term.is_over();
        renewal.term.end();
        self.metrics.leading(&self.config().name, false);
        if let Some(task) = renewal.task.take() {
            task.abort();
            // Its result tells nothing: either it was aborted, or it had ended with the term.
            let _ = task.await;
        }
        if was_over {
            return;
        }
        let name = &self.config().name;
        match tokio::time::timeout(RELEASE_TIMEOUT, self.protocol.give_back()).await {
            Ok(Ok(())) => tracing::info!(lease = name, "released lease"),
            Ok(Err(error)) => tracing::warn!(lease = name, %error, "failed to release lease, it will expire"),
            Err(_) => tracing::warn!(lease = name, "failed to release lease in time, it will expire"),
        }
    }
}

/// Renews the lease until the term ends, and ends the term once the lease is another's.
async fn renew(protocol: Arc<Protocol>, metrics: Arc<Metrics>, term: Leadership) {
    let config = protocol.config().clone();
    let mut report = Report::default();
    loop {
        tokio::select! {
            biased;
            () = term.ended() => break,
            () = tokio::time::sleep(config.retry_period) => {}
        }
        let begun = protocol.clock().elapsed();
        match protocol.attempt(config.attempt_timeout().min(term.remaining())).await {
            Ok(Claim::Held { .. }) if term.extend(begun + config.renew_deadline) => report = Report::default(),
            Ok(Claim::Held { .. }) => break,
            Ok(Claim::Taken { holder }) => {
                tracing::error!(lease = config.name, holder, "lost lease to another holder");
                break;
            }
            Err(error) => report.failure(&config, &error),
        }
    }
    // Whoever ended the term by hand knows why; otherwise it ran out.
    tracing::warn!(lease = config.name, "term of leadership is over");
    term.end();
    metrics.leading(&config.name, false);
}
