//! Telling the API server which certificates to trust, and where the webhooks are.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use nodewright_runtime::request::{Call, Connection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::WebhookError;
use crate::configurations::{Endpoint, Installation, Reach, configurations, endpoints};

/// Who owns the fields that are written here.
pub const FIELD_MANAGER: &str = "nodewright-webhook";

/// What is written of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The `caBundle` of each webhook. The rest is applied by whoever installs Nodewright, from `config/webhook`.
    Bundle,
    /// The whole of both configurations: for an API server that reaches the webhooks at this host, such as
    /// `127.0.0.1`, and at the port of the server, without a Service.
    Whole {
        /// A name or an address, one of IPv6 in brackets. The certificate has to be for it.
        host: String,
    },
    /// Nothing: others do it, such as cert-manager.
    None,
}

/// Writes the webhook configurations by server-side apply, if they differ from what they should be.
#[derive(Clone, Debug)]
pub(crate) struct Registrar {
    pub(crate) connection: Connection,
    pub(crate) registration: Registration,
    pub(crate) installation: Installation,
    /// The server's port.
    pub(crate) port: u16,
}

impl Registrar {
    /// Makes the API server trust `bundle`.
    pub(crate) async fn ensure(&self, bundle: Option<&[u8]>) -> Result<(), WebhookError> {
        let reach = match &self.registration {
            Registration::None => return Ok(()),
            Registration::Bundle => None,
            Registration::Whole { host } => Some(Reach::Url { base: format!("https://{host}:{}", self.port) }),
        };
        let bundle = bundle.ok_or_else(|| WebhookError::NoAuthority("the certificate".to_owned()))?;
        let wanted = reach.map(|reach| configurations(&self.installation, &reach, Some(bundle)));
        let (mutating, validating) = wanted.map(|all| (all.mutating, all.validating)).unzip();
        self.ensure_one::<MutatingWebhookConfiguration>(mutating, bundle).await?;
        self.ensure_one::<ValidatingWebhookConfiguration>(validating, bundle).await
    }

    async fn ensure_one<C: Configuration>(&self, wanted: Option<C>, bundle: &[u8]) -> Result<(), WebhookError> {
        let live: Option<C> = self.read().await?;
        let body = match (wanted, live) {
            (Some(wanted), live) => {
                let is_there = live.is_some_and(|live| live.comparable() == wanted.comparable());
                (!is_there).then(|| wanted.to_value()).transpose()
            }
            (None, Some(live)) => Ok(bundle_patch(&live, bundle)),
            (None, None) => {
                return Err(WebhookError::NotRegistered {
                    kind: C::KIND,
                    name: self.installation.configuration_name(),
                });
            }
        };
        match body.map_err(|source| WebhookError::Answer { action: self.action::<C>("write"), source })? {
            Some(body) => self.apply::<C>(&body).await,
            None => Ok(()),
        }
    }

    async fn read<C: Configuration>(&self) -> Result<Option<C>, WebhookError> {
        let answer = match self.connection.send(Call::get(self.path::<C>())).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer.map_err(|source| WebhookError::Request { action: self.action::<C>("read"), source })?,
        };
        let unreadable = |source| WebhookError::Answer { action: self.action::<C>("read"), source };
        serde_json::from_slice(&answer.body).map(Some).map_err(unreadable)
    }

    async fn apply<C: Configuration>(&self, body: &Value) -> Result<(), WebhookError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&force=true", self.path::<C>());
        let call = Call::with(Method::PATCH, path, "application/apply-patch+yaml", body);
        let failed = |source| WebhookError::Request { action: self.action::<C>("write"), source };
        self.connection.send(call).await.map_err(failed)?;
        tracing::info!(kind = C::KIND, name = self.installation.configuration_name(), "registered the webhooks");
        Ok(())
    }

    fn path<C: Configuration>(&self) -> String {
        let name = self.installation.configuration_name();
        format!("/apis/admissionregistration.k8s.io/v1/{}/{name}", C::RESOURCE)
    }

    fn action<C: Configuration>(&self, verb: &str) -> String {
        format!("{verb} the {} {}", C::KIND, self.installation.configuration_name())
    }
}

/// Only what is ours: the bundle of each of our webhooks that is there. Nothing if all have it. With the UID, so that
/// nothing is created in the place of what was deleted meanwhile.
fn bundle_patch<C: Configuration>(live: &C, bundle: &[u8]) -> Option<Value> {
    let ours: Vec<_> = endpoints().map(Endpoint::name).collect();
    let bundle = ByteString(bundle.to_vec());
    let found: BTreeMap<_, _> = live.clients().into_iter().filter(|(name, _)| ours.contains(name)).collect();
    if found.values().all(|client| client.ca_bundle.as_ref() == Some(&bundle)) {
        return None;
    }
    let webhooks: Vec<_> =
        found.keys().map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}})).collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": C::KIND,
        "metadata": {"name": live.metadata().name, "uid": live.metadata().uid},
        "webhooks": webhooks,
    }))
}

/// What both kinds have in common.
trait Configuration: Serialize + DeserializeOwned + Clone {
    const KIND: &'static str;
    const RESOURCE: &'static str;
    type Webhooks: PartialEq;

    fn metadata(&self) -> &ObjectMeta;
    /// Name and client of each webhook.
    fn clients(&self) -> Vec<(String, &WebhookClientConfig)>;
    /// The webhooks, without what the API server fills in.
    fn comparable(&self) -> Self::Webhooks;

    fn to_value(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }
}

macro_rules! configuration {
    ($type:ident, $webhook:ident, $resource:literal) => {
        impl Configuration for $type {
            const KIND: &'static str = stringify!($type);
            const RESOURCE: &'static str = $resource;
            type Webhooks = Vec<k8s_openapi::api::admissionregistration::v1::$webhook>;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn clients(&self) -> Vec<(String, &WebhookClientConfig)> {
                let webhooks = self.webhooks.iter().flatten();
                webhooks.map(|webhook| (webhook.name.clone(), &webhook.client_config)).collect()
            }

            fn comparable(&self) -> Self::Webhooks {
                let mut webhooks = self.webhooks.clone().unwrap_or_default();
                for webhook in &mut webhooks {
                    for selector in [&mut webhook.namespace_selector, &mut webhook.object_selector] {
                        selector.take_if(|selector| *selector == LabelSelector::default());
                    }
                }
                webhooks
            }
        }
    };
}

configuration!(MutatingWebhookConfiguration, MutatingWebhook, "mutatingwebhookconfigurations");
configuration!(ValidatingWebhookConfiguration, ValidatingWebhook, "validatingwebhookconfigurations");
