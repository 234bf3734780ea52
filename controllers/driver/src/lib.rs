//! The contract of a provider: the calls and error codes of machine-controller-manager's drivers, and `delete_orphan`, which deletes one
//! VM by its id.
//!
//! # What a driver guarantees
//! * `create` is idempotent by its token: any number of calls with one token create one VM, even if the answer of an earlier
//!   call was late or lost.
//! * `delete` of a VM that does not exist is [`Ok`].
//! * A VM may belong to a Machine if its tags name the Machine's cluster and name. An id is a claim and not a proof: its VM is
//!   returned or deleted only if the tags match. If the VM exists and its tags do not match, that is a [`Mismatch`], and never
//!   [`Code::NotFound`]; the Machine's own VMs are found and deleted all the same.
//! * Cluster and name prove little: another namespace may use both. What proves is the token of the creation, the UID of a
//!   Machine, which the VM keeps ([`Driver::stores_owner`]): answers say it, and a VM that was made for another Machine is not
//!   deleted. The manager decides whether a Machine may adopt it ([`MachineRequest::adopted_uid`]).
//! * A `provider_id` equals `spec.providerID` of the Node that the VM becomes.
//! * `list` returns all VMs with the tags of the cluster and of a Machine, or an error; never a part.
//! * A failure says if the provider asked for fewer calls ([`DriverError::throttled`]): then all calls with the same
//!   credentials pause for a while.
//! * [`Code::NotFound`] is certain: the provider was asked with valid credentials, and has no such VM. All other failures leave that
//!   open. With [`Driver::describes_instances`] a Node is deleted after two of them.
//! * Each call ends by itself or can be dropped at any point; `status` finds out what a dropped call did. A VM that does not show
//!   within [`Driver::consistency`] after that will not appear.
//! * What cannot work, such as a class or a name, is [`Code::InvalidArgument`]; a lost answer has a code that passes
//!   ([`DriverError::is_passing`]).
//! * Its connections are those of the runtime's `Leadership::connector`, if the driver can choose: requests that were
//!   queued when the process was suspended are not sent when it resumes. A driver that cannot choose relies on its tokens.
//!
//! `nodewright-driver-contract` has a check for each rule, and `docs/tasks/write-a-driver.md` says what the manager makes of it.
//!
//! # What a driver may rely on
//! * Calls for one Machine never overlap.
//! * The notes that a call leaves (`last_known_state`), whether it succeeds or fails, are in the requests of later calls, also
//!   after a restart. They are stored in the Machine's status: they must not contain a secret.
//! * `user_data` has its placeholders replaced.

pub mod panics;
mod requests;

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeAddress, Secret};
use nodewright_api::{Code, NodeTemplate, RawJson};

pub use self::requests::{ProviderRequests, REQUEST_BOUNDS, RequestCounter};

/// The failure of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("machine codes error: code = [{code}] message = [{message}]")]
pub struct DriverError {
    /// The code of the failure; stable, because other programs read it from `lastOperation.errorCode`.
    pub code: Code,
    /// A message for people. It must not contain a secret: it is stored in the status.
    pub message: String,
    /// Set if the VM that the Machine names is not proven to be the Machine's.
    pub mismatch: Option<Mismatch>,
    /// Notes to keep for later calls, as of a creation that got half-way; `None` keeps the previous ones.
    pub last_known_state: Option<String>,
    /// What is exhausted, with [`Code::ResourceExhausted`], if the provider says so.
    pub exhausted: Option<Exhausted>,
    /// Whether the provider has asked for fewer calls: then all calls with the same credentials pause for a while.
    pub throttled: bool,
}

/// Which capacity is exhausted, and until when. Machines in other zones, and of other classes, are not blocked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exhausted {
    /// The zone; `None` if the provider names none, as for a quota of the account.
    pub zone: Option<String>,
    /// When to try again; `None` for the manager's own pause (`--resource-exhausted-retry`).
    pub retry_after: Option<Duration>,
}

/// How the tags of a VM differ from those of the Machine that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The Machine's name matches and the cluster does not: it is another cluster's VM, or the class has been edited.
    Cluster,
    /// It is the VM of another Machine, or of none.
    Machine,
}

impl DriverError {
    /// A failure with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            mismatch: None,
            last_known_state: None,
            exhausted: None,
            throttled: false,
        }
    }

    /// The same failure, for a VM that the Machine names and that is not proven to be the Machine's.
    #[must_use]
    pub fn with_mismatch(self, mismatch: Mismatch) -> Self {
        Self { mismatch: Some(mismatch), ..self }
    }

    /// The same failure, with notes to keep for later calls.
    #[must_use]
    pub fn with_last_known_state(self, state: impl Into<String>) -> Self {
        Self { last_known_state: Some(state.into()), ..self }
    }

    /// The same failure, with what is exhausted.
    #[must_use]
    pub fn with_exhausted(self, exhausted: Exhausted) -> Self {
        Self { exhausted: Some(exhausted), ..self }
    }

    /// The same failure, of a call that the provider refused because there are too many.
    #[must_use]
    pub fn throttled(self) -> Self {
        Self { throttled: true, ..self }
    }

    /// Whether the failure is transient: the same call may succeed a little later without help.
    pub fn is_passing(&self) -> bool {
        matches!(self.code, Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable)
    }
}

/// The MachineClass and the credentials of a call.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name of the MachineClass.
    pub name: String,
    /// Differs whenever the class or its Secrets do: a call that was refused with another revision may be retried at once.
    pub revision: String,
    /// Its provider-specific document.
    pub provider_spec: RawJson,
    /// Data of its Secrets; `credentialsSecretRef` wins over `secretRef`.
    pub secret: SecretData,
}

/// The data of Secrets, not copied and never printed.
#[derive(Clone, Default)]
pub struct SecretData(Vec<Arc<Secret>>);

impl SecretData {
    /// The data of several Secrets. If they have a key in common, the later one counts.
    pub fn of(secrets: Vec<Arc<Secret>>) -> Self {
        Self(secrets)
    }

    /// Whether there is no Secret.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A value.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let value = self.0.iter().rev().find_map(|secret| secret.data.as_ref()?.get(key));
        value.map(|value| value.0.as_slice())
    }

    /// All keys and values.
    pub fn entries(&self) -> BTreeMap<&str, &[u8]> {
        let entries = self.0.iter().filter_map(|secret| secret.data.as_ref()).flatten();
        entries.map(|(key, value)| (key.as_str(), value.0.as_slice())).collect()
    }

    /// Equal for equal data, whatever Secrets have it; without the value of one key. It is of use in this process only.
    pub fn fingerprint(&self, without: &str) -> u64 {
        let mut entries = self.entries();
        entries.remove(without);
        let mut hasher = DefaultHasher::new();
        entries.hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretData({} secrets)", self.0.len())
    }
}

/// The parts of a Machine that a driver uses.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Name of the Machine: the name, or a tag, of its VM.
    pub name: String,
    /// Namespace of the Machine.
    pub namespace: String,
    /// UID of the Machine: the token of `create`, which the VM keeps.
    pub uid: String,
    /// UID of the former Machine whose VM this Machine has adopted, as after a restore from a backup. That VM counts as its own.
    pub adopted_uid: Option<String>,
    /// The provider's id of its VM, if known: a claim, until the tags of that VM prove it.
    pub provider_id: Option<String>,
    /// Whether an earlier answer has proven that id. Then `delete` also removes a VM that is not visible yet.
    pub is_proven: bool,
    /// `status.lastKnownState`: the driver's own notes.
    pub last_known_state: String,
    /// Class and credentials.
    pub class: Class,
    /// User data with its placeholders replaced; only for `create`.
    pub user_data: SecretText,
    /// `spec.nodeTemplate`, shared with the Machine; only for `create`. A driver in another process gets its annotations alone.
    pub node_template: Arc<NodeTemplate>,
    /// The call in the Machine's trace, as W3C's `traceparent`, if the manager exports traces: what a driver does for the call may hang
    /// below it.
    pub traceparent: Option<Arc<str>>,
}

impl MachineRequest {
    /// The annotations that the Machine's Node will have. machine-controller-manager's AWS provider reads one.
    pub fn node_annotations(&self) -> impl Iterator<Item = (&String, &String)> {
        self.node_template.metadata.annotations.iter().flatten()
    }

    /// Whether a VM with this token is the Machine's: it was made for this Machine, or for the one whose VM it has adopted.
    pub fn owns(&self, owner_uid: Option<&str>) -> bool {
        owner_uid.is_some_and(|owner| owner == self.uid || Some(owner) == self.adopted_uid.as_deref())
    }
}

/// Text that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(pub Arc<str>);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretText({} bytes)", self.0.len())
    }
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    /// Equal to `spec.providerID` of its Node.
    pub provider_id: String,
    /// The name that its Node will have.
    pub node_name: String,
    /// UID of the Machine that it was made for, the token of its creation; `None` if the provider has none.
    pub owner_uid: Option<String>,
    /// Its addresses, for `status.addresses`; empty keeps the previous ones.
    pub addresses: Vec<NodeAddress>,
    /// Notes to keep for later calls; `None` keeps the previous ones.
    pub last_known_state: Option<String>,
    /// Whether [`Driver::initialize`] still has to be called.
    pub uninitialized: bool,
    /// What its Node gets where no cloud controller manager runs; `None` if the driver does not know.
    pub metadata: Option<Box<InstanceMetadata>>,
    /// Whether it runs.
    pub power: Power,
}

/// What a provider knows of a VM and its kubelet does not: Kubernetes' `cloudprovider.InstanceMetadata`, without the id and the
/// addresses. See [`Driver::describes_instances`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// For the label `node.kubernetes.io/instance-type`.
    pub instance_type: Option<String>,
    /// For the label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// For the label `topology.kubernetes.io/region`.
    pub region: Option<String>,
    /// Other labels. Those of `kubernetes.io` and `k8s.io`, and those that the Node has already, are not set.
    pub labels: BTreeMap<String, String>,
}

/// Whether a VM runs. A VM that boots, or is about to stop, may be either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// The driver does not know.
    #[default]
    Unknown,
    /// It runs.
    Running,
    /// It has been stopped, and exists: it may be started again.
    Stopped,
}

/// A VM as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVm {
    /// The Machine's name in its tags.
    pub machine: String,
    /// UID of the Machine that it was made for; `None` if the provider has none.
    pub owner_uid: Option<String>,
    /// When it was created, if the provider tells.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
}

impl ListedVm {
    /// A VM of this Machine that stays, and of which no more is known.
    pub fn of(machine: impl Into<String>) -> Self {
        Self { machine: machine.into(), owner_uid: None, created: None, is_deleting: false }
    }
}

/// One VM that no Machine has.
#[derive(Clone, Debug)]
pub struct OrphanRequest {
    /// Its id, from `list`.
    pub provider_id: String,
    /// The Machine's name that `list` has shown with it.
    pub machine: String,
    /// Class and credentials.
    pub class: Class,
}

/// One VM that was not made for a Machine, as that of a control plane.
#[derive(Clone, Debug)]
pub struct UnownedRequest {
    /// Its id, from `spec.providerID` of a Node: a claim of that Node's kubelet.
    pub provider_id: String,
    /// Class and credentials.
    pub class: Class,
}

/// The result of a driver call.
pub type Result<T> = std::result::Result<T, DriverError>;

/// A provider of VMs.
pub trait Driver: Send + Sync + 'static {
    /// The value of `MachineClass.provider`, and the name for metrics and logs.
    fn name(&self) -> &str;

    /// Checks a `providerSpec`. Each entry is a JSON path below `providerSpec` (empty: all of it) and what is allowed.
    ///
    /// `None` if there is no answer within some seconds, as of a driver in another process: ask again later.
    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>>;

    /// A number that grows when the driver may have become another version, as one in another process that was started again: then
    /// [`Driver::validate`] may say something else.
    fn session(&self) -> u64 {
        0
    }

    /// The fields by which `status`, `delete` and `list` find the VMs of a class, as paths below `providerSpec` that
    /// [`nodewright_api::identity_value`] reads. They must not change while machines use the class: their VMs would be lost.
    fn identity(&self) -> Vec<&str>;

    /// The timeout of one call. Then it is dropped, and may still take effect for a while.
    fn deadline(&self) -> Duration;

    /// How long a new VM may stay invisible to `status` and `list` after its `create` was answered or dropped.
    fn consistency(&self) -> Duration;

    /// Pause between two questions whether a VM that is being deleted is gone.
    fn poll(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Whether VMs keep the token of their creation, so that answers have an `owner_uid`, and `delete` spares the VMs of other
    /// Machines of the same name. If not, the manager looks for such Machines before it takes or deletes a VM.
    fn stores_owner(&self) -> bool {
        true
    }

    /// Whether [`Driver::initialize`] has something to do. If not, the manager does not ask.
    fn initializes(&self) -> bool {
        true
    }

    /// Whether `create` and `status` answer with [`Instance::metadata`], [`Instance::power`] and all addresses. If not, the manager
    /// does not initialize Nodes of these VMs: a cloud controller manager has to.
    fn describes_instances(&self) -> bool {
        false
    }

    /// Whether [`Driver::describe_unowned`] is to be called. If not, Nodes without a Machine are initialized by others.
    fn describes_unowned(&self) -> bool {
        false
    }

    /// Creates the VM of a Machine, or finds the one that an earlier call with the same token created.
    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>>;

    /// Sets up what can only be set up on an existing VM. [`Code::Unimplemented`] if there is nothing to do, as by default.
    fn initialize(&self, _: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        let error = DriverError::new(Code::Unimplemented, "the provider's VMs need no initialization");
        ready(Err(error)).boxed()
    }

    /// Deletes the VMs of a Machine ([`MachineRequest::owns`]) and their resources, and the VM of `provider_id` if it keeps no token,
    /// its tags match and `is_proven`, or if it is not visible and `is_proven`. A VM of `provider_id` that was made for another
    /// Machine is a [`Mismatch`]. May return before they are gone: `status` tells. Returns notes to keep for later calls, if any.
    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>>;

    /// Finds the VM of a Machine: the one that it owns ([`MachineRequest::owns`]), else the VM of `provider_id` if its tags match, else
    /// the only one of its cluster and name. [`Code::NotFound`] if there is none, [`Code::OutOfRange`] if it owns several, a
    /// [`Mismatch`] if it owns none and the VM of `provider_id` belongs to another, or several have its name.
    ///
    /// If a driver answers [`Code::Unimplemented`], nothing is proven: the claims of its Machines are trusted.
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>>;

    /// All VMs of the cluster of a class, by provider id. A VM without the tag of a Machine is not one of them.
    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>>;

    /// Deletes exactly this VM and its resources, and no other VM of the same tags: its Machine may have another one. Ok if there
    /// is none; a [`Mismatch`], and nothing is done, if its tags are not those of the class's cluster and of the Machine. May
    /// return before it is gone. A driver that answers [`Code::Unimplemented`], as by default, keeps all orphans.
    fn delete_orphan(&self, _: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        ready(Err(DriverError::new(Code::Unimplemented, "the provider cannot delete a single VM"))).boxed()
    }

    /// Describes the VM of a Node without a Machine, whatever cluster its tags name, with [`Instance::metadata`] and all addresses.
    /// [`Code::NotFound`] if the account and region of the class have no such VM, or the id is of another provider;
    /// [`Code::FailedPrecondition`] if `list` shows it, or its tags are those of another cluster's Machine as far as the driver can know:
    /// such a VM was made for a Machine.
    fn describe_unowned(&self, _: UnownedRequest) -> BoxFuture<'static, Result<Instance>> {
        ready(Err(DriverError::new(Code::Unimplemented, "the driver describes no VMs but those of machines"))).boxed()
    }

    /// Whether [`Driver::volume_ids`] is to be called. If not, a drain takes each attached volume for the provider's.
    fn knows_volumes(&self) -> bool {
        false
    }

    /// The id at the provider of each of these `PersistentVolumes`, in their order; `None` for a volume that is not the provider's, as
    /// one of another CSI driver. Each is the `spec` of a `PersistentVolume`, as JSON. Nothing but the spec is needed to answer: whether
    /// the volume exists does not matter. A drain does not wait for volumes that are not the provider's; of a failure it takes none out.
    fn volume_ids(&self, _: Vec<RawJson>) -> BoxFuture<'static, Result<Vec<Option<String>>>> {
        ready(Err(DriverError::new(Code::Unimplemented, "the driver does not report owners of volumes"))).boxed()
    }

    /// The requests to the provider since the driver has started, by what was requested; of a driver in another process, those that are
    /// known of it. `None` of a driver that does not count them, as by default.
    fn requests(&self) -> Option<Vec<ProviderRequests>> {
        None
    }
}
