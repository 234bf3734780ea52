//! A copy of the objects of a cluster, which is changed by the steps of plans as an API server would change it.

use std::{any::TypeId, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use json_patch::{Patch, PatchOperation};
use nodewright_api::{Machine, MachineDeployment, MachineSet, labels};
use nodewright_runtime::{
    apply_configuration::STATUS,
    cache::{Store, Stores},
    effect::Never,
    object::{Kind, ObjectRef, controller, is_deleting, name, resource_version, uid},
    plan::{Apply, Step},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    Change, Durations, Objects, Verb,
    machines::{self, Event, Events, after},
    nodes,
};
use crate::shared::{
    CONTROL, TARGET,
    availability::is_ready,
    indexes::{
        DEPLOYMENT_BY_UID, MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_SET_NAME, ORPHAN_MACHINES, ORPHAN_SETS,
        SET_BY_UID,
    },
    node::Node,
    ownership::{node_name, vm_id},
    stores::fill,
    template,
};

pub(super) struct Cluster {
    stores: Stores,
    /// The Nodes of Machines that are updated in place, as an API server has them: controllers decode only what they read.
    nodes: Option<BTreeMap<String, Value>>,
    durations: Durations,
    events: Events,
    changes: Vec<Change>,
    new_sets: Vec<String>,
    version: u64,
    pub(super) now: Timestamp,
    /// When a set or a Machine last changed.
    pub(super) changed: Timestamp,
}

impl Cluster {
    pub(super) fn new(objects: Objects, durations: Durations, now: Timestamp) -> Self {
        let stores = Stores::default();
        let mut events = Events::default();
        let machines = &objects.machines;
        for machine in machines {
            events.foresee(machine, durations, now);
        }
        let versions = machines.iter().map(resource_version);
        let versions = versions.chain(objects.sets.iter().map(resource_version));
        let versions = versions.chain(objects.deployments.iter().map(resource_version));
        let version = versions.max().unwrap_or_default();
        fill(&stores, CONTROL, objects.deployments).add_index(DEPLOYMENT_BY_UID);
        let sets = fill(&stores, CONTROL, objects.sets);
        for index in [SET_BY_UID, ORPHAN_SETS] {
            sets.add_index(index);
        }
        let machines = fill(&stores, CONTROL, objects.machines);
        for index in [MACHINES_BY_SET_NAME, ORPHAN_MACHINES, MACHINE_BY_INSTANCE, MACHINE_BY_NODE] {
            machines.add_index(index);
        }
        fill(&stores, TARGET, objects.pools);
        fill(&stores, TARGET, Vec::<Node>::new());
        let (changes, new_sets, nodes) = (vec![], vec![], objects.nodes.as_ref().map(|_| BTreeMap::new()));
        let mut own = Self { stores, nodes, durations, events, changes, new_sets, version, now, changed: now };
        objects.nodes.into_iter().flatten().for_each(|node| own.store_node(node));
        own
    }

    pub(super) fn stores(&self) -> &Stores {
        &self.stores
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> Option<Vec<Value>> {
        self.nodes.as_ref().map(|nodes| nodes.values().cloned().collect())
    }

    fn of<K: Kind>(&self) -> Arc<Store<K>> {
        self.stores.of::<K>(CONTROL)
    }

    pub(super) fn deployment(&self, key: &ObjectRef) -> Option<Arc<MachineDeployment>> {
        self.of::<MachineDeployment>().get(key)
    }

    fn owned_sets(&self, deployment: &ObjectRef) -> Vec<Arc<MachineSet>> {
        let deployment = self.deployment(deployment);
        let mut sets = deployment.map(|it| self.of::<MachineSet>().owned_by(uid(it.as_ref()))).unwrap_or_default();
        sets.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
        sets
    }

    /// The sets of a deployment.
    pub(super) fn sets(&self, deployment: &ObjectRef) -> Vec<ObjectRef> {
        self.owned_sets(deployment).iter().map(|set| ObjectRef::of(CONTROL, set.as_ref())).collect()
    }

    /// The Nodes of the Machines of a deployment.
    pub(super) fn node_keys(&self, deployment: &ObjectRef) -> Vec<ObjectRef> {
        let Some(nodes) = &self.nodes else { return vec![] };
        let sets = self.owned_sets(deployment);
        let machines = sets.iter().flat_map(|set| self.of::<Machine>().owned_by(uid(set.as_ref())));
        let names =
            machines.filter_map(|machine| node_name(&machine).filter(|it| nodes.contains_key(*it)).map(str::to_owned));
        names.map(|name| ObjectRef::new(TARGET, "", name)).collect()
    }

    /// How many Machines of a deployment run, and how many there are.
    pub(super) fn counts(&self, deployment: &ObjectRef) -> (usize, usize) {
        let sets = self.owned_sets(deployment);
        let machines: Vec<_> = sets.iter().flat_map(|set| self.of::<Machine>().owned_by(uid(set.as_ref()))).collect();
        (machines.iter().filter(|machine| is_ready(machine)).count(), machines.len())
    }

    /// Whether all Machines of a deployment have its template and run.
    pub(super) fn is_complete(&self, key: &ObjectRef) -> bool {
        let Some(deployment) = self.deployment(key) else { return true };
        let desired = usize::try_from(deployment.spec.replicas).unwrap_or_default();
        let sets = self.owned_sets(key);
        let current = sets.iter().filter(|set| template::is_same(&set.spec.template, &deployment.spec.template));
        let current = current.map(|set| self.of::<Machine>().owned_by(uid(set.as_ref()))).max_by_key(Vec::len);
        let updated = current.unwrap_or_default().into_iter().filter(|machine| is_ready(machine)).count();
        updated == desired && self.counts(key).1 == desired
    }

    pub(super) fn next_event(&self) -> Option<Timestamp> {
        self.events.next()
    }

    /// Lets all happen that happens up to this time.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = now;
        while let Some((key, event)) = self.events.pop(now) {
            let Some(machine) = self.of::<Machine>().get(&key) else { continue };
            if event == Event::Gone && is_deleting(machine.as_ref()) {
                self.remove(machine.as_ref());
            } else if matches!(event, Event::Permitted | Event::Updated | Event::Opened) {
                self.update(&machine, event);
            } else if let Ok(value) = serde_json::to_value(machine.as_ref())
                && let Some(value) = after(value, &machine, event, now)
            {
                self.changed = now;
                self.join(&machine, value, event);
            }
        }
    }

    /// Stores a Machine after an event, with its Node once it runs.
    fn join(&mut self, machine: &Machine, mut value: Value, event: Event) {
        let named = node_name(machine).unwrap_or(name(machine)).to_owned();
        let lacks_node = self.nodes.as_ref().is_some_and(|nodes| !nodes.contains_key(&named));
        let node = (event == Event::Running && lacks_node).then(|| nodes::joined(&named, vm_id(machine)));
        if node.is_some() {
            value["metadata"]["labels"][labels::NODE] = named.into();
        }
        self.store::<Machine>(value);
        if let Some(node) = node {
            self.store_node(node);
        }
    }

    /// What happens to a Machine whose Node is selected for an update in place.
    fn update(&mut self, machine: &Machine, event: Event) {
        let (node, now) = (node_name(machine).and_then(|name| self.nodes.as_ref()?.get(name)).cloned(), self.now);
        let Some(node) = node else { return };
        let Ok(decoded) = Node::deserialize(&node) else { return };
        let Some((node, phase)) = nodes::after(node, &decoded, event, now).filter(|_| !is_deleting(machine)) else {
            return;
        };
        self.changed = now;
        if event == Event::Permitted {
            self.record(machine, Verb::UpdateInPlace);
        }
        let value = serde_json::to_value(machine).ok();
        if let Some(value) = value.and_then(|value| machines::with_phase(value, phase?, now)) {
            self.store::<Machine>(value);
        }
        self.store_node(node);
    }

    /// What was done to Machines, and which sets were created.
    pub(super) fn take_changes(&mut self) -> (Vec<Change>, Vec<String>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.new_sets))
    }

    /// Carries a step out. Whether that changed anything; `None` if it is refused.
    pub(super) fn carry_out(&mut self, step: &Step<Never>) -> Option<bool> {
        let kind = match step {
            Step::Create { resource, .. } => resource.kind.clone(),
            Step::Apply(Apply { at, .. }) | Step::Edit { at, .. } | Step::Delete(at) => at.resource().kind.clone(),
            _ => return Some(false),
        };
        match &*kind {
            "MachineDeployment" => self.carry_out_on::<MachineDeployment>(step),
            "MachineSet" => self.carry_out_on::<MachineSet>(step),
            "Machine" => self.carry_out_on::<Machine>(step),
            "Node" => self.carry_out_on_node(step),
            _ => Some(false),
        }
    }

    fn carry_out_on<K: Kind + Serialize + DeserializeOwned>(&mut self, step: &Step<Never>) -> Option<bool> {
        let live = self.of::<K>().get(step.key()?);
        if let Step::Create { body, .. } = step {
            return live.is_none().then(|| self.create::<K>(body.clone()));
        }
        let live = live?;
        let before = serde_json::to_value(live.as_ref()).ok()?;
        match step {
            Step::Delete(_) => Some(self.delete(live.as_ref(), before)),
            Step::Edit { subresource, patch, .. } => {
                let after = edited(before.clone(), patch)?;
                Some(self.change(live.as_ref(), &before, after, subresource))
            }
            Step::Apply(apply) => {
                if apply.at.version().is_some_and(|version| version != resource_version(live.as_ref())) {
                    return None;
                }
                let after = applied(before.clone(), apply);
                Some(self.change(live.as_ref(), &before, after, apply.subresource))
            }
            _ => None,
        }
    }

    fn carry_out_on_node(&mut self, step: &Step<Never>) -> Option<bool> {
        let (Some(nodes), Step::Edit { patch, .. }) = (&self.nodes, step) else { return Some(false) };
        let before = nodes.get(&*step.key()?.name)?;
        let after = edited(before.clone(), patch)?;
        let is_changed = *before != after;
        if is_changed {
            self.store_node(after);
        }
        Some(is_changed)
    }

    fn create<K: Kind + DeserializeOwned>(&mut self, mut body: Value) -> bool {
        self.version += 1;
        let meta = &mut body["metadata"];
        meta["uid"] = format!("preview-{}", self.version).into();
        meta["creationTimestamp"] = whole_seconds(self.now).into();
        meta["generation"] = 1.into();
        let Some(object) = self.store::<K>(body) else { return false };
        self.record(object.as_ref(), Verb::Create);
        self.foresee(object.as_ref());
        true
    }

    fn delete<K: Kind + Serialize + DeserializeOwned>(&mut self, live: &K, mut value: Value) -> bool {
        if is_deleting(live) {
            return false;
        }
        self.record(live, Verb::Delete);
        let has_finalizers = live.meta().finalizers.as_ref().is_some_and(|all| !all.is_empty());
        // A Machine takes its time, whatever its finalizers.
        if !has_finalizers && !is::<K, Machine>() {
            self.remove(live);
            return true;
        }
        value["metadata"]["deletionTimestamp"] = whole_seconds(self.now).into();
        if let Some(object) = self.store::<K>(value) {
            self.foresee(object.as_ref());
        }
        true
    }

    fn change<K: Kind + DeserializeOwned>(
        &mut self,
        live: &K,
        before: &Value,
        mut after: Value,
        subresource: &str,
    ) -> bool {
        if *before == after {
            return false;
        }
        if before["spec"] != after["spec"] {
            after["metadata"]["generation"] = (live.meta().generation.unwrap_or_default() + 1).into();
        }
        let is_ended = is_deleting(live) && after.pointer("/metadata/finalizers").is_none_or(|all| all == &json!([]));
        if is_ended && !is::<K, Machine>() {
            self.remove(live);
            return true;
        }
        if subresource != STATUS && before["spec"] != after["spec"] {
            self.record(live, Verb::Update);
        }
        self.store::<K>(after);
        true
    }

    /// Stores a new version of an object.
    fn store<K: Kind + DeserializeOwned>(&mut self, mut value: Value) -> Option<Arc<K>> {
        self.version += 1;
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = serde_json::from_value::<K>(value).ok()?;
        let key = ObjectRef::of(CONTROL, &object);
        let store = self.of::<K>();
        store.apply(object);
        store.get(&key)
    }

    /// Stores a new version of a Node, and foresees what happens to it next.
    fn store_node(&mut self, mut value: Value) {
        self.version += 1;
        value["metadata"]["resourceVersion"] = self.version.to_string().into();
        let (Some(nodes), Ok(node)) = (&mut self.nodes, Node::deserialize(&value)) else { return };
        let named = name(&node).to_owned();
        nodes.insert(named.clone(), value);
        let next = nodes::foreseen(&node, self.durations.update, self.now);
        self.stores.of::<Node>(TARGET).apply(node);
        let machine = self.of::<Machine>().by(MACHINE_BY_NODE, &named).pop();
        if let (Some((at, event)), Some(machine)) = (next, machine) {
            self.events.add(at, ObjectRef::of(CONTROL, machine.as_ref()), event);
        }
    }

    fn remove<K: Kind>(&mut self, object: &K) {
        self.version += 1;
        let key = ObjectRef::of(CONTROL, object);
        self.of::<K>().remove(&key.namespace, &key.name, self.version);
        self.changed = self.now;
    }
}

impl Cluster {
    /// Notes what was done to an object.
    fn record<K: Kind>(&mut self, object: &K, verb: Verb) {
        if is::<K, MachineDeployment>() {
            return;
        }
        self.changed = self.now;
        if is::<K, MachineSet>() {
            self.new_sets.extend((verb == Verb::Create).then(|| name(object).to_owned()));
            return;
        }
        let set = controller(object).map(|owner| owner.name.clone()).unwrap_or_default();
        let machine = (!self.new_sets.contains(&set)).then(|| name(object).to_owned());
        self.changes.push(Change { at: self.now, verb, machine, set });
    }

    /// What a Machine that was created or deleted does by itself.
    fn foresee<K: Kind>(&mut self, object: &K) {
        let key = ObjectRef::of(CONTROL, object);
        if is::<K, Machine>()
            && let Some(machine) = self.of::<Machine>().get(&key)
        {
            self.events.foresee(&machine, self.durations, self.now);
        }
    }
}

fn is<K: Kind, O: Kind>() -> bool {
    TypeId::of::<K>() == TypeId::of::<O>()
}

/// Times of objects have whole seconds.
fn whole_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The object after a patch. Its tests hold: nobody else writes here.
fn edited(mut value: Value, patch: &Patch) -> Option<Value> {
    let changes = patch.0.iter().filter(|operation| !matches!(operation, PatchOperation::Test(_)));
    json_patch::patch(&mut value, &changes.cloned().collect::<Vec<_>>()).ok()?;
    Some(value)
}

/// The object after the fields of one owner are applied. Each owner here has all of a spec, but for the provider ID of a Machine,
/// and all of a status; of labels, annotations and the like it has some.
fn applied(mut live: Value, apply: &Apply) -> Value {
    let Value::Object(fragment) = apply.fragment() else { return live };
    for (part, fields) in fragment {
        match (part.as_str(), fields) {
            ("metadata", Value::Object(fields)) => merge(&mut live["metadata"], fields),
            ("spec", mut spec) => {
                let id = live.pointer("/spec/providerID").cloned();
                if let (Some(id), Some(spec)) = (id, spec.as_object_mut()) {
                    spec.insert("providerID".to_owned(), id);
                }
                live["spec"] = spec;
            }
            (_, fields) => live[part] = fields,
        }
    }
    live
}

/// Adds fields of the metadata: those of maps, and what lists lack.
fn merge(live: &mut Value, fields: Map<String, Value>) {
    for (key, value) in fields {
        match (&mut live[&key], value) {
            (Value::Object(known), Value::Object(more)) => known.extend(more),
            (Value::Array(known), Value::Array(more)) => {
                let lacking: Vec<_> = more.into_iter().filter(|item| !known.contains(item)).collect();
                known.extend(lacking);
            }
            (known, value) => *known = value,
        }
    }
}
