//! The clusters that scenarios run on.

use std::{
    env,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachineSet};
use tokio::{runtime::Runtime, sync::OnceCell, time::Instant};

use super::{Failure, TestResult, kubectl::Kubectl};
use crate::plane::{self, Plane, PlaneOptions, USER_AGENT, binaries, machine_controller_manager_crds};

/// The kubeconfig of a cluster to run on, in place of a control plane of our own.
pub const EXTERNAL_VARIABLE: &str = "NODEWRIGHT_E2E_KUBECONFIG";
/// `external`: run on the cluster of `KUBECONFIG`.
const MODE_VARIABLE: &str = "NODEWRIGHT_E2E";
/// `mcm`: machine-controller-manager's CRDs in place of ours.
pub const CRDS_VARIABLE: &str = "NODEWRIGHT_E2E_CRDS";

/// How long, in seconds, a wait may take before it is in vain.
const PATIENCE_VARIABLE: &str = "NODEWRIGHT_E2E_PATIENCE";
/// How long the API server may take to serve new kinds.
const CRDS_TIMEOUT: Duration = Duration::from_secs(30);
/// After how long without a beat a node is called dead: kubelets beat every [`LEASE_SECONDS`].
const NODE_GRACE: Duration = Duration::from_secs(10);
/// Between two beats of a kubelet, in seconds.
pub(super) const LEASE_SECONDS: u32 = 2;

/// A cluster with the CRDs installed, or without.
#[derive(Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    plane: Option<Plane>,
}

impl Cluster {
    /// The cluster that most scenarios share.
    pub async fn shared() -> TestResult<Arc<Self>> {
        static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let cluster = SHARED.get_or_try_init(|| {
            on_own_runtime(async {
                match external() {
                    Some(kubeconfig) => Self::external(kubeconfig).await,
                    None => Self::with_plane(options(), true).await,
                }
            })
        });
        cluster.await.cloned()
    }

    /// A second control plane, without CRDs and with nothing but an API server: a target for nodes.
    pub async fn bare() -> TestResult<Arc<Self>> {
        static BARE: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let options = PlaneOptions { controller_manager: false, scheduler: false, ..options() };
        BARE.get_or_try_init(|| on_own_runtime(Self::with_plane(options, false))).await.cloned()
    }

    /// A control plane for scenarios with webhooks: their registration counts for the whole cluster.
    pub async fn webhooked() -> TestResult<Arc<Self>> {
        static WEBHOOKED: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let options = PlaneOptions { scheduler: false, ..options() };
        WEBHOOKED.get_or_try_init(|| on_own_runtime(Self::with_plane(options, true))).await.cloned()
    }

    /// An API server that is compared with another: without controllers, and without what admission would change.
    pub async fn for_conformance() -> TestResult<Arc<Self>> {
        static CONFORMANCE: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let options = PlaneOptions { controller_manager: false, ..conformance_options() };
        CONFORMANCE.get_or_try_init(|| on_own_runtime(Self::with_plane(options, true))).await.cloned()
    }

    /// The same with those controllers that are compared as well.
    pub async fn for_conformance_of_controllers() -> TestResult<Arc<Self>> {
        static CONTROLLERS: OnceCell<Arc<Cluster>> = OnceCell::const_new();
        let controllers = ["garbage-collector-controller", "namespace-controller", "disruption-controller"];
        let options = PlaneOptions { controllers: controllers.map(str::to_owned).into(), ..conformance_options() };
        CONTROLLERS.get_or_try_init(|| on_own_runtime(Self::with_plane(options, true))).await.cloned()
    }

    /// A control plane for one scenario alone, which may do to it what it wants. It ends when this is dropped, and has
    /// no controller manager, which would end when the API server does.
    pub async fn own() -> TestResult<Arc<Self>> {
        Self::with_plane(PlaneOptions { controller_manager: false, scheduler: false, ..options() }, true).await
    }

    async fn with_plane(options: PlaneOptions, with_crds: bool) -> TestResult<Arc<Self>> {
        let plane = Plane::start(options).await?;
        if with_crds {
            install_crds(&plane.client()).await?;
        }
        let (kubeconfig, kubectl) = (plane.kubeconfig_path(), plane.binaries().join("kubectl"));
        Ok(Arc::new(Self { kubeconfig, kubectl, plane: Some(plane) }))
    }

    async fn external(kubeconfig: PathBuf) -> TestResult<Arc<Self>> {
        let client = plane::client(&kubeconfig, USER_AGENT).await?;
        install_crds(&client).await?;
        // Ours would have to be built first, which takes minutes.
        let kubectl = match in_path("kubectl") {
            Some(kubectl) => kubectl,
            None => binaries().await?.join("kubectl"),
        };
        Ok(Arc::new(Self { kubeconfig, kubectl, plane: None }))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The control plane, if it is one of ours.
    pub fn plane(&self) -> Option<&Plane> {
        self.plane.as_ref()
    }

    /// The administrator's client, which retries nothing. A new one: a client ends with the runtime that made it, and
    /// each test has its own.
    pub async fn client(&self) -> TestResult<Client> {
        Ok(plane::client(&self.kubeconfig, USER_AGENT).await?)
    }

    /// How long anything may take that a busy machine may delay. Clusters of others take their time to miss a node.
    pub(super) fn patience(&self) -> Duration {
        let chosen = env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs);
        chosen.unwrap_or(if self.plane.is_some() { Duration::from_mins(2) } else { Duration::from_mins(5) })
    }

    pub(super) fn kubectl(&self, directory: &Path) -> Kubectl {
        Kubectl {
            program: self.kubectl.clone(),
            kubeconfig: self.kubeconfig.clone(),
            cache: directory.join("kubectl-cache"),
        }
    }
}

/// Applies the CRDs and waits until each kind can be listed: at first the API server says that its storage is being
/// made ready.
async fn install_crds(client: &Client) -> TestResult {
    plane::apply_file(client, &crds().await?).await?;
    let kinds = [
        ApiResource::erase::<MachineDeployment>(&()),
        ApiResource::erase::<MachineSet>(&()),
        ApiResource::erase::<Machine>(&()),
        ApiResource::erase::<MachineClass>(&()),
    ];
    for kind in kinds {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let since = Instant::now();
        while let Err(error) = api.list(&ListParams::default().limit(1)).await {
            let passes = matches!(&error, kube::Error::Api(status) if status.code == 429);
            if !passes || since.elapsed() > CRDS_TIMEOUT {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

fn conformance_options() -> PlaneOptions {
    let plugins = "--disable-admission-plugins=DefaultTolerationSeconds,Priority,ServiceAccount,TaintNodesByCondition";
    PlaneOptions { scheduler: false, api_server_flags: vec![plugins.to_owned()], ..PlaneOptions::default() }
}

fn options() -> PlaneOptions {
    PlaneOptions {
        node_monitor_grace_period: Some(NODE_GRACE),
        controller_manager_flags: vec!["--node-monitor-period=1s".to_owned()],
        ..PlaneOptions::default()
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The kubeconfig of the cluster to run on, if it is not to be ours.
fn external() -> Option<PathBuf> {
    let named = env::var_os(EXTERNAL_VARIABLE).filter(|path| !path.is_empty());
    let usual = || {
        let wanted = env::var(MODE_VARIABLE).is_ok_and(|mode| mode == "external");
        env::var_os("KUBECONFIG").filter(|_| wanted)
    };
    named.or_else(usual).map(PathBuf::from)
}

/// Whether machine-controller-manager's CRDs are in place of ours.
pub fn has_foreign_crds() -> bool {
    env::var(CRDS_VARIABLE).is_ok_and(|choice| choice == "mcm")
}

/// The directory of the CRDs to install.
pub async fn crds() -> TestResult<PathBuf> {
    match env::var(CRDS_VARIABLE).as_deref() {
        Ok("mcm") => Ok(machine_controller_manager_crds().await?),
        Ok("nodewright" | "") | Err(_) => Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/crd/bases")),
        Ok(other) => Err(Failure::new(format!("{CRDS_VARIABLE} is {other:?}; it must be nodewright or mcm"))),
    }
}

/// True, with a word on standard error, where the cluster is not ours: then nothing can be done to its control plane,
/// its audit log is not at hand, and it may not reach this machine.
pub fn skip_without_plane(scenario: &str, why: &str) -> bool {
    let skipped = external().is_some();
    if skipped {
        eprintln!("{scenario}: skipped, because on a cluster of somebody else {why}");
    }
    skipped
}

/// Runs something on a runtime that lives as long as the process. A control plane is shared by tests with runtimes of
/// their own, and what one of them started would end with it.
async fn on_own_runtime<T: Send + 'static>(
    work: impl Future<Output = TestResult<T>> + Send + 'static,
) -> TestResult<T> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().map_err(|error| error.to_string())
    });
    match runtime {
        Ok(runtime) => runtime.spawn(work).await?,
        Err(error) => Err(Failure::new(format!("failed to make a runtime: {error}"))),
    }
}
