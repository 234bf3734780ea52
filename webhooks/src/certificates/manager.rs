//! The loop that keeps the certificate valid and the webhooks registered.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use nodewright_runtime::leadership::Clock;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::Identity;
use super::directory::Directory;
use super::secret::SharedSecret;
use crate::error::RoundError;
use crate::registration::Registrar;

/// The time between two rounds. Each round reads the wall clock, so that the loop notices a clock that was stepped, or a
/// machine that was suspended, within this time.
const PERIOD: Duration = Duration::from_mins(1);
/// The wait after the first failure. It doubles with each failure, up to the period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Source {
    Secret(SharedSecret),
    Directory(Directory),
}

/// The state that TLS handshakes and the readiness check read.
#[derive(Debug, Default)]
pub(crate) struct CertificateState(ArcSwap<Round>);

/// The result of the last round.
#[derive(Clone, Debug, Default)]
struct Round {
    served: Option<Identity>,
    failure: Option<String>,
    is_registered: bool,
}

impl CertificateState {
    /// Fails, with the reason, unless the API server can call the webhooks as far as this process knows.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), String> {
        let round = self.0.load();
        let failure = || round.failure.clone().unwrap_or_else(|| "not checked yet".to_owned());
        match &round.served {
            None => Err(format!("the webhooks have no certificate: {}", failure())),
            Some(Identity { not_after, .. }) if *not_after <= now => {
                Err(format!("the webhooks' certificate expired at {not_after}"))
            }
            Some(Identity { not_before, .. }) if now < *not_before => {
                Err(format!("the webhooks' certificate is not valid before {not_before}"))
            }
            Some(_) if !round.is_registered => Err(format!("the webhooks are not registered: {}", failure())),
            Some(_) => Ok(()),
        }
    }
}

impl ResolvesServerCert for CertificateState {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().served.as_ref().map(|identity| identity.key.clone())
    }
}

pub(crate) struct CertificateManager {
    source: Source,
    registrar: Registrar,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn Clock>,
    state: Arc<CertificateState>,
}

impl CertificateManager {
    pub(crate) fn new(
        source: Source,
        registrar: Registrar,
        provider: Arc<CryptoProvider>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { source, registrar, provider, clock, state: Arc::default() }
    }

    pub(crate) fn state(&self) -> Arc<CertificateState> {
        self.state.clone()
    }

    pub(crate) async fn run(mut self) {
        let mut retry = FIRST_RETRY;
        loop {
            let wait = match self.round().await {
                Ok(()) => {
                    retry = FIRST_RETRY;
                    PERIOD
                }
                Err(error) => {
                    tracing::warn!(%error, "the webhooks are not ready");
                    let wait = retry;
                    retry = (retry * 2).min(PERIOD);
                    wait
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs one round: serves the certificate, and then makes the API server trust it.
    pub(crate) async fn round(&mut self) -> Result<(), RoundError> {
        let result = self.reconcile().await;
        let failure = result.as_ref().err().map(ToString::to_string);
        self.publish(|round| round.failure = failure);
        result
    }

    async fn reconcile(&mut self) -> Result<(), RoundError> {
        let identity = match &mut self.source {
            Source::Secret(secret) => secret.identity(&self.provider, self.clock.wall()).await?,
            Source::Directory(directory) => directory.identity(&self.provider).await?,
        };
        self.publish(|round| round.served = Some(identity.clone()));
        // `is_registered` stays true after a failure: the registration still exists.
        self.registrar.ensure(identity.bundle.as_deref()).await?;
        self.publish(|round| round.is_registered = true);
        // Those of machines work also without these.
        self.registrar.ensure_machine_config(identity.bundle.as_deref()).await
    }

    fn publish(&self, change: impl FnOnce(&mut Round)) {
        let mut round = Round::clone(&self.state.0.load());
        change(&mut round);
        self.state.0.store(Arc::new(round));
    }
}

#[cfg(test)]
mod tests;
