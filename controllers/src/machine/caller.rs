//! Makes the calls of Machines through a driver.
//!
//! # Guarantees
//! * Before a VM is created, the Machine's set is read once after the Machine was seen: a retired name gets no VM, whatever
//!   the caches say. Machines that wait at the same time share one read.
//! * A Machine has one bootstrap token, also after a restart, and user data exist only in memory.

use std::{collections::HashMap, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, WeakShared},
};
use jiff::Timestamp;
use nodewright_api::{Code, MachineSet, operations};
use nodewright_driver::{Driver, DriverError, Instance, MachineRequest, SecretText};
use nodewright_observability::trace::{SpanRecord, Spans, TraceContext, span_id};
use nodewright_runtime::{
    leadership::Clock,
    object::{ObjectRef, ResourceType},
    request::{Call as ApiCall, Connection},
    without_managed_fields,
};
use parking_lot::Mutex;

use super::{
    calls::{Call, Origin, Outcome, Request, Verb},
    mcm_metrics::MachineMetrics,
    namesakes, others, token, volume_ids,
};
use crate::shared::{CONTROL, class_secrets::USER_DATA};

pub(crate) struct Caller {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) control: Connection,
    /// Without a connection to a target cluster there are no bootstrap tokens.
    pub(crate) target: Option<Connection>,
    pub(crate) bootstrap_groups: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spans: Spans,
    pub(crate) metrics: MachineMetrics,
    /// The reads of sets that are under way.
    pub(crate) reads: Mutex<Reads>,
}

type Reading = Result<Option<Arc<MachineSet>>, String>;

type Reads = HashMap<ObjectRef, WeakShared<BoxFuture<'static, Reading>>>;

impl Caller {
    pub(crate) async fn perform(self: Arc<Self>, call: Call) -> Outcome {
        let begun = self.clock.wall();
        let outcome = self.call(&call, self.position(&call, begun)).await;
        self.metrics.called(&call, (begun, self.clock.wall()), &outcome);
        self.record_span(&call, begun, &outcome);
        outcome
    }

    /// Where the call is in the Machine's trace: its span, or the Machine's if it has none. `None` if traces are not exported.
    fn position(&self, call: &Call, begun: Timestamp) -> Option<TraceContext> {
        let machine = call.request.traceparent;
        let span = |name| machine.at(span_id(&seed(call, name, begun)));
        self.spans.are_exported().then(|| span_name(call.verb).map_or(machine, span))
    }

    async fn call(&self, call: &Call, trace: Option<TraceContext>) -> Outcome {
        let request = call.request.as_ref();
        let machine = request.machine.clone();
        // What the driver does hangs below the call.
        let machine = match trace {
            Some(trace) => MachineRequest { traceparent: Some(trace.to_string().into()), ..machine },
            None => machine,
        };
        let (calls, clock) = (self.metrics.calls().within(trace), self.clock.as_ref());
        let found = match call.verb {
            Verb::Status | Verb::Describe => {
                calls.measure("get_machine_status", clock, self.driver.status(machine)).await
            }
            Verb::Create => match self.prepare(request, machine).await {
                Ok(machine) => calls.measure("create_machine", clock, self.driver.create(machine)).await,
                Err(outcome) => return outcome,
            },
            Verb::Initialize => calls.measure("initialize_machine", clock, self.driver.initialize(machine)).await,
            Verb::Delete => {
                let deleted = calls.measure("delete_machine", clock, self.driver.delete(machine)).await;
                return deleted.map_or_else(Outcome::Failed, |notes| notes.map_or(Outcome::Done, Outcome::Noted));
            }
            Verb::DeleteOthers => {
                let namesakes = async || namesakes::look_up(&self.control, &machine).await;
                let driver = others::Recorded { driver: self.driver.as_ref(), calls: &calls, clock };
                return others::delete(driver, &machine, namesakes).await;
            }
            Verb::Namesakes => {
                return namesakes::look_up(&self.control, &machine)
                    .await
                    .map_or_else(Outcome::Failed, Outcome::Namesakes);
            }
            Verb::DropToken => {
                let Some(target) = &self.target else { return Outcome::Done };
                return token::drop(target, &machine.uid).await.map_or_else(unavailable, |()| Outcome::Done);
            }
            Verb::VolumeIds => {
                let Some(target) = &self.target else { return Outcome::Done };
                let (calls, clock) = (calls.clone(), self.clock.clone());
                let ask = |specs| {
                    let answer = self.driver.volume_ids(specs);
                    async move { calls.measure("get_volume_ids", clock.as_ref(), answer).await }.boxed()
                };
                return volume_ids::look_up(ask, target, &request.volumes).await;
            }
        };
        found.map_or_else(Outcome::Failed, with_id)
    }

    async fn prepare(&self, request: &Request, machine: MachineRequest) -> Result<MachineRequest, Outcome> {
        if let Some(origin) = &request.origin {
            let set = self.read(&request.machine.namespace, origin).await;
            let set = set.map_err(unavailable)?;
            if !set.is_some_and(|set| origin.has_future(&set)) {
                return Err(Outcome::Retired);
            }
        }
        self.user_data(request, machine).await
    }

    async fn user_data(&self, request: &Request, machine: MachineRequest) -> Result<MachineRequest, Outcome> {
        let Some(text) = machine.class.secret.get(USER_DATA) else { return Ok(machine) };
        let mut text = String::from_utf8(text.to_vec()).map_err(|_| {
            let class = &machine.class.name;
            let text = format!("the value of {USER_DATA:?} in the Secret of MachineClass {class:?} is no UTF-8 text");
            Outcome::Failed(DriverError::new(Code::InvalidArgument, text))
        })?;
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
        let key = ObjectRef::new(CONTROL, namespace, origin.set.as_str());
        let under_way = |reads: &Reads| reads.get(&key)?.upgrade().filter(|read| read.peek().is_none());
        let earlier = under_way(&self.reads.lock());
        if let Some(earlier) = earlier {
            drop(earlier.await);
        }
        let read = {
            let mut reads = self.reads.lock();
            under_way(&reads).unwrap_or_else(|| {
                let read = get(self.control.clone(), key.clone()).boxed().shared();
                reads.retain(|_, read| read.upgrade().is_some());
                reads.extend(read.downgrade().map(|weak| (key.clone(), weak)));
                read
            })
        };
        read.await
    }

    fn record_span(&self, call: &Call, begun: Timestamp, outcome: &Outcome) {
        let Some(name) = span_name(call.verb) else { return };
        let machine = &call.request.machine;
        let seed = seed(call, name, begun);
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

fn span_name(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Create => Some("create call"),
        Verb::Initialize => Some("initialize call"),
        Verb::Delete => Some("delete call"),
        Verb::DeleteOthers => Some("delete_others call"),
        // These are made too often to be worth a span each.
        Verb::Status | Verb::Describe | Verb::Namesakes | Verb::DropToken | Verb::VolumeIds => None,
    }
}

/// What the id of the span of a call is made of.
fn seed(call: &Call, name: &str, begun: Timestamp) -> String {
    format!("{}/{name}/{begun}", call.request.machine.uid)
}

async fn get(control: Connection, key: ObjectRef) -> Reading {
    let path = ResourceType::of::<MachineSet>().object(&key);
    match control.send(ApiCall::get(path)).await {
        Ok(answer) => match without_managed_fields::from_slice::<MachineSet>(answer.body()) {
            Ok(set) => Ok(Some(Arc::new(set))),
            Err(_) => Err(format!("MachineSet {key} cannot be decoded")),
        },
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(format!("failed to read MachineSet {key} before its machine gets a VM: {error}")),
    }
}

/// A VM without an id could be neither found nor deleted later: the call is made again.
fn with_id(instance: Instance) -> Outcome {
    if instance.provider_id.is_empty() {
        let error = DriverError::new(Code::Internal, "the driver has answered without a provider id");
        return Outcome::Failed(DriverError { last_known_state: instance.last_known_state, ..error });
    }
    Outcome::Instance(instance)
}

fn unavailable(message: String) -> Outcome {
    Outcome::Failed(DriverError::new(Code::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_without_an_id_is_a_failure_that_keeps_the_drivers_notes() {
        let instance = Instance { last_known_state: Some("disk-1".to_owned()), ..Instance::default() };
        let Outcome::Failed(error) = with_id(instance.clone()) else { panic!("it has no id") };
        assert_eq!((error.code, error.last_known_state.as_deref()), (Code::Internal, Some("disk-1")));
        let named = Instance { provider_id: "p:///1".to_owned(), ..instance };
        assert_eq!(with_id(named.clone()), Outcome::Instance(named));
    }
}
