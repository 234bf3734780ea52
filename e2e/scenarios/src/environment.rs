//! A scenario's own namespace, cloud and manager.

use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, Client, api::PostParams};
use nodewright_api::Machine;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard, OnceCell, Semaphore, SemaphorePermit};

use crate::{
    Class, Cluster, Failure, History, Pool, Table, TestResult, cleaning, clusters, diagnosis,
    kubectl::{Ended, Kubectl},
    lent_plane::LentPlane,
    metrics,
    objects::{ENVIRONMENT_LABEL, Manifest},
    oracles,
    requests::Tail,
    service_account::{Part, ServiceAccount},
};
use nodewright_e2e_cloud::{CloudClient, Vm};
use nodewright_e2e_lab::{
    cloud::{CloudProcess, CloudProcessOptions},
    control_plane::ControlPlane,
    devcluster::{ManagerOptions, ManagerProcess},
    node::delete_vms,
};

/// The number of concurrent scenarios, whatever the number of test threads: each has three processes. Those whose controllers
/// mostly wait count half.
const AT_ONCE: u32 = 7;
static TURNS: Semaphore = Semaphore::const_new(2 * AT_ONCE as usize);
/// Only one environment at a time has real nodes: they weigh something, and their addresses follow from the numbers of VMs.
static REAL_NODES: Mutex<()> = Mutex::const_new(());

/// The Secret with the user data of real nodes.
const USER_DATA: &str = "user-data";
/// How the kubelets of real nodes differ from the default: they renew their Leases every two seconds, not every ten, because
/// the control plane of scenarios misses a node after ten.
const KUBELET_SETTINGS: [&str; 1] = ["nodeLeaseDurationSeconds: 8"];

/// The interval in seconds in which a kubelet renews its Lease: well below the time after which a node counts as unhealthy.
const LEASE_SECONDS: u32 = 2;
/// The cloud's flags that differ from the defaults: all operations are fast.
const CLOUD_FLAGS: [&str; 6] = [
    "--boot-seconds=0.2",
    "--ready-seconds=0.2",
    "--delete-seconds=0.3",
    "--create-latency-ms=20",
    "--pod-end-seconds=0.3",
    "--never-register-again",
];
/// How often kubectl is run with the same arguments, at most: it takes a quarter of a second of CPU.
const KUBECTL_PERIOD: Duration = Duration::from_millis(500);
/// The manager's flags that differ from the defaults.
const MANAGER_FLAGS: [&str; 2] = ["--evict-retry=1s", "--provider-short-retry=1s"];

/// Waits for the turn of a scenario, which ends when the permit is dropped. An [`Environment`] has its own.
pub async fn turn(mostly_waits: bool) -> TestResult<SemaphorePermit<'static>> {
    Ok(TURNS.acquire_many(if mostly_waits { 1 } else { 2 }).await?)
}

/// The environment of a scenario. Dropping it ends its processes; [`Environment::end`] also checks and cleans up.
pub struct Environment {
    namespace: String,
    cluster: Arc<Cluster>,
    target: Arc<Cluster>,
    client: Client,
    target_client: Client,
    cloud: CloudClient,
    // Those of the manager: in the cluster of the custom resources, and in that of the nodes if it is another one.
    accounts: Vec<ServiceAccount>,
    // Made when it is asked for first.
    plugin_user: OnceCell<ServiceAccount>,
    // When kubectl was last run with these arguments.
    asked: Mutex<HashMap<String, Instant>>,
    manager: Mutex<Option<ManagerProcess>>,
    // Declared after the manager, so that it is dropped later: the manager must not see its cloud disappear.
    cloud_process: Mutex<CloudProcess>,
    machines: History<Machine>,
    nodes: History<Node>,
    pub(crate) tail: Option<Mutex<Tail>>,
    directory: Option<TempDir>,
    // The control plane may be unreachable for a while, so the recorded history may be incomplete.
    pub(crate) has_gaps: bool,
    since: Instant,
    has_real_nodes: bool,
    pub(crate) has_webhooks: bool,
    _real_nodes: Option<MutexGuard<'static, ()>>,
    // Put back if the scenario succeeds.
    plane: Option<LentPlane>,
    // Last: what the scenario has used is free for the next one.
    turn: Option<SemaphorePermit<'static>>,
}

/// The settings of an environment.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one method, and any of them go together")]
pub struct EnvironmentBuilder {
    name: String,
    cloud_flags: Vec<String>,
    manager_flags: Vec<String>,
    manager: bool,
    kubelets: bool,
    webhooks: bool,
    apart: bool,
    alone: bool,
    garbage_collector: bool,
    node_configuration: bool,
    real_nodes: bool,
    mostly_waits: bool,
    cluster: Option<Arc<Cluster>>,
    target: Option<Arc<Cluster>>,
}

impl EnvironmentBuilder {
    /// Adds flags of the cloud; they override the defaults.
    #[must_use]
    pub fn cloud_flags<const N: usize>(mut self, flags: [&str; N]) -> Self {
        self.cloud_flags.extend(flags.map(str::to_owned));
        self
    }

    /// Adds flags of the manager; they override the defaults.
    #[must_use]
    pub fn manager_flags<const N: usize>(mut self, flags: [&str; N]) -> Self {
        self.manager_flags.extend(flags.map(str::to_owned));
        self
    }

    /// Starts no manager.
    #[must_use]
    pub fn without_manager(self) -> Self {
        Self { manager: false, ..self }
    }

    /// Runs no kubelets in VMs.
    #[must_use]
    pub fn without_kubelets(self) -> Self {
        Self { kubelets: false, ..self }
    }

    /// Enables webhooks, which the API server calls for objects of the namespace alone.
    #[must_use]
    pub fn with_webhooks(self) -> Self {
        Self { webhooks: true, ..self }
    }

    /// Makes VMs real, with kubelets that run pods, on a control plane for such environments, one at a time.
    #[must_use]
    pub fn with_real_nodes(self) -> Self {
        Self { real_nodes: true, ..self }
    }

    /// Puts the nodes into another cluster than the custom resources.
    #[must_use]
    pub fn with_target_apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// Puts the nodes into this cluster, which the scenario may break.
    #[must_use]
    pub fn with_target(self, target: &Arc<Cluster>) -> Self {
        Self { target: Some(Arc::clone(target)), ..self }
    }

    /// Uses a control plane of its own, which the scenario may break.
    #[must_use]
    pub fn with_own_plane(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Uses a control plane that has the kinds of node configuration, which are cluster-scoped, and no other scenario meanwhile. No
    /// Pod can run on it. The scenario must not break it, and drops its managers and agents before the end.
    #[must_use]
    pub fn for_node_configuration(self) -> Self {
        Self { node_configuration: true, ..self }
    }

    /// Uses a control plane of its own, with Kubernetes' garbage collector and the kinds of node configuration.
    #[must_use]
    pub fn with_garbage_collector(self) -> Self {
        Self { alone: true, garbage_collector: true, ..self }
    }

    /// Uses this control plane, which the scenario may break.
    #[must_use]
    pub fn on(self, cluster: &Arc<Cluster>) -> Self {
        Self { alone: true, cluster: Some(Arc::clone(cluster)), ..self }
    }

    /// Has twice as many scenarios of this kind run at once: its controllers mostly wait.
    #[must_use]
    pub fn mostly_waiting(self) -> Self {
        Self { mostly_waits: true, ..self }
    }

    /// Waits for its turn, then starts all processes. When this returns, the manager is ready.
    pub async fn start(self) -> TestResult<Environment> {
        let turn = turn(self.mostly_waits).await?;
        let real_nodes = if self.real_nodes { Some(REAL_NODES.lock().await) } else { None };
        let plane = if self.node_configuration { Some(LentPlane::take().await?) } else { None };
        let cluster = match &plane {
            Some(plane) => Arc::clone(plane.cluster()),
            None => self.cluster().await?,
        };
        let target = match &self.target {
            Some(given) => Arc::clone(given),
            None if self.apart => clusters::bare().await?,
            None => Arc::clone(&cluster),
        };
        let namespace = format!("{}-{}", self.name, suffix());
        let client = cluster.client().await?;
        let target_client = target.client().await?;
        let directory = tempfile::Builder::new().prefix(&format!("nodewright-{namespace}-")).tempdir()?;
        let tail = cluster.control_plane().map(|plane| Tail::start(plane.audit_log(), &namespace)).transpose()?;
        create_namespace(&client, &namespace).await?;
        let machines = History::record(Api::namespaced(client.clone(), &namespace), "").await?;
        let nodes = Api::all(target_client.clone());
        let nodes = History::record(nodes, &format!("{ENVIRONMENT_LABEL}={namespace}")).await?;
        let cloud_process = self.start_cloud(&target, directory.path())?;
        let accounts = self.create_accounts(&namespace, &cluster, &target, directory.path()).await?;
        let env = Environment {
            cloud: cloud_process.client(),
            namespace,
            cluster,
            target,
            client,
            target_client,
            accounts,
            plugin_user: OnceCell::new(),
            asked: Mutex::default(),
            manager: Mutex::new(None),
            cloud_process: Mutex::new(cloud_process),
            machines,
            nodes,
            tail: tail.map(Mutex::new),
            directory: Some(directory),
            has_gaps: self.alone || self.target.is_some(),
            since: Instant::now(),
            has_real_nodes: self.real_nodes,
            has_webhooks: self.webhooks,
            _real_nodes: real_nodes,
            plane,
            turn: Some(turn),
        };
        if self.real_nodes {
            env.create_user_data().await?;
        }
        if self.manager {
            let manager = ManagerProcess::start(env.manager_options("manager", self.webhooks, &self.manager_flags));
            *env.manager.lock().await = Some(manager.await?);
        }
        Ok(env)
    }

    /// The cluster of the custom resources, unless it is a lent one.
    async fn cluster(&self) -> TestResult<Arc<Cluster>> {
        match &self.cluster {
            Some(given) => Ok(Arc::clone(given)),
            None if self.real_nodes => clusters::with_real_nodes().await,
            None if self.garbage_collector => clusters::with_garbage_collector().await,
            None if self.alone => clusters::exclusive().await,
            None => Cluster::shared().await,
        }
    }

    /// The service accounts of the manager: one, or one in each cluster.
    async fn create_accounts(
        &self,
        namespace: &str,
        cluster: &Arc<Cluster>,
        target: &Arc<Cluster>,
        directory: &Path,
    ) -> TestResult<Vec<ServiceAccount>> {
        if Arc::ptr_eq(cluster, target) {
            return Ok(vec![ServiceAccount::create(cluster, namespace, Part::Both, directory).await?]);
        }
        create_namespace(&target.client().await?, namespace).await?;
        Ok(vec![
            ServiceAccount::create(cluster, namespace, Part::Control, directory).await?,
            ServiceAccount::create(target, namespace, Part::Target, directory).await?,
        ])
    }

    fn start_cloud(&self, target: &Cluster, directory: &Path) -> TestResult<CloudProcess> {
        let mut flags = self.cloud_flags.clone();
        flags.push(format!("--lease-seconds={LEASE_SECONDS}"));
        add_missing(&mut flags, &CLOUD_FLAGS);
        let real_nodes = target.control_plane().filter(|_| self.real_nodes).and_then(ControlPlane::node_network);
        if let Some(directory) = &real_nodes {
            // A scenario that failed may have left some.
            delete_vms(directory)?;
        }
        Ok(CloudProcess::start(CloudProcessOptions {
            kubeconfig: self.kubelets.then(|| target.kubeconfig().to_owned()),
            real_nodes,
            state: None,
            log: Some(directory.join("cloud.log")),
            flags,
        })?)
    }
}

/// Adds each default flag whose name is not among the given ones.
fn add_missing(flags: &mut Vec<String>, defaults: &[&str]) {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let given: Vec<_> = flags.iter().map(|flag| name(flag)).collect();
    flags.extend(defaults.iter().filter(|flag| !given.contains(&name(flag))).map(|flag| (*flag).to_owned()));
}

/// Four random letters: runs on a permanent cluster must not collide with the remains of earlier ones.
fn suffix() -> String {
    std::iter::repeat_with(fastrand::lowercase).take(4).collect()
}

async fn create_namespace(client: &Client, name: &str) -> TestResult {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

impl Environment {
    /// Starts an environment with a manager on the shared cluster. The name is a short word.
    pub async fn start(name: &str) -> TestResult<Self> {
        Self::builder(name).start().await
    }

    /// A builder for an environment with other settings.
    pub fn builder(name: &str) -> EnvironmentBuilder {
        EnvironmentBuilder {
            name: name.to_owned(),
            cloud_flags: vec![],
            manager_flags: vec![],
            manager: true,
            kubelets: true,
            webhooks: false,
            apart: false,
            alone: false,
            garbage_collector: false,
            node_configuration: false,
            real_nodes: false,
            mostly_waits: false,
            cluster: None,
            target: None,
        }
    }

    /// The namespace: the scenario's name and four letters. It is the prefix of all pool names.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster of the custom resources.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster of the nodes.
    pub fn target(&self) -> &Cluster {
        &self.target
    }

    /// The administrator's client for the cluster of the custom resources.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's client for the cluster of the nodes.
    pub fn target_client(&self) -> Client {
        self.target_client.clone()
    }

    /// The cloud.
    pub fn cloud(&self) -> &CloudClient {
        &self.cloud
    }

    /// The history of all machines of the namespace.
    pub fn machines(&self) -> &History<Machine> {
        &self.machines
    }

    /// The history of all nodes of the scenario's VMs.
    pub fn nodes(&self) -> &History<Node> {
        &self.nodes
    }

    /// A directory for files.
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    /// A MachineDeployment of class `small`, surge 1, unavailable 0. Its name is the namespace followed by `name`.
    pub fn pool(&self, name: &str, replicas: u32) -> Pool {
        Pool::new(&self.namespace, &format!("{}-{name}", self.namespace), replicas)
    }

    /// A MachineClass. That of real nodes has a Secret with the user data by which they join.
    pub fn class(&self, name: &str) -> Class {
        let class = Class::new(&self.namespace, name);
        if self.has_real_nodes { class.secret(USER_DATA) } else { class }
    }

    async fn create_user_data(&self) -> TestResult {
        let user_data = self.target.control_plane().map(|plane| plane.user_data(&KUBELET_SETTINGS));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": USER_DATA}, "stringData": {"userData": user_data},
        });
        self.apply(&secret).await
    }

    /// Applies a MachineClass with default settings.
    pub async fn apply_class(&self, name: &str) -> TestResult {
        self.apply(&self.class(name)).await
    }

    /// Applies a manifest in another namespace.
    pub async fn apply_to(&self, namespace: &str, manifest: &(impl Manifest + ?Sized)) -> TestResult {
        let arguments = format!("apply --server-side --namespace={namespace} -f -");
        succeeded("apply", self.run_kubectl(&arguments, Some(&manifest.manifest())).await?).map(drop)
    }

    /// Applies a manifest that must be rejected; returns kubectl's output.
    pub async fn apply_refused(&self, manifest: &(impl Manifest + ?Sized)) -> TestResult<String> {
        let manifest = manifest.manifest();
        let ended = self.run_kubectl("apply --server-side --force-conflicts -f -", Some(&manifest)).await?;
        if ended.succeeded { Err(Failure::new(format!("not refused: {manifest}"))) } else { Ok(ended.stderr) }
    }

    /// Runs kubectl in the namespace, with arguments separated by single spaces; returns its output.
    pub async fn kubectl(&self, arguments: &str) -> TestResult<String> {
        succeeded(arguments, self.run_kubectl(arguments, None).await?)
    }

    /// As [`Self::kubectl`], with a request that must be rejected.
    pub async fn kubectl_refused(&self, arguments: &str) -> TestResult<String> {
        let ended = self.run_kubectl(arguments, None).await?;
        if ended.succeeded { Err(Failure::new(format!("not refused: {arguments}"))) } else { Ok(ended.stderr) }
    }

    /// The output of `kubectl get KIND`.
    pub async fn table(&self, kind: &str) -> TestResult<Table> {
        Table::parse(&self.kubectl(&format!("get {kind}")).await?)
    }

    async fn run_kubectl(&self, arguments: &str, input: Option<&str>) -> TestResult<Ended> {
        self.pause_before(arguments).await;
        // In front: what follows `--` is not for kubectl.
        let namespace = format!("--namespace={}", self.namespace);
        let arguments: Vec<String> =
            std::iter::once(namespace).chain(arguments.split(' ').map(str::to_owned)).collect();
        let kubectl = Kubectl {
            program: self.cluster.kubectl().to_owned(),
            kubeconfig: self.cluster.kubeconfig().to_owned(),
            cache: self.directory().join("kubectl-cache"),
        };
        kubectl.run(&arguments, input).await
    }

    /// Waits until the same was asked long enough ago: a wait would start kubectl without a pause.
    async fn pause_before(&self, arguments: &str) {
        let last = self.asked.lock().await.insert(arguments.to_owned(), Instant::now());
        if let Some(last) = last {
            tokio::time::sleep(KUBECTL_PERIOD.saturating_sub(last.elapsed())).await;
        }
    }

    /// The kubeconfig of a user of the plugin, who has the roles of `config/plugin` in the cluster of the custom resources, and no other.
    /// The end of the scenario is a failure if one of them was not enough.
    pub async fn plugin_kubeconfig(&self) -> TestResult<&Path> {
        let create = || ServiceAccount::create(&self.cluster, &self.namespace, Part::Plugin, self.directory());
        Ok(self.plugin_user.get_or_try_init(create).await?.kubeconfig())
    }

    /// All VMs of the cloud, including those in deletion.
    pub async fn vms(&self) -> TestResult<Vec<Vm>> {
        Ok(self.cloud.vms().await?)
    }

    /// The manager, with exclusive access.
    pub async fn manager(&self) -> TestResult<ManagerGuard<'_>> {
        let guard = self.manager.lock().await;
        MutexGuard::try_map(guard, Option::as_mut).map_err(|_| Failure::new("this env has no manager"))
    }

    /// The options of this environment's manager, to start another one. It has the manager's service account; with webhooks it is an
    /// administrator.
    pub fn manager_options(&self, name: &str, webhooks: bool, flags: &[String]) -> ManagerOptions {
        let mut flags = flags.to_vec();
        add_missing(&mut flags, &MANAGER_FLAGS);
        let level = env::var("NODEWRIGHT_LOG").unwrap_or_else(|_| "info".to_owned());
        // One that serves webhooks registers them by URL, which no role of `config/` allows.
        let accounts: &[_] = if webhooks { &[] } else { &self.accounts };
        let control = accounts.first().map_or(self.cluster.kubeconfig(), ServiceAccount::kubeconfig);
        let target = accounts.last().map_or(self.target.kubeconfig(), ServiceAccount::kubeconfig);
        ManagerOptions {
            name: name.to_owned(),
            target_kubeconfig: Some(target.to_owned()),
            namespace: self.namespace.clone(),
            webhooks,
            flags,
            environment: vec![("NODEWRIGHT_LOG".to_owned(), level)],
            log: Some(self.log(name)),
            ..ManagerOptions::new(control, self.cloud.url())
        }
    }

    /// The log of a process of this environment: `manager`, `cloud`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.log"))
    }

    /// The cloud's process.
    pub async fn cloud_process(&self) -> MutexGuard<'_, CloudProcess> {
        self.cloud_process.lock().await
    }

    /// Returns an error if the manager has exited on its own. A manager that the scenario holds is not checked.
    pub(crate) fn check_manager(&self) -> TestResult {
        match self.manager.try_lock() {
            Ok(mut manager) => manager.as_mut().map_or(Ok(()), |manager| Ok(manager.check()?)),
            Err(_) => Ok(()),
        }
    }

    /// Adds what there is (machines, nodes, VMs, the last lines of logs) to a failure.
    pub async fn explain(&self, failure: Failure) -> Failure {
        failure.and(&diagnosis::of(self).await)
    }

    /// Checks the invariants of all scenarios, that the manager has lacked no right, and that its metrics are documented; ends the processes,
    /// and removes all objects of the scenario.
    pub async fn end(self) -> TestResult {
        self.check_manager()?;
        metrics::check(&self).await?;
        let evaluated = oracles::check(&self).await;
        if let Err(failure) = evaluated {
            return Err(self.explain(failure).await);
        }
        Box::pin(self.end_unevaluated()).await
    }

    /// Removes the namespace of another manager, which has ended, with its classes. There are no machines in it.
    pub async fn remove_namespace(&self, namespace: &str) -> TestResult {
        cleaning::remove_namespace(self, namespace).await
    }

    /// As `end`, without the checks, for scenarios that break the rules themselves, for example by removing finalizers.
    pub async fn end_unevaluated(mut self) -> TestResult {
        drop(self.manager.lock().await.take());
        cleaning::unmark(&self, self.namespace()).await?;
        for account in self.accounts.iter().chain(self.plugin_user.get()) {
            account.check(self.has_gaps)?;
            account.remove().await?;
        }
        cleaning::clean(&self).await?;
        println!("{}: {:.1} s", self.namespace, self.since.elapsed().as_secs_f64());
        // The logs are not needed after this.
        drop(self.directory.take());
        let (plane, turn) = (self.plane.take(), self.turn.take());
        // Its kubelets write on the plane until they end.
        drop(self);
        if let Some(plane) = plane {
            plane.put_back().await?;
        }
        drop(turn);
        Ok(())
    }
}

/// Exclusive access to the manager of an environment.
pub type ManagerGuard<'a> = tokio::sync::MappedMutexGuard<'a, ManagerProcess>;

impl Drop for Environment {
    fn drop(&mut self) {
        // The directory still exists only if the scenario failed: its logs may show why.
        if let Some(directory) = self.directory.take() {
            eprintln!("{}: logs are kept in {}", self.namespace, directory.keep().display());
        }
    }
}

fn succeeded(what: &str, ended: Ended) -> TestResult<String> {
    if ended.succeeded { Ok(ended.stdout) } else { Err(Failure::new(format!("kubectl {what}: {}", ended.stderr))) }
}
