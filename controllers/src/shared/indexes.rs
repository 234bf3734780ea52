//! The indexes of the stores. They are in one place because all controllers share one store for each kind.

use k8s_openapi::{api::core::v1::SecretReference, apimachinery::pkg::apis::meta::v1::LabelSelector};
use nodewright_api::{
    Machine, MachineClass, MachineDeployment, MachineSet,
    machine_config::{CURRENT_CONFIG, DESIRED_CONFIG},
};
use nodewright_runtime::{
    cache::Index,
    object::{annotation, controller_uid, name, namespace},
};

use crate::shared::{
    ledger::set_of,
    node::Node,
    ownership::{node_name, vm_id},
};

pub(crate) const DEPLOYMENT_BY_UID: Index<MachineDeployment> =
    Index { name: "uid", key_of: |deployment| deployment.metadata.uid.clone() };

pub(crate) const SET_BY_UID: Index<MachineSet> = Index { name: "uid", key_of: |set| set.metadata.uid.clone() };

pub(crate) const ORPHAN_SETS: Index<MachineSet> =
    Index { name: "orphans", key_of: |set| controller_uid(set).is_none().then(|| namespace(set).to_owned()) };

/// Machines by the name of the set that may have generated their name.
pub(crate) const MACHINES_BY_SET_NAME: Index<Machine> =
    Index { name: "set-name", key_of: |machine| set_of(name(machine)).map(str::to_owned) };

pub(crate) const ORPHAN_MACHINES: Index<Machine> = Index {
    name: "orphans",
    key_of: |machine| controller_uid(machine).is_none().then(|| namespace(machine).to_owned()),
};

pub(crate) const MACHINES_BY_CLASS: Index<Machine> =
    Index { name: "class", key_of: |machine| Some(object_key(namespace(machine), machine.class_name())) };

/// Machines by the provider's id of the VM that they have or claim.
pub(crate) const MACHINE_BY_INSTANCE: Index<Machine> =
    Index { name: "instance", key_of: |machine| vm_id(machine).map(|id| instance_id(id).to_owned()) };

pub(crate) const MACHINE_BY_NODE: Index<Machine> =
    Index { name: "node", key_of: |machine| node_name(machine).map(str::to_owned) };

pub(crate) const NODE_BY_INSTANCE: Index<Node> =
    Index { name: "instance", key_of: |node| Some(instance_id(node.provider_id()?).to_owned()) };

/// Nodes by the rendered MachineConfig that they run.
pub(crate) const NODES_BY_CURRENT_CONFIG: Index<Node> =
    Index { name: "current-config", key_of: |node| annotation(node, CURRENT_CONFIG).map(str::to_owned) };

/// Nodes by the rendered MachineConfig that they are to run.
pub(crate) const NODES_BY_DESIRED_CONFIG: Index<Node> =
    Index { name: "desired-config", key_of: |node| annotation(node, DESIRED_CONFIG).map(str::to_owned) };

/// The prefix of the labels that say which roles a Node has.
const NODE_ROLE: &str = "node-role.kubernetes.io/";

/// Nodes by their roles, in the order of names, separated by commas.
pub(crate) const NODES_BY_ROLES: Index<Node> = Index {
    name: "roles",
    key_of: |node| {
        let roles = node.metadata.labels.iter().flatten().filter_map(|(key, _)| key.strip_prefix(NODE_ROLE));
        Some(roles.collect::<Vec<_>>().join(","))
    },
};

/// Whether Nodes with this key of [`NODES_BY_ROLES`] have the roles that a selector asks for by name. What else it selects by is not
/// looked at.
pub(crate) fn has_selected_roles(key: &str, selector: Option<&LabelSelector>) -> bool {
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    let mut roles = labels.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix(NODE_ROLE));
    roles.all(|role| key.split(',').any(|known| known == role))
}

/// MachineClasses by the Secret with their user data, as [`object_key`].
pub(crate) const CLASSES_BY_SECRET: Index<MachineClass> =
    Index { name: "secret", key_of: |class| reference(class, class.secret_ref.as_ref()) };

/// MachineClasses by the Secret with their credentials, as [`object_key`].
pub(crate) const CLASSES_BY_CREDENTIALS: Index<MachineClass> =
    Index { name: "credentials", key_of: |class| reference(class, class.credentials_secret_ref.as_ref()) };

pub(crate) fn object_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The last part of a providerID: `i-0abc` of `aws:///eu-west-1a/i-0abc`. Providers and kubelets agree on this part,
/// even if they differ in the rest.
pub(crate) fn instance_id(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or(provider_id)
}

fn reference(class: &MachineClass, wanted: Option<&SecretReference>) -> Option<String> {
    let named = wanted?.name.as_deref().filter(|name| !name.is_empty())?;
    let elsewhere = wanted?.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    Some(object_key(elsewhere.unwrap_or(namespace(class)), named))
}
