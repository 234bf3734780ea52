//! Registers the webhooks at the API server.

use http::Method;
use k8s_openapi::ByteString;
use nodewright_runtime::request::{Call, Connection};
use serde_json::{Value, json};

use crate::WebhookError;
use crate::configurations::{ClientConfig, Endpoint, Installation, configurations, endpoints};

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
    pub(crate) installation: Installation,
    /// The server's port.
    pub(crate) port: u16,
}

/// A kind of webhook configuration.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    resource: &'static str,
}

const MUTATING: Kind = Kind { name: "MutatingWebhookConfiguration", resource: "mutatingwebhookconfigurations" };
const VALIDATING: Kind = Kind { name: "ValidatingWebhookConfiguration", resource: "validatingwebhookconfigurations" };

impl Registrar {
    /// Makes the API server call the webhooks and trust `bundle`.
    pub(crate) async fn ensure(&self, bundle: Option<&[u8]>) -> Result<(), WebhookError> {
        if self.registration == Registration::None {
            return Ok(());
        }
        let bundle = bundle.ok_or(WebhookError::NoAuthority)?;
        let Registration::Whole { host } = &self.registration else {
            self.ensure_bundle(MUTATING, bundle).await?;
            return self.ensure_bundle(VALIDATING, bundle).await;
        };
        let client = ClientConfig::Url { base: format!("https://{host}:{}", self.port) };
        let wanted = configurations(&self.installation, &client, Some(bundle));
        self.ensure_whole(MUTATING, serde_json::to_value(wanted.mutating)).await?;
        self.ensure_whole(VALIDATING, serde_json::to_value(wanted.validating)).await
    }

    async fn ensure_whole(&self, kind: Kind, wanted: serde_json::Result<Value>) -> Result<(), WebhookError> {
        let wanted = wanted.map_err(|source| WebhookError::Answer { action: self.action("write", kind), source })?;
        let live = self.read(kind).await?;
        let is_registered = live.is_some_and(|live| covers(&live["webhooks"], &wanted["webhooks"]));
        if is_registered { Ok(()) } else { self.apply(kind, &wanted).await }
    }

    async fn ensure_bundle(&self, kind: Kind, bundle: &[u8]) -> Result<(), WebhookError> {
        let name = self.installation.configuration_name();
        let missing = || WebhookError::NotRegistered { kind: kind.name, name };
        let live = self.read(kind).await?.ok_or_else(missing)?;
        match bundle_patch(kind, &live, bundle) {
            Some(patch) => self.apply(kind, &patch).await,
            None => Ok(()),
        }
    }

    async fn read(&self, kind: Kind) -> Result<Option<Value>, WebhookError> {
        let answer = match self.connection.send(Call::get(self.path(kind))).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer.map_err(|source| WebhookError::Request { action: self.action("read", kind), source })?,
        };
        let unreadable = |source| WebhookError::Answer { action: self.action("read", kind), source };
        serde_json::from_slice(&answer.body).map(Some).map_err(unreadable)
    }

    async fn apply(&self, kind: Kind, body: &Value) -> Result<(), WebhookError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&force=true", self.path(kind));
        let call = Call::with(Method::PATCH, path, "application/apply-patch+yaml", body);
        let failed = |source| WebhookError::Request { action: self.action("write", kind), source };
        self.connection.send(call).await.map_err(failed)?;
        tracing::info!(kind = kind.name, name = self.installation.configuration_name(), "registered the webhooks");
        Ok(())
    }

    fn path(&self, kind: Kind) -> String {
        let name = self.installation.configuration_name();
        format!("/apis/admissionregistration.k8s.io/v1/{}/{name}", kind.resource)
    }

    fn action(&self, verb: &str, kind: Kind) -> String {
        format!("{verb} the {} {}", kind.name, self.installation.configuration_name())
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
fn bundle_patch(kind: Kind, live: &Value, bundle: &[u8]) -> Option<Value> {
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
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind.name,
        "metadata": {"name": live["metadata"]["name"], "uid": live["metadata"]["uid"]},
        "webhooks": found.into_iter().map(apply).collect::<Vec<_>>(),
    }))
}
