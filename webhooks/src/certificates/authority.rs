//! Creation of certificates.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::validity::Facts;
use crate::error::RoundError;

pub(crate) const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
pub(crate) const SERVER_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long before its creation a certificate becomes valid, because the API server's clock may be behind.
const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A certificate authority. Without a key it is trusted and cannot sign.
#[derive(Clone)]
pub(crate) struct Authority {
    pub(crate) certificate: String,
    pub(crate) facts: Facts,
    /// As PEM.
    pub(crate) key: Option<String>,
}

impl Authority {
    pub(crate) fn create(now: Timestamp) -> Result<Self, RoundError> {
        let mut parameters = parameters(&format!("nodewright-webhook-ca@{}", now.as_second()), now, AUTHORITY_LIFE);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = parameters.self_signed(&key)?;
        let facts = facts(certificate.der())?;
        Ok(Self { certificate: certificate.pem(), facts, key: Some(key.serialize_pem()) })
    }

    /// Reads an authority, and finds its key among `keys`.
    pub(crate) fn read(certificate: &CertificateDer<'_>, pem: String, keys: &[(Vec<u8>, String)]) -> Option<Self> {
        let facts = Facts::read(certificate)?;
        let key = keys.iter().find(|(public, _)| *public == facts.public_key).map(|(_, key)| key.clone());
        Some(Self { certificate: pem, facts, key })
    }

    /// The authority without its key.
    pub(crate) fn retired(self) -> Self {
        Self { key: None, ..self }
    }

    /// Creates a server's certificate for these names.
    pub(crate) fn sign(&self, hosts: &[String], now: Timestamp) -> Result<Server, RoundError> {
        let key = self.key.as_deref().ok_or(rcgen::Error::CouldNotParseKeyPair)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(key)?)?;
        let mut parameters = parameters("nodewright-webhook", now, SERVER_LIFE);
        parameters.subject_alt_names = CertificateParams::new(hosts)?.subject_alt_names;
        parameters.use_authority_key_identifier_extension = true;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &issuer)?;
        Ok(Server { facts: facts(certificate.der())?, certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A server's certificate and key, as PEM.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) facts: Facts,
}

impl Server {
    pub(crate) fn read(certificate: String, key: String) -> Option<Self> {
        let facts = Facts::read(&CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?)?;
        let own = KeyPair::from_pem(&key).ok()?;
        (own.public_key_raw() == facts.public_key).then_some(Self { certificate, key, facts })
    }
}

fn parameters(name: &str, now: Timestamp, life: SignedDuration) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let time = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    parameters.not_before = time(now.saturating_sub(SKEW).unwrap_or(now));
    parameters.not_after = time(now.saturating_add(life).unwrap_or(now));
    parameters
}

fn facts(certificate: &CertificateDer<'_>) -> Result<Facts, RoundError> {
    Facts::read(certificate).ok_or(rcgen::Error::CouldNotParseCertificate.into())
}
