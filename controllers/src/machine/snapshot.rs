//! What the decisions about a Machine may see, taken from the caches at one moment.

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{
    ClassIdentity, Machine, MachineClass, MachinePhase, MachineSet, annotations, finalizers, labels,
    reasons::unreadable as reasons,
};
use nodewright_driver::{Class, SecretData};
use nodewright_runtime::{
    cache::{Lookup, Store, Stores, Unreadable},
    object::{ObjectRef, annotation, controller_uid, has_finalizer, is_deleting, name, namespace, uid},
    scoped_watch::ScopedWatch,
};

use super::{
    claim::{self, Claim, Found, Vm},
    indexes::may_be_replaced,
    peers::Peers,
};
use crate::shared::{
    class_secrets,
    clusters::{CONTROL, TARGET},
    drain::PodView,
    indexes::SET_BY_UID,
    ledger::{Ledger, Ordinal},
    node::Node,
    ownership::{node_name, vm_id},
};

/// A Machine, and the objects that concern it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// What its VM is made from.
    pub class: Result<Class, ClassProblem>,
    /// Whether the class and all its Secrets have our finalizers: without them they could vanish before the VM does.
    pub class_held: bool,
    /// The class's Secrets, while the Machine needs its class.
    pub looks: Vec<ScopedWatch>,
    /// Why no VM is created with the class, although existing ones are handled: what the class finds VMs by was changed.
    pub changed_identity: Option<ClassProblem>,
    /// The VM that it names, and how far that is proven.
    pub claim: Claim,
    /// The Node of its VM, if the VM is proven and no other Machine names it.
    pub node: Option<Arc<Node>>,
    /// Whether the Nodes have been listed. A forced deletion does not wait for that, and sees no Node before it.
    pub nodes_listed: bool,
    /// The Node that a watch of its name shows, if the cache has none.
    pub unseen_node: UnseenNode,
    /// A Node with the name of its Node that belongs to another VM.
    pub stranger: Option<Arc<Node>>,
    /// What to say about a Node that exists, may be its Node, and cannot be read.
    pub unreadable_node: Option<String>,
    /// The set that controls it.
    pub owner: Owner,
    /// The other Machines of its MachineDeployment, or else of its set, that count for the replacement budget; only while
    /// the Machine may have to wait for that.
    pub peers: Peers,
    /// The Pods of its Node; `None` while they are not watched or not listed yet.
    pub pods: Option<Vec<Arc<PodView>>>,
    /// What to say about a Pod of its Node that exists, has to leave, and cannot be read.
    pub unreadable_pod: Option<String>,
}

/// A Node that the cache does not show yet.
#[derive(Clone, Debug, Default)]
pub enum UnseenNode {
    /// It is not watched by its name, or there is no answer yet.
    #[default]
    Unknown,
    /// There is none.
    None,
    /// It is there.
    Found(Arc<Node>),
}

/// The set that controls a Machine.
#[derive(Clone, Debug)]
pub enum Owner {
    /// None: a Machine of its own.
    None,
    /// The set is gone.
    Gone,
    /// The set exists and cannot be read: what to say about it.
    Unreadable(String),
    /// The set.
    Set(Arc<MachineSet>),
}

/// Why a Machine cannot be handled with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassProblem {
    /// The reason for the condition.
    pub reason: &'static str,
    /// What to do about it.
    pub message: String,
    /// Whether no Machine that names the class can have asked for a VM with it.
    ///
    /// A VM is asked for only while the class and all its Secrets have our finalizers. The finalizers stay for as long as a
    /// Machine names the class and the class names the Secrets. So a class without the finalizer was never used; nor was one
    /// that names a missing Secret and was never edited (`metadata.generation` 1), although its finalizer may be that of
    /// machine-controller-manager. A class that has the finalizer and was edited may have named other Secrets before.
    ///
    /// Caveats: a finalizer that was removed by force; a Machine whose class was changed; a VM that
    /// machine-controller-manager, which has no such rule, asked for just before a take-over, and a restore that brings
    /// such a Machine back without its Secret.
    pub never_used: bool,
}

impl Snapshot {
    /// `provider` is the one whose classes this controller handles.
    pub(super) fn take(stores: &Stores, key: &ObjectRef, provider: &str) -> Option<Self> {
        let machine = stores.of::<Machine>(CONTROL).get(key)?;
        let nodes = nodes(stores, &machine);
        let nodes_listed = nodes.is_some();
        let Found { claim, node, stranger } = claim::find(stores, nodes.as_deref(), &machine);
        let looks = is_deleting(machine.as_ref()) || *machine.phase() == MachinePhase::Unknown;
        let unseen_node = if looks && node.is_none() {
            if nodes_listed { unseen_node(stores, &machine) } else { UnseenNode::None }
        } else {
            UnseenNode::Unknown
        };
        let pods = node.as_ref().and_then(|node| pods(stores, name(node.as_ref())));
        let unreadable_pod = node.as_ref().and_then(|node| unreadable_pod(stores, name(node.as_ref())));
        let unreadable_node =
            nodes.as_ref().and_then(|nodes| unreadable_node(stores, nodes, &machine, node.as_deref()));
        let owner = owner(stores, &machine);
        let peers = peers(stores, &machine, node.as_deref(), &owner);
        let found = stores.of::<MachineClass>(CONTROL).by_name(namespace(machine.as_ref()), machine.class_name());
        let found = found.as_deref();
        Some(Self {
            class: found.ok_or_else(|| missing(stores, &machine)).and_then(|found| class(stores, found, provider)),
            class_held: found.is_some_and(|class| is_held(stores, class)),
            looks: found.filter(|_| needs_class(&machine)).map(class_secrets::looks).unwrap_or_default(),
            // Thousands of Machines have their VM and need not read the record.
            changed_identity: found.filter(|_| vm_id(&machine).is_none()).and_then(changed_identity),
            claim,
            node,
            nodes_listed,
            unseen_node,
            stranger,
            unreadable_node,
            unreadable_pod,
            peers,
            owner,
            pods,
            machine,
        })
    }

    /// The set's ledger and the Machine's index in it; `None` when there is no ledger or it does not know the Machine.
    pub(super) fn ledger_entry(&self) -> Option<(Ledger, Ordinal)> {
        let Owner::Set(set) = &self.owner else { return None };
        let ledger: Ledger = annotation(set.as_ref(), annotations::LEDGER)?.parse().ok()?;
        let machine = self.machine.as_ref();
        let index = ledger.ordinal(name(set.as_ref()), name(machine), annotation(machine, annotations::INDEX))?;
        Some((ledger, index))
    }

    /// Why it is not known whether the name is retired: the set or its ledger exists and cannot be read. A reason, and what
    /// to do about it.
    pub(super) fn ledger_problem(&self) -> Option<(&'static str, String)> {
        let set = match &self.owner {
            Owner::Set(set) => set.as_ref(),
            Owner::Unreadable(text) => return Some((reasons::MACHINE_SET, text.clone())),
            Owner::None | Owner::Gone => return None,
        };
        let key = annotations::LEDGER;
        let error = annotation(set, key)?.parse::<Ledger>().err()?;
        Some((reasons::LEDGER, format!("MachineSet {}, annotation {key}: {error}; restore the annotation", name(set))))
    }

    /// What to say while the Machine needs its class, and a Secret of the class has yet to be read. Nothing is decided before.
    pub(super) fn secret_pending(&self) -> Option<&str> {
        let problem = self.class.as_ref().err()?;
        let is_pending = problem.reason == class_secrets::PENDING && !self.looks.is_empty();
        is_pending.then_some(problem.message.as_str())
    }

    /// Whether the set's ledger has retired the Machine; `None` when it does not know the Machine.
    pub(super) fn is_retired(&self) -> Option<bool> {
        self.ledger_entry().map(|(ledger, index)| ledger.is_retired(index))
    }
}

/// The field selector of the Node with a name.
pub(super) fn node_named(node: &str) -> String {
    format!("metadata.name={node}")
}

/// What a watch of the name of a Machine's Node shows. Names are given to other VMs again: only a Node with the id of the VM
/// is the Machine's.
fn unseen_node(stores: &Stores, machine: &Machine) -> UnseenNode {
    let look = node_name(machine).and_then(|name| stores.seen::<Node>(TARGET, &node_named(name)));
    let Some(look) = look else { return UnseenNode::Unknown };
    look.all()
        .into_iter()
        .find(|node| node.provider_id().is_some() && node.provider_id() == vm_id(machine))
        .map_or(UnseenNode::None, UnseenNode::Found)
}

/// The field selector of a Node's Pods.
pub(super) fn pods_of(node: &str) -> String {
    format!("spec.nodeName={node}")
}

fn pods(stores: &Stores, node: &str) -> Option<Vec<Arc<PodView>>> {
    let mut pods = stores.seen::<PodView>(TARGET, &pods_of(node))?.all();
    // The highest priority first, as in the drain of machine-controller-manager.
    let place = |pod: &PodView| (namespace(pod).to_owned(), name(pod).to_owned());
    pods.sort_by_cached_key(|pod| (Reverse(pod.spec.priority), place(pod)));
    Some(pods)
}

/// The Nodes; `None` for a forced deletion while they are not listed yet. All other Machines wait for that.
fn nodes(stores: &Stores, machine: &Machine) -> Option<Arc<Store<Node>>> {
    if is_forced(machine) { stores.listed::<Node>(TARGET) } else { Some(stores.of::<Node>(TARGET)) }
}

/// Whether the deletion of a Machine is forced: it waits for nothing in the target cluster.
pub(super) fn is_forced(machine: &Machine) -> bool {
    is_deleting(machine) && machine.is_force_deletion()
}

/// What to say about a Pod that has to leave the Node and cannot be read.
fn unreadable_pod(stores: &Stores, node: &str) -> Option<String> {
    let pods = stores.seen::<PodView>(TARGET, &pods_of(node))?;
    let leaves = |pod: &Arc<Unreadable>| {
        let metadata = pod.metadata().cloned();
        metadata.is_none_or(|metadata| PodView { metadata, ..PodView::default() }.leaves())
    };
    pods.unreadable().into_iter().find(leaves).map(|pod| pod.describe::<PodView>())
}

/// What to say about a Node that cannot be read and may be the Machine's: it has the name of the Machine's Node, or the label
/// with the Machine's name. While no Node of a Machine is known, any Node without that label may be its Node.
fn unreadable_node(stores: &Stores, nodes: &Store<Node>, machine: &Machine, node: Option<&Node>) -> Option<String> {
    let known = node.map(name).or_else(|| node_name(machine));
    let look = node_name(machine).and_then(|name| stores.seen::<Node>(TARGET, &node_named(name)));
    let mut unreadable = nodes.unreadable();
    unreadable.extend(look.map(|look| look.unreadable()).unwrap_or_default());
    let found = unreadable.iter().find(|node| may_be_node_of(machine, known, node))?;
    Some(found.describe::<Node>())
}

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

/// The peers, while the Machine may have to wait for the replacement budget.
fn peers(stores: &Stores, machine: &Machine, node: Option<&Node>, owner: &Owner) -> Peers {
    let lost_node = !is_deleting(machine) && node.is_some_and(is_deleting);
    match owner {
        Owner::Set(set) if may_be_replaced(machine) || lost_node => Peers::of(stores, machine, set),
        _ => Peers::default(),
    }
}

/// The reason of a wait for a class that does not exist.
pub(super) const CLASS_NOT_FOUND: &str = "ClassNotFound";

/// Whether neither the class nor one of its Secrets can vanish while the Machine exists.
fn is_held(stores: &Stores, class: &MachineClass) -> bool {
    let is_secret_held = |(namespace, name): (&str, &str)| {
        let secret = class_secrets::find(stores, namespace, name);
        secret.found().is_some_and(|secret| has_finalizer(secret.as_ref(), finalizers::MACHINE_CONTROLLER))
    };
    has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER) && class.secret_names().all(is_secret_held)
}

/// Whether plans of a Machine call the provider: until it is Running, and once it is being deleted.
pub(super) fn needs_class(machine: &Machine) -> bool {
    let phases = [MachinePhase::Unset, MachinePhase::CrashLoopBackOff, MachinePhase::Pending, MachinePhase::Failed];
    is_deleting(machine) || Vm::of(machine) != Vm::Proven || phases.contains(machine.phase())
}

/// Whether VMs of the class were asked for under another identity. A VM that was created under that one would not be found
/// and would be created again; one that is created now would not be found once the class is set back.
fn changed_identity(class: &MachineClass) -> Option<ClassProblem> {
    let wanted = name(class);
    let identity = ClassIdentity::recorded(class)?;
    let changed = identity.changed_in(class);
    (!changed.is_empty()).then(|| ClassProblem {
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

/// Why there is no class to work with.
fn missing(stores: &Stores, machine: &Machine) -> ClassProblem {
    let (place, wanted) = (namespace(machine), machine.class_name());
    let (reason, message) = if stores.of::<MachineClass>(CONTROL).is_unreadable(place, wanted) {
        (reasons::MACHINE_CLASS, Unreadable::named(place, wanted, "").describe::<MachineClass>())
    } else {
        let text = format!(
            "MachineClass {wanted:?} does not exist in namespace {place:?}: create it, or change spec.class.name of the \
             MachineDeployment"
        );
        (CLASS_NOT_FOUND, text)
    };
    ClassProblem { reason, message, never_used: false }
}

/// The class with its Secrets. Secrets of other namespaces are never read, whatever the class says.
fn class(stores: &Stores, class: &MachineClass, provider: &str) -> Result<Class, ClassProblem> {
    let wanted = name(class);
    let problem = |reason, message: String| ClassProblem { reason, message, never_used: false };
    if !class.provider.is_empty() && !class.provider.eq_ignore_ascii_case(provider) {
        let text = format!(
            "MachineClass {wanted:?} is one of provider {:?}, and this manager runs {provider:?}: run the one that fits, or correct the class",
            class.provider
        );
        return Err(problem("ProviderMismatch", text));
    }
    let is_held = has_finalizer(class, finalizers::MACHINE_CONTROLLER_MANAGER);
    let never_used = !is_held || class.metadata.generation == Some(1);
    let unusable = |reason, message: String| ClassProblem { reason, message, never_used };
    let mut secrets = Vec::new();
    let mut revision = format!("{}/{}", uid(class), class.metadata.generation.unwrap_or_default());
    for reference in class.secret_refs() {
        let secret = reference.name.as_deref().unwrap_or_default();
        let place = reference.namespace.as_deref().filter(|place| !place.is_empty()).unwrap_or(namespace(class));
        let of = format!("Secret {secret:?} of MachineClass {wanted:?}");
        if place != namespace(class) {
            let text = format!("{of} is in namespace {place:?}: only Secrets of the class's own namespace are read");
            return Err(unusable("SecretForbidden", text));
        }
        let found = match class_secrets::find(stores, place, secret) {
            Lookup::Found(found) => found,
            Lookup::Missing => {
                let text = format!("{of} does not exist in namespace {place:?}, or is not of type Opaque: create it");
                return Err(unusable(class_secrets::NOT_FOUND, text));
            }
            Lookup::Unreadable(object) => return Err(problem(reasons::SECRET, object.describe::<Secret>())),
            Lookup::Pending => return Err(problem(class_secrets::PENDING, format!("{of} has yet to be read"))),
            Lookup::Failed(why) => return Err(problem(class_secrets::NOT_READ, class_secrets::not_read(&of, &why))),
        };
        revision.push('/');
        revision.push_str(found.metadata.resource_version.as_deref().unwrap_or_default());
        secrets.push(found);
    }
    let secret = SecretData::of(secrets);
    Ok(Class { name: wanted.to_owned(), revision, provider_spec: class.provider_spec.clone(), secret })
}
