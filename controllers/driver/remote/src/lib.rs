//! A driver that runs in a process of its own, as the manager calls it.
//!
//! ```text
//! process ──starts, watches over──▶ driver ◀──socket── session ◀── keeper: health, readiness
//!                                                          ▲
//!                                             RemoteDriver ┘ calls
//! ```
//!
//! # Guarantees
//! * While the driver is away, each call fails with a code that passes, and none says that there is no VM. A restart of some seconds
//!   delays calls and fails none that was not under way.
//! * A call that hangs blocks no other one. Each ends at the deadline that the driver has named, which is sent along.
//! * What the driver answers is checked and bounded, see `nodewright_driver_protocol`. A message that is too large is not read.
//! * All sessions are with a driver of the same provider, provider ids and identity fields: another one is not called.
//! * Nothing is sent once the leadership of this process has expired.
//!
//! # Caveats
//! * The driver's word on its own VMs is believed: a driver that answers with the wrong VM of its provider is not found out here.

mod calls;
mod process;
mod secrets;
mod session;
#[cfg(test)]
mod tests;
mod validation;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, ListedVm, MachineRequest, OrphanRequest, ProviderRequests, Result,
    UnownedRequest,
};
use nodewright_driver_protocol::{self as protocol, Info};
use nodewright_runtime::leadership::Leadership;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

pub use nodewright_driver_protocol::OTLP_ENDPOINT;

pub use self::process::{Program, Restarts};
use self::{
    secrets::Secrets,
    session::{Keeper, Link},
};

/// Where the driver is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Another program serves it on this Unix socket.
    Socket(PathBuf),
    /// This program is started with `--socket=FILE --stop-with-stdin`, and started again when it ends.
    Program(Program),
}

/// The way to a driver, which may not have answered yet.
pub struct Remote {
    link: Link,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Remote {
    /// Starts the driver's program, if it is one, and connects as soon as the driver answers. Fails if there can be no socket.
    pub fn start(source: Source, leadership: &Leadership) -> std::io::Result<Self> {
        let (mut tasks, answers) = (vec![], Arc::new(Notify::new()));
        let socket = match source {
            Source::Socket(socket) => socket,
            Source::Program(program) => {
                let (socket, task) = process::start(program, answers.clone())?;
                tasks.push(task);
                socket
            }
        };
        let (link, keeper) = Keeper::new(socket, leadership.clone(), answers);
        // It ends before the program does, whose end it would report.
        tasks.insert(0, AbortOnDropHandle::new(tokio::spawn(keeper.run())));
        Ok(Self { link, tasks })
    }

    /// Whether the driver answers, and says that it is healthy; else why not.
    pub fn readiness(&self) -> impl Fn() -> std::result::Result<(), String> + Send + Sync + use<> {
        let health = self.link.health.clone();
        move || health.borrow().clone()
    }

    /// The driver, once it has said what it is.
    pub async fn driver(self) -> RemoteDriver {
        let first = self.link.first().await;
        RemoteDriver { first, link: self.link, session: Arc::default(), _tasks: self.tasks.into() }
    }
}

/// The driver. See the [crate](self).
#[derive(Clone)]
pub struct RemoteDriver {
    /// What it has said at first. Its identity does not change.
    first: Arc<Info>,
    link: Link,
    /// The number of the latest session.
    session: Arc<AtomicU64>,
    /// They end with the last clone.
    _tasks: Arc<[AbortOnDropHandle<()>]>,
}

impl RemoteDriver {
    /// What the driver has said last.
    fn info(&self) -> Arc<Info> {
        self.link.open().map_or_else(|| self.first.clone(), |session| session.info.clone())
    }
}

impl Driver for RemoteDriver {
    fn name(&self) -> &str {
        &self.first.provider
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        if !self.info().validates {
            return ready(Some(vec![])).boxed();
        }
        let (link, spec) = (self.link.clone(), provider_spec.clone());
        async move { validation::validate(&link, &spec).await }.boxed()
    }

    fn session(&self) -> u64 {
        let open = self.link.open().map(|session| session.number);
        let latest = open.map(|number| self.session.fetch_max(number, Ordering::Relaxed));
        latest.max(open).unwrap_or_else(|| self.session.load(Ordering::Relaxed))
    }

    fn identity(&self) -> Vec<&str> {
        self.first.identity.iter().map(String::as_str).collect()
    }

    fn deadline(&self) -> Duration {
        self.info().longest_call
    }

    fn consistency(&self) -> Duration {
        self.info().consistency
    }

    fn poll(&self) -> Duration {
        self.info().poll
    }

    fn stores_owner(&self) -> bool {
        self.info().stores_owner
    }

    fn initializes(&self) -> bool {
        self.info().initializes
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        let secrets = Secrets::of(&request);
        let call = calls::create(self.link.clone(), protocol::create_request(&request), request.traceparent);
        secrets.kept(call).boxed()
    }

    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        if !self.initializes() {
            let error = DriverError::new(Code::Unimplemented, "the provider's VMs need no initialization");
            return std::future::ready(Err(error)).boxed();
        }
        let secrets = Secrets::of(&request);
        let call = calls::initialize(self.link.clone(), protocol::machine_request(&request), request.traceparent);
        secrets.kept(call).boxed()
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        let secrets = Secrets::of(&request);
        let call = calls::delete(self.link.clone(), protocol::machine_request(&request), request.traceparent);
        secrets.kept(call).boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        let secrets = Secrets::of(&request);
        let call = calls::status(self.link.clone(), protocol::machine_request(&request), request.traceparent);
        secrets.kept(call).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        Secrets::of_class(&class).kept(calls::list(self.link.clone(), protocol::class(&class))).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        let call = calls::delete_orphan(self.link.clone(), protocol::orphan_request(&orphan));
        Secrets::of_class(&orphan.class).kept(call).boxed()
    }

    fn knows_volumes(&self) -> bool {
        self.info().knows_volumes
    }

    fn describes_instances(&self) -> bool {
        self.info().describes_instances
    }

    fn describes_unowned(&self) -> bool {
        self.info().describes_unowned
    }

    fn describe_unowned(&self, request: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        let call = calls::describe_unowned(self.link.clone(), protocol::unowned_request(&request));
        Secrets::of_class(&request.class).kept(call).boxed()
    }

    fn volume_ids(&self, volumes: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        calls::volume_ids(self.link.clone(), protocol::volumes_request(&volumes)).boxed()
    }

    fn requests(&self) -> Option<Vec<ProviderRequests>> {
        self.info().counts_requests.then(|| self.link.requests.borrow().clone())
    }
}
