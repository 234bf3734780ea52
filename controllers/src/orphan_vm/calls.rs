//! The calls about orphaned VMs, as data.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use nodewright_driver::{Class, ListedVm};
use nodewright_runtime::{
    effect::{Effect, Group},
    object::ObjectRef,
};

use crate::shared::class_secrets::USER_DATA;

/// The API server may take this long to say whether a Machine exists.
const LOOKUP: Duration = Duration::from_secs(30);

/// A VM that no Machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its id at the provider.
    pub provider_id: String,
    /// The Machine's name in its tags.
    pub machine: String,
    /// The id of the VM that the Machine keeps, if the Machine exists and has several.
    pub keeps: Option<String>,
    /// Whether it is known that the Machine was to go: the ledger of its set has retired its name, or the Machine keeps another VM.
    pub explained: bool,
}

#[derive(Clone)]
pub struct Request {
    pub class: Class,
    /// The MachineClass.
    pub key: ObjectRef,
    /// How long one call to the provider may take.
    pub deadline: Duration,
}

/// A call. All lists of one MachineClass are the same call, and so are all sweeps.
#[derive(Clone)]
pub enum Call {
    /// Lists the VMs of the class's cluster.
    List(Arc<Request>),
    /// Deletes VMs one after the other. Each is kept if the API server knows a Machine that has it, or may.
    Sweep(Arc<Request>, Arc<[Orphan]>),
}

impl Call {
    /// Differs when the class or its Secrets do.
    pub(super) fn revision(&self) -> &str {
        &self.request().class.revision
    }

    fn request(&self) -> &Request {
        match self {
            Self::List(request) | Self::Sweep(request, _) => request,
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(request) => write!(f, "List({})", request.key),
            Self::Sweep(request, orphans) => {
                let ids: Vec<_> = orphans.iter().map(|orphan| orphan.provider_id.as_str()).collect();
                write!(f, "Sweep({}: {})", request.key, ids.join(", "))
            }
        }
    }
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.request().key == other.request().key
    }
}

/// VMs by provider id.
pub(super) type Listed = BTreeMap<String, ListedVm>;

/// What became of a VM in a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepResult {
    /// Its deletion has begun.
    Deleted,
    /// A Machine has it, or may.
    Kept,
    /// It could not be learnt whether a Machine has it, or the provider failed.
    Failed(String),
}

#[derive(Clone, Debug)]
pub enum Outcome {
    /// What the provider lists for a revision of the class.
    Listed(Arc<Listed>),
    Swept(Vec<(String, SweepResult)>),
    Failed {
        message: String,
        throttled: bool,
    },
}

impl Effect for Call {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        self.request().key.to_string().into()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::List(_) => "list_vms",
            Self::Sweep(..) => "delete_orphan_vms",
        }
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::List(request) => request.deadline,
            Self::Sweep(request, orphans) => {
                let each = request.deadline.saturating_add(LOOKUP);
                each.saturating_mul(u32::try_from(orphans.len()).unwrap_or(u32::MAX))
            }
        }
    }

    fn timeout_outcome(&self) -> Outcome {
        Outcome::Failed { message: format!("there was no answer within {:?}", self.deadline()), throttled: false }
    }

    fn succeeded(outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Listed(_) => true,
            Outcome::Swept(results) => results.iter().all(|(_, result)| !matches!(result, SweepResult::Failed(_))),
            Outcome::Failed { .. } => false,
        }
    }

    fn groups(&self) -> Vec<Group> {
        let credentials = self.request().class.secret.fingerprint(USER_DATA);
        // Lists are expensive, and not urgent.
        vec![Group::new(format!("credentials {credentials:x}"), 1).pausing()]
    }

    fn is_throttled(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Failed { throttled: true, .. })
    }
}
