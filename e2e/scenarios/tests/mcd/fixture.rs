//! A cluster with the pool `worker`, whose nodes run the daemon.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_e2e_lab::{
    control_plane::{ControlPlane, ControlPlaneOptions, machine_config_daemon},
    devcluster::ManagerProcess,
    node::requirements,
};
use nodewright_e2e_scenarios::{
    Change, Cluster, Environment, Failure, TestResult, ensure, node_agent, skip_on_external_cluster,
    worker_pool::{self, check_budget, target},
};
use serde_json::{Value, json};

use crate::{
    image::{File, user_data},
    openshift,
};

const ROLE: &str = "machineconfiguration.openshift.io/role";
const WORKER: &str = "node-role.kubernetes.io/worker";
const API: &str = "machineconfiguration.openshift.io/v1";
const KUBELET_FILE: &str = "/etc/kubernetes/kubelet.conf";
/// The kubelets renew their Leases every two seconds: the control plane of scenarios misses a node after ten.
const LEASES: &str = "nodeLeaseDurationSeconds: 8";
/// How many pods a kubelet takes at first.
const MAX_PODS: u32 = 30;
/// The first content of `/etc/motd`.
pub(crate) const FIRST: &str = "first";

/// Nodes with the daemon, and a manager.
pub(crate) struct Fixture {
    pub(crate) env: Environment,
    pub(crate) manager: ManagerProcess,
    nodes: usize,
}

/// Prints that a scenario is skipped, and why.
pub(crate) fn skip(name: &str, reason: &str) {
    use std::io::Write;
    // Not `eprintln!`, whose output the test runner hides.
    let _ = writeln!(std::io::stderr(), "skipped {name}: {reason}");
}

/// The directory with the daemon, where scenarios can run.
async fn daemon(name: &str) -> TestResult<Option<PathBuf>> {
    if skip_on_external_cluster(name, "the nodes have no daemon of ours") {
        return Ok(None);
    }
    if let Some(missing) = requirements::missing_with_systemd() {
        skip(name, &missing);
        return Ok(None);
    }
    let daemon = machine_config_daemon().await?;
    if daemon.is_none() {
        skip(name, "the sources of machine-config-operator are out of reach; NODEWRIGHT_MCO_SOURCE names a clone");
    }
    Ok(daemon)
}

/// A control plane with the pool `worker` and its first MachineConfig, before there are a manager and nodes.
pub(crate) struct Ground {
    pub(crate) env: Environment,
    /// The directory with the daemon.
    pub(crate) daemon: PathBuf,
    user_data: String,
    files: Vec<File>,
}

impl Ground {
    /// Prepares it, where scenarios can run.
    pub(crate) async fn prepare(name: &str) -> TestResult<Option<Self>> {
        let Some(daemon) = daemon(name).await? else { return Ok(None) };
        let options = ControlPlaneOptions { node_network: true, ..Cluster::options() };
        let cluster = Cluster::start(options, true).await?;
        let image = format!("--systemd={}", daemon.display());
        let builder = Environment::builder(name).with_real_nodes().without_manager().cloud_flags([&image]);
        let env = builder.on(&cluster).start().await?;
        let plane = env.cluster().control_plane().ok_or_else(|| Failure::new("there is no control plane"))?;
        openshift::install(&env, plane, &daemon).await?;
        let user_data = plane.user_data(&[LEASES]);
        let files = vec![motd(FIRST), File { path: KUBELET_FILE, content: kubelet_config(&user_data)? }];
        env.apply(&pool_object()).await?;
        env.apply(&config("00-worker", &files, &[])).await?;
        Ok(Some(Self { env, daemon, user_data, files }))
    }

    /// Makes nodes that run this configuration at first, and waits until they have joined.
    pub(crate) async fn populate(self, manager: ManagerProcess, rendered: &str, nodes: usize) -> TestResult<Fixture> {
        let env = self.env;
        let data = user_data(&self.user_data, rendered, &self.files, &openshift::token(&env).await?);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data"}, "stringData": {"userData": data},
        });
        env.apply(&secret).await?;
        env.apply_class("small").await?;
        let template = json!({"metadata": {"labels": {WORKER: ""}}});
        env.apply(&env.pool("a", u32::try_from(nodes)?).machine("nodeTemplate", template)).await?;
        env.wait_for_running(nodes).await?;
        Ok(Fixture { env, manager, nodes })
    }
}

impl Fixture {
    /// Starts it with this number of nodes, one of which may be unavailable. All run the pool's first target.
    pub(crate) async fn start(name: &str, nodes: usize) -> TestResult<Option<Self>> {
        let Some(ground) = Box::pin(Ground::prepare(name)).await? else { return Ok(None) };
        let manager = manager(&ground.env, "manager").await?;
        let env = &ground.env;
        env.wait_for("the first target", async || Ok(!target(env).await?.is_empty())).await?;
        let rendered = target(env).await?;
        let fixture = Box::pin(ground.populate(manager, &rendered, nodes)).await?;
        fixture.wait_for_all().await?;
        fixture.wait_for_daemons().await?;
        Ok(Some(fixture))
    }

    /// Waits until the daemons have validated what is on the disks, and watch it. The nodes count as updated before.
    async fn wait_for_daemons(&self) -> TestResult {
        for node in self.names() {
            self.env
                .wait_for("a daemon to watch its files", async || {
                    let log = self.shell(&node, "cat /var/log/machine-config-daemon.log || true").await?;
                    Ok(log.contains("Config Drift Monitor started"))
                })
                .await?;
        }
        Ok(())
    }

    /// Applies a change, and waits until the pool has another target; returns its name.
    pub(crate) async fn retarget(&self, change: &Value) -> TestResult<String> {
        worker_pool::retarget(&self.env, change).await
    }

    /// Waits until all nodes run the target, and the pool says so.
    pub(crate) async fn wait_for_all(&self) -> TestResult {
        worker_pool::wait_for_all(&self.env, self.nodes).await
    }

    /// Checks that at no moment since the mark more than one node was disrupted.
    pub(crate) fn check_budget(&self, mark: usize) -> TestResult {
        check_budget(&self.env, mark, 1)
    }

    /// The names of the nodes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.env.nodes().current().into_keys().collect()
    }

    /// How often a node has booted since the mark.
    pub(crate) fn boots(&self, node: &str, mark: usize) -> TestResult<usize> {
        let changes = self.env.nodes().changes()?;
        let is_its = |change: &&Change<Node>| change.object.name_any() == node;
        let of = |changes: &[Change<Node>]| -> BTreeSet<String> {
            changes.iter().filter(is_its).map(|change| boot_id(&change.object)).collect()
        };
        let (before, after) = changes.split_at(mark.min(changes.len()));
        let before = of(before);
        Ok(of(after).difference(&before).filter(|id| !id.is_empty()).count())
    }

    /// What the daemon on a node has written of its annotations since the mark, in order. Configurations are called by these
    /// names.
    pub(crate) fn said(&self, node: &str, mark: usize, configs: &[(&str, &str)]) -> TestResult<Vec<String>> {
        let (mut said, mut before) = (vec![], None);
        for (at, change) in self.env.nodes().changes()?.iter().enumerate() {
            if change.object.name_any() != node {
                continue;
            }
            if let Some(before) = before.replace(change.object.clone()).filter(|_| at >= mark) {
                said.extend(node_agent::difference(&before, &change.object, configs));
            }
        }
        Ok(said)
    }

    /// The first process of the VM of a node.
    async fn first_process(&self, node: &str) -> TestResult<String> {
        let vms = self.env.vms().await?;
        let vm = vms.iter().find(|vm| vm.name == node).ok_or_else(|| Failure::new(format!("{node} has no VM")))?;
        let network = self.env.target().control_plane().and_then(ControlPlane::node_network);
        let file = network.unwrap_or_default().join("vms").join(&vm.id).join("pid");
        let text = std::fs::read_to_string(file)?;
        Ok(text.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Runs a script in the VM of a node, and returns what it prints.
    pub(crate) async fn shell(&self, node: &str, script: &str) -> TestResult<String> {
        let process = self.first_process(node).await?;
        let mut command = Command::new("nsenter");
        let flags = ["--mount", "--uts", "--ipc", "--net", "--pid", "--", "sh", "-ec", script];
        let output = command.args(["--target", &process]).args(flags).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(output.status.success(), || {
            format!("{script} on {node}: {text}{}", String::from_utf8_lossy(&output.stderr))
        })?;
        Ok(text)
    }

    /// Kills the daemon on a node (SIGKILL). If the node is about to reboot, this waits for the next one.
    pub(crate) async fn kill_daemon(&self, node: &str) -> TestResult {
        let script =
            "pid=$(systemctl show --property=MainPID --value machine-config-daemon); test $pid -gt 0; kill -9 $pid";
        self.env.wait_for("a daemon to kill", async || Ok(self.shell(node, script).await.is_ok())).await
    }

    pub(crate) async fn end(mut self) -> TestResult {
        self.manager.check()?;
        self.env.kubectl("delete machinedeployments --all").await?;
        self.env.wait_for_nothing().await?;
        drop(self.manager);
        self.env.end_unevaluated().await
    }
}

pub(crate) async fn manager(env: &Environment, name: &str) -> TestResult<ManagerProcess> {
    Ok(ManagerProcess::start(env.manager_options(name, false, &[])).await?)
}

/// The kubelet's configuration, which is a file of the user data.
fn kubelet_config(user_data: &str) -> TestResult<String> {
    let data: Value = serde_saphyr::from_str(user_data).map_err(|error| Failure::new(error.to_string()))?;
    let files = data["write_files"].as_array().cloned().unwrap_or_default();
    let file = files.iter().find(|file| file["path"] == "/etc/kubernetes/kubelet.yaml");
    let content =
        file.and_then(|file| file["content"].as_str()).ok_or_else(|| Failure::new("there is no kubelet.yaml"))?;
    Ok(format!("{}\nmaxPods: {MAX_PODS}\n", content.trim_end()))
}

/// What a node says about its boot.
pub(crate) fn boot_id(node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

fn pool_object() -> Value {
    let labels = json!({"pools.operator.machineconfiguration.openshift.io/worker": ""});
    let spec = json!({"nodeSelector": {"matchLabels": {WORKER: ""}}, "machineConfigSelector": {"matchLabels": {ROLE: "worker"}}});
    json!({"apiVersion": API, "kind": "MachineConfigPool", "metadata": {"name": "worker", "labels": labels}, "spec": spec})
}

pub(crate) fn motd(text: &str) -> File {
    File { path: "/etc/motd", content: format!("{text}\n") }
}

/// A MachineConfig of the pool.
pub(crate) fn config(name: &str, files: &[File], units: &[Value]) -> Value {
    let files: Vec<_> = files.iter().map(File::of_config).collect();
    json!({"apiVersion": API, "kind": "MachineConfig", "metadata": {"name": name, "labels": {ROLE: "worker"}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}, "systemd": {"units": units}}}})
}
