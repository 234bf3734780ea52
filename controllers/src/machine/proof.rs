//! Asks the provider whether the VM that a Machine names is the Machine's.
//!
//! That takes one call and one write for a Machine that comes from a backup or from machine-controller-manager. A Machine
//! that is created here needs neither: the provider's answer to the creation is the proof.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    calls::Verb,
    health,
    provider::{Provider, Retry, VmStatus},
    provision::{Provision, ask_owner, foreign, try_again},
    scope::Scope,
};
use crate::shared::node::Node;
use nodewright_driver::{DriverError, Instance};

/// Pause before a provider that knows no VM is asked again: a new VM may not show at once.
const NOT_FOUND_PAUSE: Duration = Duration::from_secs(30);

/// How far the proof of a Machine's VM has come.
pub(super) enum Proof<'a> {
    /// There is no answer yet, or the VM is another Machine's.
    Missing(Provision<'a>),
    /// The call failed. The provider is asked again at `due`; until then nothing is done.
    Failed { error: &'a DriverError, due: Timestamp },
    /// The provider knows no such VM, and is asked again. The Machine is judged as one without a Node, unless a Node with the
    /// VM's id is ready: then probably the wrong provider was asked, or with the wrong credentials.
    NotFound { again: Retry, contradicted_by: Option<&'a Node> },
    /// It is the Machine's VM: the provider says so, or, without an instance, cannot tell.
    Proven(Option<&'a Instance>),
}

/// For a Machine that names a VM which its status does not note as proven.
pub(super) fn prove<'a>(scope: &Scope<'a>) -> Proof<'a> {
    let class = match &scope.snapshot.class {
        Ok(class) => class,
        Err(problem) => return Proof::Missing(Provision::invalid(problem)),
    };
    let provider = Provider::of(scope, class);
    if provider.any_running(&[Verb::Status, Verb::Create]) {
        return Proof::Missing(Provision::CALLING);
    }
    match provider.vm_status() {
        None => Proof::Missing(ask_owner(&provider)),
        Some(VmStatus::Foreign(answer, error)) => Proof::Missing(foreign(&provider, &answer, error)),
        Some(VmStatus::Failed(answer, error)) => match try_again(&provider, (&answer, error), Verb::Status) {
            Provision::Failed { error, due } => Proof::Failed { error, due },
            other => Proof::Missing(other),
        },
        Some(VmStatus::NotFound(answer)) => {
            let due = answer.ended.checked_add(NOT_FOUND_PAUSE).ok().filter(|due| *due > scope.now());
            let again = due.map_or_else(|| Retry::Now(provider.call(Verb::Status)), Retry::At);
            let node = scope.snapshot.claim.node.as_deref();
            Proof::NotFound {
                again,
                contradicted_by: node.filter(|node| health::unhealthy_because(scope, node).is_none()),
            }
        }
        Some(VmStatus::Proven(instance)) => Proof::Proven(Some(instance)),
        Some(VmStatus::Unimplemented) => Proof::Proven(None),
    }
}
