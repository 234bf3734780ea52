//! A driver for VMs that exist in memory, and the contract suite run against it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, pending, ready},
};
use k8s_openapi::{
    ByteString,
    api::core::v1::{NodeAddress, Secret},
};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, InstanceMetadata, ListedVm, MachineRequest, Mismatch, OrphanRequest, Power,
    Result, SecretData, UnownedRequest,
};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{task::yield_now, time::Instant};

const PREFIX: &str = "memory:///";
/// The CSI driver of the cloud's volumes.
const CSI_DRIVER: &str = "csi.memory.example.com";
/// How long the cloud may hide a new VM, and how long a deletion takes.
const CONSISTENCY: Duration = Duration::from_millis(300);
const DELETION: Duration = Duration::from_millis(100);

type Tags = BTreeMap<&'static str, String>;

/// The provider. A real driver would reach it by its API.
#[derive(Clone, Default)]
pub(crate) struct Cloud(pub(crate) Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) vms: BTreeMap<String, Vm>,
    /// The id of the VM that was created with a token. It stays when the VM is gone.
    pub(crate) tokens: BTreeMap<String, String>,
    pub(crate) hides_next: bool,
    pub(crate) outage: Option<Outage>,
}

#[derive(Clone)]
pub(crate) struct Vm {
    pub(crate) tags: Tags,
    /// The token of its creation, the UID of a Machine.
    pub(crate) owner: String,
    pub(crate) is_stopped: bool,
    shows_at: Instant,
    gone_at: Option<Instant>,
}

impl State {
    /// Makes one VM for a token.
    pub(crate) fn make(&mut self, token: &str, tags: Tags) -> String {
        let next = format!("vm-{}", self.tokens.len());
        let id = self.tokens.entry(token.to_owned()).or_insert_with(|| next.clone()).clone();
        if id == next {
            let hidden = if std::mem::take(&mut self.hides_next) { CONSISTENCY / 2 } else { Duration::ZERO };
            let owner = token.to_owned();
            let vm = Vm { tags, owner, is_stopped: false, shows_at: Instant::now() + hidden, gone_at: None };
            self.vms.insert(id.clone(), vm);
        }
        id
    }

    pub(crate) fn existing(&mut self) -> &mut BTreeMap<String, Vm> {
        self.vms.retain(|_, vm| vm.gone_at.is_none_or(|at| at > Instant::now()));
        &mut self.vms
    }
}

impl Cloud {
    /// A request and its answer: both take time, and the caller may have gone before either.
    pub(crate) async fn ask<T>(&self, class: &Class, act: impl FnOnce(&mut State) -> T) -> Result<T> {
        yield_now().await;
        let outage = self.0.lock().outage;
        match outage {
            Some(Outage::Silent) => pending().await,
            Some(Outage::Failing) => return Err(DriverError::new(Code::Unavailable, "the cloud is out of order")),
            Some(Outage::Full) | None => {}
        }
        if class.secret.get("password") != Some(contract::SECRET.as_bytes()) {
            return Err(DriverError::new(Code::Unauthenticated, "the cloud rejects the password of the Secret"));
        }
        let answer = act(&mut self.0.lock());
        yield_now().await;
        Ok(answer)
    }

    async fn vms(&self, class: &Class) -> Result<BTreeMap<String, Vm>> {
        let is_shown = |vm: &Vm| vm.shows_at <= Instant::now();
        let shown = |state: &mut State| {
            let vms = state.existing().iter().filter(|(_, vm)| is_shown(vm));
            vms.map(|(id, vm)| (id.clone(), vm.clone())).collect()
        };
        self.ask(class, shown).await
    }

    async fn terminate(&self, class: &Class, id: &str) -> Result<()> {
        let terminate = |state: &mut State| {
            if let Some(vm) = state.existing().get_mut(id) {
                vm.gone_at.get_or_insert(Instant::now() + DELETION);
            }
        };
        self.ask(class, terminate).await
    }
}

#[derive(Clone, Default)]
pub(crate) struct MemoryDriver {
    pub(crate) cloud: Cloud,
}

impl MemoryDriver {
    async fn create_vm(self, request: MachineRequest) -> Result<Instance> {
        if let Some((path, what)) = faults(&request.class.provider_spec).first() {
            let message = format!("providerSpec.{path} {what}; correct the MachineClass");
            return Err(DriverError::new(Code::InvalidArgument, message));
        }
        let tags = tags(&request.class, &request.name)?;
        let made = |state: &mut State| {
            if state.outage == Some(Outage::Full) {
                return Err(DriverError::new(Code::ResourceExhausted, "the cloud has no room for another VM"));
            }
            let id = state.make(&request.uid, tags);
            Ok(state.existing().contains_key(&id).then_some(id))
        };
        let id = self.cloud.ask(&request.class, made).await??;
        id.map(|id| instance(&id, &request.uid)).ok_or_else(|| {
            DriverError::new(
                Code::FailedPrecondition,
                "the VM of this machine was deleted; a new VM needs a new machine",
            )
        })
    }

    async fn find(self, request: MachineRequest) -> Result<Instance> {
        let (vms, tags) = (self.cloud.vms(&request.class).await?, tags(&request.class, &request.name)?);
        let claimed = request.provider_id.as_deref().map_or(Ok(None), |id| claimed(&vms, &tags, id));
        let named: Vec<(&String, &Vm)> = vms.iter().filter(|(_, vm)| vm.tags == tags).collect();
        let own: Vec<_> = named.iter().filter(|(_, vm)| request.owns(Some(&vm.owner))).collect();
        match (own.as_slice(), claimed, named.as_slice()) {
            // A VM of another token is found, and the answer says whose it is: the manager knows whether the Machine may adopt it.
            ([(id, vm)], ..) | ([], Ok(None) | Err(_), [(id, vm)]) => Ok(described(id, vm)),
            ([], Ok(Some(id)), _) => Ok(described(&id, &vms[&id])),
            ([], Err(mismatch), []) => Err(mismatch),
            ([], Ok(None), []) => Err(DriverError::new(Code::NotFound, format!("machine {} has no VM", request.name))),
            ([], ..) => {
                let message = format!("several VMs have the name of machine {}, and none is its own", request.name);
                Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine))
            }
            (several, ..) => {
                Err(DriverError::new(Code::OutOfRange, format!("the machine has several VMs: {}", several.len())))
            }
        }
    }

    async fn delete_vms(self, request: MachineRequest) -> Result<Option<String>> {
        let (vms, tags) = (self.cloud.vms(&request.class).await?, tags(&request.class, &request.name)?);
        let is_own = |vm: &Vm| vm.tags == tags && request.owns(Some(&vm.owner));
        let mut doomed: BTreeSet<String> = vms.iter().filter(|(_, vm)| is_own(vm)).map(|(id, _)| id.clone()).collect();
        let claimed = request.provider_id.as_deref().map_or(Ok(None), |id| claimed(&vms, &tags, id));
        // The id was proven before, and the VM does not show: it may be so new that the cloud hides it.
        if let (Ok(None), true, Some(id)) = (&claimed, request.is_proven, &request.provider_id) {
            doomed.extend(id.strip_prefix(PREFIX).map(str::to_owned));
        }
        for id in &doomed {
            self.cloud.terminate(&request.class, id).await?;
        }
        match claimed? {
            Some(id) if !doomed.contains(&id) => {
                let message = format!("VM {id} was made for another machine of this name");
                Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine))
            }
            _ => Ok(None),
        }
    }
}

impl MemoryDriver {
    async fn delete_one(self, orphan: OrphanRequest) -> Result<()> {
        let (vms, own) = (self.cloud.vms(&orphan.class).await?, tags(&orphan.class, &orphan.machine)?);
        match claimed(&vms, &own, &orphan.provider_id)? {
            Some(id) => self.cloud.terminate(&orphan.class, &id).await,
            None => Ok(()),
        }
    }
}

impl MemoryDriver {
    async fn describe(self, request: UnownedRequest) -> Result<Instance> {
        let vms = self.cloud.vms(&request.class).await?;
        let id = request.provider_id.strip_prefix(PREFIX).unwrap_or_default();
        match vms.get(id) {
            Some(vm) if vm.tags.contains_key("machine") => {
                Err(DriverError::new(Code::FailedPrecondition, format!("VM {id} was made for a machine")))
            }
            Some(vm) => Ok(described(id, vm)),
            None => Err(DriverError::new(Code::NotFound, format!("there is no VM {}", request.provider_id))),
        }
    }
}

/// The VM that a Machine names, if it exists. Its tags have to prove that it is the Machine's.
fn claimed(vms: &BTreeMap<String, Vm>, own: &Tags, provider_id: &str) -> Result<Option<String>> {
    let Some(id) = provider_id.strip_prefix(PREFIX) else {
        let message = format!("provider id {provider_id:?} is not of this provider; it must begin {PREFIX}");
        return Err(DriverError::new(Code::InvalidArgument, message).with_mismatch(Mismatch::Machine));
    };
    let Some(vm) = vms.get(id) else { return Ok(None) };
    let mismatch = match (vm.tags.get("cluster") == own.get("cluster"), vm.tags.get("machine") == own.get("machine")) {
        (true, true) => return Ok(Some(id.to_owned())),
        (false, true) => Mismatch::Cluster,
        (_, false) => Mismatch::Machine,
    };
    let message = format!("VM {provider_id} has the tags {:?}, and the machine's would be {own:?}", vm.tags);
    Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(mismatch))
}

pub(crate) fn tags(class: &Class, machine: &str) -> Result<Tags> {
    let spec: Value = class.provider_spec.parse().unwrap_or_default();
    let cluster = spec["cluster"].as_str().ok_or_else(|| {
        DriverError::new(Code::InvalidArgument, "providerSpec.cluster must be the name of the cluster")
    })?;
    Ok(Tags::from([("cluster", cluster.to_owned()), ("machine", machine.to_owned())]))
}

fn faults(provider_spec: &RawJson) -> Vec<(String, String)> {
    let spec: Value = provider_spec.parse().unwrap_or_default();
    let fields = [("cluster", spec["cluster"].is_string()), ("cores", spec["cores"].is_u64())];
    let wrong = fields.into_iter().filter(|(_, is_valid)| !is_valid);
    wrong.map(|(path, _)| (path.to_owned(), "is missing, or has another type".to_owned())).collect()
}

fn instance(id: &str, owner: &str) -> Instance {
    let (provider_id, owner_uid) = (format!("{PREFIX}{id}"), Some(owner.to_owned()));
    Instance { provider_id, node_name: id.to_owned(), owner_uid, ..Instance::default() }
}

/// What the Node of a VM gets where no cloud controller manager runs.
fn described(id: &str, vm: &Vm) -> Instance {
    let address = NodeAddress { type_: "InternalIP".to_owned(), address: "192.0.2.1".to_owned() };
    let metadata = InstanceMetadata { instance_type: Some("large".to_owned()), ..InstanceMetadata::default() };
    Instance {
        addresses: vec![address],
        metadata: Some(Box::new(metadata)),
        power: if vm.is_stopped { Power::Stopped } else { Power::Running },
        ..instance(id, &vm.owner)
    }
}

impl Driver for MemoryDriver {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(faults(provider_spec))).boxed()
    }

    fn identity(&self) -> Vec<&str> {
        vec!["cluster"]
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn consistency(&self) -> Duration {
        CONSISTENCY
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().create_vm(request).boxed()
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.clone().delete_vms(request).boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().find(request).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        let own = match tags(&class, "") {
            Ok(own) => own,
            Err(error) => return ready(Err(error)).boxed(),
        };
        let cloud = self.cloud.clone();
        let named = move |(id, mut vm): (String, Vm)| {
            let is_own = vm.tags.get("cluster") == own.get("cluster");
            let machine = vm.tags.remove("machine").filter(|_| is_own)?;
            let (owner_uid, is_deleting) = (Some(vm.owner), vm.gone_at.is_some());
            Some((format!("{PREFIX}{id}"), ListedVm { owner_uid, is_deleting, ..ListedVm::of(machine) }))
        };
        async move { cloud.vms(&class).await }.map_ok(|vms| vms.into_iter().filter_map(named).collect()).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().delete_one(orphan).boxed()
    }

    fn describes_instances(&self) -> bool {
        true
    }

    fn describes_unowned(&self) -> bool {
        true
    }

    fn describe_unowned(&self, request: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().describe(request).boxed()
    }

    fn knows_volumes(&self) -> bool {
        true
    }

    fn volume_ids(&self, volumes: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        ready(Ok(volumes.iter().map(volume_id).collect())).boxed()
    }
}

/// The id of a volume in the cloud, if it is one of the cloud's.
fn volume_id(spec: &RawJson) -> Option<String> {
    let spec: Value = spec.parse().ok()?;
    let csi = spec.get("csi").filter(|csi| csi["driver"] == CSI_DRIVER)?;
    csi["volumeHandle"].as_str().map(str::to_owned)
}

/// What the suite has to know.
#[derive(Default)]
pub(crate) struct MemoryFixture {
    pub(crate) cloud: Cloud,
}

impl MemoryFixture {
    fn done<T: Send + 'static>(&self, act: impl FnOnce(&mut State) -> T) -> Hook<'static, T> {
        ready(Ok(Some(act(&mut self.cloud.0.lock())))).boxed()
    }
}

fn class(provider_spec: &Value, password: &str) -> Class {
    let data = BTreeMap::from([("password".to_owned(), ByteString(password.into()))]);
    let secret = Secret { data: Some(data), ..Secret::default() };
    Class { secret: SecretData::of(vec![Arc::new(secret)]), ..contract::class(provider_spec) }
}

impl Fixture for MemoryFixture {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(MemoryDriver { cloud: self.cloud.clone() })
    }

    fn class(&self, cluster: &str) -> Class {
        class(&json!({"cluster": cluster, "cores": 2}), contract::SECRET)
    }

    fn provider_id_prefix(&self) -> &'static str {
        PREFIX
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let specs =
            [("cores", json!({"cluster": cluster, "cores": contract::SECRET})), ("cluster", json!({"cores": 2}))];
        specs.map(|(path, spec)| InvalidSpec { path, spec: RawJson::from(&spec) }).into()
    }

    fn rejected_class(&self, cluster: &str) -> Option<Class> {
        Some(class(&json!({"cluster": cluster, "cores": 2}), "wrong"))
    }

    fn volume(&self) -> Option<(RawJson, String)> {
        let spec = json!({"csi": {"driver": CSI_DRIVER, "volumeHandle": "volume-1"}});
        Some((RawJson::from(&spec), "volume-1".to_owned()))
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        self.done(|state| state.existing().keys().map(|id| format!("{PREFIX}{id}")).collect())
    }

    fn stop_vm(&self, provider_id: &str) -> Hook<'_, ()> {
        self.done(|state| {
            if let Some(vm) = provider_id.strip_prefix(PREFIX).and_then(|id| state.vms.get_mut(id)) {
                vm.is_stopped = true;
            }
        })
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        self.done(|state| format!("{PREFIX}{}", state.make("untagged", Tags::new())))
    }

    fn hide_next_vm(&self) -> Hook<'_, ()> {
        self.done(|state| state.hides_next = true)
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        self.done(|state| state.outage = Some(outage))
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        self.done(|state| state.outage = None)
    }
}

#[tokio::main]
async fn main() {
    contract::run(&MemoryFixture::default()).await.assert_kept();
}
