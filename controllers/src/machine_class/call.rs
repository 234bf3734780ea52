//! The validation of a providerSpec by the driver, which may run in another process: a call outside Kubernetes.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use nodewright_api::MachineClass;
use nodewright_driver::Driver;
use nodewright_runtime::{
    effect::Effect,
    object::{ObjectRef, uid},
};
use parking_lot::Mutex;

use crate::shared::CONTROL;

/// A driver times out earlier.
const DEADLINE: Duration = Duration::from_secs(10);

/// Asks the driver what is wrong with a providerSpec. All calls about a class are the same call.
#[derive(Clone)]
pub struct Validate {
    pub(super) class: Arc<MachineClass>,
    /// The driver may be another version in another session.
    pub(super) session: u64,
}

/// The validation errors by JSON paths below `providerSpec`; `None` without an answer.
pub(super) type Outcome = Option<Arc<[(String, String)]>>;

impl Validate {
    fn key(&self) -> ObjectRef {
        ObjectRef::of(CONTROL, self.class.as_ref())
    }

    /// Whether an answer to the other call answers this one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.session == other.session && self.class.provider_spec == other.class.provider_spec
    }
}

impl fmt::Debug for Validate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A providerSpec may contain secrets.
        f.debug_tuple("Validate").field(&self.key()).finish()
    }
}

impl PartialEq for Validate {
    fn eq(&self, other: &Self) -> bool {
        uid(self.class.as_ref()) == uid(other.class.as_ref())
    }
}

impl Effect for Validate {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        uid(self.class.as_ref()).into()
    }

    fn name(&self) -> &'static str {
        "validate_class"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn timeout_outcome(&self) -> Outcome {
        None
    }

    fn succeeded(outcome: &Outcome) -> bool {
        outcome.is_some()
    }
}

/// The classes whose providerSpec the driver refuses, as far as it has been asked.
pub(crate) type Refused = Arc<Mutex<BTreeSet<ObjectRef>>>;

/// Makes the calls.
pub(crate) struct Validator {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) refused: Refused,
}

impl Validator {
    pub(crate) async fn perform(self: Arc<Self>, call: Validate) -> Outcome {
        let errors = self.driver.validate(&call.class.provider_spec).await?;
        if errors.is_empty() {
            self.refused.lock().remove(&call.key());
        } else {
            self.refused.lock().insert(call.key());
        }
        Some(errors.into())
    }
}
