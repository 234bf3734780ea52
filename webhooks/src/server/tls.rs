//! TLS with a certificate that changes.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::WebhookError;
use crate::certificates::keeper::Kept;

/// TLS 1.2 and 1.3, with what is kept at the moment of each handshake.
pub(super) fn acceptor(kept: Arc<Kept>, provider: Arc<CryptoProvider>) -> Result<TlsAcceptor, WebhookError> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Resolver(kept)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[derive(Debug)]
struct Resolver(Arc<Kept>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.certificate.load_full()
    }
}
