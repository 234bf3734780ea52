//! Registers the webhooks at the API server.

use http::Method;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::{ByteString, Resource};
use nodewright_api::machine_config::{DISCOVERY_PATH, missing_kinds};
use nodewright_runtime::json;
use nodewright_runtime::request::{Call, Connection};
use serde::Serialize;
use serde_json::{Value, json};

use crate::configurations::{
    ClientConfig, Endpoint, configuration_name, configurations, endpoints, machine_config_configuration,
    machine_config_name,
};
use crate::error::RoundError;

/// The field manager of the webhook configurations.
pub const FIELD_MANAGER: &str = "nodewright-webhook";

/// The part of the webhook configurations that the server writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The `caBundle` of each webhook. The user applies the rest from `config/webhook`, and, for node configuration, from
    /// `config/webhook/machine-config`.
    Bundle,
    /// The configurations as a whole, that of node configuration where the kinds are served, for an API server that reaches the
    /// webhooks at this host and the server's port, without a Service.
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
    /// Makes the API server call the webhooks of machines and trust `bundle`.
    pub(crate) async fn ensure(&self, bundle: Option<&[u8]>) -> Result<(), RoundError> {
        let Some(bundle) = self.bundle(bundle)? else { return Ok(()) };
        let name = configuration_name(&self.namespace);
        let Some(client) = self.client() else {
            self.ensure_bundle::<MutatingWebhookConfiguration>(&name, bundle).await?;
            return self.ensure_bundle::<ValidatingWebhookConfiguration>(&name, bundle).await;
        };
        let wanted = configurations(&self.namespace, &client, Some(bundle));
        self.ensure_whole(&name, &wanted.mutating).await?;
        self.ensure_whole(&name, &wanted.validating).await
    }

    /// The same for those of node configuration, which a cluster may not have.
    pub(crate) async fn ensure_machine_config(&self, bundle: Option<&[u8]>) -> Result<(), RoundError> {
        let Some(bundle) = self.bundle(bundle)? else { return Ok(()) };
        let name = machine_config_name(&self.namespace);
        let Some(client) = self.client() else {
            let ensured = self.ensure_bundle::<ValidatingWebhookConfiguration>(&name, bundle).await;
            return ensured.or_else(|error| if error.is_not_registered() { Ok(()) } else { Err(error) });
        };
        if !self.serves_machine_config().await? {
            return Ok(());
        }
        let wanted = machine_config_configuration(&self.namespace, &client, Some(bundle));
        self.ensure_whole(&name, &wanted).await
    }

    /// The authority to trust; `None` if another program registers the webhooks.
    fn bundle<'a>(&self, bundle: Option<&'a [u8]>) -> Result<Option<&'a [u8]>, RoundError> {
        if self.registration == Registration::None { Ok(None) } else { bundle.map(Some).ok_or(RoundError::NoAuthority) }
    }

    /// Where the API server reaches the webhooks, if not at the Service that the user's configurations name.
    fn client(&self) -> Option<ClientConfig> {
        let Registration::Whole { host } = &self.registration else { return None };
        Some(ClientConfig::Url(format!("https://{host}:{}", self.port)))
    }

    /// Whether the cluster serves the kinds of node configuration.
    async fn serves_machine_config(&self) -> Result<bool, RoundError> {
        let action = || format!("read {DISCOVERY_PATH}");
        match self.connection.send(Call::get(DISCOVERY_PATH.to_owned())).await {
            Err(error) if error.is_not_found() => Ok(false),
            Err(source) => Err(RoundError::Request { action: action(), source }),
            Ok(answer) => {
                let unreadable = |source| RoundError::Response { action: action(), source };
                let discovery: Value = json::from_slice(answer.body()).map_err(unreadable)?;
                Ok(missing_kinds(&discovery).is_empty())
            }
        }
    }

    async fn ensure_whole<K: Resource + Serialize>(&self, name: &str, wanted: &K) -> Result<(), RoundError> {
        let unwritable = |source| RoundError::Response { action: action::<K>("write", name), source };
        let wanted = serde_json::to_value(wanted).map_err(unwritable)?;
        let live = self.read::<K>(name).await?;
        let is_registered = live.is_some_and(|live| covers(&live["webhooks"], &wanted["webhooks"]));
        if is_registered { Ok(()) } else { self.apply::<K>(name, &wanted).await }
    }

    async fn ensure_bundle<K: Resource>(&self, name: &str, bundle: &[u8]) -> Result<(), RoundError> {
        let missing = || RoundError::NotRegistered { kind: K::KIND, name: name.to_owned() };
        let live = self.read::<K>(name).await?.ok_or_else(missing)?;
        match bundle_patch::<K>(&live, bundle) {
            Some(patch) => self.apply::<K>(name, &patch).await,
            None => Ok(()),
        }
    }

    async fn read<K: Resource>(&self, name: &str) -> Result<Option<Value>, RoundError> {
        let answer = match self.connection.send(Call::get(path::<K>(name))).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer.map_err(|source| RoundError::Request { action: action::<K>("read", name), source })?,
        };
        let unreadable = |source| RoundError::Response { action: action::<K>("read", name), source };
        json::from_slice(answer.body()).map(Some).map_err(unreadable)
    }

    async fn apply<K: Resource>(&self, name: &str, body: &Value) -> Result<(), RoundError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&force=true", path::<K>(name));
        let call = Call::with(Method::PATCH, path, "application/apply-patch+yaml", body);
        let failed = |source| RoundError::Request { action: action::<K>("write", name), source };
        self.connection.send(call).await.map_err(failed)?;
        tracing::info!(kind = K::KIND, name, "registered the webhooks");
        Ok(())
    }
}

fn path<K: Resource>(name: &str) -> String {
    format!("/apis/{}/{}/{name}", K::API_VERSION, K::URL_PATH_SEGMENT)
}

fn action<K: Resource>(verb: &str, name: &str) -> String {
    format!("{verb} the {} {name}", K::KIND)
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
