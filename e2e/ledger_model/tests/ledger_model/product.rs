//! The product's decisions: the plans of a MachineSet and of its Machines, and the check before a VM is created.
//!
//! Each decision is computed with stores that hold the planner's view. Results are cached: there are few views, and very many
//! states.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

use nodewright_api::{Code, Machine, MachineClass, MachineSet, annotations};
use nodewright_controllers::{
    machine::{Call, MachineController, MachineMetrics, Outcome, Request as CallRequest, Verb},
    machine_set::{MachineSetController, StaleMachines},
    shared::{
        CONTROL,
        fleet::FleetSettings,
        ledger::{Ledger, Ordinal},
    },
};
use nodewright_driver::DriverError;
use nodewright_driver_simulated::{Options as DriverOptions, PROVIDER, SimulatedDriver};
use nodewright_runtime::{
    cache::Stores,
    controller::Controller,
    effect::{Effect, Outcomes},
    leadership::Leadership,
    manager::{Manager, Options},
    object::{Kind, ObjectRef},
    plan::{Apply, Context, Failure, FailureClass, Plan, Step, StepVerb},
};
use nodewright_testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    mutants::Mutant,
    state::{INDICES, Phase, Request, Set, Slot, Table},
};

/// The time of all plans.
const NOW: &str = "2026-06-01T12:00:00Z";
const NAMESPACE: &str = "default";
const SET: &str = "set";
const CLASS: &str = "class";
const EMPTY: &str = "k7f;";

/// The decision of a MachineSet.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    /// The requests, in order; each stage has one kind.
    pub(super) steps: Vec<Request>,
    /// Whether the plan requires an index beyond the bounds.
    pub(super) is_beyond: bool,
}

/// The next step of a deleting Machine that has no VM any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It waits until its name is retired.
    Waits,
    /// It retires the name itself.
    Retires(Request),
    /// It drops the finalizer.
    Drops,
}

type Answers<T> = RefCell<HashMap<u64, T>>;

pub(super) struct Product {
    mutant: Option<Mutant>,
    sets: MachineSetController,
    machines: MachineController,
    stores: Stores,
    indices: Vec<Ordinal>,
    /// The Machine of each index, as created by the set's own plan.
    created: Vec<Value>,
    decisions: Answers<Rc<Decision>>,
    create_calls: Answers<Option<Arc<CallRequest>>>,
    ends: Answers<End>,
    last_checks: Answers<bool>,
}

/// Stores with the indexes of both controllers.
fn stores(sets: &MachineSetController, machines: &MachineController) -> Stores {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let mut manager = Manager::new(Options::new("nodewright", "test", CONTROL, ApiServer::new().client()));
    manager.add(sets.clone());
    // Plans only name calls; nothing executes them.
    manager.add_with(machines.clone(), |call| async move { unreachable!("the model makes no call: {call:?}") });
    manager.stores()
}

impl Product {
    pub(super) fn new(mutant: Option<Mutant>) -> Self {
        let empty: Ledger = EMPTY.parse().unwrap();
        let indices = empty.lowest_free(&BTreeSet::new(), INDICES);
        let driver = SimulatedDriver::new(&DriverOptions::new("http://unused"), &Leadership::default()).unwrap();
        let (namespace, settings) = (NAMESPACE.to_owned(), Arc::default());
        let machines =
            MachineController { namespace, settings, driver: Arc::new(driver), metrics: MachineMetrics::default() };
        let sets = MachineSetController {
            namespace: NAMESPACE.into(),
            full_schema: true.into(),
            fleet: FleetSettings::default(),
            stale: StaleMachines::default(),
        };
        let stores = stores(&sets, &machines);
        let (decisions, create_calls, ends, last_checks) = Default::default();
        let mut product = Self {
            mutant,
            sets,
            machines,
            stores,
            indices,
            created: vec![],
            decisions,
            create_calls,
            ends,
            last_checks,
        };
        product.show([class()]);
        let all = Set { replicas: u8::try_from(INDICES).unwrap(), ..Set::default() };
        let plan = product.plan(all, Table::default(), None);
        let bodies = plan.steps().filter_map(|planned| match &planned.step {
            Step::Create { body, .. } => Some(body.clone()),
            _ => None,
        });
        product.created = bodies.collect();
        assert_eq!(product.created.len(), INDICES);
        product
    }

    /// Replaces the cache of a kind by these objects.
    fn show<K: Kind>(&self, objects: impl IntoIterator<Item = K>) {
        let store = self.stores.of::<K>(CONTROL);
        store.begin_list();
        store.end_list(0, Instant::now());
        objects.into_iter().for_each(|object| drop(store.apply(object)));
    }

    /// The decision of a set with this view, after the creation of index `taken` failed because the name is taken.
    pub(super) fn decide(&self, set: Set, machines: Table, taken: Option<u8>) -> Rc<Decision> {
        let question = machines.iter().fold(set.bits(), |bits, slot| bits << 4 | *slot as u64);
        let question = question << 3 | taken.map_or(7, u64::from);
        if let Some(known) = self.decisions.borrow().get(&question) {
            return known.clone();
        }
        let mut decision = self.read(&self.plan(set, machines, taken));
        if let Some(mutant) = self.mutant {
            mutant.change(&mut decision, set, machines);
        }
        let decision = Rc::new(decision);
        self.decisions.borrow_mut().insert(question, decision.clone());
        decision
    }

    fn plan(&self, set: Set, machines: Table, taken: Option<u8>) -> PlanOf<MachineSetController> {
        let present = machines.iter().enumerate().filter(|(_, slot)| !slot.is_empty());
        self.show(present.map(|(index, slot)| self.machine(index, *slot, NOW)));
        self.show([self.set(set)]);
        let failure = taken.map(|index| {
            Failure::of::<Machine>(
                StepVerb::Create,
                key(self.name(usize::from(index))),
                FailureClass::AlreadyExists,
                "already exists",
            )
        });
        let snapshot = self.sets.snapshot(&self.stores, &key(SET.into())).unwrap();
        MachineSetController::plan(&moment(failure.as_ref(), &Outcomes::default()), &snapshot)
    }

    /// The requests of a plan. Writes of the status are left out: see the caveats of the crate.
    fn read<E: std::fmt::Debug, N>(&self, plan: &Plan<E, N>) -> Decision {
        let mut decision = Decision::default();
        for stage in &plan.stages {
            let before = decision.steps.len();
            for planned in stage {
                match &planned.step {
                    Step::Apply(apply) if apply.fragment().get("status").is_some() => {}
                    Step::Apply(apply) => decision.steps.push(self.retirement(apply)),
                    Step::Edit { .. } => decision.steps.push(Request::Release),
                    Step::Create { key, .. } => match self.index(&key.name) {
                        Some(index) => decision.steps.push(Request::Create { index }),
                        None => decision.is_beyond = true,
                    },
                    Step::Delete(at) => {
                        let index = self.index(&at.key().name).unwrap();
                        let life = if at.uid() == second_uid(&at.key().name) { 2 } else { 1 };
                        decision.steps.push(Request::Delete { index, life, pinned: at.version().is_some() });
                    }
                    other => panic!("the model knows no such step: {other:?}"),
                }
            }
            let mut kinds = decision.steps[before..].windows(2);
            assert!(kinds.all(|pair| pair[0].is_like(pair[1])), "a stage does one kind of thing");
        }
        decision
    }

    fn retirement(&self, apply: &Apply) -> Request {
        let key = annotations::LEDGER.replace('/', "~1");
        let fragment = apply.fragment();
        let text = fragment.pointer(&format!("/metadata/annotations/{key}")).and_then(Value::as_str);
        let ledger: Ledger = text.unwrap_or_else(|| panic!("no ledger: {apply:?}")).parse().unwrap();
        let retired = self.indices.iter().enumerate().filter(|(_, index)| ledger.is_retired(**index));
        let retired = retired.map(|(place, _)| 1 << place).sum();
        assert_eq!(ledger.retired_count(), u64::from(u8::count_ones(retired)), "an index that nobody has used");
        Request::Retire { retired, pinned: apply.at.version().is_some() }
    }

    /// The create call of a Machine without a VM and with this view of its set, if it makes one.
    fn create_call(&self, set: Set, index: usize, slot: Slot) -> Option<Arc<CallRequest>> {
        let question = set.bits() << 8 | (index as u64) << 4 | slot as u64;
        let known = self.create_calls.borrow().get(&question).cloned();
        known.unwrap_or_else(|| {
            let (calls, _) = self.run_machine(set, index, slot, NOW);
            let create = calls.into_iter().find(|call| call.verb == Verb::Create).map(|call| call.request);
            self.create_calls.borrow_mut().insert(question, create.clone());
            create
        })
    }

    /// Whether a Machine with the view `seen` of its set gets a VM: it makes the create call, and the current set (`truth`)
    /// still has a place for it.
    pub(super) fn gets_vm(&self, seen: Set, index: usize, slot: Slot, truth: Set) -> bool {
        let Some(request) = self.create_call(seen, index, slot) else { return false };
        let Some(origin) = request.origin.as_ref().filter(|_| self.mutant != Some(Mutant::NoLastLook)) else {
            return true;
        };
        let question = truth.bits() << 8 | index as u64;
        let known = self.last_checks.borrow().get(&question).copied();
        known.unwrap_or_else(|| {
            let has_future = truth.phase != Phase::Gone && origin.has_future(&self.set(truth));
            self.last_checks.borrow_mut().insert(question, has_future);
            has_future
        })
    }

    /// The next step of a Machine whose deletion began seconds, or (`for_long`) minutes ago.
    pub(super) fn end(&self, seen: Set, index: usize, slot: Slot, for_long: bool) -> End {
        let question = seen.bits() << 16 | (index as u64) << 8 | (slot as u64) << 4 | u64::from(for_long);
        let known = self.ends.borrow().get(&question).copied();
        known.unwrap_or_else(|| {
            let since = if for_long { "2026-06-01T11:50:00Z" } else { "2026-06-01T11:59:50Z" };
            let (_, last) = self.run_machine(seen, index, slot, since);
            let mut end = End::Waits;
            for planned in last.steps() {
                match &planned.step {
                    Step::Edit { .. } => end = End::Drops,
                    Step::Apply(apply) => end = End::Retires(self.retirement(apply)),
                    other => panic!("the model knows no such step: {other:?}"),
                }
            }
            if self.mutant == Some(Mutant::FinalizerDropped) {
                end = End::Drops;
            }
            self.ends.borrow_mut().insert(question, end);
            end
        })
    }

    /// Runs the plans of a Machine, with a provider that has no VM of it, until it makes no more calls or makes a create call.
    /// Returns the calls and the last plan.
    fn run_machine(&self, set: Set, index: usize, slot: Slot, since: &str) -> (Vec<Call>, PlanOf<MachineController>) {
        self.show((set.phase != Phase::Gone).then(|| self.set(set)));
        self.show([self.machine(index, slot, since)]);
        let snapshot = self.machines.snapshot(&self.stores, &key(self.name(index))).unwrap();
        let (mut outcomes, mut calls) = (Outcomes::default(), vec![]);
        loop {
            let moment = moment(None, &outcomes);
            let (plan, now) = (MachineController::plan(&moment, &snapshot), moment.now);
            let call = plan.steps().find_map(|planned| match &planned.step {
                Step::Call(call) => Some(call.clone()),
                _ => None,
            });
            let Some(call) = call else { return (calls, plan) };
            outcomes.begin(&call, now);
            let none = Outcome::Failed(DriverError::new(Code::NotFound, "there is no VM"));
            outcomes.finish(&call, now, if call.verb == Verb::Delete { Outcome::Done } else { none });
            let is_creation = call.verb == Verb::Create;
            calls.push(call);
            assert!(calls.len() < 9, "it makes calls for ever: {calls:?}");
            if is_creation {
                return (calls, Plan::idle());
            }
        }
    }

    fn set(&self, set: Set) -> MachineSet {
        let empty: Ledger = EMPTY.parse().unwrap();
        let retired = self.indices.iter().enumerate().filter(|(place, _)| set.has_retired(*place));
        let ledger = empty.retire(retired.map(|(_, index)| *index)).to_string();
        let deleted = (set.phase == Phase::Leaves).then_some("2026-06-01T11:00:00Z");
        let labels = json!({"name": SET});
        let object = json!({
            "metadata": {"name": SET, "namespace": NAMESPACE, "uid": "uid-set", "resourceVersion": "20",
                "generation": 1, "creationTimestamp": "2026-06-01T10:00:00Z", "deletionTimestamp": deleted,
                "annotations": {annotations::LEDGER: ledger},
                "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
            "spec": {"replicas": set.replicas, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels},
                    "spec": {"class": {"kind": "MachineClass", "name": CLASS}}}}
        });
        serde_json::from_value(object).unwrap()
    }

    /// The Machine under the name of an index; its deletion, if any, began at `since`.
    fn machine(&self, index: usize, slot: Slot, since: &str) -> Machine {
        let mut body = self.created[index].clone();
        let name = self.name(index);
        let uid = if slot.life() == 2 { second_uid(&name) } else { format!("uid-{name}") };
        let meta = json!({"uid": uid, "resourceVersion": "10", "creationTimestamp": "2026-06-01T11:00:00Z"});
        json_patch::merge(&mut body, &json!({"metadata": meta, "status": {"currentStatus": {}}}));
        let phase = match slot {
            Slot::Ready => "Running",
            Slot::Failed => "Failed",
            _ if slot.is_leaving() => "Terminating",
            _ => "",
        };
        body["status"]["currentStatus"]["phase"] = phase.into();
        if slot.is_leaving() {
            body["metadata"]["deletionTimestamp"] = since.into();
        }
        if slot == Slot::Foreign {
            let foreign = json!({"uid": "uid-foreign", "ownerReferences": null, "annotations": null, "labels": null});
            json_patch::merge(&mut body["metadata"], &foreign);
        }
        serde_json::from_value(body).unwrap()
    }

    fn name(&self, index: usize) -> String {
        EMPTY.parse::<Ledger>().unwrap().name(SET, self.indices[index])
    }

    /// The index of a name; `None` beyond the bounds.
    fn index(&self, name: &str) -> Option<u8> {
        (0..INDICES).find(|index| self.name(*index) == name).and_then(|index| u8::try_from(index).ok())
    }
}

fn key(name: String) -> ObjectRef {
    ObjectRef::new(CONTROL, NAMESPACE, name)
}

/// A usable class: without Secrets, and with its finalizer.
fn class() -> MachineClass {
    let object = json!({
        "metadata": {"name": CLASS, "namespace": NAMESPACE, "uid": "uid-class", "resourceVersion": "5", "generation": 1,
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
        "provider": PROVIDER, "providerSpec": {"cluster": "c"},
    });
    serde_json::from_value(object).unwrap()
}

type PlanOf<C> = Plan<<C as Controller>::Effect, <C as Controller>::Note>;

fn second_uid(name: &str) -> String {
    format!("uid-{name}-2")
}

fn moment<'a, E: Effect, N: Ord + 'static>(
    failure: Option<&'a Failure>,
    outcomes: &'a Outcomes<E>,
) -> Context<'a, E, N> {
    Context { now: NOW.parse().unwrap(), failure, ..Context::new("2026-06-01T09:00:00Z".parse().unwrap(), outcomes) }
}
