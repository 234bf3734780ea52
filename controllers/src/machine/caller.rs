//! Makes the provider calls, with what belongs to them: the last read of the ledger, the bootstrap token, user data.

use std::{collections::HashMap, sync::Arc};

use nodewright_api::{Code, MachineSet, operations};
use nodewright_driver::{Driver, DriverError, MachineRequest, SecretText};
use nodewright_observability::trace::{SpanRecord, Spans};
use nodewright_runtime::{
    leadership::Clock,
    object::{ObjectRef, ResourceType},
    request::{Call as ApiCall, Connection},
};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::{
    calls::{Call, Origin, Outcome, Request, Verb},
    token::{self, USER_DATA},
};
use crate::shared::clusters::CONTROL;

/// Makes the calls of Machines through a driver.
///
/// # Guarantees
/// * Before a VM is created, the Machine's set is read once after the Machine was seen: a retired name gets no VM, whatever
///   the caches say. Machines that wait at the same time share one read.
/// * A Machine has one bootstrap token, also after a restart, and user data exist only in memory.
#[derive(Clone)]
pub struct Caller {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Arc<dyn Driver>,
    control: Connection,
    target: Option<Connection>,
    bootstrap_groups: String,
    clock: Arc<dyn Clock>,
    spans: Spans,
    reads: Mutex<HashMap<String, broadcast::Sender<Reading>>>,
}

/// What a read of a set returned.
type Reading = Result<Option<Arc<MachineSet>>, String>;

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("driver", &self.shared.driver.name()).finish_non_exhaustive()
    }
}

impl Caller {
    /// A caller of `driver`. Without a connection to a target cluster there are no bootstrap tokens.
    pub fn new(
        driver: Arc<dyn Driver>,
        control: Connection,
        target: Option<Connection>,
        bootstrap_groups: String,
        clock: Arc<dyn Clock>,
        spans: Spans,
    ) -> Self {
        let reads = Mutex::default();
        Self { shared: Arc::new(Shared { driver, control, target, bootstrap_groups, clock, spans, reads }) }
    }

    /// Makes a call.
    pub fn perform(&self, call: Call) -> impl Future<Output = Outcome> + Send + use<> {
        let shared = self.shared.clone();
        async move {
            let begun = shared.clock.wall();
            let outcome = shared.call(&call).await;
            shared.record_span(&call, begun, &outcome);
            outcome
        }
    }
}

impl Shared {
    async fn call(&self, call: &Call) -> Outcome {
        let request = call.request.as_ref();
        let machine = request.machine.clone();
        match call.verb {
            Verb::Status => instance(self.driver.status(machine).await),
            Verb::Delete => done(self.driver.delete(machine).await),
            Verb::Create => match self.prepare(request).await {
                Ok(machine) => instance(self.driver.create(machine).await),
                Err(outcome) => outcome,
            },
            Verb::Initialize => instance(self.driver.initialize(machine).await),
            Verb::DropToken => match &self.target {
                Some(target) => token::drop(target, &machine.uid).await.map_or_else(unavailable, |()| Outcome::Done),
                None => Outcome::Done,
            },
        }
    }

    /// The last read of the ledger, and the user data.
    async fn prepare(&self, request: &Request) -> Result<MachineRequest, Outcome> {
        if let Some(origin) = &request.origin {
            let set = self.read(&request.machine.namespace, origin).await;
            let set = set.map_err(unavailable)?;
            if !set.is_some_and(|set| origin.has_future(&set)) {
                return Err(Outcome::Retired);
            }
        }
        self.user_data(request).await
    }

    async fn user_data(&self, request: &Request) -> Result<MachineRequest, Outcome> {
        let machine = request.machine.clone();
        let Some(text) = machine.class.secret.get(USER_DATA) else { return Ok(machine) };
        let invalid = || {
            Outcome::Failed(DriverError::new(
                Code::InvalidArgument,
                format!(
                    "the value of {USER_DATA:?} in the Secret of MachineClass {:?} is no UTF-8 text",
                    machine.class.name
                ),
            ))
        };
        let mut text = String::from_utf8(text.to_vec()).map_err(|_| invalid())?;
        for placeholder in token::placeholders() {
            if let (true, Some(target)) = (text.contains(&placeholder), &self.target) {
                let token = token::ensure(target, request, &self.bootstrap_groups, self.clock.wall()).await;
                let token = token.map_err(unavailable)?;
                text = text.replace(&placeholder, &token);
            }
        }
        let name = operations::MACHINE_NAME_PLACEHOLDER;
        for placeholder in [name.to_owned(), token::url_encoded(name)] {
            text = text.replace(&placeholder, &machine.name);
        }
        Ok(MachineRequest { user_data: SecretText(text.into()), ..machine })
    }

    /// Reads a set from the quorum. A read that is already under way may have begun before this Machine was seen, so it does
    /// not count: the next one does, and all that wait by then share it.
    async fn read(&self, namespace: &str, origin: &Origin) -> Reading {
        let place = format!("{namespace}/{}", origin.set);
        let joined = self.reads.lock().get(&place).map(broadcast::Sender::subscribe);
        if let Some(mut running) = joined {
            // Its result is not used.
            let _ = running.recv().await;
        }
        // Another call began it after this one had begun to wait, or this call begins it.
        let begun = {
            let mut reads = self.reads.lock();
            let begun = reads.get(&place).map(broadcast::Sender::subscribe);
            if begun.is_none() {
                reads.insert(place.clone(), broadcast::channel(1).0);
            }
            begun
        };
        if let Some(mut begun) = begun {
            return begun.recv().await.unwrap_or_else(|_| Err("the read of the machine set broke off".to_owned()));
        }
        let given_up = Err("the read of the machine set was given up".to_owned());
        let mut read = SharedRead { shared: self, place: &place, reading: given_up };
        read.reading = self.get(namespace, origin).await;
        read.reading.clone()
    }

    async fn get(&self, namespace: &str, origin: &Origin) -> Reading {
        let key = ObjectRef::new(CONTROL, namespace, origin.set.as_str());
        let path = ResourceType::of::<MachineSet>().object(&key);
        match self.control.send(ApiCall::get(path)).await {
            Ok(answer) => match serde_json::from_slice::<MachineSet>(answer.body()) {
                Ok(set) => Ok(Some(Arc::new(set))),
                Err(_) => Err(format!("MachineSet {key} cannot be decoded")),
            },
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(format!("failed to read MachineSet {key} before its machine gets a VM: {error}")),
        }
    }

    fn record_span(&self, call: &Call, begun: jiff::Timestamp, outcome: &Outcome) {
        let name = match call.verb {
            Verb::Create => "create call",
            Verb::Initialize => "initialize call",
            Verb::Delete => "delete call",
            // These are made too often to be worth a span each.
            Verb::Status | Verb::DropToken => return,
        };
        let machine = &call.request.machine;
        let seed = format!("{}/{name}/{begun}", machine.uid);
        let mut span = SpanRecord::child(name, call.request.traceparent, &seed, begun, self.clock.wall().max(begun));
        span.attributes = vec![
            ("nodewright.machine.name", machine.name.clone()),
            ("nodewright.machine.uid", machine.uid.clone()),
            ("nodewright.driver", self.driver.name().to_owned()),
        ];
        span.error = outcome.error().map(ToString::to_string);
        self.spans.record(span);
    }
}

/// Gives the reading to those that wait for it, also if the read is dropped at its deadline.
struct SharedRead<'a> {
    shared: &'a Shared,
    place: &'a str,
    reading: Reading,
}

impl Drop for SharedRead<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.shared.reads.lock().remove(self.place) {
            let _ = waiting.send(self.reading.clone());
        }
    }
}

fn unavailable(message: String) -> Outcome {
    Outcome::Failed(DriverError::new(Code::Unavailable, message))
}

fn instance(result: nodewright_driver::Result<nodewright_driver::Instance>) -> Outcome {
    result.map_or_else(Outcome::Failed, Outcome::Instance)
}

fn done(result: nodewright_driver::Result<()>) -> Outcome {
    result.map_or_else(Outcome::Failed, |()| Outcome::Done)
}
