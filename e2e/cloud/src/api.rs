//! What goes over the wire: the JSON of the cloud's HTTP API.
//!
//! Resources are in camelCase; the orders of a test (faults, quota) in the words of `docs` at each type.

use std::{collections::BTreeMap, fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The header by which a test looks at the cloud from outside: with it a call is neither counted nor delayed, meets
/// no fault, and sees machines that eventual consistency still hides.
pub const OBSERVER_HEADER: &str = "x-nodewright-observer";

/// The prefix of every provider id; the VM's id follows.
pub const PROVIDER_ID_PREFIX: &str = "simulated:///";

/// The longest name, token, tag, label or node name that the cloud accepts, in bytes.
pub const NAME_LIMIT: usize = 253;
/// The largest number of tags, labels or taints of one VM.
pub const ENTRIES_LIMIT: usize = 64;
/// The longest wait, in seconds, that any order may ask for: a day.
pub const SECONDS_LIMIT: f64 = 86_400.0;
/// How many VMs a page has when the caller does not say.
pub const DEFAULT_PAGE: usize = 100;
/// How many VMs or events a page has at most.
pub const PAGE_LIMIT: usize = 1_000;

/// Why a call failed: the codes of the drivers' contract, which are gRPC's by name.
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
    /// The HTTP status that goes with the code. Callers are to go by the code in the body.
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

/// A call that failed, as it stands in the body of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Failure {
    /// What kind of failure it is.
    pub code: Code,
    /// What went wrong, for people.
    pub message: String,
    /// Whether the quota of the account is exhausted, and not the capacity for a size of VMs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quota: bool,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), quota: false }
    }

    pub(crate) fn beyond_quota(quota: u64) -> Self {
        let message = format!("the quota of {quota} vms is exhausted");
        Self { quota: true, ..Self::new(Code::ResourceExhausted, message) }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn unknown_vm(id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no vm {id:?}"))
    }
}

/// A taint that the kubelet registers its Node with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// The taint's value; absent is the same as empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// What the VM's kubelet says of itself when it registers its Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeTemplate {
    /// The Node's name; the VM's name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels besides those that every kubelet sets (topology labels, for example).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints at registration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// The body of `POST /vms`.
///
/// The call is idempotent by `token`: the same request again answers with the same VM, another request under the same
/// token is refused with `AlreadyExists`, and a token whose VM is gone stays spent for ever (`FailedPrecondition`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateVm {
    /// The VM's name. The cloud does not require it to be unique; its id is.
    pub name: String,
    /// The client token that makes the call idempotent.
    pub token: String,
    /// Tags, to find the VM by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// How the VM's kubelet registers.
    #[serde(default)]
    pub node: NodeTemplate,
    /// The size, one of [`SIZES`]; `small` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Seconds until the VM runs, exactly; the cloud's own boot time with its jitter when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_seconds: Option<f64>,
    /// What the VM is started with; kept, and compared when a token comes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
}

/// A size that VMs come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its name, also the label `node.kubernetes.io/instance-type`.
    pub name: &'static str,
    /// Cores.
    pub cores: u32,
    /// Memory in GiB.
    pub memory_gib: u32,
}

/// The sizes that the cloud sells; the first is the default.
pub const SIZES: [Size; 4] = [
    Size { name: "small", cores: 2, memory_gib: 4 },
    Size { name: "medium", cores: 4, memory_gib: 8 },
    Size { name: "large", cores: 8, memory_gib: 16 },
    Size { name: "xlarge", cores: 16, memory_gib: 32 },
];

impl CreateVm {
    /// The name of the Node that the VM's kubelet will register.
    pub fn node_name(&self) -> &str {
        self.node.name.as_deref().unwrap_or(&self.name)
    }

    /// The size asked for.
    pub fn size(&self) -> Result<Size, Failure> {
        let Some(name) = self.size.as_deref() else { return Ok(SIZES[0]) };
        SIZES.iter().find(|size| size.name == name).copied().ok_or_else(|| {
            let known = SIZES.map(|size| size.name).join(", ");
            Failure::invalid(format!("there is no size {name:?}; the sizes are {known}"))
        })
    }

    /// Refuses what the cloud would not remember within bounds.
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

/// Seconds from outside as a duration: finite, not negative, at most [`SECONDS_LIMIT`].
pub(crate) fn duration(field: &str, seconds: f64) -> Result<Duration, Failure> {
    if (0.0..=SECONDS_LIMIT).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(Failure::invalid(format!("{field} must be between 0 and {SECONDS_LIMIT}, not {seconds}")))
    }
}

/// What a VM is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// It boots.
    Pending,
    /// It runs, and so does its kubelet unless told otherwise.
    Running,
    /// It is being deleted; its kubelet is silent for good.
    Deleting,
    /// It died, and stays until it is deleted or started.
    Stopped,
}

/// A VM as `GET /vms/<id>` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    /// The id, unique for ever.
    pub id: String,
    /// The name that it was created with.
    pub name: String,
    /// What it is doing.
    pub state: VmState,
    /// The tags that it was created with.
    pub tags: BTreeMap<String, String>,
    /// What `spec.providerID` of its Node says.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// The name under which its kubelet registers now.
    pub node_name: String,
    /// Its size.
    pub size: String,
    /// Its address, the `InternalIP` of its Node.
    pub address: String,
    /// When the cloud took the order.
    pub created_at: Timestamp,
}

/// A page of a list. `next` is the cursor to pass as `after` for the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The entries, in order of creation.
    pub items: Vec<T>,
    /// Absent on the last page.
    pub next: Option<String>,
}

/// What `GET /vms` filters by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListVms {
    /// Only VMs of this name.
    pub name: Option<String>,
    /// Only VMs that have all of these tags.
    pub tags: BTreeMap<String, String>,
    /// At most so many; [`DEFAULT_PAGE`] when absent, never more than [`PAGE_LIMIT`].
    pub limit: Option<usize>,
    /// The cursor: only what comes after.
    pub after: Option<String>,
}

/// Which calls a fault strikes.
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

/// Narrows a fault to some machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultMatch {
    /// A pattern with `*` and `?` over the VM's name; of a list, over the name or the tag `machine` that it filters by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

/// The body of `POST /faults`: from now on, calls that match suffer `effect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultOrder {
    /// Which calls.
    pub operation: FaultOperation,
    /// Which machines; all when absent.
    #[serde(rename = "match", default)]
    pub matching: FaultMatch,
    /// It strikes so many times, then it is gone; without limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// It is gone after so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<f64>,
    /// It strikes with this probability; always when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// What happens.
    pub effect: Effect,
}

/// What a fault does to a call. "Applied" means that the cloud did what was asked, whatever the caller learns of it.
///
/// Effects that only slow down or change what is made ([`Latency`](Effect::Latency), [`Invisible`](Effect::Invisible),
/// [`Boot`](Effect::Boot), [`NeverJoins`](Effect::NeverJoins)) add up; of the others, the oldest fault's wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Effect {
    /// The call takes longer.
    Latency {
        /// By so many seconds.
        seconds: f64,
    },
    /// The call fails.
    Error {
        /// With this code.
        code: Code,
        /// And this message.
        #[serde(default)]
        message: Option<String>,
        /// Whether the cloud did it nevertheless.
        #[serde(default)]
        applied: bool,
    },
    /// The call is never answered; the connection stays open until the caller closes it.
    Hang {
        /// Whether the cloud did it nevertheless.
        #[serde(default)]
        applied: bool,
    },
    /// The call is applied, and answered after a while.
    AnswerLate {
        /// After so many seconds.
        seconds: f64,
    },
    /// The connection is cut instead of an answer.
    Cut {
        /// Whether the cloud did it nevertheless.
        #[serde(default = "yes")]
        applied: bool,
    },
    /// The call fails at once, and is applied after a while all the same. Only for create and delete.
    ApplyLate {
        /// After so many seconds.
        seconds: f64,
        /// The code of the answer; `DeadlineExceeded` when absent.
        #[serde(default = "deadline_exceeded")]
        code: Code,
    },
    /// The call is applied, and answered by HTML with status 502, as a broken gateway does.
    Garbage,
    /// A list lacks all but its first entries, and says that it is complete.
    ListTruncated {
        /// So many entries are left.
        items: usize,
    },
    /// A list has no entries.
    ListEmpty,
    /// A list's cursor always leads to the same page again.
    ListEndless,
    /// The new VM is invisible to get and list at first (eventual consistency).
    Invisible {
        /// For so many seconds.
        seconds: f64,
    },
    /// The new VM takes another time to boot.
    Boot {
        /// So many seconds.
        seconds: f64,
    },
    /// The new VM's kubelet is silent from the start; [`KubeletOrder::Revive`] wakes it.
    NeverJoins,
}

fn yes() -> bool {
    true
}

fn deadline_exceeded() -> Code {
    Code::DeadlineExceeded
}

/// A fault in force, as `GET /faults` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// To delete it by.
    pub id: u64,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// How often it has struck.
    pub struck: u64,
    /// The order that made it; `count` counts down.
    #[serde(flatten)]
    pub order: FaultOrder,
}

/// The body of `PUT /quota`. VMs count until they are gone, those in deletion included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// No VM is created beyond so many; no limit when absent.
    pub vms: Option<u64>,
}

/// The body of `POST /vms/<id>/kubelet`: what the VM's kubelet is to do from now on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum KubeletOrder {
    /// Say nothing any more; pods are left as they are.
    Silence,
    /// Speak again.
    Revive,
    /// Be `NotReady`, then Ready, and so on.
    Flap {
        /// For so many seconds each, at least 0.1.
        seconds: f64,
    },
    /// Beat, but report `NotReady`.
    NotReady,
    /// End `flap` and `not-ready`.
    Ready,
    /// Register under another name; the old Node gets no more beats.
    Rename {
        /// The new name.
        #[serde(rename = "nodeName")]
        node_name: String,
    },
    /// Register under another name as well: two Nodes with one provider id.
    RegisterAlso {
        /// The second name.
        #[serde(rename = "nodeName")]
        node_name: String,
    },
}

/// What happened, in the history that `GET /events` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A create call made a VM.
    CreateAccepted,
    /// A create call was answered with the VM that its token had made before.
    CreateRepeated,
    /// A create call was refused (quota, a bad request, a token that cannot be used).
    CreateRefused,
    /// A create call was answered by an error and is to be applied later.
    CreatePostponed,
    /// A VM has booted.
    VmRunning,
    /// A VM died.
    VmStopped,
    /// A dead VM was started again.
    VmStarted,
    /// A delete call was accepted.
    DeleteAccepted,
    /// A delete call was answered by an error and is to be applied later.
    DeletePostponed,
    /// A VM is gone.
    VmGone,
    /// A fault struck a call.
    FaultStruck,
}

/// An entry of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counts up by one; survives a restart.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: EventKind,
    /// The VM's id, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The VM's name, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The client token, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// How many VMs there are after it, those in deletion included.
    pub live: u64,
    /// More, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What `GET /stats` gives. All but `calls` and `callers` survives a restart of the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// VMs ever made.
    pub created: u64,
    /// VMs that are gone.
    pub deleted: u64,
    /// VMs that there are, those in deletion included.
    pub live: u64,
    /// The largest value that `live` ever had (since the last `POST /stats/reset`).
    pub most_live_at_once: u64,
    /// Calls of others than observers since the start of the process, by operation and by code (`OK`, a [`Code`], `hung`, `cut` or
    /// `garbage`).
    pub calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// Requests of callers that name themselves, since the start of the process, by name.
    #[serde(default)]
    pub callers: BTreeMap<String, u64>,
}
