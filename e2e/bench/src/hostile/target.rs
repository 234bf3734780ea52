//! The devcluster that is attacked.

use std::{path::Path, time::Duration};

use http::{Method, Request, StatusCode};
use kube::{Client, Config, client::Body};
use serde_json::Value;

use nodewright_e2e_cloud::CloudClient;
use nodewright_e2e_lab::{
    control_plane::{ControlPlane, ControlPlaneError},
    devcluster::{
        Devcluster, DevclusterOptions, ManagerOptions, ManagerProcess, NAMESPACE, machines::wait_for_running,
    },
};

use crate::{
    error::BenchError,
    usage::{peak_memory, reset_peak_memory},
};

/// The MachineDeployment of `config/samples`, and its replicas.
pub(crate) const DEPLOYMENT: &str = "demo-pool";
pub(crate) const MACHINES: usize = 3;
/// How long machines may take.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(5);
/// The path of the namespaced kinds.
const API: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces";

/// A devcluster with running machines.
pub(crate) struct Target {
    set: Devcluster,
    pid: u32,
}

impl Target {
    pub(crate) async fn start(options: &DevclusterOptions) -> Result<Self, BenchError> {
        let mut set = Devcluster::start(options, |line| eprintln!("{line}")).await?;
        set.apply_samples().await?;
        wait_for_running(&set.client(), NAMESPACE, MACHINES, TIMEOUT).await?;
        let pid = set.manager().pid().ok_or_else(|| BenchError::Failed("the manager has no process id".to_owned()))?;
        Ok(Self { set, pid })
    }

    pub(crate) async fn stop(self) -> Result<(), BenchError> {
        Ok(self.set.stop().await?)
    }

    pub(crate) fn manager(&mut self) -> &mut ManagerProcess {
        self.set.manager()
    }

    pub(crate) fn cloud(&self) -> CloudClient {
        self.set.cloud()
    }

    pub(crate) fn control_plane(&self) -> &ControlPlane {
        self.set.control_plane()
    }

    /// A client of the API server, as administrator.
    pub(crate) fn client(&self) -> Client {
        self.set.client()
    }

    pub(crate) fn log_tail(&mut self) -> String {
        self.manager().log_tail()
    }

    /// The error is lasting harm.
    pub(crate) async fn check(&mut self) -> Result<(), String> {
        if !self.manager().is_running() || self.manager().pid() != Some(self.pid) {
            return Err("the manager has ended".to_owned());
        }
        self.check_health().await?;
        self.wait_for(MACHINES).await
    }

    /// Checks that `/healthz` answers within five seconds.
    pub(crate) async fn check_health(&mut self) -> Result<(), String> {
        match self.manager().answer("/healthz").await {
            Ok((200, _)) => Ok(()),
            Ok((code, text)) => Err(format!("/healthz answered {code}: {text}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until this many machines run.
    pub(crate) async fn wait_for(&self, machines: usize) -> Result<(), String> {
        let running = wait_for_running(&self.set.client(), NAMESPACE, machines, TIMEOUT).await;
        running.map(drop).map_err(|error| error.to_string())
    }

    /// The TCP port of metrics and probes.
    pub(crate) fn port(&mut self) -> u16 {
        self.manager().port()
    }

    pub(crate) fn webhook_port(&mut self) -> Result<u16, String> {
        self.manager().webhook_port().ok_or_else(|| "the manager serves no webhooks".to_owned())
    }

    /// A client of the webhooks, on a connection of its own.
    pub(crate) fn review_client(&mut self) -> Result<Client, String> {
        let url = format!("https://127.0.0.1:{}", self.webhook_port()?);
        let mut config = Config::new(url.parse().map_err(|error| format!("no URL: {error}"))?);
        config.accept_invalid_certs = true;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(20));
        Client::try_from(config).map_err(|error| error.to_string())
    }

    /// Sends a request to the API server as administrator. The path is relative to the namespace, such as `machines/m1`.
    pub(crate) async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, String> {
        self.request_in(NAMESPACE, method, path, body).await
    }

    /// The same in another namespace.
    pub(crate) async fn request_in(
        &self,
        namespace: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("{API}/{namespace}/{path}"))
            .header("content-type", content)
            .body(body.into_bytes())
            .map_err(|error| error.to_string())?;
        self.set.client().request(request).await.map_err(|error| match error {
            kube::Error::Api(status) => status.message,
            error => error.to_string(),
        })
    }

    /// The directory of its files.
    pub(crate) fn directory(&self) -> &Path {
        self.set.control_plane().directory()
    }

    /// Applies objects as administrator, each with its own namespace. Returns what kubectl says.
    pub(crate) async fn apply(&self, objects: &[Value]) -> Result<String, String> {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = tempfile::NamedTempFile::new_in(self.directory()).map_err(|error| error.to_string())?;
        std::fs::write(file.path(), list.to_string()).map_err(|error| error.to_string())?;
        let arguments = ["apply", "--server-side", "--filename"].map(Path::new).into_iter().chain([file.path()]);
        self.set.control_plane().kubectl(arguments).await.map_err(|error| error.to_string())
    }

    /// What kubectl prints in another namespace.
    pub(crate) async fn kubectl_in(&self, namespace: &str, arguments: &[&str]) -> Result<String, String> {
        let of_namespace = ["--namespace", namespace];
        let all = arguments.iter().chain(&of_namespace);
        self.set.control_plane().kubectl(all).await.map_err(|error| error.to_string())
    }

    /// Creates another namespace, with an empty Secret.
    pub(crate) async fn create_neighbour(&self, namespace: &str, secret: &str) -> Result<(), String> {
        let plane = self.set.control_plane();
        let failed = |error: ControlPlaneError| error.to_string();
        plane.kubectl(["create", "namespace", namespace]).await.map_err(failed)?;
        let create = ["create", "secret", "generic", secret, "--from-literal=userData=none", "--namespace", namespace];
        plane.kubectl(create).await.map(drop).map_err(failed)
    }

    /// Starts another manager, which serves another namespace, without webhooks.
    pub(crate) async fn start_manager_in(
        &self,
        namespace: &str,
        environment: Vec<(String, String)>,
    ) -> Result<ManagerProcess, String> {
        let plane = self.set.control_plane();
        let options = ManagerOptions {
            name: namespace.to_owned(),
            namespace: namespace.to_owned(),
            webhooks: false,
            flags: vec!["--provider-short-retry=1s".to_owned()],
            environment,
            ..ManagerOptions::new(plane.kubeconfig_path(), self.set.cloud().url())
        };
        ManagerProcess::start_on(plane, options).await.map_err(|error| error.to_string())
    }

    pub(crate) async fn scale(&self, machines: usize) -> Result<(), String> {
        let replicas = serde_json::json!({"spec": {"replicas": machines}});
        self.request(Method::PATCH, &format!("machinedeployments/{DEPLOYMENT}"), Some(&replicas)).await.map(drop)
    }

    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String, ControlPlaneError> {
        self.set.control_plane().kubectl(arguments.iter().chain(&["--namespace", NAMESPACE])).await
    }

    /// The resident memory of the manager in bytes. Resets its peak.
    pub(crate) fn memory(&self) -> Result<u64, String> {
        let memory = reset_peak_memory(self.pid).and_then(|()| peak_memory(self.pid));
        memory.map_err(|error| error.to_string())
    }

    /// The peak memory of the manager since the last call of [`Self::memory`].
    pub(crate) fn peak(&self) -> Result<u64, String> {
        peak_memory(self.pid).map_err(|error| error.to_string())
    }
}

/// Sends a body to a webhook. Returns the status code of the answer.
pub(crate) async fn review(client: &Client, path: &str, body: Vec<u8>) -> Result<StatusCode, String> {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body));
    let response = client.send(request.map_err(|error| error.to_string())?).await;
    response.map(|response| response.status()).map_err(|error| error.to_string())
}
