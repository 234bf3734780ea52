//! Which VM and which Node belong to a Machine.
//!
//! What an object names is a claim: any client may write `spec.providerID`, a label or a Node. Proof is:
//! * **of the VM**: the driver's answer, which rests on the VM's tags. The Machine's status notes it
//!   ([`crate::shared::ownership`]), whatever happens to `spec.providerID`.
//! * **of the Node by id**: its `spec.providerID` is the id of a proven VM.
//! * **of the Node by name**, if it has no providerID: the driver gave that name. It is the message of `NodeJoined`.
//!
//! While a proof is missing, no Node is written, drained or deleted, and the Machine's status says what is missing.

use std::sync::Arc;

use nodewright_api::{
    Machine, MachinePhase, conditions, reasons,
    stored::{AdoptedVm, JoinedNode, NodeProgress, ProvenVm},
};
use nodewright_driver::{DriverError, Instance};
use nodewright_runtime::{
    cache::{Store, Stores},
    object::{is_deleting, name, uid},
};

use super::status::{StatusDraft, true_since};
use crate::shared::{
    indexes::{NODE_BY_INSTANCE, instance_id},
    membership,
    node::Node,
    ownership::{node_name, noted_id, noted_node, proven_vm, vm_id},
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vm {
    #[default]
    None,
    /// The Machine names one, and its status does not note a proof.
    Unproven,
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

#[derive(Clone, Debug, Default)]
pub struct Claim {
    pub vm: Vm,
    pub conflicting: Vec<String>,
    /// Of a Machine that is being deleted: one of the conflicting, which stays and keeps the VM.
    pub keeper: Option<String>,
    /// The names of several Nodes with the VM's id, of which none has the name that the driver gave.
    pub duplicate_nodes: Vec<String>,
    /// The Node of that VM, while the VM's owner is not proven. It is only read.
    pub node: Option<Arc<Node>>,
}

impl Claim {
    pub(super) fn is_settled(&self) -> bool {
        self.vm == Vm::Proven && self.conflicting.is_empty()
    }

    pub(super) fn is_ambiguous(&self) -> bool {
        !self.conflicting.is_empty() || !self.duplicate_nodes.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) claim: Claim,
    pub(super) node: Option<Arc<Node>>,
    /// A Node with the expected name that belongs to another VM.
    pub(super) foreign_node: Option<Arc<Node>>,
}

pub(super) fn find(stores: &Stores, nodes: Option<&Store<Node>>, machine: &Machine) -> Found {
    let by_id = |id: &str| nodes.map(|nodes| nodes.by(NODE_BY_INSTANCE, instance_id(id)));
    let same = vm_id(machine).and_then(by_id).unwrap_or_default();
    let by_name = node_name(machine).and_then(|node| nodes?.by_name("", node));
    let found = choose(machine, same, by_name);
    let conflicting = conflicting_machines(stores, machine);
    let keeper = keeper(machine, &conflicting);
    let conflicting = conflicting.iter().map(|other| name(other.as_ref()).to_owned()).collect();
    let claim = Claim { vm: Vm::of(machine), conflicting, keeper, ..found.claim };
    if claim.is_settled() {
        return Found { claim, ..found };
    }
    Found { claim: Claim { node: found.node, duplicate_nodes: vec![], ..claim }, ..Found::default() }
}

/// Whether the driver itself has proven the VM that the status notes.
pub(super) fn is_verified(machine: &Machine) -> bool {
    proven_vm(machine).is_some_and(|vm| vm.is_verified)
}

/// A Machine that is being deleted does not wait for others that are: two of them would wait for each other for ever.
fn conflicting_machines(stores: &Stores, machine: &Machine) -> Vec<Arc<Machine>> {
    let mut conflicting = membership::conflicting_machines(stores, machine);
    conflicting.retain(|other| !(is_deleting(machine) && is_deleting(other.as_ref())));
    conflicting.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    conflicting
}

/// The Machine with which a VM stays when another one is deleted of which the driver has also said that it has this VM: the first of
/// which it was said. Only the controller writes the status, so no user chooses that time. A Machine that merely names the VM, or that
/// was trusted because the driver cannot say, keeps nothing: the VM might be left without an owner.
fn keeper(machine: &Machine, conflicting: &[Arc<Machine>]) -> Option<String> {
    let proven =
        |machine: &Machine| (true_since(machine, conditions::machine::INSTANCE_PROVISIONED), uid(machine).to_owned());
    let may_keep = |other: &&Arc<Machine>| is_verified(other) && proven(other) < proven(machine);
    let shares = is_deleting(machine) && is_verified(machine);
    let keeper = conflicting.iter().filter(|_| shares).filter(may_keep).min_by_key(|other| proven(other))?;
    Some(name(keeper.as_ref()).to_owned())
}

fn choose(machine: &Machine, same: Vec<Arc<Node>>, by_name: Option<Arc<Node>>) -> Found {
    let (id, named) = (vm_id(machine), noted_node(machine));
    let is_named = |node: &Arc<Node>| named == Some(name(node.as_ref()));
    let (mut exact, mut alike): (Vec<_>, Vec<_>) = same.into_iter().partition(|node| node.provider_id() == id);
    exact.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
    let several = exact.len() > 1;
    let by_id = match exact.iter().position(is_named) {
        Some(at) => Some(exact.swap_remove(at)),
        None if several => {
            let duplicate_nodes = exact.iter().map(|node| name(node.as_ref()).to_owned()).collect();
            return Found { claim: Claim { duplicate_nodes, ..Claim::default() }, ..Found::default() };
        }
        // Providers and kubelets may write the beginning of an id differently; then the name has to fit.
        None if exact.is_empty() && alike.len() == 1 => alike.pop().filter(is_named),
        None => exact.pop(),
    };
    let by_name = by_name.filter(|other| by_id.as_ref().is_none_or(|node| uid(node.as_ref()) != uid(other.as_ref())));
    match (by_id, by_name) {
        (None, Some(node)) if node.provider_id().is_none() => {
            Found { node: Some(node).filter(is_named), ..Found::default() }
        }
        (node, foreign_node) => Found { node, foreign_node, ..Found::default() },
    }
}

/// Why a VM is not taken: the reason of a condition, and what to do about it.
pub(super) struct NotOwned {
    pub(super) reason: &'static str,
    pub(super) error: DriverError,
}

impl NotOwned {
    /// The tags of the VM say that it is another's.
    pub(super) fn by_tags(error: &DriverError) -> Self {
        Self { reason: reasons::machine::PROVIDER_ID_MISMATCH, error: error.clone() }
    }
}

impl StatusDraft<'_> {
    /// Notes that the VM is the Machine's: as the driver says, or, if the driver cannot say, as the Machine says.
    pub(super) fn proven(self, instance: Option<&Instance>) -> Self {
        let machine = self.machine;
        let claimed = machine.provider_id().unwrap_or_default();
        let found = instance.map(|instance| instance.provider_id.as_str());
        // An id that differs only in its beginning is noted as the Machine writes it.
        let id = found.filter(|found| instance_id(found) != instance_id(claimed)).unwrap_or(claimed);
        let draft = self.fact(ProvenVm { id, is_verified: instance.is_some() }.text());
        let owner = instance.and_then(|instance| instance.owner_uid.as_deref());
        let draft = match owner {
            // One that is made for another Machine comes here only if it may be adopted.
            Some(owner) if owner != uid(machine) => draft.fact(AdoptedVm { uid: owner }.text()),
            Some(_) => draft.without(conditions::machine::VM_ADOPTED),
            None => draft,
        };
        let named = instance.map(|instance| instance.node_name.as_str()).filter(|name| !name.is_empty());
        match named.filter(|_| noted_node(machine).is_none()) {
            Some(node) => draft.node_named(node),
            None => draft,
        }
    }

    pub(super) fn foreign(self, why: &NotOwned) -> Self {
        self.condition(conditions::machine::INSTANCE_PROVISIONED, false, why.reason, why.error.message.clone())
    }

    fn node_named(self, node: &str) -> Self {
        let kind = conditions::machine::NODE_JOINED;
        // One of machine-controller-manager's has no such condition.
        let has_joined = self.machine.condition(kind).is_some_and(|known| known.status == "True")
            || matches!(self.machine.phase(), MachinePhase::Running | MachinePhase::Unknown);
        let progress = if has_joined { NodeProgress::Joined } else { NodeProgress::Awaited };
        self.fact(JoinedNode { name: node, progress }.text())
    }
}

/// The message of the condition `NodeJoined`: the Node's name as the driver gave it, else the Node's own.
pub(super) fn joined_as(machine: &Machine, node: &Node) -> String {
    noted_node(machine).unwrap_or(name(node)).to_owned()
}

pub(super) fn conflict(machine: &Machine, claim: &Claim) -> Option<(&'static str, String)> {
    let id = vm_id(machine)?;
    if !claim.conflicting.is_empty() {
        let text = format!(
            "VM {id} is named by other Machines, too: {}; nothing is done to it or its Node until one Machine is left: \
             delete those whose VM it is not",
            claim.conflicting.join(", ")
        );
        return Some((reasons::machine::PROVIDER_ID_NOT_UNIQUE, text));
    }
    if claim.vm == Vm::Proven && machine.spec.provider_id != id {
        let text = format!(
            "spec.providerID is {:?}, and the VM of this Machine is {id}: set it back; until then {id} is acted on",
            machine.spec.provider_id
        );
        return Some((reasons::machine::PROVIDER_ID_CHANGED, text));
    }
    if !claim.duplicate_nodes.is_empty() {
        let text = format!(
            "several Nodes have the providerID {id}: {}; nothing is done to any of them: delete those that are not the VM's",
            claim.duplicate_nodes.join(", ")
        );
        return Some((reasons::machine::SEVERAL_NODES, text));
    }
    None
}

pub(super) fn reports_conflict(machine: &Machine) -> bool {
    let conflicts = [
        reasons::machine::PROVIDER_ID_NOT_UNIQUE,
        reasons::machine::PROVIDER_ID_CHANGED,
        reasons::machine::SEVERAL_NODES,
    ];
    let condition = machine.condition(conditions::machine::CONFIGURATION_VALID);
    condition.and_then(|condition| condition.reason.as_deref()).is_some_and(|reason| conflicts.contains(&reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        shared::{CONTROL, TARGET, indexes::MACHINE_BY_INSTANCE},
        testing::{MachineBuilder, machine},
    };

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
            (Some("n"), None, vec![own("x"), alike("aaa")], None, Some("x")),
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
        assert_eq!(torn.claim.duplicate_nodes, ["aaa", "bbb"]);
        let foreign = |same, by_name| {
            let found = choose(&with_names(Some("n"), None), same, Some(by_name));
            found.foreign_node.map(|node| name(node.as_ref()).to_owned())
        };
        assert_eq!(foreign(vec![], other("n")).as_deref(), Some("n"), "a stale one");
        assert_eq!(foreign(vec![own("x")], other("n")).as_deref(), Some("n"), "one beside its own");
        assert_eq!(foreign(vec![own("n")], own("n")), None, "its own");
    }

    /// A Machine among others in the caches, and what is found of it.
    fn found(machine: &MachineBuilder, others: Vec<MachineBuilder>, nodes: Vec<Arc<Node>>) -> Found {
        let machines = Store::<Machine>::new(CONTROL, "default");
        machines.add_index(MACHINE_BY_INSTANCE);
        others.into_iter().chain([machine.clone()]).for_each(|machine| drop(machines.apply(machine.build())));
        let store = Store::<Node>::new(TARGET, "");
        store.add_index(NODE_BY_INSTANCE);
        for node in nodes {
            store.apply(Arc::unwrap_or_clone(node));
        }
        let stores = Stores::default();
        stores.add(Arc::new(machines));
        find(&stores, Some(&store), &machine.clone().build())
    }

    fn proven(name: &str, minute: u32, reason: &str) -> MachineBuilder {
        let noted = json!([{"type": "InstanceProvisioned", "status": "True", "reason": reason, "message": ID,
            "lastTransitionTime": format!("2026-06-01T11:{minute:02}:00Z")}]);
        machine(name).with("/spec/providerID", ID).with("/status/conditions", noted)
    }

    #[test]
    fn a_node_is_the_machines_only_while_its_vm_is_proven_and_no_other_machine_names_it() {
        let node_of = |node: &Option<Arc<Node>>| node.as_ref().map(|node| name(node.as_ref()).to_owned());
        let nodes = || vec![node("n", ID)];
        let sure = found(
            &proven("m", 20, "Provisioned"),
            vec![machine("other").with("/spec/providerID", "p:///a/2")],
            nodes(),
        );
        assert_eq!((sure.claim.vm, node_of(&sure.node).as_deref()), (Vm::Proven, Some("n")));
        assert!(sure.claim.is_settled() && sure.claim.node.is_none());
        let torn = found(&proven("m", 20, "Provisioned"), vec![], vec![node("b", ID), node("a", ID)]);
        assert_eq!((torn.claim.duplicate_nodes.join(" ").as_str(), node_of(&torn.node)), ("a b", None));
        let unproven = machine("m").with("/spec/providerID", ID);
        let read = found(&unproven, vec![], nodes());
        assert_eq!((read.claim.vm, node_of(&read.claim.node).as_deref()), (Vm::Unproven, Some("n")), "it is only read");
        assert!(read.node.is_none() && read.foreign_node.is_none());
        let disputed = found(
            &proven("m", 20, "Provisioned"),
            vec![proven("b", 10, "Provisioned"), machine("a").with("/spec/providerID", ID)],
            nodes(),
        );
        assert_eq!(disputed.claim.conflicting, ["a", "b"]);
        assert_eq!(node_of(&disputed.claim.node).as_deref(), Some("n"), "it is only read");
        assert!(disputed.node.is_none() && disputed.claim.keeper.is_none(), "which of them goes is not decided yet");
    }

    #[test]
    fn machines_that_go_do_not_wait_for_each_other() {
        let own = || proven("m", 20, "Provisioned");
        let first = || proven("first", 10, "Provisioned");
        // Whether the Machine goes, whether the other one does; who is in conflict with it, and who keeps the VM.
        let table = [
            (own(), first(), vec!["first"], None),
            (own(), first().deleting(), vec!["first"], None),
            (own().deleting(), first(), vec!["first"], Some("first")),
            (own().deleting(), first().deleting(), vec![], None),
        ];
        for (machine, other, conflicting, keeper) in table {
            let case = format!("{:?} {:?}", machine.clone().build().metadata, other.clone().build().metadata);
            let claim = found(&machine, vec![other], vec![]).claim;
            assert_eq!(
                (claim.conflicting, claim.keeper.as_deref()),
                (conflicting.into_iter().map(str::to_owned).collect(), keeper),
                "{case}"
            );
        }
    }

    #[test]
    fn the_nodes_name_is_the_drivers_or_its_own() {
        assert_eq!(joined_as(&with_names(Some("n"), None), &node("x", ID)), "n");
        assert_eq!(joined_as(&with_names(None, Some("label")), &node("x", ID)), "x");
    }

    #[test]
    fn a_vm_stays_with_the_machine_that_had_it_first() {
        let going =
            |machine: MachineBuilder| machine.with("/metadata/deletionTimestamp", "2026-06-01T11:59:00Z").build();
        let ours = |minute| going(proven("ours", minute, "Provisioned"));
        let first = proven("first", 10, "Provisioned").build();
        let later = proven("later", 30, "Provisioned").build();
        let trusted = proven("trusted", 10, "Unverified").build();
        let names_it = machine("names-it").with("/spec/providerID", ID).build();
        let table = [
            (ours(20), vec![first.clone()], Some("first")),
            (ours(40), vec![later.clone(), first.clone()], Some("first")),
            (ours(20), vec![later], None),
            (ours(20), vec![trusted], None),
            (ours(20), vec![names_it], None),
            (ours(20), vec![], None),
            (going(proven("ours", 20, "Unverified")), vec![first.clone()], None),
            (proven("ours", 20, "Provisioned").build(), vec![first], None),
        ];
        for (machine, conflicting, expected) in table {
            let case = format!("{machine:?} {conflicting:?}");
            let conflicting: Vec<_> = conflicting.into_iter().map(Arc::new).collect();
            assert_eq!(keeper(&machine, &conflicting).as_deref(), expected, "{case}");
        }
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
