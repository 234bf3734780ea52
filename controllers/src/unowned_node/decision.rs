//! Whether a Node without a Machine is initialized.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::Code;
use nodewright_driver::Instance;
use nodewright_runtime::object::{created, is_deleting, uid};

use super::{
    call::{Describe, Outcome},
    memory::Context,
    snapshot::Snapshot,
};
use crate::shared::{cloud_manager::Initializer, cloud_node, indexes::instance_id};

/// For so long the Node may be that of a Machine whose VM is not noted yet: asking would cost a call for each creation.
const HEAD_START: Duration = Duration::from_secs(15);
/// The age from which it is worth a report that a Node is not initialized.
const LATE: Duration = Duration::from_secs(30);
/// The time between two questions, until the Node is this many minutes old, and later.
const PAUSE: SignedDuration = SignedDuration::from_mins(1);
const LATER: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// There is nothing to do, or others do it.
    Leave,
    /// It is evaluated again then.
    Await(Option<Timestamp>),
    /// It cannot be initialized, for this reason; it is tried again then.
    Blocked {
        why: String,
        due: Option<Timestamp>,
        is_late: bool,
    },
    Ask(Describe),
    AwaitAnswer,
    /// It gets the addresses; then the labels, and it loses the taint.
    Initialize {
        addresses: Vec<NodeAddress>,
        instance: &'a Instance,
    },
}

pub(super) fn decide<'a>(context: &Context<'a>, snapshot: &Snapshot) -> Decision<'a> {
    let node = snapshot.node.as_ref();
    if !node.is_uninitialized() || !snapshot.is_unowned || !snapshot.is_described || is_deleting(node) {
        return Decision::Leave;
    }
    match snapshot.cloud_manager.initializer(context) {
        Initializer::This => {}
        Initializer::Open(due) => return Decision::Await(due.or_else(|| context.now.checked_add(PAUSE).ok())),
        Initializer::Other | Initializer::Known { .. } => return Decision::Leave,
    }
    let age = Age { created: created(node), now: context.now };
    if let Some(due) = age.until(HEAD_START).max(snapshot.cloud_manager.pause_end(node, context.now)) {
        return Decision::Await(Some(due));
    }
    let Some(provider_id) = node.provider_id() else {
        let why = "it has no spec.providerID, by which its VM could be found: start its kubelet with --provider-id";
        return age.blocked(why.to_owned(), None);
    };
    described(context, snapshot, provider_id, age)
}

/// How old a Node is.
#[derive(Clone, Copy)]
struct Age {
    created: Option<Timestamp>,
    now: Timestamp,
}

impl Age {
    /// When it reaches an age, while that is yet to come.
    fn until(self, age: Duration) -> Option<Timestamp> {
        self.created.and_then(|created| created.checked_add(age).ok()).filter(|due| *due > self.now)
    }

    /// When it is asked again after an answer.
    fn again(self, answered: Timestamp) -> Timestamp {
        let is_new = self.until(LATER.unsigned_abs()).is_some();
        answered.saturating_add(if is_new { PAUSE } else { LATER }).unwrap_or(Timestamp::MAX)
    }

    fn blocked<'a>(self, why: String, due: Option<Timestamp>) -> Decision<'a> {
        let late = self.until(LATE);
        Decision::Blocked { why, due: due.into_iter().chain(late).min(), is_late: late.is_none() }
    }
}

/// Goes by what the provider says with each of the classes: a VM that was made for a Machine of any of them is the Machine's.
fn described<'a>(context: &Context<'a>, snapshot: &Snapshot, provider_id: &str, age: Age) -> Decision<'a> {
    let (mut found, mut failures, mut due) = (None, vec![], None::<Timestamp>);
    for class in &snapshot.classes {
        let call = Describe {
            node_uid: uid(snapshot.node.as_ref()).to_owned(),
            provider_id: provider_id.to_owned(),
            class: class.clone(),
            deadline: snapshot.deadline,
        };
        let known = context.outcomes.get(&call);
        if known.is_some_and(|known| known.running) {
            return Decision::AwaitAnswer;
        }
        let is_same = context.outcomes.asked(&call).is_some_and(|asked| asked.is_same(&call));
        let Some((ended, answer)) = known.and_then(|known| known.last.as_ref()).filter(|_| is_same) else {
            return Decision::Ask(call);
        };
        let again = age.again(*ended);
        let is_old = again <= context.now;
        let is_machines = answer.as_ref().is_err_and(|error| error.code == Code::FailedPrecondition);
        let why = match usable(snapshot, provider_id, answer) {
            Ok(_) if is_old => return Decision::Ask(call),
            Ok(it) => {
                found = found.or(Some(it));
                continue;
            }
            Err(why) => why,
        };
        if is_machines && !is_old {
            return age.blocked(why, Some(again));
        }
        // What another class has found decides: this one may be of another account, or its credentials refused.
        if is_old && (found.is_none() || is_machines) {
            return Decision::Ask(call);
        }
        due = due.into_iter().chain([again]).min();
        failures.push(format!("class {}: {why}", class.name));
    }
    if let Some((addresses, instance)) = found {
        return Decision::Initialize { addresses, instance };
    }
    failures.extend(snapshot.error.clone());
    let why = if failures.is_empty() {
        "there is no MachineClass with which the provider could be asked about its VM".to_owned()
    } else {
        failures.join("; ")
    };
    age.blocked(why, due)
}

/// What the Node gets by an answer, or why it gets nothing.
fn usable<'a>(
    snapshot: &Snapshot,
    provider_id: &str,
    answer: &'a Outcome,
) -> Result<(Vec<NodeAddress>, &'a Instance), String> {
    let instance = answer.as_ref().map_err(ToString::to_string)?;
    if instance_id(&instance.provider_id) != instance_id(provider_id) {
        return Err(format!("the driver has described {} in place of {provider_id}", instance.provider_id));
    }
    if instance.metadata.is_none() {
        return Err("the driver has not described its VM".to_owned());
    }
    if instance.addresses.is_empty() {
        return Err("its VM has no address yet".to_owned());
    }
    Ok((cloud_node::addresses(&snapshot.node, &instance.addresses)?, instance))
}
