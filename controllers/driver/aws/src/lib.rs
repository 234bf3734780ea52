//! The driver `aws`: VMs of Amazon EC2. A MachineClass has the providerSpec and the Secret of machine-controller-manager's AWS
//! provider. A VM may belong to a Machine by its tag `Name` and the tags of the class that name cluster and role; that it does is
//! proven by the client token of its creation, which EC2 shows: the Machine's UID.
//!
//! # Guarantees
//! * The client token of a creation is the Machine's UID, so EC2 makes one VM of it.
//! * Nothing that is no answer of EC2 is taken for an empty list.
//!
//! # Assumptions
//! EC2 keeps a client token at least for as long as a Machine waits for its VM.
//!
//! # Caveats
//! If a class changed between two creations with one token, the second one answers with the VM of the first.

mod answers;
mod client;
mod credentials;
mod endpoints;
mod errors;
mod owner;
mod parameters;
mod placement;
mod signing;
mod spec;
#[cfg(test)]
mod tests;
mod transport;
mod volumes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, ready},
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, InstanceMetadata, ListedVm, MachineRequest, OrphanRequest, ProviderRequests,
    Result, UnownedRequest,
};
use serde::{Deserialize, Serialize};
use tower::{BoxError, Service, ServiceExt, util::BoxCloneSyncService};

pub use self::endpoints::EndpointError;
use self::{
    answers::{Done, Images, Instances, Interface, Reservation, Terminated, Vm},
    client::Client,
    credentials::{Session, Source},
    endpoints::Endpoints,
    errors::{OTHER_PARAMETERS, Refused, UNKNOWN_INSTANCE},
    owner::{Owner, instance_id, machine_of, provider_id},
    spec::{Identity, ProviderSpec},
    transport::Transport,
};

/// The name of the provider in `MachineClass.provider`, as machine-controller-manager's provider has it.
pub const PROVIDER: &str = "AWS";
/// The beginning of each provider id.
pub const PROVIDER_ID_PREFIX: &str = "aws:///";

/// The maximum size of an answer. A page of VMs has some megabytes.
const ANSWER_LIMIT: usize = 32 << 20;
/// How many VMs EC2 puts on a page; it allows 1000.
const PAGE_SIZE: usize = 500;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of idle connections: after a burst there are as many as there were concurrent calls.
const IDLE_CONNECTIONS: usize = 16;
/// Between two questions whether a VM is gone. EC2 takes half a minute or more for that, and throttles those who ask often.
const POLL: Duration = Duration::from_secs(10);
/// How many requests a call makes, that for temporary credentials included, and the pages of a list aside.
const REQUESTS_OF_A_CALL: u32 = 5;

/// The options of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The URL of EC2; `None` for that of the class's region.
    pub endpoint: Option<String>,
    /// The URL of STS; `None` for that of the class's region.
    pub sts_endpoint: Option<String>,
    /// The URL of the metadata service of the instance; `None` for that of EC2's instances.
    pub metadata_endpoint: Option<String>,
    /// The timeout of a request, which may have taken effect. A call may make five; getting temporary credentials counts as one.
    pub request_timeout: Duration,
    /// How long EC2 may hide a new VM, see [`Driver::consistency`].
    pub consistency: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: None,
            sts_endpoint: None,
            metadata_endpoint: None,
            request_timeout: Duration::from_secs(20),
            consistency: Duration::from_secs(30),
        }
    }
}

/// Why there is no driver.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A URL is invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// This computer has no certificates by which EC2 could be known.
    #[error("failed to read the system's root certificates: {0}")]
    Certificates(#[source] std::io::Error),
}

/// The driver. See the [crate](self).
#[derive(Clone, Debug)]
pub struct AwsDriver {
    client: Arc<Client>,
    request_timeout: Duration,
    consistency: Duration,
}

/// The driver's notes on a Machine.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Notes {
    /// When `create` was answered: a VM that does not show later than the consistency after it is gone.
    created_at: Option<Timestamp>,
}

/// Where, with which credentials, and with which tags a call is made.
struct Account {
    session: Session,
    identity: Identity,
}

impl Account {
    fn of(class: &Class) -> Result<Self> {
        let identity = Identity::read(&class.provider_spec)?;
        let session = Session { region: identity.region.clone(), source: Source::of(&class.secret)? };
        Ok(Self { session, identity })
    }

    fn owner<'a>(&'a self, machine: &'a str, class: &'a Class) -> Owner<'a> {
        Owner { identity: &self.identity, machine, class: &class.name }
    }

    fn instance(&self, vm: &Vm) -> Result<Instance> {
        if vm.private_dns_name.is_empty() && !vm.is_deleting() {
            let message = format!("instance {} has no private DNS name yet, which is the name of its Node", vm.id);
            return Err(DriverError::new(Code::Unavailable, message));
        }
        let is_checked = vm.network_interface_set.items.iter().any(Interface::can_stop_check);
        Ok(Instance {
            provider_id: provider_id(&self.session.region, &vm.id),
            node_name: vm.private_dns_name.clone(),
            owner_uid: vm.owner_uid(),
            addresses: addresses(vm),
            last_known_state: None,
            uninitialized: self.identity.forwards && is_checked && !vm.is_deleting(),
            metadata: Some(Box::new(InstanceMetadata {
                instance_type: vm.instance_type.clone().filter(|kind| !kind.is_empty()),
                zone: vm.zone().map(str::to_owned),
                region: Some(self.session.region.clone()),
                labels: BTreeMap::new(),
            })),
            power: vm.power(),
        })
    }
}

fn addresses(vm: &Vm) -> Vec<NodeAddress> {
    let known = [
        ("InternalIP", vm.private_ip_address.as_ref()),
        ("InternalDNS", Some(&vm.private_dns_name)),
        ("ExternalIP", vm.ip_address.as_ref()),
        ("ExternalDNS", vm.dns_name.as_ref()),
    ];
    let present = known.into_iter().filter_map(|(type_, address)| Some((type_, address.filter(|it| !it.is_empty())?)));
    present.map(|(type_, address)| NodeAddress { type_: type_.to_owned(), address: address.clone() }).collect()
}

impl AwsDriver {
    /// A driver that reaches EC2 by TLS, or by plain HTTP if the endpoint says so.
    pub fn new(options: &Options) -> std::result::Result<Self, StartError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_native_roots().map_err(StartError::Certificates)?;
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(https.https_or_http().enable_http1().wrap_connector(connector));
        Ok(Self::with_service(http, options, PAGE_SIZE)?)
    }

    fn with_service<S, B>(service: S, options: &Options, page_size: usize) -> std::result::Result<Self, EndpointError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let boxed = |response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync());
        let service = BoxCloneSyncService::new(service.map_response(boxed).map_err(Into::into));
        let (request_timeout, consistency) = (options.request_timeout, options.consistency);
        let transport = Transport::new(service, request_timeout, ANSWER_LIMIT);
        let client = Client::new(Endpoints::of(options)?, page_size, transport);
        Ok(Self { client: Arc::new(client), request_timeout, consistency })
    }

    async fn create_vm(self, request: MachineRequest) -> Result<Instance> {
        let spec = ProviderSpec::read(&request.class.provider_spec)?;
        let account = Account::of(&request.class)?;
        let root_device = self.root_device(&account, &spec).await?;
        let action = parameters::run_instances(&spec, &request, &root_device)?;
        let vm = match self.client.call::<Reservation>(&account.session, &action).await {
            Ok(made) => made.instances_set.items.into_iter().next().ok_or_else(|| {
                DriverError::new(Code::Unknown, "RunInstances was answered without an instance; it may have made one")
            })?,
            // An earlier call created it, from another version of the class or with other user data.
            Err(refused) if refused.ec2_code == OTHER_PARAMETERS => self.made_by(&account, &request, refused).await?,
            Err(refused) => return Err(refused.error),
        };
        if vm.is_gone() || vm.is_deleting() {
            let message = format!("instance {} of this machine is being deleted; a new one needs a new machine", vm.id);
            return Err(DriverError::new(Code::FailedPrecondition, message));
        }
        let notes = Notes { created_at: Some(Timestamp::now()) };
        Ok(Instance { last_known_state: serde_json::to_string(&notes).ok(), ..account.instance(&vm)? })
    }

    /// The AMI's name of its root device; empty if nothing needs it.
    async fn root_device(&self, account: &Account, spec: &ProviderSpec) -> Result<String> {
        if !parameters::names_root_device(&spec.block_devices) {
            return Ok(String::new());
        }
        let images = self.client.call::<Images>(&account.session, &parameters::describe_image(&spec.ami)).await;
        let images = images.map_err(|refused| refused.error)?.images_set.items;
        let name = images.into_iter().next().map(|image| image.root_device_name).filter(|name| !name.is_empty());
        name.ok_or_else(|| {
            let message =
                "providerSpec.ami: the region has no such image with a root device, or the account may not use it";
            DriverError::new(Code::InvalidArgument, message)
        })
    }

    /// The VM that was created with this token; `refused` is EC2's answer to the creation.
    async fn made_by(&self, account: &Account, request: &MachineRequest, refused: Refused) -> Result<Vm> {
        let vms = self.tagged(account, &account.owner(&request.name, &request.class)).await?;
        vms.into_iter().find(|vm| vm.client_token == request.uid).ok_or_else(|| {
            let message = format!("the instance of an earlier call does not show yet: {}", refused.error.message);
            DriverError::new(Code::Unavailable, message)
        })
    }

    /// The VMs with the tags of a Machine that are not gone.
    async fn tagged(&self, account: &Account, owner: &Owner<'_>) -> Result<Vec<Vm>> {
        let vms = self.client.list(&account.session, &parameters::describe_owned(&owner.tags())).await;
        let vms = vms.map_err(|refused| refused.error)?;
        Ok(vms.into_iter().filter(|vm| !vm.is_gone() && owner.prove(vm).is_ok()).collect())
    }

    /// The VM of a provider id, if its tags prove that it is the owner's.
    async fn claimed(&self, account: &Account, owner: &Owner<'_>, claim: &str) -> Result<Vm> {
        let vm = self.existing(account, instance_id(&account.session.region, claim)?).await?;
        owner.prove(&vm).map(|()| vm)
    }

    /// The VM of an id, if it is not gone.
    async fn existing(&self, account: &Account, id: &str) -> Result<Vm> {
        let page = self.client.call::<Instances>(&account.session, &parameters::describe_instance(id)).await;
        let vm = page.map_err(|refused| refused.error)?.into_vms().find(|vm| vm.id == id && !vm.is_gone());
        vm.ok_or_else(|| DriverError::new(Code::NotFound, format!("there is no instance {id}")))
    }

    async fn describe(self, request: UnownedRequest) -> Result<Instance> {
        let account = Account::of(&request.class)?;
        let id = instance_id(&account.session.region, &request.provider_id);
        let id = id.map_err(|error| DriverError::new(Code::NotFound, error.message))?;
        let vm = self.existing(&account, id).await?;
        if machine_of(&account.identity, &vm).is_some() {
            let message = format!("instance {id} has the tags of the class's machines");
            return Err(DriverError::new(Code::FailedPrecondition, message));
        }
        account.instance(&vm)
    }

    async fn delete_vms(self, request: MachineRequest) -> Result<()> {
        let account = Account::of(&request.class)?;
        let owner = account.owner(&request.name, &request.class);
        let is_proven = |vm: &Vm| {
            request.is_proven
                && request.provider_id.as_ref().is_some_and(|claim| claim.ends_with(&format!("/{}", vm.id)))
        };
        let is_sure = |vm: &Vm| request.owns(vm.token()) || vm.token().is_none() && is_proven(vm);
        let mut vms = self.tagged(&account, &owner).await?;
        vms.retain(is_sure);
        let mut mismatch = None;
        if let Some(claim) = request.provider_id.as_deref()
            && !vms.iter().any(|vm| claim.ends_with(&format!("/{}", vm.id)))
        {
            match self.claimed(&account, &owner, claim).await {
                Ok(vm) if is_sure(&vm) => vms.push(vm),
                Ok(vm) => mismatch = Some(owner.anothers(&vm, &request)),
                Err(error) if error.code == Code::NotFound && request.is_proven => {
                    self.delete_hidden(&account, claim, &request.last_known_state).await?;
                }
                Err(error) if error.code == Code::NotFound => {}
                Err(error) if error.mismatch.is_some() => mismatch = Some(error),
                Err(error) => return Err(error),
            }
        }
        for vm in vms.iter().filter(|vm| !vm.is_deleting()) {
            self.terminate(&account, &vm.id).await?;
        }
        mismatch.map_or(Ok(()), Err)
    }

    /// Deletes a VM that was proven and does not show: it is gone, or it is so new that EC2 hides it.
    async fn delete_hidden(&self, account: &Account, claim: &str, notes: &str) -> Result<()> {
        let id = instance_id(&account.session.region, claim)?;
        if self.terminate(account, id).await? || !self.may_be_hidden(notes) {
            return Ok(());
        }
        let message = format!("instance {id} was created a moment ago, and EC2 does not show it yet");
        Err(DriverError::new(Code::Unavailable, message))
    }

    fn may_be_hidden(&self, notes: &str) -> bool {
        let created = serde_json::from_str::<Notes>(notes).unwrap_or_default().created_at;
        created.is_some_and(|created| Timestamp::now().duration_since(created).unsigned_abs() < self.consistency)
    }

    /// Whether there was such a VM.
    async fn terminate(&self, account: &Account, id: &str) -> Result<bool> {
        match self.client.call::<Terminated>(&account.session, &parameters::terminate(id)).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.ec2_code == UNKNOWN_INSTANCE => Ok(false),
            // The request has the id of the VM alone: something of it, such as an interface, is going at this moment.
            Err(refused) if refused.ec2_code.ends_with(".NotFound") => {
                Err(DriverError::new(Code::Aborted, refused.error.message))
            }
            Err(refused) => Err(refused.error),
        }
    }

    async fn find(&self, account: &Account, request: &MachineRequest) -> Result<Vm> {
        let owner = account.owner(&request.name, &request.class);
        let (mut found, mut fault) = (None, None);
        if let Some(claim) = request.provider_id.as_deref() {
            match self.claimed(account, &owner, claim).await {
                Ok(vm) if request.owns(vm.token()) => return Ok(vm),
                Ok(vm) => found = Some(vm),
                Err(error) if error.code == Code::NotFound || error.mismatch.is_some() => fault = Some(error),
                Err(error) => return Err(error),
            }
        }
        let vms = self.tagged(account, &owner).await?;
        owner.the_one(vms, found, request)?.ok_or_else(|| {
            let message = || format!("there is no instance for machine {} in its cluster", request.name);
            fault.unwrap_or_else(|| DriverError::new(Code::NotFound, message()))
        })
    }

    async fn status_of(self, request: MachineRequest) -> Result<Instance> {
        let account = Account::of(&request.class)?;
        account.instance(&self.find(&account, &request).await?)
    }

    /// Switches the source/destination check of a VM off, if the class says so.
    async fn initialize_vm(self, request: MachineRequest) -> Result<Instance> {
        let account = Account::of(&request.class)?;
        if !account.identity.forwards {
            let message = "the class leaves the source/destination check on: there is nothing to initialize";
            return Err(DriverError::new(Code::Unimplemented, message));
        }
        let hidden = |error: DriverError| match error.code {
            // It was there: create or status has shown it.
            Code::NotFound if error.mismatch.is_none() => DriverError::new(Code::Unavailable, error.message),
            _ => error,
        };
        let vm = self.find(&account, &request).await.map_err(hidden)?;
        let checked = vm.network_interface_set.items.iter().filter(|interface| interface.can_stop_check());
        for interface in checked {
            let action = parameters::stop_source_check(&interface.id);
            self.client.call::<Done>(&account.session, &action).await.map_err(|refused| refused.error)?;
        }
        Ok(Instance { uninitialized: false, ..account.instance(&vm)? })
    }

    async fn list_vms(self, class: Class) -> Result<BTreeMap<String, ListedVm>> {
        let account = Account::of(&class)?;
        let vms = self.client.list(&account.session, &parameters::describe_all(&account.identity.tags)).await;
        let vms = vms.map_err(|refused| refused.error)?;
        let listed = |vm: &Vm| {
            let machine = machine_of(&account.identity, vm)?;
            let (owner_uid, created) = (vm.owner_uid(), vm.launched());
            let listed = ListedVm { machine, owner_uid, created, is_deleting: vm.is_deleting() };
            Some((provider_id(&account.session.region, &vm.id), listed))
        };
        Ok(vms.iter().filter(|vm| !vm.is_gone()).filter_map(listed).collect())
    }

    async fn delete_listed(self, orphan: OrphanRequest) -> Result<()> {
        let account = Account::of(&orphan.class)?;
        let owner = account.owner(&orphan.machine, &orphan.class);
        match self.claimed(&account, &owner, &orphan.provider_id).await {
            Ok(vm) if vm.is_deleting() => Ok(()),
            Ok(vm) => self.terminate(&account, &vm.id).await.map(drop),
            Err(error) if error.code == Code::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Driver for AwsDriver {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(spec::validate(provider_spec))).boxed()
    }

    fn identity(&self) -> Vec<&str> {
        vec!["region", "tags[kubernetes.io/cluster/]", "tags[kubernetes.io/role/]"]
    }

    fn deadline(&self) -> Duration {
        self.request_timeout * REQUESTS_OF_A_CALL
    }

    fn consistency(&self) -> Duration {
        self.consistency
    }

    fn requests(&self) -> Option<Vec<ProviderRequests>> {
        Some(self.client.requests.requests())
    }

    fn poll(&self) -> Duration {
        POLL
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().create_vm(request).boxed()
    }

    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().initialize_vm(request).boxed()
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.clone().delete_vms(request).map_ok(|()| None).boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().status_of(request).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        self.clone().list_vms(class).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().delete_listed(orphan).boxed()
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
        ready(Ok(volumes.iter().map(volumes::id).collect())).boxed()
    }
}
