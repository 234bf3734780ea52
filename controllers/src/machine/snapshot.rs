//! What the decisions about a Machine may see, taken from the caches at one moment.

use std::sync::Arc;

use jiff::Timestamp;
use nodewright_api::{
    ClassIdentity, Machine, MachineClass, MachinePhase, MachineSet, annotations, finalizers, labels,
    reasons::unreadable as reasons, stored::LEDGER,
};
use nodewright_driver::Class;
use nodewright_runtime::{
    cache::{Lookup, Store, Stores, Unreadable},
    object::{ObjectRef, annotation, controller_uid, has_finalizer, is_deleting, name, namespace, uid},
    scoped_watch::ScopedWatch,
};

use super::{
    budget::pool::{BudgetGroup, may_be_replaced},
    claim::{self, Claim, Found, Vm},
    preserve,
    settings::MachineSettings,
    update,
};
use crate::shared::{
    CONTROL, TARGET,
    class_secrets::{self, ClassSecrets},
    cloud_manager::{CloudManager, CloudNodeMode},
    disruption::{SharedBudget, claimed_since, is_opted_out, needs_claim, node_state::is_being_replaced},
    drain::View,
    driver::DriverProperties,
    in_place,
    indexes::{MACHINE_BY_NODE, SET_BY_UID},
    ledger::{Ledger, Ordinal},
    node::Node,
    node_claims::{is_missing_by_machine, is_of_namespace, machine_name},
    ownership::{missing_vm, node_name, noted_node, vm_id},
    usable_class::{CLASS_NOT_FOUND, usable},
};

pub(super) use crate::shared::usable_class::ClassError;

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub machine: Arc<Machine>,
    pub class: Result<Class, ClassError>,
    pub machine_class: Option<Arc<MachineClass>>,
    /// Whether the Machine is being deleted, and its Node is one that `node_lifecycle` deletes because others have deleted the VM.
    pub is_node_left: bool,
    /// Whether the class and all its Secrets have our finalizers: without them they could vanish before the VM does.
    pub class_held: bool,
    /// The class's Secrets, while the Machine needs its class.
    pub scoped_watches: Vec<ScopedWatch>,
    /// Why no VM is created with the class, although existing ones are handled: what the class finds VMs by was changed.
    pub changed_identity: Option<ClassError>,
    pub claim: Claim,
    pub node: Option<Arc<Node>>,
    /// Whether the Nodes have been listed. A Machine that is being deleted is planned before that, and sees no Node.
    pub nodes_listed: bool,
    /// The Node that a watch of its name shows, if the cache has none.
    pub unseen_node: Lookup<Node>,
    /// A Node with the name of its Node that belongs to another VM.
    pub foreign_node: Option<Arc<Node>>,
    pub unreadable_node: Option<String>,
    pub owner: Owner,
    /// Only while the Machine may have to wait for the replacement budget.
    pub pool: BudgetGroup,
    /// What the drain of its Node sees: once it is being deleted, while it has failed and is preserved, or before an update in place.
    pub(crate) drain: View,
    /// The disruption budget of the Node's pool, while a rollout is about to disrupt the Node.
    pub(crate) shared_budget: Option<SharedBudget>,
    /// Since when the pool of a Node that is being drained has a claim for it.
    pub(crate) claimed_since: Option<Timestamp>,
    pub settings: Arc<MachineSettings>,
    pub driver: DriverProperties,
    /// Who initializes Nodes, as far as the cluster shows it.
    pub(crate) cloud_manager: CloudManager,
}

#[derive(Clone, Debug)]
pub enum Owner {
    /// None: a Machine of its own.
    None,
    Gone,
    /// The set exists and cannot be read: what to say about it.
    Unreadable(String),
    Set(Arc<MachineSet>),
}

impl Snapshot {
    /// `provider` is that whose classes this controller handles.
    pub(super) fn take(
        stores: &Stores,
        key: &ObjectRef,
        (provider, driver): (&str, DriverProperties),
        settings: Arc<MachineSettings>,
    ) -> Option<Self> {
        let machine = stores.of::<Machine>(CONTROL).get(key)?;
        let nodes_listed = stores.is_listed::<Node>(TARGET);
        let nodes = Some(stores.of::<Node>(TARGET)).filter(|_| nodes_listed);
        let Found { claim, node, foreign_node } = claim::find(stores, nodes.as_deref(), &machine);
        let needs_node = is_deleting(machine.as_ref()) || may_fail(&machine);
        let unseen_node = if needs_node && node.is_none() {
            if nodes_listed { unseen_node(stores, &machine) } else { Lookup::Missing }
        } else {
            Lookup::Pending
        };
        let drained = node.as_deref().filter(|node| is_drained(&machine, node));
        let drain = drained.map_or(View::empty(TARGET), |node| View::take(stores, TARGET, node));
        let unreadable_node =
            nodes.as_ref().and_then(|nodes| unreadable_node(stores, nodes, &machine, node.as_deref()));
        let owner = owner(stores, &machine);
        let of_pool = drained.filter(|_| settings.has_pools);
        let (shared_budget, claimed_since) = budget(stores, &machine, &owner, of_pool);
        let lost_node = !is_deleting(machine.as_ref()) && node.as_deref().is_some_and(is_deleting);
        let pool = if may_be_replaced(&machine) || lost_node {
            pool(stores, &machine, &owner, &settings)
        } else {
            BudgetGroup::default()
        };
        let classes = stores.of::<MachineClass>(CONTROL);
        let machine_class = classes.by_name(namespace(machine.as_ref()), machine.class_name());
        let found = machine_class.as_deref();
        let is_described = settings.cloud_node.mode != CloudNodeMode::Off && driver.describes_instances;
        let needs_class = needs_class(&machine) || is_described;
        let view = ClassView::of(stores, &machine, found, provider, needs_class);
        Some(Self {
            is_node_left: is_node_left(stores, &machine, node.as_deref()),
            cloud_manager: CloudManager::take(stores, settings.cloud_node.mode, node.as_deref()),
            class: view.class,
            class_held: view.class_held,
            scoped_watches: view.scoped_watches,
            // Thousands of Machines have their VM and need not read the record.
            changed_identity: found.filter(|_| vm_id(&machine).is_none()).and_then(changed_identity),
            claim,
            node,
            nodes_listed,
            unseen_node,
            foreign_node,
            unreadable_node,
            pool,
            owner,
            drain,
            shared_budget,
            claimed_since,
            machine_class,
            machine,
            settings,
            driver,
        })
    }

    /// UID of the Machine's deployment; of its set or of itself if it has none.
    pub(super) fn pool(&self) -> &str {
        match &self.owner {
            Owner::Set(set) => controller_uid(set.as_ref()).unwrap_or_else(|| uid(set.as_ref())),
            _ => controller_uid(self.machine.as_ref()).unwrap_or_else(|| uid(self.machine.as_ref())),
        }
    }

    /// The set's ledger and the Machine's ordinal in it; `None` when there is no ledger or it does not know the Machine.
    pub(super) fn ledger_entry(&self) -> Option<(Ledger, Ordinal)> {
        let Owner::Set(set) = &self.owner else { return None };
        let ledger = LEDGER.of(set.as_ref())?;
        let machine = self.machine.as_ref();
        let ordinal = ledger.ordinal(name(set.as_ref()), name(machine), annotation(machine, annotations::INDEX))?;
        Some((ledger, ordinal))
    }

    /// Why it is not known whether the name is retired: a reason, and what to do about it.
    pub(super) fn ledger_error(&self) -> Option<(&'static str, String)> {
        let set = match &self.owner {
            Owner::Set(set) => set.as_ref(),
            Owner::Unreadable(text) => return Some((reasons::MACHINE_SET, text.clone())),
            Owner::None | Owner::Gone => return None,
        };
        let key = annotations::LEDGER;
        let error = LEDGER.read(set)?.err()?;
        Some((reasons::LEDGER, format!("MachineSet {}, annotation {key}: {error}; restore the annotation", name(set))))
    }

    /// Nothing is decided while the Machine needs its class, and a Secret of the class has yet to be read.
    pub(super) fn secret_pending(&self) -> Option<&str> {
        let error = self.class.as_ref().err()?;
        let is_pending = error.reason == class_secrets::PENDING && !self.scoped_watches.is_empty();
        is_pending.then_some(error.message.as_str())
    }
}

/// What a Machine sees of its class and the Secrets of that.
struct ClassView {
    class: Result<Class, ClassError>,
    class_held: bool,
    scoped_watches: Vec<ScopedWatch>,
}

impl ClassView {
    /// `needs_secrets`: whether plans of the Machine call the provider.
    fn of(
        stores: &Stores,
        machine: &Machine,
        class: Option<&MachineClass>,
        provider: &str,
        needs_secrets: bool,
    ) -> Self {
        let Some(class) = class else {
            return Self { class: Err(missing(stores, machine)), class_held: false, scoped_watches: vec![] };
        };
        let secrets = ClassSecrets::of(stores, class);
        Self {
            class: usable(&secrets, class, provider),
            class_held: is_held(&secrets, class),
            scoped_watches: if needs_secrets { secrets.into_watches() } else { vec![] },
        }
    }
}

/// Whether [`node_lifecycle`](crate::node_lifecycle) deletes the Node of a Machine that is being deleted.
fn is_node_left(stores: &Stores, machine: &Machine, node: Option<&Node>) -> bool {
    let is_left = |node: &Node| is_missing_by_machine(stores, node) && is_of_namespace(stores, node);
    // Few VMs go before their Machines: for most nothing is looked up.
    is_deleting(machine) && missing_vm(machine).is_some() && node.is_some_and(is_left)
}

fn pool(stores: &Stores, machine: &Machine, owner: &Owner, settings: &MachineSettings) -> BudgetGroup {
    match owner {
        Owner::Set(set) => BudgetGroup::take(stores, set, settings),
        Owner::None | Owner::Gone => BudgetGroup::take_without_set(stores, machine, settings),
        Owner::Unreadable(_) => BudgetGroup::default(),
    }
}

/// The budget that the disruption of a Node has to wait for, if it does, and since when the Node is claimed.
fn budget(
    stores: &Stores,
    machine: &Machine,
    owner: &Owner,
    node: Option<&Node>,
) -> (Option<SharedBudget>, Option<Timestamp>) {
    let Some(node) = node else { return (None, None) };
    let shares = needs_claim(node) && is_replaced(machine, owner, node) || is_selected(machine, owner, node);
    (if shares { SharedBudget::of(stores, node) } else { None }, claimed_since(stores, node))
}

/// Whether a rollout replaces a Machine that is being deleted, as far as its Node and its set show. Those that the cluster autoscaler
/// has chosen go without a claim.
fn is_replaced(machine: &Machine, owner: &Owner, node: &Node) -> bool {
    let Owner::Set(set) = owner else { return false };
    let is_exempt = machine.is_force_deletion() || machine.is_removal_candidate();
    is_deleting(machine)
        && is_being_replaced(node)
        && !is_exempt
        && !is_deleting(set.as_ref())
        && !is_opted_out(set.as_ref())
}

/// Whether a user has selected the Node of a Machine that is updated in place, and its drain has yet to begin.
fn is_selected(machine: &Machine, owner: &Owner, node: &Node) -> bool {
    let is_exempt = matches!(owner, Owner::Set(set) if is_opted_out(set.as_ref()));
    !is_deleting(machine) && !is_exempt && update::needs_drain(machine, node) && in_place::awaits_begin(node)
}

/// Whether the Pods of the Machine's Node leave it, or are about to.
fn is_drained(machine: &Machine, node: &Node) -> bool {
    is_deleting(machine) || preserve::needs_drain(machine, node) || update::needs_drain(machine, node)
}

pub(super) fn node_named(node: &str) -> String {
    format!("metadata.name={node}")
}

/// Names are given to other VMs again: only a Node with the id of the VM is the Machine's. One that nobody has given an id yet is
/// the Machine's if the driver gave it that name, as in the [cache](claim::find), and no other Machine may have it.
fn unseen_node(stores: &Stores, machine: &Machine) -> Lookup<Node> {
    let seen = node_name(machine).and_then(|name| stores.seen::<Node>(TARGET, &node_named(name)));
    let Some(seen) = seen else { return Lookup::Pending };
    let machines = stores.of::<Machine>(CONTROL);
    let is_alone = |other: &Arc<Machine>| uid(other.as_ref()) == uid(machine);
    let is_its = |node: &Arc<Node>| {
        if let Some(id) = node.provider_id() {
            return vm_id(machine) == Some(id);
        }
        noted_node(machine) == Some(name(node.as_ref()))
            && machine_name(node).is_none_or(|named| named == name(machine))
            && machines.by(MACHINE_BY_NODE, name(node.as_ref())).iter().all(is_alone)
    };
    seen.all().into_iter().find(is_its).map_or(Lookup::Missing, Lookup::Found)
}

/// Whether the deletion of a Machine is forced: it waits for nothing in the target cluster.
pub(super) fn is_forced(machine: &Machine) -> bool {
    is_deleting(machine) && machine.is_force_deletion()
}

fn unreadable_node(stores: &Stores, nodes: &Store<Node>, machine: &Machine, node: Option<&Node>) -> Option<String> {
    let known = node.map(name).or_else(|| node_name(machine));
    let seen = node_name(machine).and_then(|name| stores.seen::<Node>(TARGET, &node_named(name)));
    let mut unreadable = nodes.unreadable();
    unreadable.extend(seen.map(|seen| seen.unreadable()).unwrap_or_default());
    let found = unreadable.iter().find(|node| may_be_node_of(machine, known, node))?;
    Some(found.describe::<Node>())
}

/// Whether a Node has the name of the Machine's Node, or the label with the Machine's name. While no Node of a Machine is
/// known, any Node without that label may be its Node.
pub(super) fn may_be_node_of(machine: &Machine, known: Option<&str>, node: &Unreadable) -> bool {
    match (known, node.label(labels::MACHINE_NAME)) {
        (Some(known), _) if known == node.name() => true,
        (_, Some(bears)) => bears == name(machine),
        (known, None) => known.is_none() && machine.provider_id().is_some(),
    }
}

fn owner(stores: &Stores, machine: &Machine) -> Owner {
    let Some(owner) = controller_uid(machine) else { return Owner::None };
    let sets = stores.of::<MachineSet>(CONTROL);
    if let Some(set) = sets.by(SET_BY_UID, owner).into_iter().next() {
        return Owner::Set(set);
    }
    let unreadable = sets.unreadable().into_iter().find(|set| set.uid() == owner);
    unreadable.map_or(Owner::Gone, |set| Owner::Unreadable(set.describe::<MachineSet>()))
}

/// Whether neither the class nor one of its Secrets can vanish while the Machine exists.
fn is_held(secrets: &ClassSecrets, class: &MachineClass) -> bool {
    let is_secret_held = |(namespace, name): (&str, &str)| {
        let secret = secrets.find(namespace, name);
        secret.found().is_some_and(|secret| has_finalizer(secret.as_ref(), finalizers::MACHINE_CONTROLLER))
    };
    has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER) && class.secret_names().all(is_secret_held)
}

/// Whether a Machine fails once its health timeout is over.
fn may_fail(machine: &Machine) -> bool {
    matches!(machine.phase(), MachinePhase::Unknown | MachinePhase::InPlaceUpdateFailed)
}

/// Whether plans of a Machine call the provider: until it is Running, while it is unhealthy, and once it is being deleted.
pub(super) fn needs_class(machine: &Machine) -> bool {
    let phases = [MachinePhase::Unset, MachinePhase::CrashLoopBackOff, MachinePhase::Pending, MachinePhase::Failed];
    is_deleting(machine) || may_fail(machine) || Vm::of(machine) != Vm::Proven || phases.contains(machine.phase())
}

/// Whether VMs of the class were asked for under another identity: these would not be found, and would be created again.
fn changed_identity(class: &MachineClass) -> Option<ClassError> {
    let wanted = name(class);
    let identity = ClassIdentity::recorded(class)?;
    let changed = identity.changed_in(class);
    (!changed.is_empty()).then(|| ClassError {
        reason: "ClassIdentityChanged",
        message: format!(
            "{} of MachineClass {wanted:?} was changed while machines use it, and their VMs are found by it: set it back to \
             what the annotation {} of the class records; until then no VM is made",
            changed.join(" and "),
            annotations::IDENTITY
        ),
        never_used: false,
    })
}

fn missing(stores: &Stores, machine: &Machine) -> ClassError {
    let (namespace, wanted) = (namespace(machine), machine.class_name());
    let (reason, message) = if stores.of::<MachineClass>(CONTROL).is_unreadable(namespace, wanted) {
        (reasons::MACHINE_CLASS, Unreadable::named(namespace, wanted, "").describe::<MachineClass>())
    } else {
        let text = format!(
            "MachineClass {wanted:?} does not exist in namespace {namespace:?}: create it, or change spec.class.name of the \
             MachineDeployment"
        );
        (CLASS_NOT_FOUND, text)
    };
    ClassError { reason, message, never_used: false }
}
