//! What a Node lacks of what its provider knows.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{MachinePhase, reasons::machine as reasons, stored::fnv1a, taints};
use nodewright_driver::{Instance, InstanceMetadata};
use nodewright_runtime::object::{created, uid};

use crate::{
    machine::{
        calls::{Outcome, Verb},
        memory::Note,
        provider::{Answer, Provider},
        scope::{Scope, WORTH_REPORTING},
    },
    shared::{cloud_manager::Initializer, cloud_node, indexes::instance_id, node::Node, ownership::vm_id},
};

/// How long a cloud controller manager may take before a Machine reports that there seems to be none.
const MANAGER_AWAITED: SignedDuration = SignedDuration::from_mins(5);
/// A new VM gets its addresses within seconds; one that has none for longer is asked about less frequently.
const NEW: SignedDuration = SignedDuration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(30);

pub(super) enum Decision<'a> {
    /// The Node has what it gets, or another program gives it.
    Nothing,
    /// The Node is not initialized: for this reason, if it is worth a report, and the provider is asked again then.
    Blocked(Blocked),
    /// The provider is asked, and why.
    Ask(&'static str),
    /// It has been asked.
    AwaitAnswer,
    /// The Node gets the addresses; then the id and the labels, and it loses the taint.
    Initialize { addresses: Vec<NodeAddress>, instance: &'a Instance, metadata: &'a InstanceMetadata },
    /// The Node gets these addresses, which the provider has said then.
    Refresh { addresses: Vec<NodeAddress>, answered: Timestamp },
    /// The provider is asked then. It has been asked before.
    AwaitRefresh { due: Timestamp, before: Option<Timestamp> },
}

pub(super) struct Blocked {
    pub(super) cause: Option<(&'static str, String)>,
    pub(super) due: Option<Timestamp>,
}

impl Decision<'_> {
    fn blocked(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Blocked(Blocked { cause: Some((reason, message.into())), due: None })
    }
}

pub(super) fn decide<'a>(scope: &Scope<'a>, node: &Node) -> Decision<'a> {
    let cloud_manager = &scope.snapshot.cloud_manager;
    match (node.is_uninitialized(), cloud_manager.initializer(scope.context)) {
        (true, Initializer::This) if scope.driver.describes_instances => {
            left_to_others(scope, node).unwrap_or_else(|| initialization(scope, node))
        }
        (true, Initializer::This) => Decision::blocked(reasons::NOT_DESCRIBED, NOT_DESCRIBED),
        (true, Initializer::Other) => without_manager(scope, node, "or this manager with --cloud-node=on", None),
        (true, Initializer::Known { manager, node: other }) => {
            let text = format!("or find out why {manager} does not, which has initialized node {other}");
            without_manager(scope, node, &text, None)
        }
        (true, Initializer::Open(due)) => {
            let due = due.or_else(|| scope.pause_end(scope.now(), scope.settings.short_retry));
            without_manager(scope, node, "or wait: this manager does it unless another has", due)
        }
        (false, Initializer::This) if scope.driver.describes_instances && is_running(scope) => refresh(scope, node),
        (false, _) => Decision::Nothing,
    }
}

fn is_running(scope: &Scope<'_>) -> bool {
    *scope.machine.phase() == MachinePhase::Running
}

/// With `--cloud-node=auto` another may initialize each Node at first, and what has been written is known before more is.
fn left_to_others<'a>(scope: &Scope<'_>, node: &Node) -> Option<Decision<'a>> {
    let due = scope.snapshot.cloud_manager.pause_end(node, scope.now())?;
    Some(Decision::Blocked(Blocked { cause: None, due: Some(due) }))
}

const NOT_DESCRIBED: &str = "the driver does not report addresses and labels of its nodes: run a cloud controller manager, or \
                             start kubelets without --cloud-provider=external";

fn without_manager<'a>(scope: &Scope<'_>, node: &Node, remedy: &str, due: Option<Timestamp>) -> Decision<'a> {
    let awaited = created(node).and_then(|since| scope.pause_end(since, MANAGER_AWAITED));
    if awaited.is_some() {
        return Decision::Blocked(Blocked { cause: None, due: awaited.into_iter().chain(due).min() });
    }
    let text = format!(
        "no cloud controller manager has initialized the node: it keeps the taint {}, and no pod starts on it; run the provider's, \
         {remedy}",
        taints::UNINITIALIZED
    );
    Decision::Blocked(Blocked { cause: Some((reasons::NO_CLOUD_CONTROLLER_MANAGER, text)), due })
}

fn initialization<'a>(scope: &Scope<'a>, node: &Node) -> Decision<'a> {
    let Ok(class) = &scope.snapshot.class else { return Decision::Nothing };
    let provider = Provider::of(scope, class);
    // What a creation has answered serves as well.
    let verbs = [Verb::Describe, Verb::Create, Verb::Initialize, Verb::Status];
    if provider.any_running(&verbs) {
        return Decision::AwaitAnswer;
    }
    let ask = Decision::Ask("the node is to be initialized");
    let Some(answer) = provider.newest(&verbs) else { return ask };
    let missing = match described(scope, &answer) {
        Some((instance, metadata)) if !instance.addresses.is_empty() => {
            match cloud_node::addresses(node, &instance.addresses) {
                Ok(addresses) => return Decision::Initialize { addresses, instance, metadata },
                Err(text) => Some((reasons::NODE_IP_NOT_FOUND, text)),
            }
        }
        Some(_) => late(scope, node, "its VM has no address yet".to_owned()),
        None => late(scope, node, failure(&answer)),
    };
    let is_new = created(node).is_some_and(|since| scope.pause_end(since, NEW).is_some());
    match scope.pause_end(answer.ended, if is_new { scope.settings.short_retry } else { PAUSE }) {
        Some(due) => Decision::Blocked(Blocked { cause: missing, due: Some(due) }),
        None => ask,
    }
}

/// What is worth a report once it has lasted for a while.
fn late(scope: &Scope<'_>, node: &Node, text: String) -> Option<(&'static str, String)> {
    let is_late = created(node).is_none_or(|since| scope.pause_end(since, WORTH_REPORTING).is_none());
    is_late.then_some((reasons::NO_ADDRESSES, text))
}

fn failure(answer: &Answer<'_>) -> String {
    let error = answer.outcome.error();
    error.map_or_else(|| "the provider has not described its VM".to_owned(), ToString::to_string)
}

/// What an answer says of the Machine's VM.
fn described<'a>(scope: &Scope<'_>, answer: &Answer<'a>) -> Option<(&'a Instance, &'a InstanceMetadata)> {
    let Outcome::Instance(instance) = answer.outcome else { return None };
    let is_own = vm_id(scope.machine).is_some_and(|id| instance_id(id) == instance_id(&instance.provider_id));
    Some((instance, instance.metadata.as_deref().filter(|_| is_own)?))
}

/// Asks for the addresses from time to time, each Machine at its own.
fn refresh<'a>(scope: &Scope<'a>, node: &Node) -> Decision<'a> {
    let Ok(class) = &scope.snapshot.class else { return Decision::Nothing };
    let provider = Provider::of(scope, class);
    if provider.any_running(&[Verb::Describe]) {
        return Decision::AwaitAnswer;
    }
    let before = described_at(scope);
    let answer = provider.newest(&[Verb::Describe]).filter(|answer| before.is_none_or(|before| answer.ended >= before));
    let last = answer.as_ref().map(|answer| answer.ended).or(before);
    let due = next_refresh(scope, last);
    if due.is_none_or(|due| due <= scope.now()) {
        return Decision::Ask("the VM may have other addresses");
    }
    let addresses = answer.as_ref().and_then(|answer| described(scope, answer)).map(|(it, _)| &it.addresses);
    // An IP that is missing for a while is no reason to take the others away.
    let addresses = addresses.filter(|of_vm| !of_vm.is_empty()).and_then(|it| cloud_node::addresses(node, it).ok());
    match (addresses, answer, due) {
        (Some(addresses), Some(answer), _) if addresses != cloud_node::live_addresses(node) => {
            if let Some(due) = scope.snapshot.cloud_manager.seen_at(node, scope.now()) {
                return Decision::AwaitRefresh { due, before };
            }
            Decision::Refresh { addresses, answered: answer.ended }
        }
        (.., Some(due)) => Decision::AwaitRefresh { due, before: last },
        _ => Decision::Nothing,
    }
}

fn described_at(scope: &Scope<'_>) -> Option<Timestamp> {
    let described = |note: &Note| match note {
        Note::Described(at) => Some(*at),
        _ => None,
    };
    scope.context.notes.keys().filter_map(described).max()
}

fn next_refresh(scope: &Scope<'_>, last: Option<Timestamp>) -> Option<Timestamp> {
    let period = scope.settings.cloud_node.update_frequency;
    if let Some(last) = last {
        return last.checked_add(period).ok();
    }
    let share = f64::from(fnv1a(uid(scope.machine).bytes())) / f64::from(u32::MAX);
    let begun = scope.context.leader_since.max(scope.machine.phase_since().unwrap_or(Timestamp::MIN));
    begun.checked_add(period.mul_f64(share)).ok()
}
