//! Which kinds have objects, as far as the caches show.

use nodewright_api::{
    Machine, MachineClass, MachineDeployment, MachineSet,
    machine_config::{ControllerConfig, KubeletConfig, MachineConfigPool},
};
use nodewright_runtime::{
    cache::Stores,
    object::{Cluster, Kind, ResourceType},
};

use crate::shared::{CONTROL, TARGET, class_secrets::SecretMetadata, machine_config::CachedConfig};

/// A kind whose definition is guarded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GuardedKind {
    pub(super) cluster: Cluster,
    /// The name of the definition, such as `machines.machine.sapcloud.io`.
    pub(super) definition: String,
    /// The path of the collection: in the namespace of the installation, if the kind has namespaces.
    pub(super) collection: String,
}

impl GuardedKind {
    pub(super) fn of<K: Kind>(cluster: Cluster, namespace: &str) -> Self {
        let resource = ResourceType::of::<K>();
        Self { cluster, definition: resource.to_string(), collection: resource.collection(namespace) }
    }
}

/// The kinds of machines, of this namespace, and those of node configuration, which have no namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// Each kind, and whether it has objects. `None`: this process does not watch it, or has not listed it yet.
    pub(super) kinds: Vec<(GuardedKind, Option<bool>)>,
    /// Whether Secrets have the finalizer that only a manager takes off.
    pub(super) holds_secrets: bool,
}

impl Snapshot {
    pub(super) fn take(stores: &Stores, namespace: &str) -> Self {
        let kinds = vec![
            look::<Machine>(stores, CONTROL, namespace),
            look::<MachineSet>(stores, CONTROL, namespace),
            look::<MachineDeployment>(stores, CONTROL, namespace),
            look::<MachineClass>(stores, CONTROL, namespace),
            look::<ControllerConfig>(stores, TARGET, ""),
            look::<KubeletConfig>(stores, TARGET, ""),
            look::<MachineConfigPool>(stores, TARGET, ""),
            look::<CachedConfig>(stores, TARGET, ""),
        ];
        Self { kinds, holds_secrets: !stores.of::<SecretMetadata>(CONTROL).is_empty() }
    }
}

fn look<K: Kind>(stores: &Stores, cluster: Cluster, namespace: &str) -> (GuardedKind, Option<bool>) {
    let store = stores.of::<K>(cluster);
    // An object that cannot be decoded is one all the same.
    let has_objects = !store.is_empty() || !store.unreadable().is_empty();
    (GuardedKind::of::<K>(cluster, namespace), (store.is_synced() || has_objects).then_some(has_objects))
}
