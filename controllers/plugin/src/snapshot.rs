//! The objects that explanations are made of, at one moment. A snapshot comes from a cluster, or in tests from a file.

use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    coordination::v1::Lease,
    core::v1::{Event, Node},
    discovery::v1::EndpointSlice,
};
use nodewright_api::{
    Machine, MachineClass, MachineDeployment, MachineSet, failed_field, labels,
    machine_config::{ControllerConfig, KubeletConfig, MachineConfigPool},
    selector,
    stored::{JoinedNode, REVISION},
};
use nodewright_runtime::object::{Kind, controller, controller_uid, label, name, namespace, uid};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fault::{Outcome, fail};

/// An object that exists and cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The field, and what is wrong with it; never its content.
    pub(crate) why: String,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) now: Timestamp,
    pub(crate) deployments: Vec<MachineDeployment>,
    pub(crate) sets: Vec<MachineSet>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) classes: Vec<MachineClass>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) pools: Vec<MachineConfigPool>,
    pub(crate) kubelet_configs: Vec<KubeletConfig>,
    pub(crate) controller_configs: Vec<ControllerConfig>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) events: Vec<Event>,
    pub(crate) validating: Vec<ValidatingWebhookConfiguration>,
    pub(crate) mutating: Vec<MutatingWebhookConfiguration>,
    pub(crate) endpoints: Vec<EndpointSlice>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// What could not be read, a sentence each.
    pub(crate) gaps: Vec<String>,
}

impl Snapshot {
    pub(crate) fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// Adds an object of a known kind. Others, such as Secrets, are not kept.
    pub(crate) fn add(&mut self, object: &Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let unreadable = match kind.as_str() {
            "MachineDeployment" => push(&mut self.deployments, object),
            "MachineSet" => push(&mut self.sets, object),
            "Machine" => push(&mut self.machines, object),
            "MachineClass" => push(&mut self.classes, object),
            "Node" => push(&mut self.nodes, object),
            "MachineConfigPool" => push(&mut self.pools, object),
            "KubeletConfig" => push(&mut self.kubelet_configs, object),
            "ControllerConfig" => push(&mut self.controller_configs, object),
            "Lease" => push(&mut self.leases, object),
            "Event" => push(&mut self.events, object),
            "ValidatingWebhookConfiguration" => push(&mut self.validating, object),
            "MutatingWebhookConfiguration" => push(&mut self.mutating, object),
            "EndpointSlice" => push(&mut self.endpoints, object),
            _ => None,
        };
        self.unreadable.extend(unreadable.map(|(name, why)| Unreadable { kind, name, why }));
    }

    pub(crate) fn deployment_of(&self, set: &MachineSet) -> Option<&MachineDeployment> {
        owner(set, &self.deployments)
    }

    pub(crate) fn set_of(&self, machine: &Machine) -> Option<&MachineSet> {
        owner(machine, &self.sets)
    }

    /// The sets of a deployment, the newest revision first.
    pub(crate) fn sets_of(&self, deployment: &MachineDeployment) -> Vec<&MachineSet> {
        let mut sets: Vec<_> = owned_by(deployment, &self.sets).collect();
        sets.sort_by(|a, b| revision(b).cmp(&revision(a)).then_with(|| name(*a).cmp(name(*b))));
        sets
    }

    /// The machines of a set, by name.
    pub(crate) fn machines_of(&self, set: &MachineSet) -> Vec<&Machine> {
        let mut machines: Vec<_> = owned_by(set, &self.machines).collect();
        machines.sort_by(|a, b| name(*a).cmp(name(*b)));
        machines
    }

    /// The set of the present template.
    pub(crate) fn current_set(&self, deployment: &MachineDeployment) -> Option<&MachineSet> {
        let is_current = |set: &MachineSet| {
            nodewright_controllers::machine_deployment::is_same_template(&set.spec.template, &deployment.spec.template)
        };
        self.sets_of(deployment).into_iter().find(|set| is_current(set) && set.metadata.deletion_timestamp.is_none())
    }

    /// # Errors
    /// There is no such machine.
    pub(crate) fn machine(&self, named: &str) -> Outcome<&Machine> {
        let found = self.machines.iter().find(|machine| name(*machine) == named);
        found.map_or_else(|| fail(format!("there is no machine {named} (see --namespace)")), Ok)
    }

    pub(crate) fn class_of(&self, machine: &Machine) -> Option<&MachineClass> {
        let is_it =
            |class: &&MachineClass| name(*class) == machine.class_name() && namespace(*class) == namespace(machine);
        self.classes.iter().find(is_it)
    }

    /// The Node with the provider ID of a machine, else that of its name if it has none.
    pub(crate) fn node_of(&self, machine: &Machine) -> Option<&Node> {
        let id = machine.provider_id();
        let by_id = |node: &&Node| id.is_some() && provider_id(node) == id;
        let named = node_name(machine);
        let by_name = |node: &&Node| Some(name(*node)) == named && provider_id(node).is_none();
        self.nodes.iter().find(by_id).or_else(|| self.nodes.iter().find(by_name))
    }

    /// The machine that a Node of this name is, or would be.
    pub(crate) fn machine_of_node(&self, node: &str) -> Option<&Machine> {
        let id = self.nodes.iter().find(|it| name(*it) == node).and_then(provider_id);
        let by_id = |machine: &&Machine| id.is_some() && machine.provider_id() == id;
        let by_name = |machine: &&Machine| node_name(machine) == Some(node) || name(*machine) == node;
        self.machines.iter().find(by_id).or_else(|| self.machines.iter().find(by_name))
    }

    /// The pool of a Node: `master` first, then one with a name of its own, then `worker`.
    pub(crate) fn pool_of(&self, node: &Node) -> Option<&MachineConfigPool> {
        let labels = node.metadata.labels.as_ref();
        let selects = |pool: &&MachineConfigPool| {
            let wanted = pool.spec.node_selector.as_ref();
            !selector::is_empty(wanted) && selector::matches(wanted, labels)
        };
        let mut pools: Vec<_> = self.pools.iter().filter(selects).collect();
        pools.sort_by_key(|pool| match name(*pool) {
            "master" => 0,
            "worker" => 2,
            _ => 1,
        });
        pools.into_iter().next()
    }

    /// The Nodes of a pool, by name.
    pub(crate) fn nodes_of(&self, pool: &MachineConfigPool) -> Vec<&Node> {
        let is_of = |node: &&Node| self.pool_of(node).is_some_and(|it| name(it) == name(pool));
        let mut nodes: Vec<_> = self.nodes.iter().filter(is_of).collect();
        nodes.sort_by(|a, b| name(*a).cmp(name(*b)));
        nodes
    }

    /// The newest warning about an object.
    pub(crate) fn warning(&self, kind: &str, of: &str) -> Option<&Event> {
        let is_about = |event: &&Event| {
            let about = &event.involved_object;
            about.kind.as_deref() == Some(kind)
                && about.name.as_deref() == Some(of)
                && event.type_.as_deref() == Some("Warning")
        };
        self.events.iter().filter(is_about).max_by_key(|event| event_time(event))
    }
}

/// When an event was last seen.
pub(crate) fn event_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0).or(event.first_timestamp.as_ref().map(|time| time.0));
    [series, last, first].into_iter().flatten().max()
}

/// The revision of a set; 0 without one.
pub(crate) fn revision(set: &MachineSet) -> i64 {
    REVISION.of(set).unwrap_or_default()
}

pub(crate) fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

/// The name of the Node of a machine, as its label or its status says.
pub(crate) fn node_name(machine: &Machine) -> Option<&str> {
    use nodewright_api::conditions::machine::NODE_JOINED;
    let joined = || machine.condition(NODE_JOINED).and_then(JoinedNode::of).map(|joined| joined.name);
    label(machine, labels::NODE).filter(|name| !name.is_empty()).or_else(joined)
}

fn owner<'a, K: Kind, O: Kind>(object: &K, owners: &'a [O]) -> Option<&'a O> {
    let wanted = controller(object).filter(|owner| owner.kind == O::kind(&()))?;
    owners.iter().find(|owner| uid(*owner) == wanted.uid)
}

fn owned_by<'a, K: Kind, O: Kind>(owner: &O, objects: &'a [K]) -> impl Iterator<Item = &'a K> {
    let wanted = uid(owner).to_owned();
    objects.iter().filter(move |object| controller_uid(*object) == Some(wanted.as_str()))
}

/// Decodes an object; if that fails, its name and the field.
fn push<K: DeserializeOwned>(all: &mut Vec<K>, object: &Value) -> Option<(String, String)> {
    let named = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = object.to_string();
    match serde_json::from_str(&text) {
        Ok(decoded) => all.push(decoded),
        Err(error) => return Some((named, format!("field {} cannot be decoded", failed_field(&text, &error)))),
    }
    None
}
