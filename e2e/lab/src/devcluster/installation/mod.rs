//! An installation as in a cluster: manifests of `config/`, rendered by kustomize, and a manager with the rights of its own service
//! account, whose webhooks the API server reaches through their Service.
//!
//! No kubelet runs the Deployment's Pods. The manager is a process on this computer, with a token of the service account, and an
//! `EndpointSlice` makes it the backend of the Service.

pub mod attacks;
pub mod node_account;

use std::{
    fs, io,
    net::UdpSocket,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    cloud::{CloudProcess, CloudProcessOptions},
    control_plane::{ControlPlane, ControlPlaneError, ControlPlaneOptions},
    devcluster::{DevclusterError, ManagerOptions, ManagerProcess, machines::wait_for_running},
    process::{ProcessError, free_ports, repository},
};
use serde_json::json;
use tempfile::TempDir;

/// The namespace of `config/default`.
pub const DEFAULT_INSTALLATION: &str = "nodewright-system";
/// How long machines may take.
const TIMEOUT: Duration = Duration::from_mins(3);
/// The cloud's flags: all operations are fast.
const CLOUD_FLAGS: [&str; 5] = [
    "--boot-seconds=0.2",
    "--ready-seconds=0.2",
    "--delete-seconds=0.3",
    "--create-latency-ms=20",
    "--pod-end-seconds=0.3",
];

/// A control plane and a cloud, for installations.
pub struct Site {
    plane: ControlPlane,
    cloud: CloudProcess,
    directory: TempDir,
}

impl Site {
    /// Starts both, and applies `config/cluster`.
    pub async fn start() -> Result<Self, DevclusterError> {
        let plane = ControlPlane::start(ControlPlaneOptions {
            scheduler: false,
            // The API server calls the endpoints of a Service itself: there is no kube-proxy.
            api_server_flags: vec!["--enable-aggregator-routing=true".to_owned()],
            ..ControlPlaneOptions::default()
        })
        .await?;
        // kustomize takes relative paths alone.
        let target = repository().join("target");
        let directory = fs::create_dir_all(&target)
            .and_then(|()| tempfile::Builder::new().prefix("site-").tempdir_in(&target))
            .map_err(file("create a directory in", &target))?;
        let cloud = CloudProcess::start(CloudProcessOptions {
            kubeconfig: Some(plane.kubeconfig_path()),
            real_nodes: None,
            state: None,
            log: Some(directory.path().join("cloud.log")),
            flags: CLOUD_FLAGS.map(str::to_owned).into(),
        })
        .map_err(|error| DevclusterError::Installation(error.to_string()))?;
        let site = Self { plane, cloud, directory };
        site.apply(&config("cluster"), &[]).await?;
        Ok(site)
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The number of VMs at the cloud that have a cluster's tag.
    pub async fn vms(&self, cluster: &str) -> Result<usize, DevclusterError> {
        let vms = self.cloud.client().vms().await?;
        Ok(vms.iter().filter(|vm| vm.tags.values().any(|tag| tag == cluster)).count())
    }

    /// Deletes the VM of a machine, as somebody else does.
    pub async fn delete_vm(&self, machine: &str) -> Result<(), DevclusterError> {
        let vms = self.cloud.client().vms().await?;
        let vm = vms.iter().find(|vm| vm.name == machine);
        let vm = vm.ok_or_else(|| DevclusterError::Installation(format!("machine {machine} has no VM")))?;
        self.cloud.client().delete(&vm.id).await?;
        Ok(())
    }

    /// Writes an overlay as docs/tasks/install.md says; returns its folder.
    pub fn write_overlay(&self, namespace: &str) -> Result<PathBuf, DevclusterError> {
        self.write_overlay_with(namespace, &[], &[])
    }

    /// The same with folders of `config/` besides `config/default`, and of `config/components`.
    pub fn write_overlay_with(
        &self,
        namespace: &str,
        resources: &[&str],
        components: &[&str],
    ) -> Result<PathBuf, DevclusterError> {
        let folder = self.directory.path().join(namespace);
        write_overlay(&folder, namespace, resources, components)?;
        Ok(folder)
    }

    /// `kubectl apply --server-side -k`.
    pub async fn apply(&self, folder: &Path, more: &[&str]) -> Result<String, ControlPlaneError> {
        let folder = folder.display().to_string();
        let apply = ["apply", "--server-side", "--validate=strict", "-k", folder.as_str()];
        self.plane.kubectl(apply.iter().chain(more)).await
    }

    /// `kubectl delete -k`, without a wait for what has finalizers. The error has what was refused.
    pub async fn delete(&self, folder: &Path) -> Result<String, ControlPlaneError> {
        let folder = folder.display().to_string();
        self.plane.kubectl(["delete", "--wait=false", "-k", folder.as_str()]).await
    }

    /// Applies a folder, and starts a manager under the service account of its namespace.
    pub async fn install(&self, folder: &Path, namespace: &str) -> Result<Installation, DevclusterError> {
        self.install_with(folder, namespace, &[]).await
    }

    /// The same with more flags.
    pub async fn install_with(
        &self,
        folder: &Path,
        namespace: &str,
        flags: &[&str],
    ) -> Result<Installation, DevclusterError> {
        self.apply(folder, &[]).await?;
        let kubeconfig = self.write_kubeconfig(namespace).await?;
        let [webhook_port] = free_ports()?;
        self.serve_webhooks(namespace, webhook_port).await?;
        let options = ManagerOptions {
            name: format!("manager-{namespace}"),
            namespace: namespace.to_owned(),
            ..ManagerOptions::new(kubeconfig, self.cloud.client().url())
        };
        // With these flags, as in the Deployment, the webhooks are registered by Service.
        let options = options.without_webhooks().with_flags([
            "--webhooks=true".to_owned(),
            "--webhook-address=0.0.0.0".to_owned(),
            format!("--webhook-port={webhook_port}"),
            "--provider-short-retry=1s".to_owned(),
        ]);
        let options = options.with_flags(flags.iter().map(|flag| (*flag).to_owned()));
        let manager = ManagerProcess::start_on(&self.plane, options).await?;
        Ok(Installation { namespace: namespace.to_owned(), manager })
    }

    /// A kubeconfig with a token of the service account.
    async fn write_kubeconfig(&self, namespace: &str) -> Result<PathBuf, DevclusterError> {
        let token = self.plane.kubectl(["create", "token", "nodewright", "--duration=1h", "-n", namespace]).await?;
        let authority = self.directory.path().join("ca.crt");
        let path = self.directory.path().join(format!("{namespace}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": self.plane.server(), "certificate-authority": authority}}],
            "users": [{"name": "a", "user": {"token": token.trim()}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        fs::write(&authority, self.plane.authority_certificate())
            .and_then(|()| fs::write(&path, config.to_string()))
            .map_err(file("write", &path))?;
        Ok(path)
    }

    /// A kubeconfig of the service account, for attacks with its rights.
    pub fn kubeconfig(&self, namespace: &str) -> PathBuf {
        self.directory.path().join(format!("{namespace}.kubeconfig"))
    }

    async fn serve_webhooks(&self, namespace: &str, port: u16) -> Result<(), DevclusterError> {
        let address = own_address().map_err(|error| DevclusterError::Installation(format!("no address: {error}")))?;
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "manager", "namespace": namespace, "labels": {
                "kubernetes.io/service-name": "nodewright-webhook", "endpointslice.kubernetes.io/managed-by": "test"}},
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
        });
        self.plane.apply_yaml(&slice.to_string()).await?;
        Ok(())
    }

    /// Applies `config/samples` in a namespace, with the namespace as the cluster's tag, through the webhooks; waits for the machines.
    pub async fn make_machines(&self, namespace: &str, machines: usize) -> Result<(), DevclusterError> {
        let samples = config("samples").display().to_string();
        let text = self.plane.kubectl(["kustomize", samples.as_str()]).await?;
        let text = text.replace("cluster: demo", &format!("cluster: {namespace}"));
        let path = self.directory.path().join(format!("{namespace}-samples.yaml"));
        fs::write(&path, text).map_err(file("write", &path))?;
        let path = path.display().to_string();
        self.plane.kubectl(["apply", "--server-side", "-n", namespace, "-f", path.as_str()]).await?;
        self.scale(namespace, machines).await
    }

    /// Scales the sample, and waits for the machines.
    pub async fn scale(&self, namespace: &str, machines: usize) -> Result<(), DevclusterError> {
        let replicas = format!("--replicas={machines}");
        self.plane.kubectl(["scale", "mcd", "demo-pool", "-n", namespace, replicas.as_str()]).await?;
        wait_for_running(&self.plane.client(), namespace, machines, TIMEOUT).await?;
        Ok(())
    }
}

/// An installation with its manager.
pub struct Installation {
    /// Its namespace.
    pub namespace: String,
    /// Its manager.
    pub manager: ManagerProcess,
}

/// Writes an overlay of `config/default` for a namespace, with other folders of `config/` and components, into a new folder two levels below
/// `target/`: kustomize takes relative paths alone.
pub fn write_overlay(
    folder: &Path,
    namespace: &str,
    resources: &[&str],
    components: &[&str],
) -> Result<(), DevclusterError> {
    let resources: Vec<_> = ["default"].iter().chain(resources).map(|name| format!("../../../config/{name}")).collect();
    let components: Vec<_> = components.iter().map(|name| format!("../../../config/components/{name}")).collect();
    let overlay = format!(
        "namespace: {namespace}\nresources: [{}]\ncomponents: [{}]\ntransformers: [../../../config/another-namespace]\n",
        resources.join(", "),
        components.join(", ")
    );
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(folder.join("kustomization.yaml"), overlay))
        .map_err(file("write", folder))
}

/// A folder of `config/`.
pub fn config(folder: &str) -> PathBuf {
    repository().join("config").join(folder)
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DevclusterError {
    let error = ProcessError::file(action, path);
    move |source| DevclusterError::Process(error(source))
}

/// An address of this computer, other than 127.0.0.1: an `EndpointSlice` may not have that. Nothing is sent.
fn own_address() -> io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("198.51.100.1:9")?;
    Ok(socket.local_addr()?.ip().to_string())
}
