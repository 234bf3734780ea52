//! The driver `simulated` keeps the contract also in a process of its own, over the wire, and when that process is killed in each call.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver, Instance, ListedVm, MachineRequest, OrphanRequest, Result, UnownedRequest};
use nodewright_driver_contract as contract;
use nodewright_driver_remote::{Program, Remote, RemoteDriver, Restarts, Source};
use nodewright_e2e_lab::cloud::DriverProgram;
use nodewright_runtime::leadership::Leadership;
use tempfile::TempDir;
use tokio::{runtime::Handle, task::block_in_place, time::sleep};

use super::support::{CALL_TIMEOUT, CONSISTENCY, CloudSetup, Connect, TestResult};

/// The drivers' programs, each of a manager of its own.
struct Programs {
    folder: TempDir,
    made: AtomicUsize,
}

impl Programs {
    fn new() -> TestResult<Arc<Self>> {
        Ok(Arc::new(Self { folder: tempfile::tempdir()?, made: AtomicUsize::default() }))
    }

    fn start(&self, cloud_url: &str) -> (DriverProgram, RemoteDriver) {
        let name = format!("driver-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let flags = [("call-timeout", CALL_TIMEOUT), ("consistency", CONSISTENCY)];
        let flags = flags.map(|(flag, value)| format!("--{flag}={}", value.as_secs_f64()));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let program = DriverProgram::new(self.folder.path(), &name, cloud_url, &flags).unwrap();
        let pause = Duration::from_millis(10);
        let restarts = Restarts { first: pause, longest: pause, ..Restarts::default() };
        let source = Source::Program(Program { restarts, ..Program::at(program.path()) });
        let remote = Remote::start(source, &Leadership::unlimited()).unwrap();
        (program, block_in_place(|| Handle::current().block_on(remote.driver())))
    }
}

/// How often a call is made again.
const AGAIN: u32 = 3;

/// A driver whose process is killed in each call. The call is then made again, as the manager does.
#[derive(Clone)]
struct Killed {
    program: DriverProgram,
    inner: RemoteDriver,
    calls: Arc<AtomicUsize>,
    kills: Arc<AtomicUsize>,
}

impl Killed {
    /// When in its course a call is hit.
    fn moment(&self) -> Duration {
        let moments = [0, 1, 2, 3, 5, 8, 13];
        Duration::from_millis(moments[self.calls.fetch_add(1, Ordering::Relaxed) % moments.len()])
    }

    async fn call<T>(self, call: impl Fn(&RemoteDriver) -> BoxFuture<'static, Result<T>>) -> Result<T> {
        let answer = match select(call(&self.inner), sleep(self.moment()).boxed()).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), under_way)) => {
                self.kills.fetch_add(usize::from(self.program.kill_9()), Ordering::Relaxed);
                under_way.await
            }
        };
        // The first one of these may still go to the process that was killed.
        let mut answer = answer;
        for _ in 0..AGAIN {
            match answer {
                Err(error) if error.is_passing() => answer = call(&self.inner).await,
                answer => return answer,
            }
        }
        answer
    }
}

impl Driver for Killed {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        self.inner.validate(provider_spec)
    }
    fn session(&self) -> u64 {
        self.inner.session()
    }
    fn identity(&self) -> Vec<&str> {
        self.inner.identity()
    }
    /// That of all attempts, and the time that the driver takes to start again.
    fn deadline(&self) -> Duration {
        (1 + AGAIN) * self.inner.deadline() + Duration::from_secs(10)
    }
    fn consistency(&self) -> Duration {
        self.inner.consistency()
    }
    fn stores_owner(&self) -> bool {
        self.inner.stores_owner()
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().call(move |driver| driver.create(request.clone())).boxed()
    }
    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().call(move |driver| driver.initialize(request.clone())).boxed()
    }
    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.clone().call(move |driver| driver.delete(request.clone())).boxed()
    }
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().call(move |driver| driver.status(request.clone())).boxed()
    }
    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        self.clone().call(move |driver| driver.list(class.clone())).boxed()
    }
    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().call(move |driver| driver.delete_orphan(orphan.clone())).boxed()
    }
    fn describes_instances(&self) -> bool {
        self.inner.describes_instances()
    }
    fn describes_unowned(&self) -> bool {
        self.inner.describes_unowned()
    }
    fn describe_unowned(&self, request: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().call(move |driver| driver.describe_unowned(request.clone())).boxed()
    }
    fn knows_volumes(&self) -> bool {
        self.inner.knows_volumes()
    }
    fn volume_ids(&self, volumes: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        self.clone().call(move |driver| driver.volume_ids(volumes.clone())).boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_contract_over_the_wire() -> TestResult {
    let programs = Programs::new()?;
    let connect: Connect = Box::new(move |url| Arc::new(programs.start(url).1));
    let report = contract::run(&CloudSetup::connected_by(connect, 1_100).await?).await;
    report.assert_kept();
    assert_eq!(report.skipped(), ["rejected_credentials"], "the cloud knows no credentials");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_contract_when_it_is_killed_in_each_call() -> TestResult {
    let (programs, kills) = (Programs::new()?, Arc::new(AtomicUsize::default()));
    let counted = kills.clone();
    let connect: Connect = Box::new(move |url| {
        let (program, inner) = programs.start(url);
        Arc::new(Killed { program, inner, calls: Arc::default(), kills: counted.clone() })
    });
    contract::run(&CloudSetup::connected_by(connect, 3).await?).await.assert_kept();
    let kills = kills.load(Ordering::Relaxed);
    assert!(kills > 100, "{kills} calls were hit");
    Ok(())
}
