//! The decisions, as the product makes them: the plans of a MachineSet and of its Machines, and the last look before a VM.
//!
//! Each is asked with objects that are built from what a planner has seen, and remembered: there are few views, and very
//! many states.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

use nodewright_api::{Code, Machine, MachineSet, annotations};
use nodewright_driver::DriverError;
use nodewright_runtime::{
    controller::Controller,
    effect::{Effect, Outcomes},
    object::{self, Cluster, name},
    plan::{FailedStep, Failure, FailureClass, Moment, Plan, Step, StepVerb},
};
use serde_json::{Value, json};

use super::{
    mutants::Mutant,
    state::{INDICES, Phase, Request, Set, Slot, Table},
};
use crate::{
    machine::{self, Call, MachineController, Outcome, Owner, Request as CallRequest, Settings, Verb},
    machine_set::{MachineSetController, World},
    shared::ledger::{Index, Ledger},
    testing::{NOW, Uncalled, class, machine_set},
};

const EMPTY: &str = "k7f;";

/// What a MachineSet decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    /// The requests, in their order; each stage is of one kind.
    pub(super) steps: Vec<Request>,
    /// Whether the plan asks for an index beyond the bounds.
    pub(super) is_beyond: bool,
}

/// What the end of a Machine that is being deleted, and has no VM any more, depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has to wait until its name is retired.
    Waits,
    /// It retires the name itself.
    Retires(Request),
    /// The finalizer is dropped.
    Drops,
}

/// A store of answers.
type Known<T> = RefCell<HashMap<u64, T>>;

pub(super) struct Product {
    mutant: Option<Mutant>,
    indices: Vec<Index>,
    /// The Machine of each index, as the set's own plan makes it.
    born: Vec<Value>,
    plans: Known<Rc<Decision>>,
    births: Known<Option<Arc<CallRequest>>>,
    ends: Known<End>,
    futures: Known<bool>,
}

impl Product {
    pub(super) fn new(mutant: Option<Mutant>) -> Self {
        let empty: Ledger = EMPTY.parse().unwrap();
        let indices = empty.lowest_free(&BTreeSet::new(), INDICES);
        let (plans, births, ends, futures) = Default::default();
        let mut product = Self { mutant, indices, born: vec![], plans, births, ends, futures };
        let all = Set { replicas: u8::try_from(INDICES).unwrap(), ..Set::default() };
        let body = |step: &Step<_>| match step {
            Step::Create(create) => Some(create.body().clone()),
            _ => None,
        };
        product.born =
            product.plan(all, Table::default(), None).steps().filter_map(|planned| body(&planned.step)).collect();
        assert_eq!(product.born.len(), INDICES);
        product
    }

    /// What the set decides when it sees this, after the name of an index was found to be taken.
    pub(super) fn decide(&self, set: Set, machines: Table, taken: Option<u8>) -> Rc<Decision> {
        let question = machines.iter().fold(set.bits(), |bits, slot| bits << 4 | *slot as u64);
        let question = question << 3 | taken.map_or(7, u64::from);
        if let Some(known) = self.plans.borrow().get(&question) {
            return known.clone();
        }
        let mut decision = self.read(&self.plan(set, machines, taken));
        if let Some(mutant) = self.mutant {
            mutant.change(&mut decision, set, machines);
        }
        let decision = Rc::new(decision);
        self.plans.borrow_mut().insert(question, decision.clone());
        decision
    }

    fn plan(&self, set: Set, machines: Table, taken: Option<u8>) -> Plan<nodewright_runtime::effect::Never> {
        let objects = |is_wanted: fn(Slot) -> bool| {
            let present = machines.iter().enumerate().filter(move |(_, slot)| !slot.is_empty() && is_wanted(**slot));
            let mut objects: Vec<_> = present.map(|(index, slot)| Arc::new(self.machine(index, *slot, NOW))).collect();
            objects.sort_by(|a, b| name(a.as_ref()).cmp(name(b.as_ref())));
            objects
        };
        let world = World {
            set: Arc::new(self.set(set)),
            machines: objects(|slot| slot != Slot::Stranger),
            orphans: vec![],
            contested: vec![],
            namesakes: objects(|slot| slot == Slot::Stranger),
            unreadable: vec![],
        };
        let failure = taken.map(|index| Failure {
            at: NOW.parse().unwrap(),
            step: FailedStep::of::<Machine>(
                StepVerb::Create,
                object::Key::new(Cluster::CONTROL, "default", self.name(usize::from(index))),
            ),
            class: FailureClass::Taken,
            message: "already exists".into(),
            retry_after: None,
        });
        let controller = MachineSetController { namespace: "default".into(), full_schema: true.into() };
        controller.plan(&moment(failure.as_ref(), &Outcomes::default()), &world)
    }

    /// The requests of a plan. Writes of the status are left out: see the module's caveats.
    fn read<E: std::fmt::Debug>(&self, plan: &Plan<E>) -> Decision {
        let mut decision = Decision::default();
        for stage in &plan.stages {
            let before = decision.steps.len();
            for planned in stage {
                match &planned.step {
                    Step::Apply(apply) if apply.fragment().get("status").is_some() => {}
                    Step::Apply(apply) => decision.steps.push(self.retirement(apply)),
                    Step::Edit(_) => decision.steps.push(Request::Release),
                    Step::Create(create) => match self.index(&create.key().name) {
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

    fn retirement(&self, apply: &nodewright_runtime::plan::Apply) -> Request {
        let key = annotations::LEDGER.replace('/', "~1");
        let text = apply.fragment().pointer(&format!("/metadata/annotations/{key}")).and_then(Value::as_str);
        let ledger: Ledger = text.unwrap_or_else(|| panic!("no ledger: {apply:?}")).parse().unwrap();
        let retired = self.indices.iter().enumerate().filter(|(_, index)| ledger.is_retired(**index));
        let retired = retired.map(|(place, _)| 1 << place).sum();
        assert_eq!(ledger.retired_count(), u64::from(u8::count_ones(retired)), "an index that nobody has used");
        Request::Retire { retired, pinned: apply.at().version().is_some() }
    }

    /// Whether a Machine without a VM asks for one when it sees its set like this, and what is looked up before.
    fn birth(&self, set: Set, index: usize, slot: Slot) -> Option<Arc<CallRequest>> {
        let question = set.bits() << 8 | (index as u64) << 4 | slot as u64;
        let known = self.births.borrow().get(&question).cloned();
        known.unwrap_or_else(|| {
            let (asked, _) = self.live(set, index, slot, NOW);
            let create = asked.into_iter().find(|call| call.verb == Verb::Create).map(|call| call.request);
            self.births.borrow_mut().insert(question, create.clone());
            create
        })
    }

    /// Whether a Machine that is seen like this gets a VM: when it asks for one, and what its set is then lets it.
    pub(super) fn gets_vm(&self, seen: Set, index: usize, slot: Slot, truth: Set) -> bool {
        let Some(request) = self.birth(seen, index, slot) else { return false };
        let Some(origin) = request.origin.as_ref().filter(|_| self.mutant != Some(Mutant::NoLastLook)) else {
            return true;
        };
        let question = truth.bits() << 8 | index as u64;
        let known = self.futures.borrow().get(&question).copied();
        known.unwrap_or_else(|| {
            let has_future = truth.phase != Phase::Gone && origin.has_future(&self.set(truth));
            self.futures.borrow_mut().insert(question, has_future);
            has_future
        })
    }

    /// How a Machine ends that is being deleted since a moment or for long.
    pub(super) fn end(&self, seen: Set, index: usize, slot: Slot, for_long: bool) -> End {
        let question = seen.bits() << 16 | (index as u64) << 8 | (slot as u64) << 4 | u64::from(for_long);
        let known = self.ends.borrow().get(&question).copied();
        known.unwrap_or_else(|| {
            let since = if for_long { "2026-06-01T11:50:00Z" } else { "2026-06-01T11:59:50Z" };
            let (_, last) = self.live(seen, index, slot, since);
            let mut end = End::Waits;
            for planned in last.steps() {
                match &planned.step {
                    Step::Edit(_) => end = End::Drops,
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

    /// Plans for a Machine until it makes no more calls, with a provider that has no VM of it; up to the call that
    /// makes one. Returns the calls and the last plan.
    fn live(&self, set: Set, index: usize, slot: Slot, since: &str) -> (Vec<Call>, Plan<Call>) {
        let owner = if set.phase == Phase::Gone { Owner::Gone } else { Owner::Set(Arc::new(self.set(set))) };
        let world = machine::World {
            machine: Arc::new(self.machine(index, slot, since)),
            class: Ok(class()),
            class_held: true,
            looks: vec![],
            changed_identity: None,
            claim: machine::Claim::default(),
            node: None,
            nodes_listed: true,
            unseen_node: machine::UnseenNode::None,
            stranger: None,
            unreadable_node: None,
            unreadable_pod: None,
            owner,
            peers: machine::Peers::default(),
            pods: None,
        };
        let (namespace, settings) = ("default".into(), Settings::default());
        let controller = MachineController { namespace, settings, driver: Arc::new(Uncalled) };
        let (mut outcomes, mut asked) = (Outcomes::default(), vec![]);
        loop {
            let moment = moment(None, &outcomes);
            let (plan, now) = (controller.plan(&moment, &world), moment.now);
            let call = plan.steps().find_map(|planned| match &planned.step {
                Step::Call(call) => Some(call.clone()),
                _ => None,
            });
            let Some(call) = call else { return (asked, plan) };
            outcomes.begin(&call, now);
            let none = Outcome::Failed(DriverError::new(Code::NotFound, "there is no VM"));
            outcomes.finish(&call, now, if call.verb == Verb::Delete { Outcome::Done } else { none });
            let is_creation = call.verb == Verb::Create;
            asked.push(call);
            assert!(asked.len() < 9, "it asks for ever: {asked:?}");
            if is_creation {
                return (asked, Plan::idle());
            }
        }
    }

    fn set(&self, set: Set) -> MachineSet {
        let empty: Ledger = EMPTY.parse().unwrap();
        let retired = self.indices.iter().enumerate().filter(|(place, _)| set.has_retired(*place));
        let ledger = empty.retire(retired.map(|(_, index)| *index)).to_string();
        let mut object = machine_set("set", i32::from(set.replicas), Some(&ledger));
        if set.phase == Phase::Leaves {
            object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-06-01T11:00:00Z")).unwrap();
        }
        object
    }

    /// What stands under the name of an index, in deletion `since` this moment where it is.
    fn machine(&self, index: usize, slot: Slot, since: &str) -> Machine {
        let mut body = self.born[index].clone();
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
        if slot == Slot::Stranger {
            let foreign = json!({"uid": "uid-stranger", "ownerReferences": null, "annotations": null, "labels": null});
            json_patch::merge(&mut body["metadata"], &foreign);
        }
        serde_json::from_value(body).unwrap()
    }

    fn name(&self, index: usize) -> String {
        EMPTY.parse::<Ledger>().unwrap().name("set", self.indices[index])
    }

    /// The index that has a name; `None` when it is beyond the bounds.
    fn index(&self, name: &str) -> Option<u8> {
        (0..INDICES).find(|index| self.name(*index) == name).and_then(|index| u8::try_from(index).ok())
    }
}

fn second_uid(name: &str) -> String {
    format!("uid-{name}-2")
}

fn moment<'a, E: Effect>(failure: Option<&'a Failure>, outcomes: &'a Outcomes<E>) -> Moment<'a, E> {
    Moment {
        now: NOW.parse().unwrap(),
        since: "2026-06-01T09:00:00Z".parse().unwrap(),
        in_touch: "2026-06-01T09:00:00Z".parse().unwrap(),
        attempt: 0,
        failure,
        outcomes,
        refusals: &[],
        status_written: None,
    }
}
