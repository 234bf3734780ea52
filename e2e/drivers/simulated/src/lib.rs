//! The driver `simulated`: VMs of the fake cloud that the end-to-end tests and `make run` use.
//!
//! The cloud is a separate process with an HTTP API. A VM belongs to a Machine by its tags `cluster` and `machine`, and by the tag
//! `uid`, which holds the token of its creation, the Machine's UID.
//!
//! The cloud's volumes are those of the CSI drivers whose names are [`CSI_DRIVER`] or end with it. A test that attaches disks has a
//! CSI driver of its own, and several tests share a cluster.
//!
//! # Guarantees
//! The cloud creates one VM for a token and never a second one, not even after the first is deleted.
//!
//! # Caveats
//! * If a class changed between two calls of `create` with one token, the second call returns the VM of the first.
//! * `create` does not look for a VM that was created with another UID; `status` finds that by name, and says so.

mod client;
mod spec;
#[cfg(test)]
mod tests;
mod volumes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{Code, RawJson, finalizers};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, InstanceMetadata, ListedVm, MachineRequest, Mismatch, OrphanRequest, Power,
    ProviderRequests, Result, UnownedRequest,
};
use nodewright_runtime::leadership::Leadership;
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

use self::{
    client::{Client, CreateVm, NodeTemplate, Vm, VmState},
    spec::ProviderSpec,
};

/// The name of the provider in `MachineClass.provider`.
pub const PROVIDER: &str = "simulated";
/// The beginning of each provider id.
pub const PROVIDER_ID_PREFIX: &str = "simulated:///";
/// The CSI driver of the cloud's volumes, and the end of the names of others, such as `NAMESPACE.simulated.nodewright.dev`.
pub const CSI_DRIVER: &str = "simulated.nodewright.dev";

/// The maximum size of an answer. A page of VMs has some hundred kilobytes.
const ANSWER_LIMIT: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of idle connections: after a burst there are as many as there were concurrent calls.
const IDLE_CONNECTIONS: usize = 16;
const TAG_CLUSTER: &str = "cluster";
const TAG_MACHINE: &str = "machine";
const TAG_UID: &str = "uid";

/// The options of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The base of the cloud's URLs, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The timeout of a request, which may have taken effect. A driver call makes one or two requests and has twice this time.
    pub call_timeout: Duration,
    /// How long the cloud may hide a new VM, see [`Driver::consistency`].
    pub consistency: Duration,
}

impl Options {
    /// The default options for the cloud at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), call_timeout: Duration::from_secs(15), consistency: Duration::from_secs(5) }
    }
}

/// The URL of the cloud is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to use {url:?} as the URL of the simulated cloud: {reason}; it must look like http://127.0.0.1:8080")]
pub struct UrlError {
    /// The URL.
    pub url: String,
    /// The reason.
    pub reason: String,
}

/// The driver. See the [crate](self).
#[derive(Clone, Debug)]
pub struct SimulatedDriver {
    client: Arc<Client>,
    call_timeout: Duration,
    consistency: Duration,
}

impl SimulatedDriver {
    /// A driver for one cloud, for a process with this leadership. It sends nothing yet.
    pub fn new(options: &Options, leadership: &Leadership) -> std::result::Result<Self, UrlError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(leadership.connector(connector));
        Self::with_service(http, options)
    }

    /// A driver that reaches its cloud without TCP: in the same process, for example. If the service fails with an
    /// [`std::io::Error`] of the kind `ConnectionRefused`, the request did not arrive.
    pub fn with_service<S, B>(service: S, options: &Options) -> std::result::Result<Self, UrlError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let bounded = |response: Response<B>| response.map(|body| Limited::new(body, ANSWER_LIMIT).boxed_unsync());
        let transport = BoxCloneSyncService::new(service.map_response(bounded).map_err(Into::into));
        let (call_timeout, consistency) = (options.call_timeout, options.consistency);
        let client = Arc::new(Client::new(&options.url, call_timeout, transport)?);
        Ok(Self { client, call_timeout, consistency })
    }

    async fn create_vm(self, request: MachineRequest) -> Result<Instance> {
        let spec = ProviderSpec::read(&request.class.provider_spec)?;
        let order = CreateVm {
            name: request.name.clone(),
            token: request.uid.clone(),
            tags: BTreeMap::from([
                (TAG_CLUSTER.to_owned(), spec.cluster.clone()),
                (TAG_MACHINE.to_owned(), request.name.clone()),
                (TAG_UID.to_owned(), request.uid.clone()),
            ]),
            node: NodeTemplate {
                labels: spec.labels,
                taints: spec.taints,
                external_cloud_provider: spec.external_cloud_provider,
            },
            size: spec.size,
            zone: spec.zone,
            region: spec.region,
            boot_seconds: spec.boot_seconds,
            user_data: Some(request.user_data.0).filter(|data| !data.is_empty()),
        };
        assert!(!spec.panics, "as providerSpec.panics asks: the user data is {:?}", order.user_data);
        let vm = match self.client.create(&order).await {
            // An earlier call created it, from another version of the class or with other user data.
            Err(error) if error.code == Code::AlreadyExists => self.made_by(&spec.cluster, &request.uid, error).await?,
            other => other?,
        };
        if vm.state == VmState::Deleting {
            let message = format!("vm {} of this machine is being deleted; a new vm needs a new machine", vm.id);
            return Err(DriverError::new(Code::FailedPrecondition, message));
        }
        Ok(instance(vm))
    }

    /// The VM that was created with this token; `error` is the cloud's answer to the creation.
    async fn made_by(&self, cluster: &str, uid: &str, error: DriverError) -> Result<Vm> {
        let vms = self.client.list(&[(TAG_CLUSTER, cluster), (TAG_UID, uid)]).await?;
        vms.into_iter().next().ok_or_else(|| {
            let message = format!("the vm of an earlier call does not show yet: {}", error.message);
            DriverError::new(Code::Unavailable, message)
        })
    }

    async fn delete_vms(self, request: MachineRequest) -> Result<()> {
        let owner = Owner::of(&request)?;
        let mut vms = self.client.list(&owner.tags()).await?;
        vms.retain(|vm| owner.is_sure_of(vm, &request));
        let mut mismatch = None;
        if let Some(id) = request.provider_id.as_deref()
            && !vms.iter().any(|vm| vm.provider_id == id)
        {
            match self.claimed(&owner, id).await {
                Ok(vm) if owner.is_sure_of(&vm, &request) => vms.push(vm),
                Ok(vm) => mismatch = Some(anothers(&vm, &request)),
                // The VM may exist and not be visible yet. Then only a deletion by its id reaches it.
                Err(error) if error.code == Code::NotFound && request.is_proven => self.delete_one(vm_id(id)?).await?,
                Err(error) if error.code == Code::NotFound => {}
                Err(error) if error.mismatch.is_some() => mismatch = Some(error),
                Err(error) => return Err(error),
            }
        }
        for vm in vms.iter().filter(|vm| vm.state != VmState::Deleting) {
            self.delete_one(&vm.id).await?;
        }
        mismatch.map_or(Ok(()), Err)
    }

    async fn claimed(&self, owner: &Owner<'_>, provider_id: &str) -> Result<Vm> {
        let vm = self.client.get(vm_id(provider_id)?).await?;
        owner.prove(&vm).map(|()| vm)
    }

    async fn delete_one(&self, id: &str) -> Result<()> {
        match self.client.delete(id).await {
            Err(error) if error.code == Code::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    async fn find(self, request: MachineRequest) -> Result<Instance> {
        let owner = Owner::of(&request)?;
        let (mut claimed, mut fault) = (None, None);
        if let Some(id) = request.provider_id.as_deref() {
            match self.claimed(&owner, id).await {
                Ok(vm) if request.owns(token(&vm)) => return Ok(instance(vm)),
                Ok(vm) => claimed = Some(vm),
                Err(error) if error.code == Code::NotFound || error.mismatch.is_some() => fault = Some(error),
                Err(error) => return Err(error),
            }
        }
        let vms = self.client.list(&owner.tags()).await?;
        the_one(vms, claimed, &request)?.map(instance).ok_or_else(|| {
            let message = || format!("there is no vm for machine {} in cluster {}", owner.machine, owner.cluster);
            fault.unwrap_or_else(|| DriverError::new(Code::NotFound, message()))
        })
    }

    async fn list_vms(self, class: Class) -> Result<BTreeMap<String, ListedVm>> {
        let cluster = spec::cluster(&class.provider_spec)?;
        let vms = self.client.list(&[(TAG_CLUSTER, &cluster)]).await?;
        let listed = |mut vm: Vm| {
            let (machine, is_deleting) = (vm.tags.remove(TAG_MACHINE)?, vm.state == VmState::Deleting);
            let owner_uid = vm.tags.remove(TAG_UID);
            Some((vm.provider_id, ListedVm { machine, owner_uid, created: vm.created_at, is_deleting }))
        };
        Ok(vms.into_iter().filter_map(listed).collect())
    }

    async fn delete_listed(self, orphan: OrphanRequest) -> Result<()> {
        let cluster = spec::cluster(&orphan.class.provider_spec)?;
        let owner = Owner { cluster, machine: &orphan.machine, class: &orphan.class.name };
        match self.claimed(&owner, &orphan.provider_id).await {
            Ok(vm) if vm.state == VmState::Deleting => Ok(()),
            Ok(vm) => self.delete_one(&vm.id).await,
            Err(error) if error.code == Code::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn describe(self, request: UnownedRequest) -> Result<Instance> {
        let id = vm_id(&request.provider_id).map_err(|error| DriverError::new(Code::NotFound, error.message))?;
        let vm = self.client.get(id).await?;
        match vm.tags.get(TAG_MACHINE) {
            Some(machine) => {
                let message = format!("vm {} was made for machine {machine}", vm.provider_id);
                Err(DriverError::new(Code::FailedPrecondition, message))
            }
            None => Ok(instance(vm)),
        }
    }
}

struct Owner<'a> {
    cluster: String,
    machine: &'a str,
    class: &'a str,
}

impl<'a> Owner<'a> {
    fn of(request: &'a MachineRequest) -> Result<Self> {
        let cluster = spec::cluster(&request.class.provider_spec)?;
        Ok(Self { cluster, machine: &request.name, class: &request.class.name })
    }

    fn tags(&self) -> [(&'static str, &str); 2] {
        [(TAG_CLUSTER, &self.cluster), (TAG_MACHINE, self.machine)]
    }

    /// Whether a VM of these tags is to go with the Machine: by its token, or, without one, because it was proven before.
    fn is_sure_of(&self, vm: &Vm, request: &MachineRequest) -> bool {
        let is_proven = request.is_proven && request.provider_id.as_ref() == Some(&vm.provider_id);
        self.prove(vm).is_ok() && (request.owns(token(vm)) || token(vm).is_none() && is_proven)
    }

    /// Checks that a VM has the tags of this Machine's cluster and name. The error has the tags.
    fn prove(&self, vm: &Vm) -> Result<()> {
        let tag = |key: &str| vm.tags.get(key).map(String::as_str);
        let (cluster, machine) = (tag(TAG_CLUSTER), tag(TAG_MACHINE));
        let (mismatch, remedy) = match (cluster == Some(&self.cluster), machine == Some(self.machine)) {
            (true, true) => return Ok(()),
            (false, true) => {
                let remedy = format!(
                    "set providerSpec.cluster of MachineClass {} back if it was changed; if the VM is another cluster's, \
                     take finalizer {} off the Machine to delete that alone",
                    self.class,
                    finalizers::MACHINE_CONTROLLER_MANAGER
                );
                (Mismatch::Cluster, remedy)
            }
            (_, false) => (Mismatch::Machine, "delete the Machine: the VM stays".to_owned()),
        };
        let message = format!(
            "vm {} is not this machine's: its tags: cluster {}, machine {}, and not cluster {:?}, machine {:?}; {remedy}",
            vm.provider_id,
            quoted(cluster),
            quoted(machine),
            self.cluster,
            self.machine,
        );
        Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(mismatch))
    }
}

fn quoted(tag: Option<&str>) -> String {
    tag.map_or_else(|| "(none)".to_owned(), |tag| format!("{tag:?}"))
}

/// The token with which a VM was created: the UID of a Machine.
fn token(vm: &Vm) -> Option<&str> {
    vm.tags.get(TAG_UID).map(String::as_str)
}

fn anothers(vm: &Vm, request: &MachineRequest) -> DriverError {
    let message = format!(
        "vm {} has the tags of machine {} and was made for {}, not for this one, which has UID {}; delete the Machine: the VM stays",
        vm.provider_id,
        request.name,
        token(vm).map_or_else(|| "an unknown one".to_owned(), |uid| format!("the one with UID {uid}")),
        request.uid,
    );
    DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine)
}

/// Of the VMs of a Machine's name, the one that it owns and that stays. One that is being deleted counts only if there is no other: a
/// caller that waits for its end must still see it. If it owns none, the one that it names, or the only one.
fn the_one(vms: Vec<Vm>, claimed: Option<Vm>, request: &MachineRequest) -> Result<Option<Vm>> {
    let (own, others): (Vec<Vm>, Vec<Vm>) = vms.into_iter().partition(|vm| request.owns(token(vm)));
    let owns_any = !own.is_empty();
    if !owns_any && claimed.is_some() {
        return Ok(claimed);
    }
    let (deleting, mut staying): (Vec<Vm>, Vec<Vm>) =
        if owns_any { own } else { others }.into_iter().partition(|vm| vm.state == VmState::Deleting);
    if staying.len() > 1 {
        let ids: Vec<&str> = staying.iter().map(|vm| vm.id.as_str()).collect();
        let (machine, ids) = (&request.name, ids.join(", "));
        return Err(if owns_any {
            DriverError::new(Code::OutOfRange, format!("machine {machine} has several vms: {ids}"))
        } else {
            let message = format!("several vms have the tags of machine {machine}, and none was made for it: {ids}");
            DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine)
        });
    }
    Ok(staying.pop().or_else(|| deleting.into_iter().next()))
}

fn vm_id(provider_id: &str) -> Result<&str> {
    provider_id.strip_prefix(PROVIDER_ID_PREFIX).filter(|id| !id.is_empty()).ok_or_else(|| {
        let message =
            format!("provider id {provider_id:?} is not of this provider; it must begin {PROVIDER_ID_PREFIX}");
        DriverError::new(Code::InvalidArgument, message).with_mismatch(Mismatch::Machine)
    })
}

fn instance(vm: Vm) -> Instance {
    let owner_uid = token(&vm).map(str::to_owned);
    let addresses = vm.addresses.into_iter().map(|it| NodeAddress { type_: it.kind, address: it.address });
    let metadata = InstanceMetadata {
        instance_type: Some(vm.size).filter(|size| !size.is_empty()),
        zone: vm.zone,
        region: vm.region,
        labels: BTreeMap::new(),
    };
    Instance {
        provider_id: vm.provider_id,
        node_name: vm.node_name,
        owner_uid,
        addresses: addresses.collect(),
        metadata: Some(Box::new(metadata)),
        power: match vm.state {
            VmState::Running => Power::Running,
            VmState::Stopped => Power::Stopped,
            VmState::Pending | VmState::Deleting => Power::Unknown,
        },
        ..Instance::default()
    }
}

impl Driver for SimulatedDriver {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(spec::validate(provider_spec))).boxed()
    }

    fn identity(&self) -> Vec<&str> {
        vec!["cluster"]
    }

    fn deadline(&self) -> Duration {
        self.call_timeout * 2
    }

    fn consistency(&self) -> Duration {
        self.consistency
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().create_vm(request).boxed()
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        let deletion = self.clone().delete_vms(request);
        async move { deletion.await.map(|()| None) }.boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().find(request).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        self.clone().list_vms(class).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().delete_listed(orphan).boxed()
    }

    fn initializes(&self) -> bool {
        false
    }

    fn knows_volumes(&self) -> bool {
        true
    }

    fn describes_instances(&self) -> bool {
        true
    }

    fn describes_unowned(&self) -> bool {
        true
    }

    fn requests(&self) -> Option<Vec<ProviderRequests>> {
        Some(self.client.requests.requests())
    }

    fn describe_unowned(&self, request: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().describe(request).boxed()
    }

    fn volume_ids(&self, volumes: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        ready(Ok(volumes.iter().map(volumes::id).collect())).boxed()
    }
}
