//! What a check works with: Machines of its own, and calls as the manager makes them.

use std::{
    collections::BTreeSet,
    error::Error,
    fmt::Debug,
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant as WallInstant},
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream,
};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, MachineRequest, OrphanRequest, Result, SecretText, UnownedRequest,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Fixture, SECRET, Verdict, machine};

/// How long a call may keep its thread.
const LONGEST_POLL: Duration = Duration::from_secs(2);
/// How long a call is left alone before it is dropped, so that its request arrives and the answer is lost.
const LINGER: Duration = Duration::from_millis(50);
/// How many calls a check makes at once.
const AT_ONCE: usize = 16;

/// Why a check does not end well.
pub(crate) enum Finding {
    Skipped(String),
    Broken(String),
}

impl Finding {
    /// The same, with what was done before.
    pub(crate) fn after(self, what: &str) -> Self {
        match self {
            Self::Broken(how) => Self::Broken(format!("after {what}: {how}")),
            skipped @ Self::Skipped(_) => skipped,
        }
    }
}

pub(crate) type Checked<T = ()> = std::result::Result<T, Finding>;

pub(crate) fn broken<T>(how: impl Into<String>) -> Checked<T> {
    Err(Finding::Broken(how.into()))
}

pub(crate) fn skipped<T>(why: impl Into<String>) -> Checked<T> {
    Err(Finding::Skipped(why.into()))
}

pub(crate) fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if is_so { Ok(()) } else { broken(otherwise()) }
}

impl From<Checked> for Verdict {
    fn from(checked: Checked) -> Self {
        match checked {
            Ok(()) => Self::Kept,
            Err(Finding::Skipped(why)) => Self::Skipped(why),
            Err(Finding::Broken(how)) => Self::Broken(how),
        }
    }
}

impl From<Box<dyn Error + Send + Sync>> for Finding {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        Self::Broken(format!("the fixture failed: {error}"))
    }
}

/// What is noted of all calls, whatever they are made for.
pub(crate) struct Notebook {
    secrets: Vec<String>,
    /// Calls whose answer has a secret.
    pub(crate) leaks: Mutex<BTreeSet<String>>,
    /// Calls that fail without a code or a message.
    pub(crate) malformed: Mutex<BTreeSet<String>>,
    /// Calls that kept their thread.
    pub(crate) blocking: Mutex<BTreeSet<String>>,
}

impl Notebook {
    pub(crate) fn new(fixture: &dyn Fixture) -> Self {
        let texts = fixture.secrets().into_iter().chain([SECRET.to_owned()]);
        let in_bytes = |text: &String| format!("{:?}", text.as_bytes()).trim_matches(['[', ']']).to_owned();
        let secrets = texts.flat_map(|text| [in_bytes(&text), text]).collect();
        Self { secrets, leaks: Mutex::default(), malformed: Mutex::default(), blocking: Mutex::default() }
    }

    fn note<T: Debug>(&self, what: &'static str, answer: &Result<T>) {
        let texts = [format!("{answer:?}"), answer.as_ref().err().map(ToString::to_string).unwrap_or_default()];
        if self.secrets.iter().any(|secret| texts.iter().any(|text| text.contains(secret.as_str()))) {
            self.leaks.lock().insert(what.to_owned());
        }
        let Err(error) = answer else { return };
        if error.code == Code::Ok || error.message.trim().is_empty() {
            self.malformed
                .lock()
                .insert(format!("{what} fails with code {} and message {:?}", error.code, error.message));
        }
    }
}

/// Makes calls as the manager does.
pub(crate) struct Caller<'a> {
    pub(crate) driver: Arc<dyn Driver>,
    notebook: &'a Notebook,
}

impl Caller<'_> {
    pub(crate) async fn create(&self, request: &MachineRequest) -> Result<Instance> {
        self.call("create", |driver| driver.create(request.clone())).await
    }

    pub(crate) async fn initialize(&self, request: &MachineRequest) -> Result<Instance> {
        self.call("initialize", |driver| driver.initialize(request.clone())).await
    }

    pub(crate) async fn status(&self, request: &MachineRequest) -> Result<Instance> {
        self.call("status", |driver| driver.status(request.clone())).await
    }

    pub(crate) async fn delete(&self, request: &MachineRequest) -> Result<Option<String>> {
        self.call("delete", |driver| driver.delete(request.clone())).await
    }

    /// The provider ids and Machine names of all VMs of a class's cluster.
    pub(crate) async fn list(&self, class: Class) -> Result<Vec<(String, String)>> {
        let listed = self.call("list", |driver| driver.list(class)).await?;
        Ok(listed.into_iter().map(|(id, vm)| (id, vm.machine)).collect())
    }

    pub(crate) async fn delete_orphan(&self, orphan: OrphanRequest) -> Result<()> {
        self.call("delete_orphan", |driver| driver.delete_orphan(orphan)).await
    }

    pub(crate) async fn describe_unowned(&self, request: UnownedRequest) -> Result<Instance> {
        self.call("describe_unowned", |driver| driver.describe_unowned(request)).await
    }

    pub(crate) async fn volume_ids(&self, volumes: Vec<RawJson>) -> Result<Vec<Option<String>>> {
        self.call("volume_ids", |driver| driver.volume_ids(volumes)).await
    }

    /// What is wrong with a `providerSpec`.
    pub(crate) async fn validate(&self, provider_spec: &RawJson) -> Checked<Vec<(String, String)>> {
        let errors = self.driver.validate(provider_spec).await;
        errors.ok_or_else(|| Finding::Broken("validate gives no answer".to_owned()))
    }

    /// Makes a call, and drops it at its deadline.
    async fn call<T: Debug>(
        &self,
        what: &'static str,
        call: impl FnOnce(&dyn Driver) -> BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let begun = WallInstant::now();
        let mut call = call(self.driver.as_ref());
        let mut longest = begun.elapsed();
        let watched = poll_fn(|context| {
            let begun = WallInstant::now();
            let polled = call.poll_unpin(context);
            longest = longest.max(begun.elapsed());
            polled
        });
        let answer = timeout(self.driver.deadline(), watched)
            .await
            .unwrap_or_else(|_| Err(DriverError::new(Code::DeadlineExceeded, "the call was dropped at its deadline")));
        if longest > LONGEST_POLL {
            self.notebook.blocking.lock().insert(what.to_owned());
        }
        self.notebook.note(what, &answer);
        answer
    }
}

/// Where a check works.
pub(crate) struct Context<'a> {
    pub(crate) fixture: &'a dyn Fixture,
    pub(crate) notebook: &'a Notebook,
    pub(crate) calls: Caller<'a>,
    /// A DNS label that no other check and no other run has.
    pub(crate) prefix: String,
    machines: Mutex<Vec<MachineRequest>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(fixture: &'a dyn Fixture, notebook: &'a Notebook, check: &'static str) -> Self {
        let prefix = format!("t{:05x}-{}", fastrand::u32(..1 << 20), check.replace('_', "-"));
        let calls = Caller { driver: fixture.driver(), notebook };
        Self { fixture, notebook, calls, prefix, machines: Mutex::default() }
    }

    /// Calls after a restart of the manager.
    pub(crate) fn restarted(&self) -> Caller<'a> {
        Caller { driver: self.fixture.driver(), notebook: self.notebook }
    }

    /// The class of the check's own cluster.
    pub(crate) fn class(&self) -> Class {
        self.fixture.class(&self.prefix)
    }

    /// A Machine of the check's own cluster that has no VM yet.
    pub(crate) fn machine(&self, suffix: impl std::fmt::Display) -> MachineRequest {
        self.named(&format!("{}-{suffix}", self.prefix), self.class())
    }

    pub(crate) fn named(&self, name: &str, class: Class) -> MachineRequest {
        let user_data = SecretText(format!("#!/bin/sh\necho {SECRET} >/dev/null\n").into());
        let request = MachineRequest { uid: new_uid(), user_data, ..machine(name, class) };
        self.machines.lock().push(request.clone());
        request
    }

    /// Creates a VM, and notes in the request what the answer says, as the manager does in the Machine's status.
    pub(crate) async fn make(&self, request: &mut MachineRequest) -> Checked<Instance> {
        let made = self.retried(request, async |request| self.calls.create(request).await).await;
        let made =
            made.map_err(|error| Finding::Broken(format!("create of machine {} fails: {error}", request.name)))?;
        request.provider_id = Some(made.provider_id.clone());
        request.is_proven = true;
        if let Some(notes) = &made.last_known_state {
            request.last_known_state.clone_from(notes);
        }
        Ok(made)
    }

    /// Finds the VM of a Machine, as soon as the provider is consistent.
    pub(crate) async fn find(&self, request: &MachineRequest) -> Checked<Instance> {
        let found = eventually(self.calls.driver.consistency(), async || match self.calls.status(request).await {
            Err(error) if error.code == Code::NotFound || error.is_passing() => None,
            other => Some(other),
        });
        match found.await {
            Some(Ok(instance)) => Ok(instance),
            Some(Err(error)) if error.code == Code::Unimplemented => skipped("status is Unimplemented"),
            Some(Err(error)) => broken(format!("status of machine {} fails: {error}", request.name)),
            None => broken(format!("status does not find the VM of machine {}", request.name)),
        }
    }

    /// Deletes the VMs of a Machine.
    pub(crate) async fn remove(&self, request: &MachineRequest) -> Checked {
        match self.retried(&mut request.clone(), async |request| self.calls.delete(request).await).await {
            Err(error) if error.code != Code::NotFound => {
                broken(format!("delete of machine {} fails: {error}", request.name))
            }
            _ => Ok(()),
        }
    }

    /// Repeats a call while it fails with a code that says that it may succeed a little later, with the notes it has left.
    async fn retried<T>(
        &self,
        request: &mut MachineRequest,
        call: impl AsyncFn(&MachineRequest) -> Result<T>,
    ) -> Result<T> {
        let mut last = DriverError::new(Code::Unknown, "it was never called");
        let ended = eventually(self.fixture.eventual_timeout(), async || match call(request).await {
            Err(error) if error.is_passing() => {
                if let Some(notes) = &error.last_known_state {
                    request.last_known_state.clone_from(notes);
                }
                last = error;
                None
            }
            other => Some(other),
        });
        let ended = ended.await;
        ended.unwrap_or(Err(last))
    }

    /// The ids of all VMs: as the provider shows them, or else as the driver lists them for this check's cluster.
    pub(crate) async fn vms(&self) -> Checked<BTreeSet<String>> {
        if let Some(vms) = self.fixture.vms().await? {
            return Ok(vms);
        }
        sleep(self.calls.driver.consistency()).await;
        Ok(self.listed(self.class()).await?.into_iter().map(|(id, _)| id).collect())
    }

    pub(crate) async fn listed(&self, class: Class) -> Checked<Vec<(String, String)>> {
        match self.calls.list(class).await {
            Err(error) if error.code == Code::Unimplemented => skipped("list is Unimplemented"),
            other => other.map_err(|error| Finding::Broken(format!("list fails: {error}"))),
        }
    }

    /// Fails unless these VMs, and no others, exist since `before`.
    pub(crate) async fn only_new(&self, before: &BTreeSet<String>, expected: &[&Instance]) -> Checked {
        let new: BTreeSet<String> = self.vms().await?.difference(before).cloned().collect();
        let expected: BTreeSet<String> = expected.iter().map(|instance| instance.provider_id.clone()).collect();
        ensure(new == expected, || format!("there should be the new VMs {expected:?}, and there are {new:?}"))
    }

    /// Waits until a VM is gone.
    pub(crate) async fn gone(&self, request: &MachineRequest) -> Checked {
        let Some(id) = &request.provider_id else { return Ok(()) };
        let gone = eventually(self.fixture.eventual_timeout(), async || match self.vms().await {
            Ok(vms) => (!vms.contains(id)).then_some(Ok(())),
            Err(finding) => Some(Err(finding)),
        });
        gone.await.unwrap_or_else(|| broken(format!("VM {id} is still there, although delete has succeeded")))
    }

    /// Fails if a VM is gone that had to stay.
    pub(crate) async fn stays(&self, instance: &Instance, why: &str) -> Checked {
        let vms = self.vms().await?;
        ensure(vms.contains(&instance.provider_id), || format!("VM {} was deleted, and {why}", instance.provider_id))
    }

    /// Creates VMs for many Machines.
    pub(crate) async fn make_many(&self, count: usize) -> Checked<BTreeSet<String>> {
        let machines: Vec<MachineRequest> = (0..count).map(|number| self.machine(number)).collect();
        let made = stream::iter(machines).map(|mut request| async move { self.make(&mut request).await });
        let made: Vec<Checked<Instance>> = made.buffer_unordered(AT_ONCE).collect().await;
        made.into_iter().map(|instance| Ok(instance?.provider_id)).collect()
    }

    /// Deletes the VMs of all Machines of the check, as far as that is possible.
    pub(crate) async fn clean_up(&self) {
        let machines = std::mem::take(&mut *self.machines.lock());
        let ended = stream::iter(&machines).map(|request| async { drop(self.remove(request).await) });
        ended.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// The same Machine after it was restored from a backup: without status and providerID, with another UID.
pub(crate) fn restored(request: &MachineRequest) -> MachineRequest {
    let user_data = request.user_data.clone();
    MachineRequest { uid: new_uid(), user_data, ..machine(&request.name, request.class.clone()) }
}

/// The same call of two managers at once, several times each.
pub(crate) async fn at_once<T>(callers: &[&Caller<'_>], call: impl AsyncFn(&Caller<'_>) -> T) -> Vec<T> {
    join_all(callers.iter().flat_map(|caller| [call(caller), call(caller)])).await
}

/// Tries until there is something, or the time is over.
pub(crate) async fn eventually<T>(within: Duration, mut attempt: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(10);
    loop {
        let is_last = begun.elapsed() >= within;
        if let Some(found) = attempt().await {
            return Some(found);
        }
        if is_last {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// How a call is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DropAt {
    /// How often it is polled again before.
    pub(crate) polls: usize,
    /// Whether its last request has time to arrive.
    pub(crate) lingers: bool,
}

impl DropAt {
    /// Makes a call and drops it, unless it has ended before.
    pub(crate) async fn apply<T>(self, mut call: BoxFuture<'static, T>) -> Option<T> {
        let mut left = self.polls;
        let ended = poll_fn(|context| match call.poll_unpin(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                left -= 1;
                Poll::Pending
            }
        });
        let ended = ended.await;
        if ended.is_none() && self.lingers {
            sleep(LINGER).await;
        }
        ended
    }
}

fn new_uid() -> String {
    let [a, b] = [fastrand::u64(..), fastrand::u64(..)];
    let hex = format!("{a:016x}{b:016x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
