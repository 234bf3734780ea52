//! Parsing of certificates.

use jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Identity;
use crate::error::RoundError;

/// The fields of a certificate that the webhooks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) public_key: Vec<u8>,
    /// The subject, as DER.
    pub(crate) subject: Vec<u8>,
    /// The issuer, as DER.
    pub(crate) issuer: Vec<u8>,
    pub(crate) hosts: Vec<String>,
}

impl Facts {
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Self {
            not_before: time(certificate.validity().not_before)?,
            not_after: time(certificate.validity().not_after)?,
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            hosts: hosts(&certificate),
        })
    }

    pub(crate) fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Whether a third of the lifetime or less remains.
    pub(crate) fn is_old_at(&self, now: Timestamp) -> bool {
        let life = self.not_after.as_second() - self.not_before.as_second();
        self.not_after.as_second() - now.as_second() <= life / 3
    }
}

fn hosts(certificate: &X509Certificate<'_>) -> Vec<String> {
    use x509_parser::extensions::GeneralName;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<String> {
    use std::net::IpAddr;
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or(v6).ok().map(|address| address.to_string())
}

pub(crate) fn certificates(pem: &[u8], origin: &str) -> Result<Vec<CertificateDer<'static>>, RoundError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(invalid(origin, "it has no certificate in PEM format")),
        Err(_) => Err(invalid(origin, "it is not PEM")),
    }
}

/// Builds a certificate that can be served. Checks that the key matches.
pub(crate) fn identity(
    chain: &[u8],
    key: &[u8],
    bundle: Option<Vec<u8>>,
    provider: &CryptoProvider,
    origin: &str,
) -> Result<Identity, RoundError> {
    let chain = certificates(chain, origin)?;
    let facts = chain.first().and_then(Facts::read).ok_or_else(|| invalid(origin, "it is not an X.509 certificate"))?;
    if let Some(bundle) = &bundle {
        certificates(bundle, origin)?;
    }
    // The library's errors may quote the key.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| invalid(origin, "it has no private key in PEM format"))?;
    let key = CertifiedKey::from_der(chain, key, provider)
        .map_err(|_| invalid(origin, "its key has an unknown type, or is not that of its certificate"))?;
    Ok(Identity { key: Arc::new(key), bundle, not_before: facts.not_before, not_after: facts.not_after })
}

fn invalid(origin: &str, reason: &str) -> RoundError {
    RoundError::Certificate { origin: origin.to_owned(), reason: reason.to_owned() }
}
