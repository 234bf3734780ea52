//! The certificate of `--port` with `--secure-metrics`.

use std::sync::{Arc, OnceLock};

use nodewright_webhooks::ServedCertificate;
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use crate::process::Outcome;

/// The names in the certificate that nobody has signed.
const NAMES: [&str; 2] = ["nodewright", "localhost"];

/// That of the webhooks where this process serves them, whose authority is in their Secret; else one that is made at
/// the start and signed by nobody, as controller-runtime's is.
#[derive(Clone, Debug)]
pub(crate) struct Certificate(Arc<Sources>);

#[derive(Debug)]
struct Sources {
    own: Arc<CertifiedKey>,
    webhooks: OnceLock<ServedCertificate>,
}

impl Certificate {
    pub(crate) fn make() -> Outcome<Self> {
        let made = rcgen::generate_simple_self_signed(NAMES.map(str::to_owned))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        let own = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider)?;
        Ok(Self(Arc::new(Sources { own: Arc::new(own), webhooks: OnceLock::new() })))
    }

    /// From now on that of the webhooks is served, once they have one. Only the first call counts.
    pub(crate) fn prefer(&self, webhooks: ServedCertificate) {
        // There is one webhook server in a process.
        let _ = self.0.webhooks.set(webhooks);
    }

    /// TLS 1.2 and 1.3.
    pub(crate) fn acceptor(&self) -> Outcome<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.0.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Sources {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let webhooks = self.webhooks.get().and_then(ServedCertificate::current);
        Some(webhooks.unwrap_or_else(|| self.own.clone()))
    }
}
