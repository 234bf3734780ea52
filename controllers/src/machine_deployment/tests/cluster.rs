//! A cluster with one deployment and a minimal set controller.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_runtime::{
    apply_configuration::Subresource,
    cache::Unreadable,
    effect::{Never, Outcomes},
    object::{ObjectRef, controller_uid},
    plan::{Context, FailedStep, Failure, Plan, Step, StepVerb},
};
use serde_json::{Value, json};

use super::super::{
    reconcile::plan,
    snapshot::{SetView, Snapshot, may_adopt},
    template,
};
use crate::shared::clusters::CONTROL;
use crate::{
    shared::membership::would_adopt,
    testing::{NOW, machine},
};

/// The failed creation of a set.
pub(super) fn creation(set: &str) -> FailedStep {
    FailedStep::of::<MachineSet>(StepVerb::Create, ObjectRef::new(CONTROL, "default", set))
}

/// A cluster that holds one deployment.
pub(super) struct Cluster {
    pub(super) deployment: Option<Value>,
    pub(super) sets: BTreeMap<String, Value>,
    pub(super) machines: BTreeMap<String, Value>,
    version: u64,
    made: u64,
    pub(super) now: Timestamp,
    pub(super) status_written: Option<Timestamp>,
    pub(super) failure: Option<Failure>,
    pub(super) events: Vec<String>,
    pub(super) full_schema: bool,
    /// Existing sets that cannot be read.
    pub(super) unreadable_sets: Vec<Arc<Unreadable>>,
    /// How many Machines of each set cannot be read.
    pub(super) unreadable_machines: usize,
}

impl Cluster {
    pub(super) fn of(deployment: Value) -> Self {
        Self {
            deployment: Some(deployment),
            sets: BTreeMap::new(),
            machines: BTreeMap::new(),
            version: 100,
            made: 0,
            now: NOW.parse().unwrap(),
            status_written: None,
            failure: None,
            events: vec![],
            full_schema: true,
            unreadable_sets: vec![],
            unreadable_machines: 0,
        }
    }

    /// A cluster whose deployment has reached its goal.
    pub(super) fn settled(deployment: Value) -> Self {
        let mut cluster = Self::of(deployment);
        cluster.settle();
        cluster.events.clear();
        cluster
    }

    pub(super) fn live(&self) -> &Value {
        self.deployment.as_ref().unwrap()
    }

    pub(super) fn live_mut(&mut self) -> &mut Value {
        self.deployment.as_mut().unwrap()
    }

    pub(super) fn status(&self) -> &Value {
        &self.live()["status"]
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let deployment: MachineDeployment = serde_json::from_value(self.live().clone()).unwrap();
        let all = self.sets.values().map(|set| Arc::new(serde_json::from_value::<MachineSet>(set.clone()).unwrap()));
        let all: Vec<_> = all.collect();
        let machines: Vec<Arc<Machine>> =
            self.machines.values().map(|it| Arc::new(serde_json::from_value(it.clone()).unwrap())).collect();
        let is_orphan = |machine: &Machine| controller_uid(machine).is_none();
        let owner = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"].as_str().map(str::to_owned);
        let mut sets: Vec<_> = self
            .sets
            .values()
            .zip(&all)
            .filter(|(raw, _)| owner(raw).as_deref() == Some("uid-pool"))
            .map(|(_, set)| SetView {
                set: set.clone(),
                machines: machines
                    .iter()
                    .filter(|it| controller_uid(it.as_ref()) == set.metadata.uid.as_deref())
                    .cloned()
                    .collect(),
                orphans: machines.iter().filter(|it| is_orphan(it) && would_adopt(set, it)).cloned().collect(),
                unreadable: self.unreadable_machines,
            })
            .collect();
        sets.sort_by_key(|view| view.set.metadata.creation_timestamp.clone().map(|time| time.0));
        let orphans =
            self.sets.values().zip(&all).filter(|(raw, set)| owner(raw).is_none() && may_adopt(&deployment, set));
        let orphans = orphans.map(|(_, set)| set.clone()).collect();
        let name = template::set_name(&deployment);
        let namesake = all.iter().find(|set| set.metadata.name.as_ref() == Some(&name)).cloned();
        let unreadable = self.unreadable_sets.clone();
        Snapshot { deployment: Arc::new(deployment), sets, orphans, unreadable, namesake }
    }

    pub(super) fn plan(&self) -> Plan<Never> {
        let outcomes = Outcomes::default();
        let moment = Context {
            now: self.now,
            leader_since: self.now,
            connected_since: self.now,
            attempt: 0,
            failure: self.failure.as_ref(),
            outcomes: &outcomes,
            refusals: &[],
            status_written: self.status_written,
        };
        plan(&moment, &self.snapshot(), self.full_schema)
    }

    /// Makes a plan and executes it. Returns whether anything was done.
    pub(super) fn act(&mut self) -> bool {
        let plan = self.plan();
        let steps: Vec<_> = plan.steps().map(|planned| planned.step.clone()).collect();
        for step in &steps {
            self.execute(step);
        }
        self.events.extend(plan.events.iter().map(|event| event.message.clone()));
        !steps.is_empty()
    }

    pub(super) fn execute(&mut self, step: &Step<Never>) {
        self.version += 1;
        let version = self.version;
        match step {
            Step::Create { key, body, .. } => {
                let mut set = body.clone();
                assert_eq!(set["spec"]["replicas"], 0, "a set is born without replicas");
                let name = key.name.to_string();
                self.made += 1;
                set["metadata"]["uid"] = format!("uid-{name}").into();
                set["metadata"]["generation"] = 1.into();
                let created = self.now + SignedDuration::from_secs(i64::try_from(self.made).unwrap());
                set["metadata"]["creationTimestamp"] = format!("{created:.0}").into();
                set["metadata"]["resourceVersion"] = version.to_string().into();
                assert!(self.sets.insert(name, set).is_none(), "the name was taken");
            }
            Step::Apply(apply) => {
                let is_set = &*apply.at().resource().kind == "MachineSet";
                let name = apply.at().key().name.to_string();
                let object = if is_set { self.sets.get_mut(&name).unwrap() } else { self.deployment.as_mut().unwrap() };
                if is_set {
                    let seen = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
                    assert_eq!(apply.at().version().map(|it| it.to_string()), seen, "a write of a set is pinned");
                }
                if apply.part() == Subresource::Status {
                    object["status"] = apply.fragment()["status"].clone();
                    self.status_written = Some(self.now);
                } else {
                    let before = object["spec"].clone();
                    overlay(object, apply.fragment());
                    if is_set && before != object["spec"] {
                        object["metadata"]["generation"] =
                            (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
                    }
                }
                object["metadata"]["resourceVersion"] = version.to_string().into();
            }
            Step::Edit { at, patch, .. } => {
                let name = at.key().name.to_string();
                let is_machine = &*at.resource().kind == "Machine";
                let object =
                    if is_machine { self.machines.get_mut(&name).unwrap() } else { self.deployment.as_mut().unwrap() };
                nodewright_testing::json_patch(object, patch).unwrap();
                object["metadata"]["resourceVersion"] = version.to_string().into();
                let gone = object["metadata"]["deletionTimestamp"].is_string()
                    && object["metadata"]["finalizers"] == json!([]);
                if gone && !is_machine {
                    self.deployment = None;
                }
            }
            Step::Confirm(_) => {
                let deployment = self.deployment.as_ref().unwrap();
                assert_eq!(
                    deployment["metadata"]["deletionTimestamp"],
                    json!(null),
                    "who is being deleted takes nobody"
                );
            }
            Step::Delete(target) => {
                let set = self.sets.get_mut(&*target.key().name).unwrap();
                set["metadata"]["deletionTimestamp"] = NOW.into();
            }
            other => panic!("{other:?}"),
        }
    }

    /// The set controller observes its sets, and creates and deletes machines.
    pub(super) fn sets_act(&mut self) {
        let names: Vec<_> = self.sets.keys().cloned().collect();
        for name in names {
            let set: MachineSet = serde_json::from_value(self.sets[&name].clone()).unwrap();
            let labels = self.sets[&name]["spec"]["template"]["metadata"]["labels"].clone();
            let deleting = set.metadata.deletion_timestamp.is_some();
            let wanted = if deleting { 0 } else { usize::try_from(set.spec.replicas).unwrap() };
            let mut live = self.machines_of(&name, |machine| !machine["metadata"]["deletionTimestamp"].is_string());
            live.sort_by_key(|it| self.machines[it]["status"]["currentStatus"]["phase"] == "Running");
            for gone in live.iter().take(live.len().saturating_sub(wanted)) {
                self.machines.get_mut(gone).unwrap()["metadata"]["deletionTimestamp"] = NOW.into();
            }
            for _ in live.len()..wanted {
                self.made += 1;
                let name = format!("{name}-{}", self.made);
                let born = machine(&name).owned_by(&set).with("/metadata/labels", labels.clone()).build();
                self.machines.insert(name, serde_json::to_value(born).unwrap());
            }
            if deleting && self.machines_of(&name, |_| true).is_empty() {
                self.sets.remove(&name);
                continue;
            }
            let generation = self.sets[&name]["metadata"]["generation"].clone();
            self.version += 1;
            let version = self.version.to_string();
            let raw = self.sets.get_mut(&name).unwrap();
            raw["metadata"]["resourceVersion"] = version.into();
            raw["status"]["observedGeneration"] = generation;
        }
    }

    pub(super) fn machines_of(&self, set: &str, keep: impl Fn(&Value) -> bool) -> Vec<String> {
        let owned = |machine: &Value| machine["metadata"]["ownerReferences"][0]["name"] == set;
        let all = self.machines.iter().filter(|(_, machine)| owned(machine) && keep(machine));
        all.map(|(name, _)| name.clone()).collect()
    }

    /// Removes one machine in deletion, if there is one.
    pub(super) fn one_vanishes(&mut self) -> bool {
        let leaving = |machine: &Value| machine["metadata"]["deletionTimestamp"].is_string();
        let gone = self.machines.iter().find(|(_, machine)| leaving(machine)).map(|(name, _)| name.clone());
        gone.and_then(|name| self.machines.remove(&name)).is_some()
    }

    /// Makes one machine ready, if there is one that is not.
    pub(super) fn one_gets_ready(&mut self) -> bool {
        let waits = |machine: &&mut Value| {
            machine["status"]["currentStatus"]["phase"] != "Running"
                && !machine["metadata"]["deletionTimestamp"].is_string()
        };
        let next = self.machines.values_mut().find(waits);
        next.map(|machine| machine["status"]["currentStatus"]["phase"] = "Running".into()).is_some()
    }

    /// Lets everything happen, slowly, until nothing changes any more; calls `check` after each change.
    pub(super) fn settle_checking(&mut self, check: impl Fn(&Self)) {
        for _ in 0..2_000 {
            let mut changed = false;
            for _ in 0..20 {
                if self.deployment.is_none() || !self.act() {
                    break;
                }
                changed = true;
                check(self);
            }
            self.sets_act();
            check(self);
            changed |= self.one_vanishes() || self.one_gets_ready();
            check(self);
            self.now += SignedDuration::from_secs(3);
            if !changed {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", self.sets);
    }

    pub(super) fn settle(&mut self) {
        self.settle_checking(|_| {});
    }

    pub(super) fn ready(&self) -> usize {
        let ready = |machine: &&Value| {
            machine["status"]["currentStatus"]["phase"] == "Running"
                && !machine["metadata"]["deletionTimestamp"].is_string()
        };
        self.machines.values().filter(ready).count()
    }

    pub(super) fn replicas(&self) -> Vec<i64> {
        let mut sets: Vec<_> = self.sets.values().collect();
        sets.sort_by_key(|set| set["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
        sets.iter().map(|set| set["spec"]["replicas"].as_i64().unwrap()).collect()
    }

    pub(super) fn change(&mut self, pointer: &str, value: Value) {
        let live = self.live_mut();
        *live.pointer_mut(pointer).unwrap() = value;
        live["metadata"]["generation"] = (live["metadata"]["generation"].as_i64().unwrap() + 1).into();
    }

    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        self.live_mut()["metadata"]["annotations"][key] = value.into();
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&Value> {
        self.status()["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
    }

    pub(super) fn reason(&self, kind: &str) -> &str {
        self.condition(kind).and_then(|condition| condition["reason"].as_str()).unwrap_or_default()
    }
}

/// Applies a fragment with force, as far as these tests need.
fn overlay(object: &mut Value, fragment: &Value) {
    match (object, fragment) {
        (Value::Object(object), Value::Object(fragment)) => {
            for (key, value) in fragment {
                if key == "spec" {
                    object.insert(key.clone(), value.clone());
                } else {
                    overlay(object.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (object, fragment) => *object = fragment.clone(),
    }
}

pub(super) fn kinds(plan: &Plan<Never>) -> Vec<String> {
    let word = |step: &Step<Never>| match step {
        Step::Apply(apply) => format!("apply {}{}", apply.at().resource().kind, apply.part().suffix()),
        Step::Create { key, .. } => format!("create {}", key.name),
        Step::Edit { at, .. } => format!("edit {}", at.resource().kind),
        Step::Confirm(at) => format!("confirm {}", at.resource().kind),
        Step::Delete(target) => format!("delete {}", target.key().name),
        other => format!("{other:?}"),
    };
    plan.steps().map(|planned| word(&planned.step)).collect()
}
