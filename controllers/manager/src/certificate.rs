//! The certificate of `--port` with `--secure-metrics`.

use std::sync::{Arc, OnceLock};

use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::Outcome;

/// The certificate of the webhooks if this process serves them. Otherwise a self-signed one that is created at the start, as in
/// controller-runtime.
#[derive(Debug)]
pub(crate) struct Certificate {
    own: Arc<CertifiedKey>,
    webhooks: OnceLock<Arc<dyn ResolvesServerCert>>,
}

impl Certificate {
    pub(crate) fn create() -> Outcome<Arc<Self>> {
        let created = rcgen::generate_simple_self_signed(["nodewright".to_owned(), "localhost".to_owned()])?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(created.signing_key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        let own = CertifiedKey::from_der(vec![created.cert.der().clone()], key, &provider)?;
        Ok(Arc::new(Self { own: Arc::new(own), webhooks: OnceLock::new() }))
    }

    /// Serves the certificate of the webhooks once they have one. Later calls have no effect.
    pub(crate) fn prefer(&self, webhooks: Arc<dyn ResolvesServerCert>) {
        // A process has one webhook server.
        let _ = self.webhooks.set(webhooks);
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let webhooks = self.webhooks.get().and_then(|webhooks| webhooks.resolve(hello));
        Some(webhooks.unwrap_or_else(|| self.own.clone()))
    }
}
