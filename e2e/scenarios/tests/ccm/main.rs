//! `--cloud-node=auto` beside a cloud controller manager: that of Kubernetes' library, with a provider that knows our fake cloud. It
//! runs from the start, or comes late; with its Lease, or without one; and it stops.
//!
//! Whatever happens, Nodes have one program at a time that initializes them, and the log says which.
//!
//! `make test-ccm` runs the scenarios; `cargo test` alone does not, because the first build of the other program takes minutes.

use std::{collections::BTreeSet, fs, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::taints;
use nodewright_e2e_lab::{
    control_plane::{
        audit::{AuditLog, Entry},
        cloud_controller_manager_binaries,
    },
    devcluster::ManagerProcess,
    process::Process,
};
use nodewright_e2e_scenarios::{
    Cluster, Environment, Failure, TestResult,
    cloud_nodes::{addresses, check_untainted, has_taint, is_initialized},
    ensure,
    requests::AGENT,
};

/// How long a Node has to keep its taint. Each further one is left to others for a twentieth of that, two seconds.
const AUTO: [&str; 5] = [
    "--cloud-node=auto",
    "--cloud-node-auto-after=40s",
    "--node-status-update-frequency=2s",
    "--node-deletion-after-start=1s",
    "--node-deletion-grace=2s",
];
const OUR_FIELDS: &str = "nodewright-machine";

/// A cluster with a class whose kubelets have an external cloud provider, and no manager.
struct Fixture {
    env: Environment,
    log: tokio::sync::Mutex<AuditLog>,
}

impl Fixture {
    async fn start(name: &str) -> TestResult<Self> {
        // All Nodes of a cluster count.
        let cluster = Cluster::start(Cluster::options(), true).await?;
        let env = Environment::builder(name).without_manager().on(&cluster).start().await?;
        let class = env.class("small").provider("externalCloudProvider", true);
        env.apply(&class.provider("zone", "here-1").provider("region", "here")).await?;
        let plane = env.cluster().control_plane().ok_or_else(|| Failure::new("there is no audit log"))?;
        let log = AuditLog::from_now(plane.audit_log())?;
        Ok(Self { env, log: tokio::sync::Mutex::new(log) })
    }

    async fn manager(&self) -> TestResult<ManagerProcess> {
        Ok(ManagerProcess::start(self.env.manager_options("manager", false, &AUTO.map(str::to_owned))).await?)
    }

    /// Starts the cloud controller manager.
    async fn cloud_controller_manager(&self, has_lease: bool) -> TestResult<Process> {
        let env = &self.env;
        let plane = env.cluster().control_plane().ok_or_else(|| Failure::new("there is no control plane"))?;
        let program = cloud_controller_manager_binaries().await?.join("cloud-controller-manager");
        let kubeconfig = env.cluster().kubeconfig().display().to_string();
        let arguments = vec![
            format!("--kubeconfig={kubeconfig}"),
            "--cloud-provider=nodewright-fake".to_owned(),
            "--controllers=cloud-node-controller,cloud-node-lifecycle-controller".to_owned(),
            "--secure-port=0".to_owned(),
            format!("--leader-elect={has_lease}"),
            "--node-status-update-frequency=2s".to_owned(),
        ];
        let mut process = plane
            .process("cloud-controller-manager", &program, arguments)
            .with_environment("NODEWRIGHT_CLOUD_URL", env.cloud().url())
            .with_log(env.log("cloud-controller-manager"));
        process.start()?;
        Ok(process)
    }

    /// Waits until so many Nodes exist and are initialized.
    async fn wait_for_initialized(&self, count: usize) -> TestResult {
        let env = &self.env;
        env.wait_for(&format!("{count} initialized nodes"), async || {
            Ok(env.nodes().current().values().filter(|node| is_initialized(node)).count() == count)
        })
        .await
    }

    /// What this manager has done since the last call that is a cloud controller manager's to do.
    async fn our_writes(&self) -> TestResult<Vec<Write>> {
        let read = self.env.read_audit(&mut *self.log.lock().await).await?;
        let ours = read.iter().filter(|it| it.user_agent.starts_with(AGENT) && it.resource == "nodes");
        let write = |it: &Entry| match (it.verb.as_str(), it.subresource.as_str()) {
            (_, "status") if it.is_write() => Some(Write::Addresses(it.answered, it.name.clone())),
            ("delete", _) if it.code < 300 => Some(Write::Deletion(it.name.clone())),
            _ => None,
        };
        Ok(ours.filter_map(write).collect())
    }

    /// A VM is deleted by others, and its Node goes.
    async fn lose_vm(&self) -> TestResult<String> {
        let env = &self.env;
        let gone = env.vms().await?.swap_remove(0);
        env.cloud().delete(&gone.id).await?;
        env.wait_for("its node to go", async || Ok(!env.nodes().current().contains_key(&gone.node_name))).await?;
        Ok(gone.node_name)
    }

    fn log_has(&self, text: &str) -> TestResult<bool> {
        Ok(fs::read_to_string(self.env.log("manager"))?.contains(text))
    }
}

#[derive(Debug, PartialEq)]
enum Write {
    /// When addresses of this Node were set.
    Addresses(Timestamp, String),
    /// This Node was deleted.
    Deletion(String),
}

/// The field managers that own what a cloud controller manager writes of a Node.
fn owners(node: &Node) -> BTreeSet<String> {
    let label = "/f:metadata/f:labels/f:beta.kubernetes.io~1instance-type";
    let marks = ["/f:status/f:addresses", "/f:spec/f:providerID", label];
    let owns = |fields: &serde_json::Value| marks.iter().any(|mark| fields.pointer(mark).is_some());
    let entries = node.metadata.managed_fields.iter().flatten();
    entries
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)))
        .filter_map(|entry| entry.manager.clone())
        .collect()
}

/// It runs from the start: this manager does nothing, also after the other has stopped.
async fn runs_from_the_start(name: &str, has_lease: bool) -> TestResult {
    let fixture = Fixture::start(name).await?;
    let mut other = fixture.cloud_controller_manager(has_lease).await?;
    let mut ours = fixture.manager().await?;
    let env = &fixture.env;
    env.apply(&env.pool("a", 3)).await?;
    fixture.wait_for_initialized(3).await?;
    env.wait_for_running(3).await?;
    // Longer than a Node has to keep its taint, and longer than several refreshes take.
    tokio::time::sleep(Duration::from_secs(45)).await;
    env.scale("a", 5).await?;
    fixture.wait_for_initialized(5).await?;
    for node in env.nodes().current().values() {
        ensure(!owners(node).contains(OUR_FIELDS), || format!("{}: {:?}", node.name_any(), owners(node)))?;
    }
    // Its machine is replaced because it has no Node.
    fixture.lose_vm().await?;
    fixture.wait_for_initialized(5).await?;
    env.wait_for_running(5).await?;
    other.check()?;
    other.kill();
    env.scale("a", 6).await?;
    // Another has initialized Nodes of this cluster, and may come back.
    env.wait_for("the sixth node", async || Ok(env.nodes().current().len() == 6)).await?;
    tokio::time::sleep(Duration::from_secs(45)).await;
    let tainted = env.nodes().current().into_values().filter(|node| has_taint(node, taints::UNINITIALIZED)).count();
    assert_eq!(tainted, 1);
    assert_eq!(fixture.our_writes().await?, []);
    ours.check()?;
    drop(ours);
    fixture.env.end_unevaluated().await
}

/// Nodes are initialized by this manager once one has kept its taint, and no longer when the other begins to.
async fn starts_late(name: &str, has_lease: bool) -> TestResult {
    let fixture = Fixture::start(name).await?;
    let mut ours = fixture.manager().await?;
    let env = &fixture.env;
    env.apply(&env.pool("a", 3)).await?;
    env.wait_for("three nodes", async || Ok(env.nodes().current().len() == 3)).await?;
    let created = env.nodes().current().values().filter_map(|node| node.creation_timestamp()).map(|at| at.0).min();
    fixture.wait_for_initialized(3).await?;
    check_untainted(&fixture.env)?;
    let first = fixture.our_writes().await?;
    let first_at = first.first().and_then(|it| if let Write::Addresses(at, _) = it { Some(*at) } else { None });
    let took = first_at.zip(created).map(|(first, created)| first.duration_since(created).as_secs());
    // Times of creation have whole seconds.
    ensure(took.is_some_and(|took| took >= 39), || format!("initialized after {took:?} s: {first:?}"))?;
    ensure(fixture.log_has("no other program initializes nodes")?, || "the log does not name the start".to_owned())?;
    // Others have had two seconds to do it.
    env.scale("a", 4).await?;
    fixture.wait_for_initialized(4).await?;
    env.wait_for_running(4).await?;
    let gone = fixture.lose_vm().await?;
    fixture.wait_for_initialized(4).await?;
    env.wait_for_running(4).await?;
    let writes = fixture.our_writes().await?;
    ensure(writes.contains(&Write::Deletion(gone)), || format!("{writes:?}"))?;

    let mut other = fixture.cloud_controller_manager(has_lease).await?;
    // It shows itself by the first node that it initializes, once it has started.
    let mut count = 4;
    while !fixture.log_has("another program initializes nodes")? {
        count += 1;
        ensure(count < 15, || "the log does not name the other".to_owned())?;
        env.scale("a", u32::try_from(count)?).await?;
        fixture.wait_for_initialized(count).await?;
    }
    let known: BTreeSet<_> = env.nodes().current().into_keys().collect();
    fixture.our_writes().await?;
    env.scale("a", u32::try_from(count + 2)?).await?;
    fixture.wait_for_initialized(count + 2).await?;
    env.wait_for_running(count + 2).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.our_writes().await?, [], "after the other has shown itself");
    for (name, node) in env.nodes().current() {
        let owners = owners(&node);
        ensure(known.contains(&name) || !owners.contains(OUR_FIELDS), || format!("{name} has {owners:?}"))?;
        let (ours, others): (Vec<_>, Vec<_>) = owners.iter().partition(|owner| *owner == OUR_FIELDS);
        ensure(ours.is_empty() || others.is_empty(), || format!("{name} has two writers: {owners:?}"))?;
        ensure(!addresses(&node).is_empty(), || format!("{name} has no address"))?;
    }
    other.check()?;
    drop(other);
    ours.check()?;
    drop(ours);
    fixture.env.end_unevaluated().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds a cloud controller manager: make test-ccm"]
async fn beside_one_with_its_lease_nothing_is_done() -> TestResult {
    runs_from_the_start("ccm-lease", true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds a cloud controller manager: make test-ccm"]
async fn beside_one_without_a_lease_nothing_is_done() -> TestResult {
    runs_from_the_start("ccm-alone", false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds a cloud controller manager: make test-ccm"]
async fn one_with_its_lease_that_comes_late_takes_over() -> TestResult {
    starts_late("late-lease", true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds a cloud controller manager: make test-ccm"]
async fn one_without_a_lease_that_comes_late_takes_over() -> TestResult {
    starts_late("late-alone", false).await
}
