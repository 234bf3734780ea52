//! Registers the webhooks at the API server.

use http::Method;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::{ByteString, Resource};
use nodewright_runtime::request::{Call, Connection};
use serde::Serialize;
use serde_json::{Value, json};

use crate::configurations::{ClientConfig, Endpoint, configuration_name, configurations, endpoints};
use crate::error::RoundError;

/// The field manager of the webhook configurations.
pub const FIELD_MANAGER: &str = "nodewright-webhook";

/// The part of the webhook configurations that the server writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The `caBundle` of each webhook. The user applies the rest from `config/webhook`.
    Bundle,
    /// Both configurations as a whole, for an API server that reaches the webhooks at this host and the server's port, without
    /// a Service.
    Whole {
        /// A name or an address, an IPv6 address in brackets. The certificate must be valid for it.
        host: String,
    },
    /// Nothing: another program does it, such as cert-manager.
    None,
}

/// Keeps the webhook configurations as they should be, by server-side apply.
#[derive(Clone, Debug)]
pub(crate) struct Registrar {
    pub(crate) connection: Connection,
    pub(crate) registration: Registration,
    pub(crate) namespace: String,
    pub(crate) port: u16,
}

impl Registrar {
    /// Makes the API server call the webhooks and trust `bundle`.
    pub(crate) async fn ensure(&self, bundle: Option<&[u8]>) -> Result<(), RoundError> {
        if self.registration == Registration::None {
            return Ok(());
        }
        let bundle = bundle.ok_or(RoundError::NoAuthority)?;
        let Registration::Whole { host } = &self.registration else {
            self.ensure_bundle::<MutatingWebhookConfiguration>(bundle).await?;
            return self.ensure_bundle::<ValidatingWebhookConfiguration>(bundle).await;
        };
        let client = ClientConfig::Url(format!("https://{host}:{}", self.port));
        let wanted = configurations(&self.namespace, &client, Some(bundle));
        self.ensure_whole(&wanted.mutating).await?;
        self.ensure_whole(&wanted.validating).await
    }

    async fn ensure_whole<K: Resource + Serialize>(&self, wanted: &K) -> Result<(), RoundError> {
        let unwritable = |source| RoundError::Response { action: self.action::<K>("write"), source };
        let wanted = serde_json::to_value(wanted).map_err(unwritable)?;
        let live = self.read::<K>().await?;
        let is_registered = live.is_some_and(|live| covers(&live["webhooks"], &wanted["webhooks"]));
        if is_registered { Ok(()) } else { self.apply::<K>(&wanted).await }
    }

    async fn ensure_bundle<K: Resource>(&self, bundle: &[u8]) -> Result<(), RoundError> {
        let name = configuration_name(&self.namespace);
        let live = self.read::<K>().await?.ok_or(RoundError::NotRegistered { kind: K::KIND, name })?;
        match bundle_patch::<K>(&live, bundle) {
            Some(patch) => self.apply::<K>(&patch).await,
            None => Ok(()),
        }
    }

    async fn read<K: Resource>(&self) -> Result<Option<Value>, RoundError> {
        let answer = match self.connection.send(Call::get(self.path::<K>())).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer.map_err(|source| RoundError::Request { action: self.action::<K>("read"), source })?,
        };
        let unreadable = |source| RoundError::Response { action: self.action::<K>("read"), source };
        serde_json::from_slice(answer.body()).map(Some).map_err(unreadable)
    }

    async fn apply<K: Resource>(&self, body: &Value) -> Result<(), RoundError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&force=true", self.path::<K>());
        let call = Call::with(Method::PATCH, path, "application/apply-patch+yaml", body);
        let failed = |source| RoundError::Request { action: self.action::<K>("write"), source };
        self.connection.send(call).await.map_err(failed)?;
        tracing::info!(kind = K::KIND, name = configuration_name(&self.namespace), "registered the webhooks");
        Ok(())
    }

    fn path<K: Resource>(&self) -> String {
        format!("/apis/{}/{}/{}", K::API_VERSION, K::URL_PATH_SEGMENT, configuration_name(&self.namespace))
    }

    fn action<K: Resource>(&self, verb: &str) -> String {
        format!("{verb} the {} {}", K::KIND, configuration_name(&self.namespace))
    }
}

/// Whether `live` has all of `wanted`. It may have more fields, which the API server sets by default.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| live.get(name).is_some_and(|live| covers(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        _ => live == wanted,
    }
}

/// An apply of the bundle to each of our webhooks in a configuration. `None` if all have it. The UID prevents the apply from
/// creating a configuration that was deleted.
fn bundle_patch<K: Resource>(live: &Value, bundle: &[u8]) -> Option<Value> {
    let bundle = json!(ByteString(bundle.to_vec()));
    let ours: Vec<_> = endpoints().map(Endpoint::name).collect();
    let is_ours = |webhook: &&Value| webhook["name"].as_str().is_some_and(|name| ours.iter().any(|ours| ours == name));
    let mut found: Vec<_> = live["webhooks"].as_array().into_iter().flatten().filter(is_ours).collect();
    if found.iter().all(|webhook| webhook["clientConfig"]["caBundle"] == bundle) {
        return None;
    }
    found.sort_by_key(|webhook| webhook["name"].as_str());
    let apply = |webhook: &Value| json!({"name": webhook["name"], "clientConfig": {"caBundle": bundle}});
    Some(json!({
        "apiVersion": K::API_VERSION,
        "kind": K::KIND,
        "metadata": {"name": live["metadata"]["name"], "uid": live["metadata"]["uid"]},
        "webhooks": found.into_iter().map(apply).collect::<Vec<_>>(),
    }))
}
