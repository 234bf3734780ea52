//! A driver that lies about some machines harms no other one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use kube::ResourceExt;
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver, Instance, ListedVm, MachineRequest, OrphanRequest, Result};
use nodewright_driver_protocol::server::{Provider, Socket, serve};
use nodewright_driver_simulated::{Options, PROVIDER_ID_PREFIX, SimulatedDriver};
use nodewright_e2e_cloud::{CreateVm, VmState};
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, waits::is_running};
use nodewright_runtime::leadership::Leadership;
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// A list of VMs each second, and an orphan goes soon.
const FLAGS: [&str; 4] = [
    "--machine-safety-orphan-vms-period=1s",
    "--orphan-vms-grace=2s",
    "--orphan-vms-minimum-age=4s",
    "--orphan-vms-vanished-pause=4s",
];
/// So many lists are more than the time of an orphan needs.
const LISTS: u32 = 12;

/// What is said of the machines of a pool, which has the name of the lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Their VM is that of another machine. They have one of their own, of which nothing is said.
    Foreign,
    /// They have one VM, and there are two for the token.
    Twice,
    /// Their node has a name that is none.
    Garbage,
    /// Nothing, ever.
    Silent,
}

impl Lie {
    const ALL: [Self; 4] = [Self::Foreign, Self::Twice, Self::Garbage, Self::Silent];

    fn pool(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Twice => "twice",
            Self::Garbage => "garbage",
            Self::Silent => "silent",
        }
    }

    fn about(machine: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lie| machine.contains(&format!("-{}-", lie.pool())))
    }
}

/// What the liar needs to know, and how often it has lied.
#[derive(Debug, Default)]
struct Notes {
    /// The VM that it calls another machine's.
    stolen: Mutex<Instance>,
    /// A VM of another cluster.
    theirs: Mutex<String>,
    lies: [AtomicU32; 4],
    /// The lies that it tells no more: nobody could learn otherwise that the VMs have gone.
    retracted: Mutex<Vec<Lie>>,
    lists: AtomicU32,
}

/// The driver `simulated`, except for what it says of some machines, and for its lists.
#[derive(Clone)]
struct Liar {
    honest: SimulatedDriver,
    notes: Arc<Notes>,
}

impl Liar {
    /// What is said of a machine if it is not the truth.
    fn lie(&self, machine: &str) -> Option<Lie> {
        Lie::about(machine).filter(|lie| !self.notes.retracted.lock().contains(lie))
    }

    /// Tells the lie about a machine, in answer to a creation or a question.
    async fn tell(self, lie: Lie, request: MachineRequest, is_creation: bool) -> Result<Instance> {
        self.notes.lies[lie as usize].fetch_add(1, Ordering::Relaxed);
        match lie {
            Lie::Foreign => {
                let own = if is_creation { self.honest.create(request) } else { self.honest.status(request) };
                own.await?;
                Ok(self.notes.stolen.lock().clone())
            }
            Lie::Twice if is_creation => {
                let second = MachineRequest { uid: format!("{}-2", request.uid), ..request.clone() };
                self.honest.create(request).await?;
                self.honest.create(second).await
            }
            Lie::Twice => self.honest.status(request).await,
            Lie::Garbage => Ok(Instance {
                provider_id: format!("{PROVIDER_ID_PREFIX}../../{}", request.name),
                node_name: "\0\u{1b}[2J../..".to_owned(),
                ..Instance::default()
            }),
            Lie::Silent => std::future::pending().await,
        }
    }
}

impl Driver for Liar {
    fn name(&self) -> &str {
        self.honest.name()
    }
    fn validate(&self, spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        self.honest.validate(spec)
    }
    fn identity(&self) -> Vec<&str> {
        self.honest.identity()
    }
    fn deadline(&self) -> Duration {
        self.honest.deadline()
    }
    fn consistency(&self) -> Duration {
        self.honest.consistency()
    }
    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        match self.lie(&request.name) {
            Some(lie) => self.clone().tell(lie, request, true).boxed(),
            None => self.honest.create(request),
        }
    }
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        match self.lie(&request.name) {
            Some(lie) => self.clone().tell(lie, request, false).boxed(),
            None => self.honest.status(request),
        }
    }
    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.honest.delete(request)
    }
    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.honest.delete_orphan(orphan)
    }

    /// The list has a VM of another cluster, and says of a machine's VM that it is nobody's.
    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        let (listed, notes) = (self.honest.list(class), self.notes.clone());
        async move {
            let mut listed = listed.await?;
            let (stolen, theirs) = (notes.stolen.lock().provider_id.clone(), notes.theirs.lock().clone());
            for (id, name) in [(stolen, "nobody"), (theirs, "theirs")] {
                if !id.is_empty() {
                    listed.insert(id, ListedVm::of(name));
                }
            }
            notes.lists.fetch_add(1, Ordering::Relaxed);
            Ok(listed)
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_lies_harms_no_other_machine() -> TestResult {
    let env = Environment::builder("liar").without_manager().start().await?;
    let notes = Arc::<Notes>::default();
    let _served = start_liar(&env, &notes)?;
    let mut flags = FLAGS.map(str::to_owned).to_vec();
    flags.push(format!("--driver-socket={}", env.directory().join("liar.sock").display()));
    let mut manager = ManagerProcess::start(env.manager_options("manager", false, &flags)).await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("good", 3)).await?;
    let before = env.wait_for_running(3).await?;
    let victim = before.values().next().ok_or_else(|| Failure::new("there is no machine"))?;
    *notes.stolen.lock() = Instance {
        provider_id: victim.provider_id().unwrap_or_default().to_owned(),
        node_name: victim.node_name().unwrap_or_default().to_owned(),
        ..Instance::default()
    };
    *notes.theirs.lock() = vm_of_another_cluster(&env).await?;

    for lie in Lie::ALL {
        env.apply(&env.pool(lie.pool(), 1)).await?;
    }
    env.scale("good", 5).await?;
    let lists = notes.lists.load(Ordering::Relaxed);
    env.wait_for("all lies", async || {
        let reported = notes.lies.iter().all(|reported| reported.load(Ordering::Relaxed) > 0);
        Ok(reported && notes.lists.load(Ordering::Relaxed) >= lists + LISTS)
    })
    .await?;
    env.wait_for("five good machines", async || Ok(good(&env) == 5)).await?;

    let stolen = notes.stolen.lock().provider_id.clone();
    env.wait_for("two machines with one VM", async || {
        Ok(env.machines().current().values().filter(|machine| machine.provider_id() == Some(&stolen)).count() == 2)
    })
    .await?;

    // The driver deletes whatever is asked for, so that what the manager asks for could do harm.
    notes.retracted.lock().extend([Lie::Garbage, Lie::Silent]);
    for lie in Lie::ALL {
        env.kubectl(&format!("delete machinedeployment {}-{} --wait=false", env.namespace(), lie.pool())).await?;
    }
    let is_foreign = |name: &String| Lie::about(name) == Some(Lie::Foreign);
    env.wait_for("the machine with another one's VM to go", async || {
        Ok(!env.machines().current().keys().any(is_foreign))
    })
    .await?;
    let left = env.vms().await?.into_iter().find(|vm| vm.tags.get("machine").is_some_and(is_foreign));
    ensure(left.is_none(), || format!("its own VM is left to the search for orphans: {left:?}"))?;
    env.wait_for("the other machines to go", async || Ok(env.machines().current().len() == 5)).await?;
    env.wait_for("their VMs to go", async || Ok(env.vms().await?.len() == 6)).await?;

    ensure(good(&env) == 5, || "a good machine does not run any more".to_owned())?;
    let now: BTreeSet<_> = env.machines().current().values().filter_map(|machine| machine.uid()).collect();
    let kept = before.values().filter_map(|machine| machine.uid()).all(|uid| now.contains(&uid));
    ensure(kept, || "a good machine was replaced".to_owned())?;
    let deleting: Vec<_> = env.vms().await?.into_iter().filter(|vm| vm.state == VmState::Deleting).collect();
    ensure(deleting.is_empty(), || format!("VMs are being deleted: {deleting:?}"))?;
    let untouched = env.nodes().current().values().all(|node| {
        let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
        node.metadata.deletion_timestamp.is_none() && !is_cordoned
    });
    ensure(untouched, || "a node was drained".to_owned())?;
    manager.check()?;
    env.end_unevaluated().await
}

/// How many machines of the pool `good` run.
fn good(env: &Environment) -> usize {
    let machines = env.machines().current();
    machines.values().filter(|machine| Lie::about(&machine.name_any()).is_none() && is_running(machine)).count()
}

/// Serves the liar until the handle is dropped.
fn start_liar(env: &Environment, notes: &Arc<Notes>) -> TestResult<AbortOnDropHandle<()>> {
    let options = Options { call_timeout: Duration::from_secs(1), ..Options::new(env.cloud().url()) };
    let honest = SimulatedDriver::new(&options, &Leadership::unlimited())?;
    let driver = Arc::new(Liar { honest, notes: Arc::clone(notes) });
    let provider = Provider { id_prefix: PROVIDER_ID_PREFIX.to_owned(), initializes: false };
    let socket = Socket::bind(&env.directory().join("liar.sock"))?;
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(error) = serve(driver, provider, socket, CancellationToken::new()).await {
            eprintln!("the liar has ended: {error}");
        }
    })))
}

/// Its provider id.
async fn vm_of_another_cluster(env: &Environment) -> TestResult<String> {
    let tags = [("cluster", "elsewhere"), ("machine", "theirs")];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let token = "token-of-theirs".to_owned();
    let order = CreateVm { name: "theirs".to_owned(), token, tags, boot_seconds: Some(3_600.0), ..CreateVm::default() };
    Ok(env.cloud().create(&order).await?.provider_id)
}
