//! The wire format: the JSON of the cloud's HTTP API.
//!
//! Resources are in camelCase. Requests of tests (faults, quota, kubelet behavior) are documented at each type.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The header of test requests: they are not counted, not delayed, meet no fault, and see machines that eventual
/// consistency still hides.
pub const OBSERVER_HEADER: &str = "x-nodewright-observer";

/// The prefix of every provider id. The id of the VM follows.
pub const PROVIDER_ID_PREFIX: &str = "simulated:///";

/// The maximum length of names, tokens, tags, labels and node names, in bytes.
pub const NAME_LIMIT: usize = 253;
/// The maximum number of tags, labels or taints of a VM.
pub const ENTRIES_LIMIT: usize = 64;
/// The longest duration in a request, in seconds: a day.
pub const SECONDS_LIMIT: f64 = 86_400.0;
/// The default number of VMs on a page.
pub const DEFAULT_PAGE: usize = 100;
/// The maximum number of VMs or events on a page.
pub const PAGE_LIMIT: usize = 1_000;

/// Why a call failed: the codes of the driver contract, which have the names of gRPC's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
    Uninitialized,
}

impl Code {
    /// The HTTP status of the code. Callers should use the code in the body.
    pub fn status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::OutOfRange => 400,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::FailedPrecondition | Self::Aborted => 409,
            Self::ResourceExhausted => 429,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
            Self::Unimplemented => 501,
            Self::Unavailable | Self::Uninitialized => 503,
            Self::DeadlineExceeded => 504,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// A failed call, as in the body of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// The kind of the failure.
    pub code: Code,
    /// What went wrong, for people.
    pub message: String,
    /// Whether the quota of the account is exhausted, not the capacity for a size of VMs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quota: bool,
    /// Whether the account makes too many calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub throttled: bool,
    /// The zone that has no capacity left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), quota: false, throttled: false, zone: None }
    }

    pub(crate) fn beyond_quota(quota: u64) -> Self {
        let message = format!("the quota of {quota} vms is exhausted");
        Self { quota: true, ..Self::new(Code::ResourceExhausted, message) }
    }

    pub(crate) fn without_capacity(zone: Option<&str>) -> Self {
        let message = format!("zone {:?} has no capacity left", zone.unwrap_or_default());
        Self { zone: zone.map(str::to_owned), ..Self::new(Code::ResourceExhausted, message) }
    }

    pub(crate) fn throttled() -> Self {
        Self { throttled: true, ..Self::new(Code::Unavailable, "the account makes too many calls") }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn unknown_vm(id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no vm {id:?}"))
    }
}

/// A taint of a Node at its registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value. Absent means empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The properties of the Node that a kubelet registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeTemplate {
    /// The name of the Node. Absent: the name of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels in addition to those that every kubelet sets, such as topology labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints at registration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Whether the kubelet runs with `--cloud-provider=external`: it registers the taint
    /// `node.cloudprovider.kubernetes.io/uninitialized`, and neither provider id nor instance type nor IP.
    #[serde(rename = "externalCloudProvider", default, skip_serializing_if = "std::ops::Not::not")]
    pub external_cloud_provider: bool,
}

/// The body of `POST /vms`.
///
/// The call is idempotent by `token`. A repeated request returns the same VM. A different request with the same token
/// fails with `AlreadyExists`. A token whose VM is gone stays used (`FailedPrecondition`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateVm {
    /// The name. It need not be unique.
    pub name: String,
    /// The client token that makes the call idempotent.
    pub token: String,
    /// Tags, by which VMs can be listed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// How the kubelet registers.
    #[serde(default)]
    pub node: NodeTemplate,
    /// The size, one of [`SIZES`]. Absent: `small`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The zone. Absent: the label `topology.kubernetes.io/zone` of its Node, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Seconds until the VM runs, exactly. Absent: the boot time of the cloud with its jitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_seconds: Option<f64>,
    /// User data. It is stored, and compared when a token is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
}

/// A size of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The name, also the value of the label `node.kubernetes.io/instance-type`.
    pub name: &'static str,
    /// The number of cores.
    pub cores: u32,
    /// The memory in GiB.
    pub memory_gib: u32,
}

/// The available sizes. The first one is the default.
pub const SIZES: [Size; 4] = [
    Size { name: "small", cores: 2, memory_gib: 4 },
    Size { name: "medium", cores: 4, memory_gib: 8 },
    Size { name: "large", cores: 8, memory_gib: 16 },
    Size { name: "xlarge", cores: 16, memory_gib: 32 },
];

impl CreateVm {
    /// The name of the Node that the kubelet will register.
    pub fn node_name(&self) -> &str {
        self.node.name.as_deref().unwrap_or(&self.name)
    }

    /// The requested size.
    pub fn size(&self) -> Result<Size, Failure> {
        let Some(name) = self.size.as_deref() else { return Ok(SIZES[0]) };
        SIZES.iter().find(|size| size.name == name).copied().ok_or_else(|| {
            let known = SIZES.map(|size| size.name).join(", ");
            Failure::invalid(format!("there is no size {name:?}; the sizes are {known}"))
        })
    }

    /// Rejects values that exceed the limits.
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        bounded_name("name", &self.name)?;
        bounded_name("token", &self.token)?;
        bounded_name("node.name", self.node_name())?;
        bounded_entries("tags", &self.tags)?;
        bounded_entries("node.labels", &self.node.labels)?;
        if self.node.taints.len() > ENTRIES_LIMIT {
            return Err(Failure::invalid(format!("node.taints has more than {ENTRIES_LIMIT} entries")));
        }
        for taint in &self.node.taints {
            bounded_name("node.taints[].key", &taint.key)?;
            if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str()) {
                return Err(Failure::invalid(format!("node.taints[].effect {:?} is unknown", taint.effect)));
            }
        }
        for (field, value) in [("zone", &self.zone), ("region", &self.region)] {
            value.as_deref().map_or(Ok(()), |value| bounded_name(field, value))?;
        }
        if let Some(seconds) = self.boot_seconds {
            duration("bootSeconds", seconds)?;
        }
        self.size().map(drop)
    }
}

fn bounded_name(field: &str, value: &str) -> Result<(), Failure> {
    if value.is_empty() || value.len() > NAME_LIMIT {
        return Err(Failure::invalid(format!("{field} must have 1 to {NAME_LIMIT} bytes")));
    }
    Ok(())
}

fn bounded_entries(field: &str, entries: &BTreeMap<String, String>) -> Result<(), Failure> {
    if entries.len() > ENTRIES_LIMIT {
        return Err(Failure::invalid(format!("{field} has more than {ENTRIES_LIMIT} entries")));
    }
    for (key, value) in entries {
        bounded_name(&format!("a key of {field}"), key)?;
        if value.len() > NAME_LIMIT {
            return Err(Failure::invalid(format!("{field}[{key:?}] has more than {NAME_LIMIT} bytes")));
        }
    }
    Ok(())
}

/// A duration from a number of seconds: finite, not negative, at most [`SECONDS_LIMIT`].
pub fn duration(field: &str, seconds: f64) -> Result<Duration, Failure> {
    if (0.0..=SECONDS_LIMIT).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(Failure::invalid(format!("{field} must be between 0 and {SECONDS_LIMIT}, not {seconds}")))
    }
}

/// The state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// It boots.
    Pending,
    /// It runs, and its kubelet reports unless ordered otherwise.
    Running,
    /// It is being deleted. Its kubelet has stopped.
    Deleting,
    /// It stopped, and stays until it is deleted or started.
    Stopped,
}

/// A VM as `GET /vms/<id>` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// The id, which is never reused.
    pub id: String,
    /// The name that it was created with.
    pub name: String,
    /// The state.
    pub state: VmState,
    /// The tags that it was created with.
    pub tags: BTreeMap<String, String>,
    /// The value of `spec.providerID` of its Node.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// The present name of its Node.
    pub node_name: String,
    /// Its size.
    pub size: String,
    /// The address, which is the `InternalIP` of its Node.
    pub address: String,
    /// All addresses: that one, unless [`AddressOrder`] has set others.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Its zone, if it was created in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its region, if it was created in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// When the create call was accepted.
    pub created_at: Timestamp,
}

/// An address of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// A type of a Node's addresses, such as `InternalIP`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address.
    pub address: String,
}

/// The body of `POST /vms/<id>/addresses`: the addresses that the cloud shows from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressOrder {
    /// The addresses; absent: the VM's own again.
    #[serde(default)]
    pub addresses: Option<Vec<Address>>,
}

/// A page of a list. `next` is the value of `after` for the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The entries, in order of creation.
    pub items: Vec<T>,
    /// Absent on the last page.
    pub next: Option<String>,
}

/// The filters of `GET /vms`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListVms {
    /// Only VMs with this name.
    pub name: Option<String>,
    /// Only VMs with all of these tags.
    pub tags: BTreeMap<String, String>,
    /// The maximum number. Absent: [`DEFAULT_PAGE`]. At most [`PAGE_LIMIT`].
    pub limit: Option<usize>,
    /// The cursor: only VMs after it.
    pub after: Option<String>,
}

/// The calls that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum FaultOperation {
    Create,
    Get,
    List,
    Delete,
    Any,
}

/// Restricts a fault to some machines: those that every given pattern, with `*` and `?`, matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultMatch {
    /// A pattern for the name of the VM. For lists, for the name or the tag `machine` of the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// A pattern for the zone of the VM, which is the label `topology.kubernetes.io/zone` of its Node. Never matches a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// The body of `POST /faults`: matching calls suffer `effect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultOrder {
    /// The calls.
    pub operation: FaultOperation,
    /// The machines. Absent: all.
    #[serde(rename = "match", default)]
    pub matching: FaultMatch,
    /// How many calls it applies to. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// When it expires, in seconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<f64>,
    /// The probability that it applies to a call. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The effect.
    pub effect: Effect,
}

/// What a fault does to a call. "Applied" means that the cloud does what was requested, although the caller may not
/// learn of it.
///
/// Effects that delay or change what is created ([`Latency`](Effect::Latency), [`Invisible`](Effect::Invisible),
/// [`Boot`](Effect::Boot), [`NeverJoins`](Effect::NeverJoins)) are combined. Of the others, the oldest fault's effect
/// applies, and the call does not count for the other faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Effect {
    /// The call takes longer.
    Latency {
        /// Additional seconds.
        seconds: f64,
    },
    /// The call fails.
    Error {
        /// The code.
        code: Code,
        /// The message.
        #[serde(default)]
        message: Option<String>,
        /// Whether the call is applied.
        #[serde(default)]
        applied: bool,
    },
    /// The call fails and is not applied: the account makes too many.
    Throttled,
    /// The call fails and is not applied: the zone of the VM has no capacity. Only for create.
    NoCapacity,
    /// The call is never answered. The connection stays open until the caller closes it.
    Hang {
        /// Whether the call is applied.
        #[serde(default)]
        applied: bool,
    },
    /// The call is applied, and answered later.
    AnswerLate {
        /// The delay in seconds.
        seconds: f64,
    },
    /// The connection is closed without an answer.
    Cut {
        /// Whether the call is applied.
        #[serde(default = "yes")]
        applied: bool,
    },
    /// The call fails at once, and is applied later. Only for create and delete.
    ApplyLate {
        /// The delay in seconds.
        seconds: f64,
        /// The code of the answer. Absent: `DeadlineExceeded`.
        #[serde(default = "deadline_exceeded")]
        code: Code,
    },
    /// The call is applied, and answered with HTML and status 502, like a broken gateway.
    Garbage,
    /// A list contains only its first entries, and reports that it is complete.
    ListTruncated {
        /// The number of entries.
        items: usize,
    },
    /// A list is empty.
    ListEmpty,
    /// The cursor of a list leads to the same page again.
    ListEndless,
    /// Get and list do not show the new VM at first (eventual consistency).
    Invisible {
        /// For this time in seconds.
        seconds: f64,
    },
    /// The new VM has another boot time.
    Boot {
        /// The boot time in seconds.
        seconds: f64,
    },
    /// The kubelet of the new VM is silent. [`KubeletOrder::Revive`] starts it.
    NeverJoins,
}

fn yes() -> bool {
    true
}

fn deadline_exceeded() -> Code {
    Code::DeadlineExceeded
}

/// An active fault, as in `GET /faults`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The id, for deletion.
    pub id: u64,
    /// When it expires.
    pub until: Option<Timestamp>,
    /// How many calls it was applied to.
    pub struck: u64,
    /// The request that created it. `count` counts down.
    #[serde(flatten)]
    pub order: FaultOrder,
}

/// The body of `PUT /quota`. VMs in deletion count until they are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The maximum number of VMs. Absent: no limit.
    pub vms: Option<u64>,
}

/// The body of `POST /vms/<id>/kubelet`: the behavior of the kubelet from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KubeletOrder {
    /// Report nothing. Pods stay as they are.
    Silence,
    /// Report again.
    Revive,
    /// Alternate between `NotReady` and Ready.
    Flap {
        /// The length of each phase in seconds, at least 0.1.
        seconds: f64,
    },
    /// Send heartbeats, but report `NotReady`.
    NotReady,
    /// End `flap` and `not-ready`.
    Ready,
    /// End, and start again. A stand-in does not notice.
    Restart,
    /// Register under another name. The old Node gets no more heartbeats.
    Rename {
        /// The new name.
        #[serde(rename = "nodeName")]
        node_name: String,
    },
    /// Register under a second name: two Nodes with one provider id.
    RegisterAlso {
        /// The second name.
        #[serde(rename = "nodeName")]
        node_name: String,
    },
}

/// The body of `POST /vms/<id>/hardware`. It stays so until the opposite is ordered; to stop a VM also ends a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum HardwareOrder {
    /// Do nothing, without ending.
    Hang,
    /// End a hang.
    Resume,
    /// Cut the network: nothing reaches the VM, and the VM reaches nothing.
    CutNetwork,
    /// Restore the network.
    RestoreNetwork,
    /// Slow the disk of a real VM down. With cgroup v1, the kernel counts reads from the disk and direct writes only.
    LimitDisk {
        /// How many bytes the VM may read, and write, per second.
        #[serde(rename = "bytesPerSecond")]
        bytes_per_second: u64,
    },
    /// End the limit of the disk.
    UnlimitDisk,
}

/// The kind of an event in the history of `GET /events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A create call created a VM.
    CreateAccepted,
    /// A create call returned the VM of its token.
    CreateRepeated,
    /// A create call was rejected: by the quota, as a bad request, or because of its token.
    CreateRefused,
    /// A create call was answered with an error, and is applied later.
    CreatePostponed,
    /// A VM booted.
    VmRunning,
    /// A VM stopped.
    VmStopped,
    /// A stopped VM was started.
    VmStarted,
    /// A delete call was accepted.
    DeleteAccepted,
    /// A delete call was answered with an error, and is applied later.
    DeletePostponed,
    /// A VM is gone.
    VmGone,
    /// A fault was applied to a call.
    FaultStruck,
}

/// An entry of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The number, which increases by one. It survives a restart.
    pub number: u64,
    /// The time.
    pub at: Timestamp,
    /// The kind.
    pub kind: EventKind,
    /// The id of the VM, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The name of the VM, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The client token, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The number of VMs after the event, including those in deletion.
    pub live: u64,
    /// Details, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The response of `GET /stats`. All fields except `calls` and `callers` survive a restart of the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The number of created VMs.
    pub created: u64,
    /// The number of deleted VMs.
    pub deleted: u64,
    /// The present number of VMs, including those in deletion.
    pub live: u64,
    /// The maximum of `live`, since the last `POST /stats/reset`.
    pub most_live_at_once: u64,
    /// Calls, except those of observers, since the start of the process, by operation and by code (`OK`, a [`Code`],
    /// `hung`, `cut` or `garbage`).
    pub calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// Requests of named callers since the start of the process, by name.
    #[serde(default)]
    pub callers: BTreeMap<String, u64>,
}
