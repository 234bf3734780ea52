//! Whether a VM with the tags of a Machine may be taken for the Machine's.
//!
//! Cluster and name are no proof: another namespace may use both, with a manager of its own. The proof is the token of the creation,
//! which is a Machine's UID. A VM without a token that the Machine's status notes as proven is its own without a further
//! look-up. Another VM with another token, or with none, is adopted if no other Machine has the name in any namespace: the Machine
//! that it was made for had that name, so it is gone. That read is made only for such a VM, and again for each answer.
//!
//! # Caveats
//! Two control clusters that share an account of the provider and a cluster tag do not see each other's Machines: between them only
//! tokens prove anything, and a VM whose Machine one of them has lost may be adopted by the other.

use jiff::Timestamp;
use nodewright_api::{Code, reasons::machine as reasons};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::clip::few;

use super::{
    calls::{Outcome, Verb},
    claim::{NotOwned, is_verified},
    provider::{Answer, Inquiry, LASTING, Provider, creation_pause},
};
use crate::shared::{indexes::instance_id, ownership::noted_id};

/// How many Machines a message names.
const NAMED: usize = 3;

pub(super) enum Ownership {
    /// It is the Machine's, or may become it.
    Own,
    /// That is not known yet.
    Open(Inquiry),
    /// It is another Machine's, and stays as it is.
    Foreign(NotOwned),
    /// That cannot be found out; the API server is asked again then.
    Unknown(NotOwned, Timestamp),
}

/// Whose the VM of an answer is. A provider that cannot say of any VM has answered without an instance.
pub(super) fn ownership(provider: &Provider<'_>, answer: &Answer<'_>, instance: Option<&Instance>) -> Ownership {
    let owner = instance.and_then(|instance| instance.owner_uid.as_deref());
    if provider.owns(owner) || owner.is_none() && is_noted(provider, instance) {
        return Ownership::Own;
    }
    namesakes(provider, answer.known.order, &described(provider, instance))
}

/// Whether another Machine has the name, as the API server has said after the answer of this order.
pub(super) fn namesakes(provider: &Provider<'_>, after: u64, what: &str) -> Ownership {
    let scope = &provider.scope;
    if provider.any_running(&[Verb::Namesakes]) {
        return Ownership::Open(Inquiry::Await);
    }
    let Some(answer) = provider.newest(&[Verb::Namesakes]).filter(|answer| answer.known.order > after) else {
        return Ownership::Open(Inquiry::Ask);
    };
    match answer.outcome {
        Outcome::Namesakes(others) if others.is_empty() => Ownership::Own,
        Outcome::Namesakes(others) => Ownership::Foreign(taken(what, others)),
        Outcome::Failed(error) => {
            let pause = match error.code {
                Code::PermissionDenied => scope.settings.medium_retry.min(LASTING),
                _ => creation_pause(error, answer.known.failures, scope.settings),
            };
            let Some(due) = scope.pause_end(answer.ended, pause) else { return Ownership::Open(Inquiry::Ask) };
            let message = format!("{what}; whether another machine has that name is not known: {}", error.message);
            let error = DriverError::new(error.code, message);
            Ownership::Unknown(NotOwned { reason: reasons::VM_OWNER_UNKNOWN, error }, due)
        }
        _ => Ownership::Open(Inquiry::Ask),
    }
}

fn taken(what: &str, others: &[String]) -> NotOwned {
    let message = format!(
        "{what}, and machines of that name exist elsewhere: {}; it is left alone: delete this Machine and its set if they were \
         copied, or give the MachineClass another cluster; if the other Machine is the one too many, delete that",
        few(NAMED, others.iter())
    );
    let error = DriverError::new(Code::FailedPrecondition, message);
    NotOwned { reason: reasons::VM_NOT_OWNED, error }
}

/// Whether the status notes this VM as proven: then that was found out before.
fn is_noted(provider: &Provider<'_>, instance: Option<&Instance>) -> bool {
    let machine = provider.scope.machine;
    let noted = noted_id(machine).filter(|_| is_verified(machine)).map(instance_id);
    noted.is_some() && noted == instance.map(|instance| instance_id(&instance.provider_id))
}

fn described(provider: &Provider<'_>, instance: Option<&Instance>) -> String {
    let machine = &provider.scope.machine;
    match instance.map(|instance| (&instance.provider_id, instance.owner_uid.as_deref())) {
        Some((id, Some(owner))) => {
            format!("VM {id} has the name of this machine and was made for one with UID {owner}")
        }
        Some((id, None)) => {
            format!("VM {id} has the name of this machine, and nothing says for which machine it was made")
        }
        None => format!("the provider does not report the owner of VM {}", machine.spec.provider_id),
    }
}
