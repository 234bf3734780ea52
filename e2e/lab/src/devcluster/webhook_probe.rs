//! Checks whether the API server calls the webhooks.
//!
//! The API server does so a moment after their configurations are created, and does not report when. Dry-run requests show it.

use std::path::Path;

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use nodewright_api::MachineDeployment;
use serde_json::{Value, json};

use crate::control_plane::{ControlPlaneError, USER_AGENT, client};

const NAME: &str = "nodewright-probe";

/// Checks the webhooks for MachineDeployments.
pub(crate) struct WebhookProbe {
    client: Client,
    namespace: String,
}

impl WebhookProbe {
    pub(crate) async fn new(kubeconfig: &Path, namespace: &str) -> Result<Self, ControlPlaneError> {
        Ok(Self { client: client(kubeconfig, USER_AGENT).await?, namespace: namespace.to_owned() })
    }

    /// The error names the missing part, on one line.
    pub(crate) async fn check(&self) -> Result<(), String> {
        self.mutating().await?;
        self.validating().await
    }

    /// The webhook fills in defaults.
    async fn mutating(&self) -> Result<(), String> {
        match self.create(deployment("probe")).await {
            Ok(stored) if stored.data["spec"]["strategy"]["type"].is_string() => Ok(()),
            Ok(_) => Err("the API server does not call the mutating webhooks yet".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The webhook rejects a selector that does not match the labels of the template.
    async fn validating(&self) -> Result<(), String> {
        match self.create(deployment("another")).await {
            Err(kube::Error::Api(status)) if status.message.contains("admission webhook") => Ok(()),
            Ok(_) => Err("the API server does not call the validating webhooks yet".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn create(&self, deployment: Value) -> kube::Result<DynamicObject> {
        // Untyped: the types would fill in defaults, as the webhook does.
        let kind = kube::api::ApiResource::erase::<MachineDeployment>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let deployment = serde_json::from_value(deployment).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams { dry_run: true, ..PostParams::default() }, &deployment).await
    }
}

fn deployment(selected: &str) -> Value {
    json!({
        "apiVersion": nodewright_api::API_VERSION,
        "kind": "MachineDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"name": selected}},
            "template": {
                "metadata": {"labels": {"name": "probe"}},
                "spec": {"class": {"kind": "MachineClass", "name": "probe"}},
            },
        },
    })
}
