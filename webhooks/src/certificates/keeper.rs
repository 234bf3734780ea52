//! The loop that keeps the certificate valid and the webhooks registered.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use nodewright_runtime::term::Clock;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use super::Identity;
use super::directory::Directory;
use super::secret::SharedSecret;
use crate::WebhookError;
use crate::registration::Registrar;

/// How often everything is looked at. The wall clock is read each time, so that a jump of it, or a suspended machine,
/// is noticed within this time.
const PERIOD: Duration = Duration::from_mins(1);

/// After a failure it is tried again after a second, then after twice as long each time, up to the period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Where the certificate is from.
#[derive(Debug)]
pub(crate) enum Source {
    Secret(SharedSecret),
    Directory(Directory),
}

/// What readiness and the TLS handshake see of the keeper.
#[derive(Debug)]
pub(crate) struct Kept {
    /// What is served.
    pub(crate) certificate: ArcSwapOption<CertifiedKey>,
    state: ArcSwap<State>,
}

#[derive(Debug)]
struct State {
    /// When what is served is valid.
    validity: Option<(Timestamp, Timestamp)>,
    /// Why the last round was not completed.
    failure: Option<String>,
    is_registered: bool,
}

impl Kept {
    fn new() -> Self {
        let state = State { validity: None, failure: None, is_registered: false };
        Self { certificate: ArcSwapOption::empty(), state: ArcSwap::from_pointee(state) }
    }

    /// Whether the API server can call, as far as is known; if not, why.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), String> {
        let state = self.state.load();
        let failure = || state.failure.clone().unwrap_or_else(|| "not looked at yet".to_owned());
        match state.validity {
            None => Err(format!("the webhooks have no certificate: {}", failure())),
            Some((_, until)) if until <= now => Err(format!("the webhooks' certificate expired at {until}")),
            Some((from, _)) if now < from => Err(format!("the webhooks' certificate is not valid before {from}")),
            Some(_) if !state.is_registered => Err(format!("the webhooks are not registered: {}", failure())),
            Some(_) => Ok(()),
        }
    }
}

/// Keeps the certificate valid and the webhooks registered.
pub(crate) struct Keeper {
    source: Source,
    registrar: Registrar,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn Clock>,
    kept: Arc<Kept>,
}

impl Keeper {
    pub(crate) fn new(
        source: Source,
        registrar: Registrar,
        provider: Arc<CryptoProvider>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { source, registrar, provider, clock, kept: Arc::new(Kept::new()) }
    }

    pub(crate) fn kept(&self) -> Arc<Kept> {
        self.kept.clone()
    }

    /// Looks again and again, for ever.
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

    /// Looks once: serves what is to be served, then tells the API server what to trust.
    pub(crate) async fn round(&mut self) -> Result<(), WebhookError> {
        let result = self.look().await;
        let failure = result.as_ref().err().map(ToString::to_string);
        self.kept.state.rcu(|state| State { failure: failure.clone(), ..**state });
        result
    }

    async fn look(&mut self) -> Result<(), WebhookError> {
        let identity = match &mut self.source {
            Source::Secret(secret) => secret.identity(&self.provider, self.clock.wall()).await?,
            Source::Directory(directory) => directory.identity(&self.provider).await?,
        };
        self.serve(&identity);
        // A failure to look again is no reason to believe that what was registered is gone.
        self.registrar.ensure(identity.bundle.as_deref()).await?;
        self.kept.state.rcu(|state| State { failure: None, is_registered: true, ..**state });
        Ok(())
    }

    fn serve(&self, identity: &Identity) {
        let is_served = self.kept.certificate.load().as_ref().is_some_and(|served| served.cert == identity.key.cert);
        if !is_served {
            self.kept.certificate.store(Some(identity.key.clone()));
        }
        let validity = Some((identity.not_before, identity.not_after));
        self.kept.state.rcu(|state| State { validity, failure: state.failure.clone(), ..**state });
    }
}

#[cfg(test)]
mod tests;
