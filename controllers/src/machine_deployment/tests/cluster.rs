//! One MachineDeployment in the API server in process, and a minimal set controller.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use nodewright_api::{
    Machine, MachineDeployment, MachineSet,
    labels::{SCALE_UP_DISABLED, UPDATE_RESULT},
};
use nodewright_runtime::{
    apply_configuration::STATUS,
    cache::{Store, Stores, Unreadable},
    effect::{Never, Outcomes},
    object::{Kind, ObjectRef, ResourceType},
    plan::{Failure, FailureClass, Step, StepVerb, Waiting},
};
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};

use super::super::{plan::plan, snapshot::Snapshot};
use crate::testing::{NOW, machine};
use crate::{
    machine_deployment::memory::{Context, Note, Plan},
    shared::{
        CONTROL,
        fleet::{FleetSettings, PlanSettings},
        indexes::{MACHINE_BY_INSTANCE, ORPHAN_MACHINES, ORPHAN_SETS},
        node::Node,
        ownership::NodeProof,
    },
};

const API: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default";

/// The path of the deployment.
const POOL: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machinedeployments/pool";

/// The objects of a collection by name.
pub(crate) type Objects = BTreeMap<String, Arc<Value>>;

/// The failure to create a set.
pub(crate) fn failed_creation(set: &str, class: FailureClass, message: &str) -> Failure {
    Failure::of::<MachineSet>(StepVerb::Create, ObjectRef::new(CONTROL, "default", set), class, message)
}

/// An API server with one deployment.
pub(crate) struct Cluster {
    server: ApiServer,
    client: kube::Client,
    runtime: tokio::runtime::Runtime,
    clock: Arc<Mutex<Timestamp>>,
    made: u64,
    /// An older version of the deployment, which the cache still shows.
    pub(crate) cached: Option<Arc<Value>>,
    pub(crate) status_written: Option<Timestamp>,
    notes: BTreeMap<Note, Timestamp>,
    pub(crate) waits: Vec<Waiting>,
    pub(crate) failure: Option<Failure>,
    pub(crate) events: Vec<String>,
    pub(crate) full_schema: bool,
    pub(crate) fleet: FleetSettings,
    /// Existing sets that cannot be read.
    pub(crate) unreadable_sets: Vec<Arc<Unreadable>>,
    /// How many Machines of each set cannot be read.
    pub(crate) unreadable_machines: usize,
    /// Whether the API server of the target cluster answers.
    pub(crate) target: Option<bool>,
    /// The Nodes by the names of their Machines, if there is a target cluster.
    pub(crate) nodes: Option<BTreeMap<String, Value>>,
    /// A set that deletes no machine.
    pub(crate) stuck_set: Option<String>,
}

impl Cluster {
    pub(crate) fn of(deployment: Value) -> Self {
        let clock = Arc::new(Mutex::new(NOW.parse().unwrap()));
        let time = clock.clone();
        let server = ApiServer::with_time(move || *time.lock().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let client = {
            let _guard = runtime.enter();
            server.client()
        };
        let cluster = Self {
            server,
            client,
            runtime,
            clock,
            made: 0,
            cached: None,
            status_written: None,
            notes: BTreeMap::new(),
            waits: vec![],
            failure: None,
            events: vec![],
            full_schema: true,
            fleet: FleetSettings::default(),
            unreadable_sets: vec![],
            unreadable_machines: 0,
            target: None,
            nodes: None,
            stuck_set: None,
        };
        cluster.add::<MachineDeployment>(deployment);
        cluster
    }

    /// A cluster whose deployment has reached its goal.
    pub(crate) fn settled(deployment: Value) -> Self {
        let mut cluster = Self::of(deployment);
        cluster.settle();
        cluster.events.clear();
        cluster
    }

    /// Another client creates an object.
    pub(crate) fn add<K: Kind>(&self, mut object: Value) {
        let resource = ResourceType::of::<K>();
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = (&*resource.kind).into();
        self.server.seed(&resource.collection("default"), object);
    }

    pub(crate) fn now(&self) -> Timestamp {
        *self.clock.lock().unwrap()
    }

    pub(crate) fn set_now(&self, now: Timestamp) {
        *self.clock.lock().unwrap() = now;
    }

    pub(crate) fn deployment(&self) -> Option<Arc<Value>> {
        self.server.object(POOL)
    }

    pub(crate) fn live(&self) -> Arc<Value> {
        self.deployment().unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        self.live()["status"].clone()
    }

    fn objects(&self, plural: &str) -> Objects {
        let objects = self.server.objects(&format!("{API}/{plural}"));
        objects.into_iter().map(|it| (it["metadata"]["name"].as_str().unwrap().to_owned(), it)).collect()
    }

    pub(crate) fn sets(&self) -> Objects {
        self.objects("machinesets")
    }

    /// The only set, and its name.
    pub(crate) fn only_set(&self) -> (String, Arc<Value>) {
        let mut sets = self.sets();
        assert_eq!(sets.len(), 1, "{sets:?}");
        sets.pop_first().unwrap()
    }

    pub(crate) fn machines(&self) -> Objects {
        self.objects("machines")
    }

    /// Another client changes the deployment.
    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        self.server.change(POOL, edit).unwrap();
    }

    /// Another client changes all sets.
    pub(crate) fn edit_sets(&self, edit: impl Fn(&mut Value)) {
        for name in self.sets().keys() {
            self.server.change(&format!("{API}/machinesets/{name}"), &edit).unwrap();
        }
    }

    /// Another client changes a Machine.
    pub(crate) fn edit_machine(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        self.server.change(&format!("{API}/machines/{name}"), edit).unwrap();
    }

    /// Another client deletes an object.
    pub(crate) fn delete(&self, plural: &str, name: &str) {
        assert!(self.server.delete(&format!("{API}/{plural}/{name}")));
    }

    /// Another client removes a Machine and its finalizers.
    pub(crate) fn remove_machine(&self, name: &str) {
        self.server.remove(&format!("{API}/machines/{name}")).unwrap();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (sets, machines) = (Store::new(CONTROL, "default"), Store::new(CONTROL, "default"));
        sets.add_index(ORPHAN_SETS);
        machines.add_index(ORPHAN_MACHINES);
        machines.add_index(MACHINE_BY_INSTANCE);
        for set in self.sets().values() {
            sets.apply(decoded::<MachineSet>(set));
        }
        for machine in self.machines().values() {
            machines.apply(decoded::<Machine>(machine));
        }
        let deployment: MachineDeployment = decoded(&self.cached.clone().unwrap_or_else(|| self.live()));
        let stores = Stores::default().with(CONTROL, deployment);
        stores.add(Arc::new(sets));
        stores.add(Arc::new(machines));
        let settings = PlanSettings { fleet: self.fleet.clone(), full_schema: self.full_schema };
        let key = ObjectRef::new(CONTROL, "default", "pool");
        let mut snapshot =
            Snapshot::take(&stores, &key, self.nodes.is_some().then_some(NodeProof::Here), settings).unwrap();
        let nodes = self.nodes.iter().flatten().map(|(name, node)| (name.clone(), Arc::new(decoded::<Node>(node))));
        snapshot.nodes = self.nodes.is_some().then(|| nodes.collect());
        snapshot.unreadable.clone_from(&self.unreadable_sets);
        snapshot.target = self.target;
        for view in &mut snapshot.sets {
            view.unreadable = self.unreadable_machines;
        }
        snapshot
    }

    pub(crate) fn plan(&self) -> Plan {
        let outcomes = Outcomes::default();
        let now = self.now();
        let context = Context {
            failure: self.failure.as_ref(),
            notes: &self.notes,
            waits: &self.waits,
            status_written: self.status_written,
            ..Context::new(now, &outcomes)
        };
        plan(&context, &self.snapshot())
    }

    /// Makes a plan and executes it. Returns whether anything was done.
    pub(crate) fn act(&mut self) -> bool {
        let plan = self.plan();
        self.notes = plan.notes.clone().after(std::mem::take(&mut self.notes), self.now());
        for planned in plan.steps() {
            if let Step::ConfirmUnchanged(at) = &planned.step {
                let live = self.live()["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
                if at.clone().if_unchanged().version() != live {
                    return false;
                }
                continue;
            }
            self.runtime
                .block_on(self.send(&planned.step, "machine-deployment"))
                .unwrap_or_else(|error| panic!("{planned:?}: {error}"));
            if matches!(&planned.step, Step::Apply(apply) if apply.subresource == STATUS) {
                self.status_written = Some(self.now());
            }
        }
        self.events.extend(plan.events.iter().map(|event| event.message.clone()));
        !plan.is_idle()
    }

    /// Sends a step to the API server by kube's client.
    async fn send(&self, step: &Step<Never>, manager: &str) -> kube::Result<()> {
        let force = PatchParams::apply(manager).force();
        match step {
            Step::Create { key, resource, body, .. } => {
                let is_set = &*resource.kind == "MachineSet";
                assert!(!is_set || body["spec"]["replicas"] == 0, "a set is born without replicas");
                // An apply of version 1, which no object has, only creates.
                let mut body = body.clone();
                body["metadata"]["resourceVersion"] = "1".into();
                self.api(resource).patch(&key.name, &force, &Patch::Apply(body)).await.map(drop)
            }
            Step::Apply(apply) => {
                let (at, mut body) = (&apply.at, apply.fragment().clone());
                body["apiVersion"] = at.resource().api_version().into();
                body["kind"] = (&*at.resource().kind).into();
                body["metadata"]["name"] = (&*at.key().name).into();
                body["metadata"]["uid"] = at.uid().into();
                let is_set = &*at.resource().kind == "MachineSet" && apply.subresource.is_empty();
                assert!(!is_set || at.version().is_some(), "a write of a set is pinned");
                if let Some(version) = at.version() {
                    body["metadata"]["resourceVersion"] = version.to_string().into();
                }
                let (api, name, body) = (self.api(at.resource()), &at.key().name, Patch::Apply(body));
                match apply.subresource {
                    "" => api.patch(name, &force, &body).await.map(drop),
                    _ => api.patch_status(name, &force, &body).await.map(drop),
                }
            }
            Step::Edit { at, patch, .. } => {
                let patch = Patch::<()>::Json(patch.clone());
                self.api(at.resource()).patch(&at.key().name, &PatchParams::default(), &patch).await.map(drop)
            }
            Step::Confirm(at) => {
                let live = self.api(at.resource()).get(&at.key().name).await?;
                assert!(live.metadata.deletion_timestamp.is_none(), "an object in deletion adopts nothing");
                Ok(())
            }
            Step::Delete(at) => {
                let resource_version = at.version().map(|version| version.to_string());
                let preconditions = Preconditions { uid: Some(at.uid().to_owned()), resource_version };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
                self.api(at.resource()).delete(&at.key().name, &params).await.map(drop)
            }
            other => panic!("{other:?}"),
        }
    }

    fn api(&self, resource: &ResourceType) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            plural: resource.plural.to_string(),
        };
        Api::namespaced_with(self.client.clone(), "default", &resource)
    }

    /// Sends the steps of a plan of another controller.
    pub(crate) fn execute<N>(&self, plan: &nodewright_runtime::plan::Plan<Never, N>, manager: &str) {
        for planned in plan.steps() {
            self.runtime
                .block_on(self.send(&planned.step, manager))
                .unwrap_or_else(|error| panic!("{planned:?}: {error}"));
        }
    }

    /// The set controller observes its sets, and creates and deletes machines.
    pub(crate) fn sets_act(&mut self) {
        for (name, raw) in self.sets() {
            let set: MachineSet = decoded(&raw);
            let is_deleting = set.metadata.deletion_timestamp.is_some();
            let is_stuck = self.stuck_set.as_deref() == Some(&*name);
            let wanted = if is_stuck {
                self.machines_of(&name).len()
            } else if is_deleting {
                0
            } else {
                usize::try_from(set.spec.replicas).unwrap()
            };
            let mut staying = self.machines_of(&name);
            staying.retain(|(_, machine)| machine["metadata"]["deletionTimestamp"].is_null());
            staying.sort_by_key(|(_, machine)| is_ready(machine));
            let label = |object: &Value, key: &str| object["metadata"]["labels"][key].is_string();
            let counted: Vec<_> = staying.iter().filter(|(_, it)| is_deleting || !label(it, UPDATE_RESULT)).collect();
            for (surplus, _) in counted.iter().take(counted.len().saturating_sub(wanted)) {
                self.delete("machines", surplus);
            }
            let wanted = if label(&raw, SCALE_UP_DISABLED) { 0 } else { wanted };
            for _ in staying.len()..wanted {
                self.made += 1;
                let labels = raw["spec"]["template"]["metadata"]["labels"].clone();
                let machine = machine(&format!("{name}-{}", self.made)).owned_by(&set).with("/metadata/labels", labels);
                self.add::<Machine>(serde_json::to_value(machine.build()).unwrap());
            }
            let path = format!("{API}/machinesets/{name}");
            if is_deleting && self.machines_of(&name).is_empty() {
                self.server.remove(&path).unwrap();
            } else {
                let generation = raw["metadata"]["generation"].clone();
                self.server.change(&path, |set| set["status"]["observedGeneration"] = generation).unwrap();
            }
        }
    }

    pub(crate) fn machines_of(&self, set: &str) -> Vec<(String, Arc<Value>)> {
        let is_owned = |machine: &Value| machine["metadata"]["ownerReferences"][0]["name"] == set;
        self.machines().into_iter().filter(|(_, machine)| is_owned(machine)).collect()
    }

    /// Removes one machine in deletion, if there is one.
    pub(crate) fn one_vanishes(&mut self) -> bool {
        let machines = self.machines();
        let leaving = machines.iter().find(|(_, machine)| machine["metadata"]["deletionTimestamp"].is_string());
        leaving.map(|(name, _)| self.remove_machine(name)).is_some()
    }

    /// Makes one machine ready, if there is one that is not.
    pub(crate) fn one_gets_ready(&mut self) -> bool {
        let machines = self.machines();
        let waiting = |machine: &Value| {
            machine["status"]["currentStatus"]["phase"] != "Running"
                && machine["metadata"]["deletionTimestamp"].is_null()
        };
        let next = machines.iter().find(|(_, machine)| waiting(machine));
        let now = self.now().to_string();
        let running = |machine: &mut Value| {
            machine["status"]["currentStatus"] = json!({"phase": "Running", "lastUpdateTime": now});
        };
        next.map(|(name, _)| self.edit_machine(name, running)).is_some()
    }

    /// Lets everything happen, slowly, until nothing changes any more; calls `check` after each change.
    pub(crate) fn settle_checking(&mut self, check: impl Fn(&Self)) {
        for _ in 0..2_000 {
            let mut changed = false;
            for _ in 0..20 {
                if self.deployment().is_none() || !self.act() {
                    break;
                }
                changed = true;
                check(self);
            }
            self.sets_act();
            check(self);
            changed |= self.one_vanishes() || self.one_gets_ready();
            check(self);
            changed |= self.deployment().is_some() && self.plan().waits.iter().any(|wait| wait.until.is_some());
            self.set_now(self.now() + SignedDuration::from_secs(3));
            if !changed {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", self.sets());
    }

    /// Lets a rollout last long enough to delete machines.
    pub(crate) fn let_time_pass(&mut self) {
        self.set_now(self.now() + SignedDuration::from_secs(6));
    }

    pub(crate) fn settle(&mut self) {
        self.settle_checking(|_| {});
    }

    pub(crate) fn ready(&self) -> usize {
        self.machines().values().filter(|machine| is_ready(machine)).count()
    }

    pub(crate) fn replicas(&self) -> Vec<i64> {
        let mut sets: Vec<_> = self.sets().into_values().collect();
        sets.sort_by_key(|set| set["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
        sets.iter().map(|set| set["spec"]["replicas"].as_i64().unwrap()).collect()
    }

    pub(crate) fn change(&mut self, pointer: &str, value: Value) {
        self.edit(|live| match live.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => panic!("{pointer} is not in {live}"),
        });
    }

    pub(crate) fn annotate(&mut self, key: &str, value: &str) {
        self.edit(|live| live["metadata"]["annotations"][key] = value.into());
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<Value> {
        self.status()["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
    }

    pub(crate) fn reason(&self, kind: &str) -> String {
        let condition = self.condition(kind).unwrap_or_default();
        condition["reason"].as_str().unwrap_or_default().to_owned()
    }
}

fn decoded<K: serde::de::DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}

fn is_ready(machine: &Value) -> bool {
    machine["status"]["currentStatus"]["phase"] == "Running" && machine["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn kinds(plan: &Plan) -> Vec<String> {
    let word = |step: &Step<Never>| match step {
        Step::Apply(apply) => {
            let subresource = if apply.subresource.is_empty() { "" } else { "/status" };
            format!("apply {}{subresource}", apply.at.resource().kind)
        }
        Step::Create { key, .. } => format!("create {}", key.name),
        Step::Edit { at, .. } => format!("edit {}", at.resource().kind),
        Step::Confirm(at) => format!("confirm {}", at.resource().kind),
        Step::ConfirmUnchanged(at) => format!("confirm unchanged {}", at.resource().kind),
        Step::Delete(target) => format!("delete {}", target.key().name),
        other => format!("{other:?}"),
    };
    plan.steps().map(|planned| word(&planned.step)).collect()
}
