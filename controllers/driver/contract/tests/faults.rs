//! The suite can fail: for each check there is a driver that breaks its rule, and that check alone notices.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

#[path = "../examples/memory.rs"]
#[allow(dead_code, reason = "it is a program, too")]
mod memory;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, ListedVm, MachineRequest, Mismatch, OrphanRequest, Power, Result,
    UnownedRequest,
};
use nodewright_driver_contract::{Fixture, Hook, InvalidSpec, Outage, rules, run};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use self::memory::{MemoryDriver, MemoryFixture, State};

#[tokio::test(start_paused = true)]
async fn the_example_keeps_the_contract() {
    let report = run(&MemoryFixture::default()).await;
    report.assert_kept();
    assert_eq!(report.skipped(), Vec::<&str>::new(), "each check runs");
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_noticed_by_the_check_of_its_rule_and_no_other() {
    let mut wrong = vec![];
    for (check, rule) in rules() {
        let report = run(&FaultyFixture { inner: MemoryFixture::default(), fault: check }).await;
        if report.broken() != [check] || !report.to_string().contains(rule) {
            wrong.push(format!("{check}: a driver that breaks it breaks {:?}\n{report}", report.broken()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A driver that breaks the rule of one check.
#[derive(Clone)]
struct Faulty {
    inner: MemoryDriver,
    fault: &'static str,
    /// What the process remembers.
    memory: Arc<Memory>,
}

#[derive(Default)]
struct Memory {
    process: u32,
    begun: Mutex<BTreeSet<String>>,
    created: Mutex<BTreeSet<String>>,
    deleted: Mutex<BTreeSet<String>>,
    found: Mutex<BTreeMap<String, Instance>>,
}

static PROCESSES: AtomicU32 = AtomicU32::new(0);
static HAS_BLOCKED: AtomicBool = AtomicBool::new(false);
/// Two creations of [`Faulty::in_two_steps`] do not overlap.
static CREATING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn failed<T>(code: Code, message: &str) -> Result<T> {
    Err(DriverError::new(code, message))
}

fn id_of(instance: &Instance) -> String {
    instance.provider_id.trim_start_matches("memory:///").to_owned()
}

impl Faulty {
    fn is(&self, fault: &str) -> bool {
        self.fault == fault
    }

    fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.inner.cloud.0.lock())
    }

    fn is_valid(&self, class: &Class) -> bool {
        self.validate(&class.provider_spec).now_or_never().flatten().is_some_and(|faults| faults.is_empty())
    }

    fn has_token(&self, uid: &str) -> bool {
        self.state(|state| state.tokens.contains_key(uid))
    }

    fn read_notes(&self, request: &MachineRequest) -> Result<()> {
        let is_read = !self.is("notes") || request.last_known_state.is_empty();
        if is_read { Ok(()) } else { failed(Code::Internal, "the notes cannot be decoded") }
    }

    async fn created(self, mut request: MachineRequest) -> Result<Instance> {
        self.read_notes(&request)?;
        let uid = request.uid.clone();
        let has_begun = !self.memory.begun.lock().insert(uid.clone());
        match self.fault {
            "create_again" if self.memory.created.lock().contains(&uid) => request.uid += "-again",
            "create_after_restart" if !has_begun && self.has_token(&uid) => {
                request.uid = format!("{uid}-{}", self.memory.process);
            }
            "create_at_once" => match self.inner.status(request.clone()).await {
                Ok(found) => return Ok(self.owned(found, &uid)),
                Err(_) => request.uid = format!("{uid}-{}", PROCESSES.fetch_add(1, Ordering::Relaxed)),
            },
            "create_dropped" if self.is_valid(&request.class) => {
                self.in_two_steps(&request).await?;
            }
            "create_late" => {
                let (inner, hidden) = (self.inner.clone(), self.inner.consistency());
                let late = async move {
                    sleep(2 * hidden).await;
                    inner.create(request).await
                };
                return tokio::spawn(late).await.unwrap();
            }
            "names" => request.name.truncate(60),
            _ => {}
        }
        let (class, user_data) = (request.class.name.clone(), request.user_data.0.clone());
        let made = self.inner.create(request).await.map_err(|error| match (self.fault, error.code) {
            ("invalid_class", Code::InvalidArgument) => DriverError::new(error.code, format!("{class} is wrong")),
            ("no_capacity", Code::ResourceExhausted) => DriverError::new(Code::Unavailable, "there is no capacity"),
            ("no_secrets", Code::InvalidArgument) => {
                DriverError::new(error.code, format!("{}; the user data are {user_data}", error.message))
            }
            _ => error,
        })?;
        let made = self.owned(made, &uid);
        self.memory.created.lock().insert(uid);
        Ok(self.answer(made))
    }

    /// The VM has the token of its Machine, whatever the driver broke.
    fn owned(&self, made: Instance, uid: &str) -> Instance {
        self.state(|state| drop(state.vms.entry(id_of(&made)).and_modify(|vm| uid.clone_into(&mut vm.owner))));
        Instance { owner_uid: Some(uid.to_owned()), ..made }
    }

    /// Makes a VM and then its tags. A caller that drops the call in between leaves a VM without an owner.
    async fn in_two_steps(&self, request: &MachineRequest) -> Result<()> {
        let _creating = CREATING.lock().await;
        if self.has_token(&request.uid) {
            return Ok(());
        }
        let token = format!("anonymous-{}", PROCESSES.fetch_add(1, Ordering::Relaxed));
        let id = self.inner.cloud.ask(&request.class, |state| state.make(&token, BTreeMap::new())).await?;
        let tags = memory::tags(&request.class, &request.name)?;
        let tag = |state: &mut State| {
            state.tokens.insert(request.uid.clone(), id.clone());
            state.vms.entry(id).and_modify(|vm| (vm.tags, vm.owner) = (tags, request.uid.clone()));
        };
        self.inner.cloud.ask(&request.class, tag).await
    }

    fn answer(&self, instance: Instance) -> Instance {
        let node_name = if self.is("create") { instance.node_name.to_uppercase() } else { instance.node_name };
        let address = NodeAddress { type_: "InternalIP".to_owned(), address: "127.0.0".to_owned() };
        let addresses = if self.is("addresses") { vec![address] } else { instance.addresses };
        let metadata = instance.metadata.filter(|_| !self.is("described"));
        let power = if self.is("power") { Power::Running } else { instance.power };
        Instance { node_name, addresses, metadata, power, ..instance }
    }

    async fn found(self, request: MachineRequest) -> Result<Instance> {
        if let Some(found) = self.memory.found.lock().get(&request.uid).filter(|_| self.is("delete")) {
            return Ok(found.clone());
        }
        if self.is("no_blocking") && !HAS_BLOCKED.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2_100));
        }
        self.read_notes(&request)?;
        let asked = self.inner.status(request.clone());
        let answer = match timeout(Duration::from_millis(500), asked).await {
            Ok(answer) => answer,
            Err(_) if self.is("silent_provider") => failed(Code::NotFound, "there is no VM"),
            Err(_) => std::future::pending().await,
        };
        let found = match answer {
            Ok(found) => self.wrongly_hidden(&request, found)?,
            Err(error) => self.wrongly_found(&request, error)?,
        };
        self.memory.found.lock().insert(request.uid, found.clone());
        Ok(self.answer(found))
    }

    fn wrongly_hidden(&self, request: &MachineRequest, found: Instance) -> Result<Instance> {
        let id = id_of(&found);
        let (is_stopped, is_of_uid) = self.state(|state| {
            (state.vms.get(&id).is_some_and(|vm| vm.is_stopped), state.tokens.get(&request.uid) == Some(&id))
        });
        let is_hidden = self.is("status_of_stopped") && is_stopped
            || self.is("status_by_name") && request.provider_id.is_none() && !is_of_uid;
        if is_hidden { failed(Code::NotFound, "there is no such VM") } else { Ok(found) }
    }

    fn wrongly_found(&self, request: &MachineRequest, error: DriverError) -> Result<Instance> {
        let claimed = request.provider_id.clone().unwrap_or_default();
        let claimed = Instance { node_name: "n".to_owned(), provider_id: claimed, ..Instance::default() };
        let tags = self.state(|state| state.vms.get(&id_of(&claimed)).map(|vm| vm.tags.clone()));
        let (has_tags, is_tagged) = (tags.map(|tags| !tags.is_empty()), self.is("other_machines_vm"));
        match (self.fault, error.code, error.mismatch) {
            ("status_unknown", Code::NotFound, _) if request.provider_id.is_none() => {
                failed(Code::Internal, "it broke")
            }
            ("rejected_credentials", Code::Unauthenticated, _) => failed(Code::NotFound, "there is no VM"),
            ("no_empty_errors", Code::NotFound, _) => failed(Code::NotFound, ""),
            ("several_vms", _, Some(Mismatch::Machine)) if claimed.provider_id.is_empty() => Ok(claimed),
            ("other_clusters_vm", _, Some(Mismatch::Cluster)) => Ok(claimed),
            ("other_machines_vm" | "untagged_vm", _, Some(Mismatch::Machine)) if has_tags == Some(is_tagged) => {
                Ok(claimed)
            }
            ("other_providers_id", Code::InvalidArgument, _) => Err(DriverError { mismatch: None, ..error }),
            _ => Err(error),
        }
    }

    async fn removed(self, mut request: MachineRequest) -> Result<Option<String>> {
        self.read_notes(&request)?;
        let uid = request.uid.clone();
        let is_noted = request.is_proven && ["delete_again", "delete_dropped"].contains(&self.fault);
        let is_known = self.memory.deleted.lock().contains(&uid);
        match self.fault {
            "delete_again" if is_known => return failed(Code::FailedPrecondition, "it was deleted before"),
            "delete_dropped" if is_known => return Ok(None),
            // Noted before it is done.
            "delete_dropped" if is_noted => drop(self.memory.deleted.lock().insert(uid.clone())),
            // It takes the name for a proof.
            "other_uids_vm" => request.adopted_uid = self.owner_of(&request.name),
            "delete_by_name" if request.provider_id.is_none() => {
                return self.inner.list(request.class).await.map(|_| None);
            }
            "delete_hidden" => request.is_proven = false,
            "hidden_vm" => request.is_proven = true,
            "delete_absent" if !self.has_vm(&request) => return failed(Code::Internal, "there is no VM to delete"),
            "broken_class" if !self.is_valid(&request.class) => {
                return failed(Code::InvalidArgument, "the class is wrong");
            }
            _ => {}
        }
        let deleted = self.inner.delete(request).await;
        let mut noted = self.memory.deleted.lock();
        let _changed = if deleted.is_ok() && is_noted { noted.insert(uid) } else { noted.remove(&uid) };
        deleted
    }

    async fn one_removed(self, orphan: OrphanRequest) -> Result<()> {
        let id = orphan.provider_id.trim_start_matches("memory:///").to_owned();
        match self.fault {
            "delete_orphan" => {
                let request = nodewright_driver_contract::machine(&orphan.machine, orphan.class);
                self.inner.delete(MachineRequest { provider_id: Some(orphan.provider_id), ..request }).await.map(drop)
            }
            "orphan_of_others" => {
                let terminate = |state: &mut State| drop(state.vms.remove(&id));
                self.inner.cloud.ask(&orphan.class, terminate).await
            }
            _ => self.inner.delete_orphan(orphan).await,
        }
    }

    fn owner_of(&self, machine: &str) -> Option<String> {
        let is_of = |vm: &&memory::Vm| vm.tags.get("machine").is_some_and(|name| name == machine);
        self.state(|state| state.existing().values().find(is_of).map(|vm| vm.owner.clone()))
    }

    fn has_vm(&self, request: &MachineRequest) -> bool {
        let claimed = request.provider_id.clone().unwrap_or_default();
        let id = id_of(&Instance { provider_id: claimed.clone(), ..Instance::default() });
        self.state(|state| {
            let mut tags = state.existing().values().filter_map(|vm| vm.tags.get("machine"));
            tags.any(|name| *name == request.name) || state.vms.contains_key(&id) || claimed.starts_with("elsewhere")
        })
    }

    async fn listed(self, class: Class) -> Result<BTreeMap<String, ListedVm>> {
        let listed = self.inner.list(class).await;
        if self.is("failing_provider") && listed.as_ref().is_err_and(DriverError::is_passing) {
            return Ok(BTreeMap::new());
        }
        let mut listed = listed?;
        match self.fault {
            "list" => listed.iter_mut().for_each(|(id, vm)| vm.machine.clone_from(id)),
            "list_of_cluster" => self.state(|state| {
                let tagged = state.existing().iter().filter_map(|(id, vm)| Some((id, vm.tags.get("machine")?)));
                listed.extend(tagged.map(|(id, name)| (format!("memory:///{id}"), ListedVm::of(name.as_str()))));
            }),
            "list_whole" => {
                let first: Vec<String> = listed.keys().take(2).cloned().collect();
                listed.retain(|id, _| first.contains(id));
            }
            _ => {}
        }
        Ok(listed)
    }
}

impl Driver for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        let wrong = self.is("valid_class").then(|| ("colour".to_owned(), "is missing".to_owned()));
        let inner = self.inner.validate(provider_spec);
        async move { Some(inner.await?.into_iter().chain(wrong).collect()) }.boxed()
    }

    fn identity(&self) -> Vec<&str> {
        if self.is("identity") { vec!["klaster"] } else { self.inner.identity() }
    }

    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }

    fn consistency(&self) -> Duration {
        self.inner.consistency()
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().created(request).boxed()
    }

    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        if self.is("initialize") {
            let other = Instance { provider_id: "memory:///another".to_owned(), ..Instance::default() };
            return std::future::ready(Ok(other)).boxed();
        }
        self.inner.initialize(request)
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.clone().removed(request).boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().found(request).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        self.clone().listed(class).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().one_removed(orphan).boxed()
    }

    fn describes_instances(&self) -> bool {
        self.inner.describes_instances()
    }

    fn describes_unowned(&self) -> bool {
        self.inner.describes_unowned()
    }

    fn describe_unowned(&self, request: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        let fails = self.is("unowned");
        let answer = self.inner.describe_unowned(request);
        async move {
            match answer.await {
                // It does not look at the tags.
                Err(error) if fails && error.code == Code::FailedPrecondition => Ok(Instance::default()),
                answer => answer,
            }
        }
        .boxed()
    }

    fn knows_volumes(&self) -> bool {
        self.inner.knows_volumes()
    }

    fn volume_ids(&self, volumes: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        let (answer, leaves_out) = (self.inner.volume_ids(volumes), self.is("volume_ids"));
        async move {
            let mut ids = answer.await?;
            ids.retain(|id| !leaves_out || id.is_some());
            Ok(ids)
        }
        .boxed()
    }
}

struct FaultyFixture {
    inner: MemoryFixture,
    fault: &'static str,
}

impl Fixture for FaultyFixture {
    fn driver(&self) -> Arc<dyn Driver> {
        let inner = MemoryDriver { cloud: self.inner.cloud.clone() };
        let memory = Memory { process: PROCESSES.fetch_add(1, Ordering::Relaxed), ..Memory::default() };
        Arc::new(Faulty { inner, fault: self.fault, memory: Arc::new(memory) })
    }

    fn class(&self, cluster: &str) -> Class {
        self.inner.class(cluster)
    }

    fn provider_id_prefix(&self) -> &'static str {
        self.inner.provider_id_prefix()
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        self.inner.invalid_specs(cluster)
    }

    fn rejected_class(&self, cluster: &str) -> Option<Class> {
        self.inner.rejected_class(cluster)
    }

    fn volume(&self) -> Option<(RawJson, String)> {
        self.inner.volume()
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        self.inner.vms()
    }

    fn stop_vm(&self, provider_id: &str) -> Hook<'_, ()> {
        self.inner.stop_vm(provider_id)
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        self.inner.untagged_vm()
    }

    fn hide_next_vm(&self) -> Hook<'_, ()> {
        self.inner.hide_next_vm()
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        self.inner.begin_outage(outage)
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        self.inner.end_outage()
    }
}
