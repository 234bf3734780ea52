//! Which VM and which Node are a Machine's.
//!
//! What an object names is a claim and no proof: anybody may write `spec.providerID`, a label or a Node. Three things prove:
//! * **The VM**: the driver, which compares the VM's tags with the Machine's cluster and name. Its word is noted in the
//!   Machine's status, which only this controller writes: the condition `InstanceProvisioned` is True, and its message is
//!   the id. What is noted stays, whatever becomes of `spec.providerID`.
//! * **The Node by id**: its `spec.providerID` is the id of a proven VM.
//! * **The Node by name**, where it has no providerID: the driver gave that name. It is the message of `NodeJoined`.
//!
//! While anything is open nothing is written to, drained or deleted of any Node, and the Machine says what is open.

use std::sync::Arc;

use nodewright_api::{Code, Machine, conditions, reasons};
use nodewright_driver::{Class, DriverError, Instance};
use nodewright_runtime::{
    cache::{Store, Stores},
    events::EventKind,
    object::{is_deleting, name, uid},
    plan::{Moment, Plan, Step},
};

use super::{
    World,
    birth::{Answer, newest},
    calls::{Call, Outcome, Verb},
    context::{Context, event},
    status::{StatusDraft, own_condition},
};
use crate::shared::{
    indexes::{NODE_BY_INSTANCE, instance_id},
    node::Node,
    ownership::{JOINED, NODE_AWAITED, PROVISIONED, UNVERIFIED, node_name, noted_id, noted_node, vm_id},
};

/// What a Machine's object says of its VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vm {
    /// The Machine names none.
    #[default]
    None,
    /// The Machine names one, and its status does not note a proof.
    Unproven,
    /// The status notes the proof.
    Proven,
}

impl Vm {
    pub(super) fn of(machine: &Machine) -> Self {
        match (noted_id(machine), machine.provider_id()) {
            (Some(_), _) => Self::Proven,
            (None, Some(_)) => Self::Unproven,
            (None, None) => Self::None,
        }
    }
}

/// The VM that a Machine names, and how far that is proven.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// Whether it is known whose VM it is.
    pub vm: Vm,
    /// The names of other Machines that name the same VM.
    pub rivals: Vec<String>,
    /// The names of several Nodes with the VM's id, of which none has the name that the driver gave.
    pub twins: Vec<String>,
    /// The Node of that VM, while it is open whose it is. It is looked at, and nothing is done to it.
    pub node: Option<Arc<Node>>,
}

impl Claim {
    /// Whether the VM is proven to be the Machine's, and no other Machine names it.
    pub(super) fn is_settled(&self) -> bool {
        self.vm == Vm::Proven && self.rivals.is_empty()
    }
}

/// What is found of a Machine's VM and Node.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) claim: Claim,
    /// The Node, if the claim to its VM is settled.
    pub(super) node: Option<Arc<Node>>,
    /// A Node of the name, and of another VM.
    pub(super) stranger: Option<Arc<Node>>,
}

/// Finds a Machine's Node among those that are known, and says how far its claim to the VM is proven.
pub(super) fn find(stores: &Stores, nodes: Option<&Store<Node>>, machine: &Machine) -> Found {
    let by_id = |id: &str| nodes.map(|nodes| nodes.by(NODE_BY_INSTANCE, instance_id(id)));
    let same = vm_id(machine).and_then(by_id).unwrap_or_default();
    let by_name = node_name(machine).and_then(|node| nodes?.by_name("", node));
    let Choice { node, stranger, twins } = choose(machine, same, by_name);
    let claim = Claim { vm: Vm::of(machine), rivals: rivals(stores, machine), ..Claim::default() };
    if claim.is_settled() {
        Found { claim: Claim { twins, ..claim }, node, stranger }
    } else {
        Found { claim: Claim { node, ..claim }, ..Found::default() }
    }
}

/// Whether the driver itself has proven the VM that is noted.
pub(super) fn is_verified(machine: &Machine) -> bool {
    let noted = own_condition(machine, conditions::machine::INSTANCE_PROVISIONED);
    noted_id(machine).is_some() && noted.is_some_and(|noted| noted.reason.as_deref() == Some(PROVISIONED))
}

/// The names of the other Machines that name the same VM. Of those that are being deleted themselves none keeps a Machine
/// from being deleted: two that wait for one another would wait for ever.
fn rivals(stores: &Stores, machine: &Machine) -> Vec<String> {
    let mut rivals = crate::shared::ownership::rivals(stores, machine);
    rivals.retain(|other| !(is_deleting(machine) && is_deleting(other.as_ref())));
    let mut names: Vec<_> = rivals.iter().map(|other| name(other.as_ref()).to_owned()).collect();
    names.sort();
    names
}

/// What [`choose`] makes of the Nodes.
#[derive(Debug, Default)]
struct Choice {
    node: Option<Arc<Node>>,
    stranger: Option<Arc<Node>>,
    twins: Vec<String>,
}

/// Chooses among the Nodes whose id ends as the VM's does, and the one of the name.
fn choose(machine: &Machine, same: Vec<Arc<Node>>, by_name: Option<Arc<Node>>) -> Choice {
    let (id, named) = (vm_id(machine), noted_node(machine));
    let is_named = |node: &Arc<Node>| named == Some(name(node.as_ref()));
    let (mut exact, mut alike): (Vec<_>, Vec<_>) = same.into_iter().partition(|node| node.provider_id() == id);
    exact.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    let several = exact.len() > 1;
    let by_id = match exact.iter().position(is_named) {
        Some(place) => Some(exact.swap_remove(place)),
        None if several => {
            let twins = exact.iter().map(|node| name(node.as_ref()).to_owned()).collect();
            return Choice { twins, ..Choice::default() };
        }
        // Providers and kubelets may write the beginning of an id differently; then the name has to fit.
        None if exact.is_empty() && alike.len() == 1 => alike.pop().filter(is_named),
        None => exact.pop(),
    };
    let by_name = by_name.filter(|other| by_id.as_ref().is_none_or(|node| uid(node.as_ref()) != uid(other.as_ref())));
    match (by_id, by_name) {
        (None, Some(node)) if node.provider_id().is_none() => {
            Choice { node: Some(node).filter(is_named), ..Choice::default() }
        }
        (node, stranger) => Choice { node, stranger, ..Choice::default() },
    }
}

/// What the provider has said to this process of the VM that a Machine names.
pub(super) enum Word<'a> {
    /// Nothing yet.
    Unasked,
    /// It is the Machine's, or the Machine has this one.
    Owned(&'a Instance),
    /// There is none.
    Absent(Answer<'a>),
    /// It does not answer such questions.
    Unimplemented,
    /// It is another's.
    Refuted(Answer<'a>, &'a DriverError),
    /// The call failed.
    Failed(Answer<'a>),
}

/// What the provider says of the VM that a Machine names, and the call that asks it again; `None` while there is no answer,
/// which is asked for.
pub(super) fn ask<'a>(
    plan: &mut Plan<Call>,
    at: &'a Moment<'_, Call>,
    (world, class): (&World, &Class),
    context: Context<'_>,
) -> Option<(Word<'a>, Call)> {
    let (status, create) = (context.call(Verb::Status, world, class), context.call(Verb::Create, world, class));
    if at.outcomes.is_running(&status) || at.outcomes.is_running(&create) {
        plan.wait("CallingProvider", "the provider has not answered yet");
        return None;
    }
    match word(at, &status, &create) {
        Word::Unasked => {
            plan.then("nobody has said yet whose VM it is", Step::Call(status));
            None
        }
        said => Some((said, status)),
    }
}

/// Says that the VM is another's, if that is not said already. Returns whether it is said now.
pub(super) fn refute(plan: &mut Plan<Call>, machine: &Machine, draft: StatusDraft, error: &DriverError) -> bool {
    let reason = reasons::machine::PROVIDER_ID_MISMATCH;
    let draft = draft.condition(conditions::machine::INSTANCE_PROVISIONED, false, reason, error.message.clone());
    let Some(step) = draft.step(machine) else { return false };
    plan.then("the VM is another's", step);
    plan.event(event(machine, EventKind::Warning, reason, error.message.clone()));
    true
}

/// The newest answer that speaks of the VM that is named now.
pub(super) fn word<'a>(at: &'a Moment<'_, Call>, status: &Call, create: &Call) -> Word<'a> {
    let id = status.request.machine.provider_id.as_deref();
    let Some(answer) = newest(at, [status, create]) else { return Word::Unasked };
    let is_of_id = answer.call.request.machine.provider_id.as_deref() == id && answer.call == status;
    match answer.outcome {
        Outcome::Instance(instance) if is_of_id || Some(instance.provider_id.as_str()) == id => Word::Owned(instance),
        Outcome::Failed(error) if is_of_id => match error.code {
            _ if error.mismatch.is_some() => Word::Refuted(answer, error),
            Code::NotFound => Word::Absent(answer),
            Code::Unimplemented => Word::Unimplemented,
            _ => Word::Failed(answer),
        },
        _ => Word::Unasked,
    }
}

impl StatusDraft {
    /// Notes whose VM it is: as the driver says, or, where it cannot tell, as the Machine says.
    pub(super) fn proven(self, machine: &Machine, instance: Option<&Instance>) -> Self {
        let claimed = machine.provider_id().unwrap_or_default();
        let found = instance.map(|instance| instance.provider_id.as_str());
        // The same id, however its beginning is written, is noted as the Machine writes it.
        let id = found.filter(|found| instance_id(found) != instance_id(claimed)).unwrap_or(claimed);
        let reason = if instance.is_some() { PROVISIONED } else { UNVERIFIED };
        let draft = self.condition(conditions::machine::INSTANCE_PROVISIONED, true, reason, id);
        let named = instance.map(|instance| instance.node_name.as_str()).filter(|name| !name.is_empty());
        match named.filter(|_| noted_node(machine).is_none()) {
            Some(node) => draft.node_named(machine, node),
            None => draft,
        }
    }

    /// Notes the name that the driver gives the Node.
    fn node_named(self, machine: &Machine, node: &str) -> Self {
        let kind = conditions::machine::NODE_JOINED;
        match own_condition(machine, kind).filter(|known| known.status == "True") {
            Some(_) => self.condition(kind, true, JOINED, node),
            None => self.condition(kind, false, NODE_AWAITED, node),
        }
    }
}

/// The name that `NodeJoined` has as its message: the driver's, where it gave one.
pub(super) fn joined_as(machine: &Machine, node: &Node) -> String {
    noted_node(machine).unwrap_or(name(node)).to_owned()
}

/// What keeps a Machine from being acted on as its object asks for: a reason, and what to do.
pub(super) fn problem(world: &World) -> Option<(&'static str, String)> {
    let machine = world.machine.as_ref();
    let id = vm_id(machine)?;
    if !world.claim.rivals.is_empty() {
        let text = format!(
            "VM {id} is named by other Machines, too: {}; nothing is done to it or its Node until one Machine is left: \
             delete those whose VM it is not",
            world.claim.rivals.join(", ")
        );
        return Some((reasons::machine::PROVIDER_ID_NOT_UNIQUE, text));
    }
    if world.claim.vm == Vm::Proven && machine.spec.provider_id != id {
        let text = format!(
            "spec.providerID is {:?}, and the VM of this Machine is {id}: set it back; until then {id} is acted on",
            machine.spec.provider_id
        );
        return Some((reasons::machine::PROVIDER_ID_CHANGED, text));
    }
    if !world.claim.twins.is_empty() {
        let text = format!(
            "several Nodes have the providerID {id}: {}; nothing is done to any of them: delete those that are not the VM's",
            world.claim.twins.join(", ")
        );
        return Some((reasons::machine::SEVERAL_NODES, text));
    }
    None
}

/// Whether something is wrong with a Machine's claim.
pub(super) fn has_problem(world: &World) -> bool {
    problem(world).is_some()
}

const PROBLEMS: [&str; 3] =
    [reasons::machine::PROVIDER_ID_NOT_UNIQUE, reasons::machine::PROVIDER_ID_CHANGED, reasons::machine::SEVERAL_NODES];

/// Says what is wrong with a Machine's claim, and that it is no longer. Returns whether that is written now.
pub(super) fn report(plan: &mut Plan<Call>, at: &Moment<'_, Call>, world: &World) -> bool {
    let machine = world.machine.as_ref();
    let kind = conditions::machine::CONFIGURATION_VALID;
    let known = own_condition(machine, kind).and_then(|known| known.reason.as_deref());
    let draft = StatusDraft::of(machine, at.now);
    let Some((reason, message)) = problem(world) else {
        let step = draft.without(kind).step(machine).filter(|_| known.is_some_and(|known| PROBLEMS.contains(&known)));
        let is_written = step.is_some();
        plan.then("the machine's claim is in order again", step);
        return is_written;
    };
    plan.wait(reason, message.clone());
    let step = draft.condition(kind, false, reason, message.clone()).step(machine);
    let is_written = step.is_some();
    plan.then("the machine's claim is not in order", step);
    if is_written {
        plan.event(event(machine, EventKind::Warning, reason, message));
    }
    is_written
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::machine;

    const ID: &str = "p:///a/1";

    fn node(name: &str, id: &str) -> Arc<Node> {
        let node = json!({"metadata": {"name": name, "uid": name}, "spec": {"providerID": id}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    /// A Machine with a proven VM whose Node the driver has named, and a label that somebody has written.
    fn with_names(named: Option<&str>, label: Option<&str>) -> Machine {
        let mut conditions =
            vec![json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": ID})];
        conditions
            .extend(named.map(
                |name| json!({"type": "NodeJoined", "status": "False", "reason": "NodeAwaited", "message": name}),
            ));
        let machine = machine("m").with("/spec/providerID", ID).with("/status/conditions", json!(conditions));
        label.into_iter().fold(machine, |machine, label| machine.label("node", label)).build()
    }

    #[test]
    fn a_node_is_the_machines_by_the_id_of_its_vm_or_by_the_name_that_the_driver_gave() {
        let (own, bare, other) = (|name| node(name, ID), |name| node(name, ""), |name| node(name, "p:///a/2"));
        let alike = |name| node(name, "p:///other/1");
        // What the driver named, the label, the Nodes whose id ends alike, the one of the name; and what is chosen.
        let table = [
            (Some("n"), Some("n"), vec![own("n")], Some(own("n")), Some("n")),
            (Some("n"), Some("n"), vec![own("aaa"), own("n")], Some(own("n")), Some("n")),
            (Some("n"), None, vec![own("x")], None, Some("x")),
            (None, Some("n"), vec![own("aaa"), own("n")], Some(own("n")), None),
            (Some("n"), None, vec![own("aaa"), own("bbb")], None, None),
            (Some("n"), None, vec![own("n"), alike("aaa")], Some(own("n")), Some("n")),
            (Some("n"), None, vec![alike("n")], Some(alike("n")), Some("n")),
            (Some("n"), None, vec![alike("aaa")], None, None),
            (Some("n"), None, vec![alike("n"), alike("aaa")], Some(alike("n")), None),
            (Some("n"), None, vec![], Some(bare("n")), Some("n")),
            (None, Some("cp-1"), vec![], Some(bare("cp-1")), None),
            (Some("n"), Some("n"), vec![], Some(other("n")), None),
        ];
        for (named, label, same, by_name, expected) in table {
            let case = format!("{named:?} {label:?} {same:?} {by_name:?}");
            let found = choose(&with_names(named, label), same, by_name);
            assert_eq!(found.node.as_ref().map(|node| name(node.as_ref())), expected, "{case}");
        }
        let torn = choose(&with_names(Some("n"), None), vec![own("bbb"), own("aaa")], None);
        assert_eq!(torn.twins, ["aaa", "bbb"]);
        let stale = choose(&with_names(Some("n"), None), vec![], Some(other("n")));
        assert_eq!(stale.stranger.map(|node| name(node.as_ref()).to_owned()).as_deref(), Some("n"));
    }

    #[test]
    fn only_the_status_proves() {
        let claims = |id: &str| machine("m").with("/spec/providerID", id);
        let noted = |status: &str, id: &str| json!([{"type": "InstanceProvisioned", "status": status, "message": id}]);
        assert_eq!(Vm::of(&machine("m").build()), Vm::None);
        assert_eq!(Vm::of(&claims(ID).build()), Vm::Unproven);
        assert_eq!(Vm::of(&claims(ID).with("/status/conditions", noted("False", ID)).build()), Vm::Unproven);
        for claimed in [ID, "p:///a/2", ""] {
            let machine = claims(claimed).with("/status/conditions", noted("True", ID)).build();
            assert_eq!((Vm::of(&machine), vm_id(&machine)), (Vm::Proven, Some(ID)), "{claimed}");
        }
    }
}
