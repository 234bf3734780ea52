//! The driver calls of one Machine, as data.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use nodewright_api::{Code, MachineSet, stored::LEDGER};
use nodewright_driver::{DriverError, Instance, MachineRequest};
use nodewright_observability::trace::TraceContext;
use nodewright_runtime::{
    effect::{Effect, Group},
    object::{is_deleting, uid},
};

use super::settings::CallLimits;
use crate::shared::class_secrets::USER_DATA;
use crate::shared::ledger::Ordinal;

/// How long [`Verb::VolumeIds`] may take, and Pods with volumes wait for its answer.
pub(super) const VOLUME_IDS_WITHIN: Duration = Duration::from_secs(30);

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Whether there is a VM.
    Status,
    /// Create the VM.
    Create,
    /// Initialize the VM.
    Initialize,
    /// Delete the VM.
    Delete,
    /// Delete the VMs that the provider lists for the Machine, except the one that it names.
    DeleteOthers,
    /// Which other Machines have the name, in all namespaces: the API server is asked, not the provider.
    Namesakes,
    /// Delete the bootstrap token of a Machine that has joined, or will not.
    DropToken,
    /// Which of the volumes that are attached to the Node are not the provider's.
    VolumeIds,
    /// What the Node gets from the provider. It is the same call as [`Self::Status`]; what that has answered decides about the VM, and
    /// this does not.
    Describe,
}

/// The set that a Machine was made for, and its ordinal there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub set: String,
    pub uid: String,
    pub ordinal: Ordinal,
}

impl Origin {
    /// Whether this is the set that the Machine was made for, it stays, and its ledger has not retired the ordinal.
    pub fn has_future(&self, set: &MachineSet) -> bool {
        let ledger = LEDGER.of(set);
        uid(set) == self.uid && !is_deleting(set) && ledger.is_some_and(|ledger| !ledger.is_retired(self.ordinal))
    }
}

/// What a call needs.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the driver gets, without the user data.
    pub machine: MachineRequest,
    /// Whether the Machine was being deleted when the call was made.
    pub deleting: bool,
    /// Read once more before a VM is created: a retired ordinal never gets one.
    pub origin: Option<Origin>,
    /// The `PersistentVolumes` that [`Verb::VolumeIds`] asks about.
    pub volumes: BTreeSet<String>,
    /// How long a bootstrap token is valid.
    pub token_lifetime: Duration,
    /// How long the call may take.
    pub deadline: Duration,
    /// UID of the Machine's deployment; of its set or of itself if it has none.
    pub pool: Arc<str>,
    /// How many calls may be in progress at once.
    pub limits: CallLimits,
    /// The Machine's trace.
    pub traceparent: TraceContext,
}

/// A call. Two calls of one verb for one Machine UID are the same call.
#[derive(Clone)]
pub struct Call {
    /// Which call.
    pub verb: Verb,
    /// What it needs.
    pub request: Arc<Request>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}/{})", self.verb, self.request.machine.namespace, self.request.machine.name)
    }
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.verb == other.verb && self.request.machine.uid == other.request.machine.uid
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// There is a VM.
    Instance(Instance),
    /// The VM or the token is deleted.
    Done,
    /// Other Machines of the name.
    Namesakes(Vec<String>),
    /// The `PersistentVolumes` that are not the provider's.
    ForeignVolumes(BTreeSet<String>),
    /// The VM is deleted, and the driver has notes to keep for later calls.
    Noted(String),
    /// The ordinal of the Machine is retired, or its set is gone: it gets no VM.
    Retired,
    /// It failed.
    Failed(DriverError),
}

impl Outcome {
    /// The failure, if it is one.
    pub fn error(&self) -> Option<&DriverError> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the provider says that there is no VM, or cannot say.
    pub fn found_no_vm(&self) -> bool {
        self.error().is_some_and(|error| matches!(error.code, Code::NotFound | Code::Unimplemented))
    }
}

impl Effect for Call {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        let uid = self.request.machine.uid.as_str();
        match self.verb {
            // It is about volumes, and blocks no call about the VM.
            Verb::VolumeIds => format!("volumes of {uid}").into(),
            _ => uid.into(),
        }
    }

    fn name(&self) -> &'static str {
        match self.verb {
            Verb::Status => "status",
            Verb::Create => "create",
            Verb::Initialize => "initialize",
            Verb::Delete => "delete",
            Verb::DeleteOthers => "delete_others",
            Verb::Namesakes => "namesakes",
            Verb::DropToken => "drop_token",
            Verb::VolumeIds => "volume_ids",
            Verb::Describe => "describe",
        }
    }

    fn deadline(&self) -> Duration {
        match self.verb {
            // It ends by itself before: a slow answer, which harms nobody, is no warning in the log.
            Verb::VolumeIds => VOLUME_IDS_WITHIN * 2,
            _ => self.request.deadline,
        }
    }

    fn timeout_outcome(&self) -> Outcome {
        let message = format!("the provider did not answer within {:?}", self.deadline());
        Outcome::Failed(DriverError::new(Code::DeadlineExceeded, message))
    }

    fn succeeded(outcome: &Outcome) -> bool {
        outcome.error().is_none_or(|error| error.code == Code::NotFound)
    }

    fn groups(&self) -> Vec<Group> {
        let Request { machine, pool, limits, .. } = self.request.as_ref();
        let (kind, limit) = match self.verb {
            Verb::Create | Verb::Initialize => ("creations", limits.creations),
            Verb::Delete | Verb::DeleteOthers => ("deletions", limits.deletions),
            Verb::Status | Verb::Describe => ("status", limits.others),
            // API servers get these, not the provider.
            Verb::Namesakes => return vec![Group::new("namesakes", limits.others)],
            Verb::DropToken => return vec![Group::new("tokens", limits.others)],
            // A driver answers without the provider.
            Verb::VolumeIds => return vec![Group::new("volumes", limits.others)],
        };
        let (class, credentials) = (&machine.class.name, machine.class.secret.fingerprint(USER_DATA));
        vec![
            Group::new(kind, limit),
            Group::new(format!("{kind} of deployment {pool}"), limits.per_deployment),
            Group::new(format!("{kind} of class {}/{class}", machine.namespace), limits.per_class),
            // Providers throttle by account, and often by kind: an answer of another kind must not end a pause that grows.
            Group::new(format!("{kind} with credentials {credentials:x}"), limits.per_credentials).pausing(),
            Group::new(format!("credentials {credentials:x}"), limits.per_credentials).pausing(),
        ]
    }

    fn is_throttled(outcome: &Outcome) -> bool {
        outcome.error().is_some_and(|error| error.throttled)
    }
}
