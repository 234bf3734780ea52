//! The question to the provider what it knows of a VM.

use std::{fmt, sync::Arc, time::Duration};

use nodewright_api::Code;
use nodewright_driver::{Class, Driver, DriverError, Instance, UnownedRequest};
use nodewright_runtime::{
    effect::{Effect, Group},
    leadership::Clock,
};

use crate::shared::{class_secrets::USER_DATA, mcm_metrics::DriverCalls};

/// How many questions with the same credentials there are at once.
const AT_ONCE: usize = 8;

/// Asks with one class. All questions about a Node with the same class are the same call.
#[derive(Clone)]
pub struct Describe {
    pub(super) node_uid: String,
    pub(super) provider_id: String,
    pub(super) class: Class,
    pub(super) deadline: Duration,
}

impl Describe {
    /// Whether an answer to the other call answers this one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.class.revision == other.class.revision && self.provider_id == other.provider_id
    }
}

impl fmt::Debug for Describe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Describe({} with class {})", self.provider_id, self.class.name)
    }
}

impl PartialEq for Describe {
    fn eq(&self, other: &Self) -> bool {
        (&self.node_uid, &self.class.name) == (&other.node_uid, &other.class.name)
    }
}

pub(super) type Outcome = Result<Arc<Instance>, DriverError>;

impl Effect for Describe {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        self.node_uid.as_str().into()
    }

    fn name(&self) -> &'static str {
        "describe_unowned"
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn timeout_outcome(&self) -> Outcome {
        let message = format!("the driver has not answered within {:?}", self.deadline);
        Err(DriverError::new(Code::DeadlineExceeded, message))
    }

    fn succeeded(outcome: &Outcome) -> bool {
        outcome.is_ok()
    }

    fn groups(&self) -> Vec<Group> {
        // Few Nodes have no Machine, and a call that hangs must not keep the others waiting.
        vec![Group::new(format!("credentials {:x}", self.class.secret.fingerprint(USER_DATA)), AT_ONCE).pausing()]
    }

    fn is_throttled(outcome: &Outcome) -> bool {
        outcome.as_ref().is_err_and(|error| error.throttled)
    }
}

/// Makes the calls.
pub(crate) struct Describer {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) calls: DriverCalls,
}

impl Describer {
    pub(crate) async fn perform(self: Arc<Self>, call: Describe) -> Outcome {
        let request = UnownedRequest { provider_id: call.provider_id, class: call.class };
        let answer = self.driver.describe_unowned(request);
        self.calls.measure("describe_unowned", self.clock.as_ref(), answer).await.map(Arc::new)
    }
}
