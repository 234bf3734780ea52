//! The content of the Secret, and its rotation. Pure: the caller passes the time.
//!
//! An authority is in the bundle long before it signs, and for as long as it is valid. So every replica's certificate is always
//! signed by an authority that is in every bundle in use, in whatever order the replicas see a change.
//!
//! 1. When a third of the lifetime of the authority remains, the next authority is created and added to the bundle.
//! 2. A day later, the next authority signs. The former one stays in the bundle, without its key.
//! 3. When the former authority has expired, it is removed from the bundle.
//!
//! The server's certificate is renewed when a third of its lifetime remains, when its names change, and when the wall clock
//! calls it not valid yet.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::authority::{Authority, Server};
use super::validity::Facts;
use crate::error::RoundError;

/// How long an authority is in the bundle before it signs. The API server sees a bundle within seconds, and other replicas
/// within a minute. The rest is for replicas that cannot reach the API server.
pub(crate) const PUBLISHED_BEFORE_USE: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone)]
pub(crate) struct Material {
    signing: Authority,
    next: Option<Authority>,
    /// The authorities that have signed.
    former: Vec<Authority>,
    server: Server,
}

/// The values of the Secret, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Texts {
    /// The trusted authorities: the signing one, the next, the former ones.
    pub(crate) bundle: String,
    /// The keys of the signing authority and the next.
    pub(crate) authority_keys: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Material {
    pub(crate) fn create(hosts: &[String], now: Timestamp) -> Result<Self, RoundError> {
        let signing = Authority::create(now)?;
        let server = signing.sign(hosts, now)?;
        Ok(Self { signing, next: None, former: vec![], server })
    }

    /// Parses the values of the Secret. `None` if they are invalid.
    pub(crate) fn read(texts: &Texts) -> Option<Self> {
        let keys: Vec<_> = pem_keys(&texts.authority_keys);
        let mut authorities = authorities(&texts.bundle, &keys)?.into_iter();
        let signing = authorities.next().filter(|authority| authority.key.is_some())?;
        let (mut waiting, former): (Vec<_>, Vec<_>) = authorities.partition(|authority| authority.key.is_some());
        let next = if waiting.is_empty() { None } else { Some(waiting.remove(0)) };
        let server = Server::read(texts.certificate.clone(), texts.key.clone())?;
        Some(Self { signing, next, former, server })
    }

    pub(crate) fn texts(&self) -> Texts {
        let able = || std::iter::once(&self.signing).chain(&self.next);
        Texts {
            bundle: able().chain(&self.former).map(|authority| authority.certificate.as_str()).collect(),
            authority_keys: able().filter_map(|authority| authority.key.as_deref()).collect(),
            certificate: self.server.certificate.clone(),
            key: self.server.key.clone(),
        }
    }

    /// The material after its rotation. `None` if nothing is due.
    pub(crate) fn renewed(&self, hosts: &[String], now: Timestamp) -> Result<Option<Self>, RoundError> {
        let mut new = self.clone();
        let mut changed = false;
        if !new.signing.facts.is_valid_at(now) {
            // No replica ran for months, or the clock was stepped. The next authority need not wait.
            let next = new.next.take().filter(|next| next.facts.is_valid_at(now));
            new.promote(next.map_or_else(|| Authority::create(now), Ok)?);
            changed = true;
        } else if let Some(next) = new.next.take_if(|next| is_published(&next.facts, now)) {
            new.promote(next);
            changed = true;
        } else if new.next.is_none() && new.signing.facts.is_old_at(now) {
            new.next = Some(Authority::create(now)?);
            changed = true;
        }
        changed |= new.forget_expired(now);
        if new.server_is_due(hosts, now) {
            new.server = new.signing.sign(hosts, now)?;
            changed = true;
        }
        Ok(changed.then_some(new))
    }

    #[cfg(test)]
    pub(crate) fn server_facts(&self) -> &Facts {
        &self.server.facts
    }

    fn forget_expired(&mut self, now: Timestamp) -> bool {
        let count = self.former.len();
        self.former.retain(|authority| now < authority.facts.not_after);
        count != self.former.len()
    }

    fn promote(&mut self, next: Authority) {
        let former = std::mem::replace(&mut self.signing, next);
        self.former.push(former.retired());
    }

    fn server_is_due(&self, hosts: &[String], now: Timestamp) -> bool {
        let facts = &self.server.facts;
        let is_signed = facts.issuer == self.signing.facts.subject;
        let has_hosts = BTreeSet::from_iter(&facts.hosts) == BTreeSet::from_iter(hosts);
        !is_signed || !facts.is_valid_at(now) || facts.is_old_at(now) || !has_hosts
    }
}

fn is_published(facts: &Facts, now: Timestamp) -> bool {
    let signs_from = facts.not_before.saturating_add(PUBLISHED_BEFORE_USE).unwrap_or(Timestamp::MAX);
    facts.is_valid_at(now) && signs_from <= now
}

/// The keys, each with its public key, which identifies its certificate.
fn pem_keys(text: &str) -> Vec<(Vec<u8>, String)> {
    let keys = PrivateKeyDer::pem_slice_iter(text.as_bytes()).flatten();
    let pairs = keys.filter_map(|key| KeyPair::try_from(&key).ok());
    pairs.map(|pair| (pair.public_key_raw().to_vec(), pair.serialize_pem())).collect()
}

fn authorities(bundle: &str, keys: &[(Vec<u8>, String)]) -> Option<Vec<Authority>> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect();
    certificates
        .ok()?
        .iter()
        .map(|certificate| Authority::read(certificate, to_pem(bundle, certificate)?, keys))
        .collect()
}

/// The PEM of one certificate of a bundle.
fn to_pem(bundle: &str, certificate: &CertificateDer<'_>) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let texts = bundle.split_inclusive(END).map(|text| format!("{}\n", text.trim()));
    texts
        .into_iter()
        .find(|text| CertificateDer::from_pem_slice(text.as_bytes()).is_ok_and(|read| read == *certificate))
}

#[cfg(test)]
mod tests {
    use super::super::authority::{AUTHORITY_LIFE, SERVER_LIFE};
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn hosts() -> Vec<String> {
        ["nodewright-webhook.nodewright-system.svc", "127.0.0.1", "::1"].map(str::to_owned).into()
    }

    fn start() -> Timestamp {
        "2026-11-20T10:00:00Z".parse().unwrap()
    }

    fn made() -> Material {
        Material::create(&hosts(), start()).unwrap()
    }

    fn certificates(material: &Material) -> usize {
        material.texts().bundle.matches("BEGIN").count()
    }

    fn keys(material: &Material) -> usize {
        material.texts().authority_keys.matches("BEGIN").count()
    }

    #[test]
    fn what_is_kept_can_be_read_again_and_stays() {
        let material = made();
        assert!(material.server_facts().is_valid_at(start()));
        let read = Material::read(&material.texts()).unwrap();
        assert_eq!(read.texts(), material.texts());
        assert!(read.renewed(&hosts(), start()).unwrap().is_none(), "nothing to do");
        assert_eq!(read.server_facts().hosts, hosts());
    }

    #[test]
    fn garbage_is_not_material() {
        let texts = made().texts();
        for broken in [
            Texts { bundle: String::new(), ..texts.clone() },
            Texts { bundle: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(), ..texts.clone() },
            Texts { authority_keys: String::new(), ..texts.clone() },
            Texts { key: "x".into(), ..texts.clone() },
            Texts { key: made().texts().key, ..texts.clone() },
            Texts { certificate: String::new(), ..texts.clone() },
        ] {
            assert!(Material::read(&broken).is_none());
        }
    }

    #[test]
    fn the_server_is_renewed_at_a_third_of_its_life() {
        let material = made();
        assert!(material.renewed(&hosts(), start() + SERVER_LIFE * 2 / 3 - DAY).unwrap().is_none());
        let now = start() + SERVER_LIFE * 2 / 3 + DAY;
        let renewed = material.renewed(&hosts(), now).unwrap().unwrap();
        assert_eq!(renewed.texts().bundle, material.texts().bundle, "the same authority");
        assert!(renewed.server_facts().not_after > material.server_facts().not_after);
        assert!(renewed.renewed(&hosts(), now).unwrap().is_none());
    }

    #[test]
    fn other_names_and_a_clock_that_jumps_back_renew_the_server() {
        let material = made();
        let renewed = material.renewed(&["localhost".to_owned()], start()).unwrap().unwrap();
        assert_eq!(renewed.server_facts().hosts, ["localhost"]);
        let earlier = start() - DAY * 100;
        let renewed = material.renewed(&hosts(), earlier).unwrap().unwrap();
        assert!(renewed.server_facts().is_valid_at(earlier));
        assert_eq!(certificates(&renewed), 2);
    }

    /// Simulates every day of four years with one replica that is a day late: its certificate is always signed by an authority
    /// in the bundles of today and of yesterday.
    #[test]
    fn every_bundle_trusts_every_certificate() {
        let mut yesterday = made();
        let mut most = 0;
        for day in 1..1_500 {
            let now = start() + DAY * day;
            let renewed = yesterday.renewed(&hosts(), now).unwrap();
            let today = renewed.map_or_else(|| yesterday.clone(), |new| Material::read(&new.texts()).unwrap());
            let trusts = |bundle: &Material, server: &Material| {
                let all = std::iter::once(&bundle.signing).chain(&bundle.next).chain(&bundle.former);
                all.filter(|authority| authority.facts.is_valid_at(now))
                    .any(|authority| authority.facts.subject == server.server.facts.issuer)
            };
            assert!(trusts(&yesterday, &today) && trusts(&today, &yesterday), "day {day}");
            assert!(today.server_facts().is_valid_at(now), "day {day}");
            most = most.max(certificates(&today));
            assert!(keys(&today) <= 2);
            yesterday = today;
        }
        assert_eq!(most, 2, "expired authorities are forgotten");
    }

    #[test]
    fn a_long_expired_certificate_is_replaced() {
        let now = start() + AUTHORITY_LIFE * 3;
        let renewed = made().renewed(&hosts(), now).unwrap().unwrap();
        assert!(renewed.server_facts().is_valid_at(now));
        assert_eq!(certificates(&renewed), 1, "the expired one is forgotten");
        assert!(renewed.renewed(&hosts(), now).unwrap().is_none());
    }
}
