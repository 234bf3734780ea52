//! The Secret with the certificate that all replicas share.

use http::{Method, StatusCode};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodewright_runtime::json;
use nodewright_runtime::request::{Call, Connection};
use rustls::crypto::CryptoProvider;
use std::collections::BTreeMap;

use super::rotation::{Material, Texts};
use super::{Identity, validity};
use crate::error::RoundError;

const BUNDLE: &str = "ca.crt";
const AUTHORITY_KEYS: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Number of attempts in a round when another replica writes the Secret at the same time.
const TRIES: usize = 3;

/// A Secret that the webhooks create and renew.
///
/// # Guarantees
///
/// * A replica creates it by POST, and renews it by PUT with the version that it has read. Of two replicas at once, one wins,
///   and the other takes the winner's certificate.
/// * Labels, annotations and other keys of the Secret stay.
#[derive(Clone, Debug)]
pub(crate) struct SharedSecret {
    pub(crate) connection: Connection,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) hosts: Vec<String>,
}

impl SharedSecret {
    /// The certificate in the Secret. Creates or renews it as needed.
    pub(crate) async fn identity(&self, provider: &CryptoProvider, now: Timestamp) -> Result<Identity, RoundError> {
        let texts = self.texts(now).await?;
        let origin = format!("the secret {}/{}", self.namespace, self.name);
        let bundle = Some(texts.bundle.into_bytes());
        validity::identity(texts.certificate.as_bytes(), texts.key.as_bytes(), bundle, provider, &origin)
    }

    async fn texts(&self, now: Timestamp) -> Result<Texts, RoundError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let found = self.read().await?;
            let wanted = match found.as_ref().and_then(texts_of).and_then(|texts| Material::read(&texts)) {
                None => Material::create(&self.hosts, now)?,
                Some(kept) => match kept.renewed(&self.hosts, now)? {
                    None => return Ok(kept.texts()),
                    Some(renewed) => renewed,
                },
            };
            let wanted = wanted.texts();
            match self.write(found, &wanted).await {
                Err(RoundError::Request { source, .. })
                    if source.status == Some(StatusCode::CONFLICT) && tries < TRIES => {}
                result => return result.map(|()| wanted),
            }
        }
    }

    async fn read(&self) -> Result<Option<Secret>, RoundError> {
        match self.send(Call::get(self.path()), "read").await {
            Ok(secret) => Ok(Some(secret)),
            Err(RoundError::Request { source, .. }) if source.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, found: Option<Secret>, texts: &Texts) -> Result<(), RoundError> {
        let is_new = found.is_none();
        let mut secret = found.unwrap_or_else(|| self.empty());
        let data = secret.data.get_or_insert_default();
        let entries = [
            (BUNDLE, &texts.bundle),
            (AUTHORITY_KEYS, &texts.authority_keys),
            (CERTIFICATE, &texts.certificate),
            (KEY, &texts.key),
        ];
        data.extend(entries.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes()))));
        let body = serde_json::to_value(&secret).map_err(|source| self.unreadable("write", source))?;
        let call = if is_new {
            tracing::info!(namespace = self.namespace, name = self.name, "creating the certificate of the webhooks");
            Call::with(Method::POST, self.collection(), "application/json", &body)
        } else {
            tracing::info!(namespace = self.namespace, name = self.name, "renewing the certificate of the webhooks");
            Call::with(Method::PUT, self.path(), "application/json", &body)
        };
        self.send(call, "write").await.map(|_| ())
    }

    fn empty(&self) -> Secret {
        let labels = BTreeMap::from([("app.kubernetes.io/name".to_owned(), "nodewright".to_owned())]);
        Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        }
    }

    async fn send(&self, call: Call, action: &str) -> Result<Secret, RoundError> {
        let answer = self
            .connection
            .send(call)
            .await
            .map_err(|source| RoundError::Request { action: self.action(action), source })?;
        json::from_slice(answer.body()).map_err(|source| self.unreadable(action, source))
    }

    fn unreadable(&self, action: &str, source: serde_json::Error) -> RoundError {
        RoundError::Response { action: self.action(action), source }
    }

    fn action(&self, verb: &str) -> String {
        format!("{verb} the secret {}/{} with the certificate of the webhooks", self.namespace, self.name)
    }

    fn collection(&self) -> String {
        format!("/api/v1/namespaces/{}/secrets", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

fn texts_of(secret: &Secret) -> Option<Texts> {
    let data = secret.data.as_ref()?;
    let text = |name: &str| String::from_utf8(data.get(name)?.0.clone()).ok();
    Some(Texts {
        bundle: text(BUNDLE)?,
        authority_keys: text(AUTHORITY_KEYS)?,
        certificate: text(CERTIFICATE)?,
        key: text(KEY)?,
    })
}
