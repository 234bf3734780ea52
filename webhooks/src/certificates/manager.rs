//! The loop that keeps the certificate valid and the webhooks registered.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use nodewright_runtime::leadership::Clock;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::Identity;
use super::directory::Directory;
use super::secret::SharedSecret;
use crate::WebhookError;
use crate::registration::Registrar;

/// The time between two rounds. Each round reads the wall clock, so that the loop notices a clock that was stepped, or a
/// machine that was suspended, within this time.
const PERIOD: Duration = Duration::from_mins(1);

/// The wait after the first failure. It doubles with each failure, up to the period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The source of the certificate.
#[derive(Debug)]
pub(crate) enum Source {
    Secret(SharedSecret),
    Directory(Directory),
}

/// The state that TLS handshakes and the readiness check read.
#[derive(Debug)]
pub(crate) struct CertificateState {
    /// The served certificate.
    pub(crate) certificate: ArcSwapOption<CertifiedKey>,
    round: ArcSwap<Round>,
}

/// The result of the last round.
#[derive(Debug, Default)]
struct Round {
    /// When the served certificate is valid.
    validity: Option<(Timestamp, Timestamp)>,
    /// The error of the last round.
    failure: Option<String>,
    is_registered: bool,
}

impl CertificateState {
    /// Fails, with the reason, unless the API server can call the webhooks as far as this process knows.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), String> {
        let round = self.round.load();
        let failure = || round.failure.clone().unwrap_or_else(|| "not checked yet".to_owned());
        match round.validity {
            None => Err(format!("the webhooks have no certificate: {}", failure())),
            Some((_, until)) if until <= now => Err(format!("the webhooks' certificate expired at {until}")),
            Some((from, _)) if now < from => Err(format!("the webhooks' certificate is not valid before {from}")),
            Some(_) if !round.is_registered => Err(format!("the webhooks are not registered: {}", failure())),
            Some(_) => Ok(()),
        }
    }
}

impl ResolvesServerCert for CertificateState {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate.load_full()
    }
}

/// Keeps the certificate valid and the webhooks registered.
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
        let state = CertificateState { certificate: ArcSwapOption::empty(), round: ArcSwap::default() };
        Self { source, registrar, provider, clock, state: Arc::new(state) }
    }

    pub(crate) fn state(&self) -> Arc<CertificateState> {
        self.state.clone()
    }

    /// Runs rounds forever.
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
    pub(crate) async fn round(&mut self) -> Result<(), WebhookError> {
        let result = self.reconcile().await;
        let failure = result.as_ref().err().map(ToString::to_string);
        self.state.round.rcu(|round| Round { failure: failure.clone(), ..**round });
        result
    }

    async fn reconcile(&mut self) -> Result<(), WebhookError> {
        let identity = match &mut self.source {
            Source::Secret(secret) => secret.identity(&self.provider, self.clock.wall()).await?,
            Source::Directory(directory) => directory.identity(&self.provider).await?,
        };
        self.serve(&identity);
        // `is_registered` stays true after a failure: the registration still exists.
        self.registrar.ensure(identity.bundle.as_deref()).await?;
        self.state.round.rcu(|round| Round { failure: None, is_registered: true, ..**round });
        Ok(())
    }

    fn serve(&self, identity: &Identity) {
        let served = self.state.certificate.load();
        if served.as_ref().is_none_or(|served| served.cert != identity.key.cert) {
            self.state.certificate.store(Some(identity.key.clone()));
        }
        let validity = Some((identity.not_before, identity.not_after));
        self.state.round.rcu(|round| Round { validity, failure: round.failure.clone(), ..**round });
    }
}

#[cfg(test)]
mod tests;
