//! A kind cluster: a new one, or the one of `KUBECONFIG`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kube::{Api, Client, config::Kubeconfig};
use nodewright_e2e_lab::{
    control_plane::{
        USER_AGENT, client,
        testing::{Failure, TestResult, ensure},
    },
    process::repository,
};
use tempfile::TempDir;

use crate::{
    forward::Forward,
    program::{Program, ProgramError},
};

/// The name of a new cluster.
const NAME: &str = "nodewright-e2e";
/// Where kind's nodes have docker's socket, see `config/kind`.
const SOCKET: &str = "/var/run/docker.sock";
/// How long a wait may take. The Pods of a Node that is off are deleted after five minutes.
const TIMEOUT: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The namespace of Nodewright in `config/default`.
pub(crate) const NAMESPACE: &str = "nodewright-system";

/// A cluster with docker's socket in its control-plane node.
pub(crate) struct Cluster {
    name: String,
    kind: PathBuf,
    kubeconfig: PathBuf,
    client: Client,
    is_new: bool,
    directory: TempDir,
}

impl Cluster {
    /// The cluster of `KUBECONFIG` if that is set, else a new one with this node image.
    pub(crate) async fn open(kind: &Path, node_image: Option<&str>) -> TestResult<Self> {
        let directory = tempfile::Builder::new().prefix("nodewright-kind-").tempdir()?;
        let given = env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        let is_new = given.is_none();
        let kubeconfig = match given {
            Some(kubeconfig) => kubeconfig,
            None => create(kind, node_image, directory.path()).await?,
        };
        let name = cluster_name(&kubeconfig)?;
        let client = client(&kubeconfig, USER_AGENT).await?;
        let cluster = Self { name, kind: kind.to_owned(), kubeconfig, client, is_new, directory };
        cluster.has_socket().await?;
        Ok(cluster)
    }

    async fn has_socket(&self) -> TestResult {
        let node = format!("{}-control-plane", self.name);
        docker(&format!("exec {node} test -S {SOCKET}")).await.map(drop).map_err(|error| {
            Failure::from(error)
                .and(&format!("node {node} needs docker's socket: create the cluster with config/kind/cluster.yaml"))
        })
    }

    /// Deletes the cluster if it is new.
    pub(crate) async fn close(self) -> TestResult {
        if self.is_new {
            delete(&self.kind).await?;
        }
        Ok(())
    }

    /// Leaves a new cluster and its kubeconfig, whose path is returned.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.kubeconfig
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its name for kind.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The API of a kind in Nodewright's namespace.
    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), NAMESPACE)
    }

    /// The image of its nodes.
    pub(crate) async fn node_image(&self) -> TestResult<String> {
        Ok(docker(&format!("inspect --format={{{{.Config.Image}}}} {}-control-plane", self.name)).await?)
    }

    /// Loads the archive of an image into all nodes of kind.
    pub(crate) async fn load(&self, archive: &Path) -> TestResult {
        let load = Program::new(&self.kind).with("load image-archive").arguments([archive]);
        load.with(&format!("--name={}", self.name)).output().await?;
        Ok(())
    }

    /// Runs kubectl with arguments that are separated by single spaces.
    pub(crate) async fn kubectl(&self, arguments: &str) -> Result<String, ProgramError> {
        self.program(arguments).output().await
    }

    /// Applies a manifest in Nodewright's namespace.
    pub(crate) async fn apply(&self, manifest: impl Into<String>) -> Result<String, ProgramError> {
        let apply = format!("apply --namespace={NAMESPACE} --server-side --force-conflicts -f -");
        self.program(&apply).input(manifest).output().await
    }

    /// kubectl with arguments that are separated by single spaces.
    pub(crate) fn program(&self, arguments: &str) -> Program {
        let cache = self.directory.path().join("kubectl-cache");
        Program::new("kubectl")
            .arguments([Path::new("--cache-dir"), &cache])
            .with(arguments)
            .environment("KUBECONFIG", &self.kubeconfig)
    }

    /// A port of this computer that leads to a port of an object.
    pub(crate) async fn forward(&self, object: &str, port: u16) -> TestResult<Forward> {
        let mut kubectl = tokio::process::Command::new("kubectl");
        let namespace = format!("--namespace={NAMESPACE}");
        kubectl.args(["port-forward", "--address=127.0.0.1", &namespace, object, &format!(":{port}")]);
        Forward::start(kubectl.env("KUBECONFIG", &self.kubeconfig)).await
    }

    /// Waits until a check succeeds, and returns what it found. `what` completes "failed to see …".
    pub(crate) async fn wait_for<T>(
        &self,
        what: &str,
        mut check: impl AsyncFnMut() -> TestResult<Option<T>>,
    ) -> TestResult<T> {
        let since = Instant::now();
        loop {
            if let Some(found) = check().await? {
                return Ok(found);
            }
            if since.elapsed() > TIMEOUT {
                let failure = Failure::new(format!("failed to see {what} within {TIMEOUT:?}"));
                return Err(failure.and(&self.diagnosis().await));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// What there is, for a failure.
    async fn diagnosis(&self) -> String {
        let mut text = String::new();
        for arguments in [
            "get nodes -o wide".to_owned(),
            "get pods --all-namespaces -o wide".to_owned(),
            format!("get mcd,mcs,mc,mcc --namespace={NAMESPACE}"),
            format!("get events --namespace={NAMESPACE} --sort-by=.lastTimestamp"),
            format!("logs --namespace={NAMESPACE} --selector=app.kubernetes.io/name=nodewright --prefix --tail=15"),
        ] {
            let output = self.kubectl(&arguments).await.unwrap_or_else(|error| error.to_string());
            text.extend(["\n$ kubectl ", &arguments, "\n", &output, "\n"]);
        }
        text
    }
}

/// Runs docker with arguments that are separated by single spaces.
pub(crate) async fn docker(arguments: &str) -> Result<String, ProgramError> {
    Program::new("docker").with(arguments).output().await
}

/// The path of docker's socket for this process.
pub(crate) fn docker_socket() -> TestResult<PathBuf> {
    let host = env::var("DOCKER_HOST").unwrap_or_else(|_| format!("unix://{SOCKET}"));
    let path = host.strip_prefix("unix://").map(PathBuf::from);
    path.ok_or_else(|| Failure::new(format!("DOCKER_HOST is {host:?}: nodes need a Unix socket, unix:///...")))
}

/// A new cluster; returns its kubeconfig. One of an earlier run that was killed is deleted first.
async fn create(kind: &Path, node_image: Option<&str>, directory: &Path) -> TestResult<PathBuf> {
    delete(kind).await?;
    let config = fs::read_to_string(repository().join("config/kind/cluster.yaml"))?;
    let mounted = format!("hostPath: {SOCKET}");
    ensure(config.contains(&mounted), || format!("config/kind/cluster.yaml has no {mounted:?}"))?;
    let config = config.replace(&mounted, &format!("hostPath: {}", docker_socket()?.display()));
    let kubeconfig = directory.join("kubeconfig");
    let mut create = Program::new(kind).with("create cluster --config=- --wait=3m").with(&format!("--name={NAME}"));
    if let Some(image) = node_image {
        create = create.with(&format!("--image={image}"));
    }
    create.arguments([Path::new("--kubeconfig"), &kubeconfig]).input(config).output().await?;
    Ok(kubeconfig)
}

/// Deletes the cluster of this name, and the containers of its machines, which kind does not know.
async fn delete(kind: &Path) -> TestResult {
    Program::new(kind).with(&format!("delete cluster --name={NAME}")).output().await?;
    let machines = docker(&format!("ps --all --quiet --filter=label=nodewright.dev/cluster={NAME}")).await?;
    if !machines.is_empty() {
        Program::new("docker").with("rm --force --volumes").arguments(machines.lines()).output().await?;
    }
    Ok(())
}

/// kind names the context of a cluster after it.
fn cluster_name(kubeconfig: &Path) -> TestResult<String> {
    let context = Kubeconfig::read_from(kubeconfig)?.current_context.unwrap_or_default();
    let name = context.strip_prefix("kind-").map(str::to_owned);
    name.ok_or_else(|| {
        Failure::new(format!("{} is not of a kind cluster: its context is {context:?}", kubeconfig.display()))
    })
}
