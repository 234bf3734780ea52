//! The contract of a provider: six calls and a set of codes, those of machine-controller-manager.
//!
//! # What a driver promises
//! * `create` is idempotent by its token: however often it is called with one token there is one VM, also when an
//!   earlier call was answered late or never.
//! * `delete` of what is not there is [`Ok`].
//! * A VM belongs to a Machine by cluster and Machine name, which its tags say. An id is a claim and no proof: the VM that
//!   it names is shown or deleted only if its tags fit. If it exists and they do not, that is a [`Mismatch`], and never
//!   [`Code::NotFound`]; the Machine's own VMs are found and deleted all the same.
//! * A `provider_id` equals `spec.providerID` of the Node that the VM becomes.
//! * `list` returns all of them, or an error; never a part.
//! * Each call ends by itself or can be dropped at any point; what a dropped call did is found out by `status`.
//! * Its connections are those of the runtime's `LeadershipHandle::connector`, where that can be chosen: what was queued when the
//!   process was stopped is not sent when it wakes. (One that cannot choose relies on its tokens.)
//!
//! # What it may rely on
//! * Calls for one Machine never overlap.
//! * `user_data` has its placeholders replaced.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{NodeAddress, PersistentVolumeSpec, Secret};
use nodewright_api::{Code, RawJson};

/// What a call says when it fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("machine codes error: code = [{code}] message = [{message}]")]
pub struct DriverError {
    /// The class of the failure; stable, because other programs read it from `lastOperation.errorCode`.
    pub code: Code,
    /// For people. It must hold no secret: it is stored in the status.
    pub message: String,
    /// What is exhausted, where `code` is [`Code::ResourceExhausted`].
    pub exhausted: Option<Scope>,
    /// Set when the VM that the Machine names is not proven to be the Machine's.
    pub mismatch: Option<Mismatch>,
}

/// What the tags of a VM say that a Machine names, and that is not proven to be the Machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The Machine's name fits and the cluster does not: another cluster's VM, or the class has been edited.
    Cluster,
    /// It is the VM of another Machine, or of none.
    Machine,
}

/// How far exhausted capacity reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This machine type in this zone.
    MachineType,
    /// The whole zone.
    Zone,
    /// The account: a quota.
    Account,
}

impl DriverError {
    /// A failure with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), exhausted: None, mismatch: None }
    }

    /// The same failure: the VM that the Machine names is not proven to be the Machine's.
    #[must_use]
    pub fn with_mismatch(self, mismatch: Mismatch) -> Self {
        Self { mismatch: Some(mismatch), ..self }
    }

    /// Whether the same call may succeed a little later without anybody's help.
    pub fn is_passing(&self) -> bool {
        matches!(self.code, Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable)
    }
}

/// The MachineClass and the credentials that a call is made with.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name of the MachineClass.
    pub name: String,
    /// Differs whenever the class or its Secrets do: what was refused under another revision may be tried at once.
    pub revision: String,
    /// Its provider specific document.
    pub provider_spec: RawJson,
    /// Data of its Secrets; `credentialsSecretRef` wins over `secretRef`.
    pub secret: SecretData,
}

/// The data of Secrets, not copied and never printed.
#[derive(Clone, Default)]
pub struct SecretData(Vec<Arc<Secret>>);

impl SecretData {
    /// The data of several Secrets. Where they have a key in common the later one counts.
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
}

impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretData({} secrets)", self.0.len())
    }
}

/// One Machine, as a driver sees it.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Name of the Machine: the name, or a tag, of its VM.
    pub name: String,
    /// Namespace of the Machine.
    pub namespace: String,
    /// UID of the Machine: the token of `create`, and a second tag. Not the VM's identity: it changes on a restore.
    pub uid: String,
    /// The provider's id of its VM, where it is known: a claim, until the tags of that VM prove it.
    pub provider_id: Option<String>,
    /// Whether an earlier answer has proven that id. Then `delete` also removes a VM that does not show yet.
    pub is_proven: bool,
    /// `status.lastKnownState`: the driver's own notes.
    pub last_known_state: String,
    /// Class and credentials.
    pub class: Class,
    /// User data with its placeholders replaced; only for `create`.
    pub user_data: SecretText,
}

/// Text that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretText(pub Arc<str>);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretText({} bytes)", self.0.len())
    }
}

/// What is known of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instance {
    /// Equal to `spec.providerID` of its Node.
    pub provider_id: String,
    /// The name that its Node will have.
    pub node_name: String,
    /// Addresses, for clusters without Nodes.
    pub addresses: Vec<NodeAddress>,
    /// Notes to keep for later calls; `None` leaves what is kept.
    pub last_known_state: Option<String>,
    /// Whether [`Driver::initialize`] still has to be called.
    pub uninitialized: bool,
}

/// What a driver call comes to.
pub type Result<T> = std::result::Result<T, DriverError>;

/// A provider of VMs.
pub trait Driver: Send + Sync + 'static {
    /// Name for metrics and logs.
    fn name(&self) -> &'static str;

    /// Checks a `providerSpec`. Each entry is a JSON path below `providerSpec` (empty: all of it) and what is allowed.
    fn validate(&self, provider_spec: &RawJson) -> Vec<(String, String)>;

    /// The fields by which `status`, `delete` and `list` find the VMs of a class, as JSON paths below `providerSpec`. They
    /// must not change while machines use the class: their VMs would be lost.
    fn identity(&self) -> &'static [&'static str];

    /// How long one call may take. Then it is dropped, and may still take effect for a while.
    fn deadline(&self) -> Duration;

    /// How long a new VM may stay invisible to `status` and `list` after its `create` was answered or given up.
    fn consistency(&self) -> Duration;

    /// Makes the VM of a Machine, or finds the one that an earlier call with the same token made.
    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>>;

    /// Sets up what can only be set up on an existing VM. [`Code::Unimplemented`] where there is nothing to do.
    fn initialize(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>>;

    /// Removes the VMs of a Machine and all that belongs to them. May return before they are gone: `status` tells.
    ///
    /// What `provider_id` names goes only if its tags prove that it is the Machine's, or if it does not show and
    /// `is_proven`. If it is another's it stays, the Machine's own VMs go, and the answer is a [`Mismatch`].
    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<()>>;

    /// Finds the VM of a Machine: what `provider_id` names if its tags prove it, else by cluster and name.
    /// [`Code::NotFound`] when there is none, [`Code::OutOfRange`] when there are several, a [`Mismatch`] when the Machine has
    /// none and what `provider_id` names is another's.
    ///
    /// A driver that answers [`Code::Unimplemented`] proves nothing: its Machines are believed what they name.
    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>>;

    /// All VMs of the cluster of a class: provider id and Machine name.
    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, String>>>;

    /// The provider's ids of volumes; those that are not the provider's are left out.
    fn volume_ids(&self, volumes: Vec<PersistentVolumeSpec>) -> BoxFuture<'static, Result<Vec<String>>>;
}
