//! The clusters that tests run on: local control planes, or the cluster of a kubeconfig.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::{Api, Client, api::DynamicObject};
use tokio::sync::{Mutex, OnceCell};

use super::{TestResult, crds, on_shared_runtime};
use crate::control_plane::{ControlPlane, ControlPlaneOptions, Kinds, USER_AGENT, apply_file, binaries, client};

/// The kubeconfig of an external cluster, on which tests run instead of a local control plane.
pub const EXTERNAL_VARIABLE: &str = "NODEWRIGHT_E2E_KUBECONFIG";
/// `external`: tests run on the cluster of `KUBECONFIG`.
const MODE_VARIABLE: &str = "NODEWRIGHT_E2E";
/// Seconds that a wait may take.
const TIMEOUT_VARIABLE: &str = "NODEWRIGHT_E2E_TIMEOUT";
/// How long a node may be silent until it counts as unhealthy, in [`Cluster::options`].
const NODE_GRACE: Duration = Duration::from_secs(10);

/// A cluster for tests.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    control_plane: Option<ControlPlane>,
    kinds: Mutex<Kinds>,
}

impl Cluster {
    /// The cluster that most tests of a process share: the external one if there is one, else a local control plane.
    /// Installs the CRDs.
    pub async fn shared() -> TestResult<Arc<Self>> {
        static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let cluster = SHARED.get_or_try_init(|| {
            on_shared_runtime(async {
                match external_kubeconfig() {
                    Some(kubeconfig) => Self::external(kubeconfig).await,
                    None => Self::start(Self::options(), true).await,
                }
            })
        });
        cluster.await.cloned()
    }

    /// A local control plane that the tests of a process share. The first caller starts it and keeps it in `cell`.
    pub async fn start_shared(
        cell: &'static OnceCell<Arc<Self>>,
        options: ControlPlaneOptions,
        with_crds: bool,
    ) -> TestResult<Arc<Self>> {
        cell.get_or_try_init(|| on_shared_runtime(Self::start(options, with_crds))).await.cloned()
    }

    /// A local control plane, which ends when this is dropped.
    pub async fn start(options: ControlPlaneOptions, with_crds: bool) -> TestResult<Arc<Self>> {
        let control_plane = ControlPlane::start(options).await?;
        if with_crds {
            control_plane.apply_file(crds().await?).await?;
        }
        let (kubeconfig, kubectl) = (control_plane.kubeconfig_path(), control_plane.binaries().join("kubectl"));
        Ok(Arc::new(Self { kubeconfig, kubectl, control_plane: Some(control_plane), kinds: Mutex::default() }))
    }

    /// Options of a control plane that notices silent nodes soon.
    pub fn options() -> ControlPlaneOptions {
        ControlPlaneOptions {
            node_monitor_grace_period: Some(NODE_GRACE),
            controller_manager_flags: vec!["--node-monitor-period=1s".to_owned()],
            ..ControlPlaneOptions::default()
        }
    }

    async fn external(kubeconfig: PathBuf) -> TestResult<Arc<Self>> {
        let client = client(&kubeconfig, USER_AGENT).await?;
        apply_file(&client, &crds().await?).await?;
        // An installed kubectl saves the build of ours, which takes minutes.
        let kubectl = match in_path("kubectl") {
            Some(kubectl) => kubectl,
            None => binaries().await?.join("kubectl"),
        };
        Ok(Arc::new(Self { kubeconfig, kubectl, control_plane: None, kinds: Mutex::default() }))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The path of kubectl.
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// The control plane. `None` on an external cluster.
    pub fn control_plane(&self) -> Option<&ControlPlane> {
        self.control_plane.as_ref()
    }

    /// A new client of the administrator, which does not retry. A client ends with the runtime that it was made on, and
    /// each test has its own runtime.
    pub async fn client(&self) -> TestResult<Client> {
        Ok(client(&self.kubeconfig, USER_AGENT).await?)
    }

    /// The API of an object; see [`Kinds::api_of`].
    pub async fn api_of(
        &self,
        client: &Client,
        object: &DynamicObject,
        namespace: &str,
    ) -> TestResult<Api<DynamicObject>> {
        Ok(self.kinds.lock().await.api_of(client, object, namespace).await?)
    }

    /// How long a wait may take. It ends what hangs, and is no measure: thirty nodes that move in turn beside three other tests need more
    /// than two minutes on a slow computer.
    pub fn timeout(&self) -> Duration {
        let chosen = env::var(TIMEOUT_VARIABLE).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
        chosen.unwrap_or(Duration::from_mins(5))
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

fn external_kubeconfig() -> Option<PathBuf> {
    let named = env::var_os(EXTERNAL_VARIABLE).filter(|path| !path.is_empty());
    let usual = || {
        let is_external = env::var(MODE_VARIABLE).is_ok_and(|mode| mode == "external");
        env::var_os("KUBECONFIG").filter(|_| is_external)
    };
    named.or_else(usual).map(PathBuf::from)
}

/// Whether tests run on an external cluster. If so, prints that the test is skipped, and `why`: its control plane cannot be
/// broken, its audit log cannot be read, and it may not reach webhooks on this computer.
pub fn skip_on_external_cluster(test: &str, why: &str) -> bool {
    let skipped = external_kubeconfig().is_some();
    if skipped {
        eprintln!("{test}: skipped, because on an external cluster {why}");
    }
    skipped
}
