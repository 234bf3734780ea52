//! What a Machine may see.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{Machine, MachineClass, MachinePhase, MachineSet, annotations, finalizers};
use nodewright_runtime::{
    cache::Stores,
    object::{Cluster, Key, annotation, controller_uid, has_finalizer, is_deleting, name, namespace, uid},
};

use super::ownership::{self, Claim, Found};
use crate::{
    claim::{node_name, vm_id},
    drain::PodView,
    driver::{Class, SecretData},
    indexes::SET_BY_UID,
    ledger::{Index, Ledger},
    node::Node,
};

/// Key of the user data in a Secret.
pub(super) const USER_DATA: &str = "userData";

/// A Machine and what concerns it.
#[derive(Clone, Debug)]
pub struct World {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// What its VM is made from.
    pub class: Result<Class, ClassProblem>,
    /// Whether the class is kept by its finalizer: else it could vanish before its VM does.
    pub class_held: bool,
    /// The VM that it names, and how far that is proven.
    pub claim: Claim,
    /// Its Node: the one of its VM, if that is proven and no other Machine's.
    pub node: Option<Arc<Node>>,
    /// The Node that a look at its name has found, where there is none in the cache.
    pub unseen_node: UnseenNode,
    /// A Node with the name of its Node and another VM.
    pub stranger: Option<Arc<Node>>,
    /// The set that controls it.
    pub owner: Owner,
    /// The other Machines of its MachineDeployment, or of its set where there is none; seen only while the Machine
    /// waits for the replacement budget, because there may be thousands of them.
    pub peers: Vec<Arc<Machine>>,
    /// The Pods of its Node; `None` until they have been listed, or while nobody looks.
    pub pods: Option<Vec<Arc<PodView>>>,
}

/// A Node that the cache does not show, because it has yet to hear of it.
#[derive(Clone, Debug, Default)]
pub enum UnseenNode {
    /// Nobody looks, or there is no answer yet.
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
    /// Nobody: a Machine of its own.
    None,
    /// The set is gone.
    Gone,
    /// The set.
    Set(Arc<MachineSet>),
}

/// Why a Machine cannot be worked on with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassProblem {
    /// A word for the condition.
    pub reason: &'static str,
    /// What to do about it.
    pub message: String,
}

impl World {
    /// `provider` is the one whose classes are this controller's.
    pub(super) fn observe(stores: &Stores, key: &Key, provider: &str) -> Option<Self> {
        let machine = stores.of::<Machine>(Cluster::CONTROL).get(key)?;
        let Found { claim, node, stranger } = ownership::find(stores, &machine);
        let looks = is_deleting(machine.as_ref()) || *machine.phase() == MachinePhase::Unknown;
        let unseen_node = if looks && node.is_none() { unseen_node(stores, &machine) } else { UnseenNode::Unknown };
        let pods = node.as_ref().and_then(|node| pods(stores, name(node.as_ref())));
        let owner = owner(stores, &machine);
        let peers = peers(stores, &machine, &owner);
        let class_held = stores
            .of::<MachineClass>(Cluster::CONTROL)
            .by_name(namespace(machine.as_ref()), machine.class_name())
            .is_some_and(|class| has_finalizer(class.as_ref(), finalizers::MACHINE_CONTROLLER_MANAGER));
        Some(Self {
            class: class(stores, &machine, provider),
            class_held,
            claim,
            node,
            unseen_node,
            stranger,
            peers,
            owner,
            pods,
            machine,
        })
    }
}

impl World {
    /// The set's ledger and the Machine's index in it; `None` when there is no ledger or it does not know the Machine.
    pub(super) fn entry(&self) -> Option<(Ledger, Index)> {
        let Owner::Set(set) = &self.owner else { return None };
        let ledger: Ledger = annotation(set.as_ref(), annotations::LEDGER)?.parse().ok()?;
        let machine = self.machine.as_ref();
        let index = ledger.index(name(set.as_ref()), name(machine), annotation(machine, annotations::INDEX))?;
        Some((ledger, index))
    }

    /// Whether the set's ledger has retired the Machine; `None` when it does not know the Machine.
    pub(super) fn is_retired(&self) -> Option<bool> {
        self.entry().map(|(ledger, index)| ledger.is_retired(index))
    }
}

/// The field selector of the Node with a name.
pub(super) fn node_named(node: &str) -> String {
    format!("metadata.name={node}")
}

/// What a look at the name of a Machine's Node has found. Names are given to other VMs again: only a Node that says that it
/// is of this VM is the Machine's.
fn unseen_node(stores: &Stores, machine: &Machine) -> UnseenNode {
    let look = node_name(machine).and_then(|name| stores.seen::<Node>(Cluster::TARGET, &node_named(name)));
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
    let mut pods = stores.seen::<PodView>(Cluster::TARGET, &pods_of(node))?.all();
    // The most important first, as the drain of machine-controller-manager does.
    pods.sort_by(|a, b| {
        (b.spec.priority, namespace(a.as_ref()), name(a.as_ref())).cmp(&(
            a.spec.priority,
            namespace(b.as_ref()),
            name(b.as_ref()),
        ))
    });
    Some(pods)
}

fn owner(stores: &Stores, machine: &Machine) -> Owner {
    let Some(owner) = controller_uid(machine) else { return Owner::None };
    let sets = stores.of::<MachineSet>(Cluster::CONTROL).by(SET_BY_UID, owner);
    sets.into_iter().next().map_or(Owner::Gone, Owner::Set)
}

fn peers(stores: &Stores, machine: &Machine, owner: &Owner) -> Vec<Arc<Machine>> {
    let Owner::Set(set) = owner else { return vec![] };
    if !super::health::may_be_replaced(machine) {
        return vec![];
    }
    let machines = stores.of::<Machine>(Cluster::CONTROL);
    let sets = match controller_uid(set.as_ref()) {
        Some(deployment) => stores.of::<MachineSet>(Cluster::CONTROL).owned_by(deployment),
        None => vec![set.clone()],
    };
    let all = sets.iter().flat_map(|set| machines.owned_by(uid(set.as_ref())));
    all.filter(|peer| uid(peer.as_ref()) != uid(machine)).collect()
}

/// Why a Machine of a class that is not there waits.
pub(super) const CLASS_NOT_FOUND: &str = "ClassNotFound";

/// The class with its secrets. Secrets of other namespaces are never read, whatever the class says.
fn class(stores: &Stores, machine: &Machine, provider: &str) -> Result<Class, ClassProblem> {
    let wanted = machine.class_name();
    let problem = |reason, message: String| ClassProblem { reason, message };
    let class = stores.of::<MachineClass>(Cluster::CONTROL).by_name(namespace(machine), wanted).ok_or_else(|| {
        problem(CLASS_NOT_FOUND, format!("MachineClass {wanted:?} does not exist in namespace {:?}: create it, or change spec.class.name of the MachineDeployment", namespace(machine)))
    })?;
    if !class.provider.is_empty() && !class.provider.eq_ignore_ascii_case(provider) {
        let text = format!(
            "MachineClass {wanted:?} is one of provider {:?}, and this manager runs {provider:?}: run the one that fits, or correct the class",
            class.provider
        );
        return Err(problem("ProviderMismatch", text));
    }
    let mut secrets = Vec::new();
    let mut revision = format!("{}/{}", uid(class.as_ref()), class.metadata.generation.unwrap_or_default());
    for reference in class.secret_refs() {
        let secret = reference.name.as_deref().unwrap_or_default();
        let place = reference.namespace.as_deref().unwrap_or(namespace(machine));
        let of = format!("Secret {secret:?} of MachineClass {wanted:?}");
        if place != namespace(machine) {
            let text = format!("{of} is in namespace {place:?}: only Secrets of the class's own namespace are read");
            return Err(problem("SecretForbidden", text));
        }
        let missing = || problem("SecretNotFound", format!("{of} does not exist in namespace {place:?}: create it"));
        let found = stores.of::<Secret>(Cluster::CONTROL).by_name(place, secret).ok_or_else(missing)?;
        revision.push('/');
        revision.push_str(found.metadata.resource_version.as_deref().unwrap_or_default());
        secrets.push(found);
    }
    let has_secrets = !secrets.is_empty();
    let secret = SecretData::of(secrets);
    if has_secrets && secret.get(USER_DATA).is_none() {
        let text = format!("the Secrets of MachineClass {wanted:?} have no key {USER_DATA:?}: add it");
        return Err(problem("UserDataMissing", text));
    }
    Ok(Class { name: wanted.to_owned(), revision, provider_spec: class.provider_spec.clone(), secret })
}
