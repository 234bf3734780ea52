//! The rollout game: the plans of a deployment and of its sets, in generated worlds and in random orders of events, with the bounds
//! checked after each event. A failure prints the log of its case.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineDeployment, MachineSet};
use nodewright_runtime::{
    apply_configuration::STATUS,
    cache::{Store, Stores},
    controller::Controller,
    effect::{Never, Outcomes},
    object::ObjectRef,
    plan::Step,
};
use serde_json::{Value, json};

use crate::{
    machine_deployment::tests::cluster::Cluster,
    machine_set::memory::{Context, Note, Plan},
    machine_set::{MachineSetController, StaleMachines},
    shared::{
        CONTROL,
        fleet::FleetSettings,
        indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_INSTANCE, MACHINES_BY_SET_NAME, ORPHAN_MACHINES, SET_BY_UID},
    },
    testing::{machine_deployment, rolling},
};

/// How many cases are played.
const CASES: u64 = 48;
/// Random events of a case. After them everything happens in turn, until nothing changes.
const EVENTS: usize = 120;
/// After so many turns a case has to be at its goal.
const TURNS: usize = 400;

/// A generator of numbers that are the same everywhere: Knuth's linear congruential one.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// What the manager remembers of a set.
#[derive(Default)]
struct Memory {
    notes: BTreeMap<Note, Timestamp>,
    status_written: Option<Timestamp>,
}

/// The bounds since the last change of the user.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    most: usize,
    least_ready: usize,
}

struct Game {
    cluster: Cluster,
    dice: Dice,
    memories: BTreeMap<String, Memory>,
    strategy: Value,
    replicas: usize,
    class: String,
    bounds: Bounds,
    log: String,
    events: usize,
}

impl Game {
    fn new(case: u64) -> Self {
        let mut dice = Dice(case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let replicas = 1 + dice.roll(6);
        let (surge, unavailable) = (dice.roll(3), dice.roll(2));
        let (surge, unavailable) = if surge + unavailable == 0 { (1, 0) } else { (surge, unavailable) };
        let as_i32 = |number: usize| i32::try_from(number).unwrap();
        let recreates = dice.roll(8) == 0;
        let strategy =
            if recreates { json!({"type": "Recreate"}) } else { rolling(as_i32(surge), as_i32(unavailable)) };
        let mut deployment = machine_deployment(as_i32(replicas), &strategy);
        deployment["spec"]["minReadySeconds"] = 0.into();
        let log = format!("{replicas} machines of v1, {strategy}\n\n");
        let bounds = Bounds { most: 0, least_ready: 0 };
        let (memories, class) = (BTreeMap::new(), "v1".to_owned());
        let mut game = Self {
            cluster: Cluster::of(deployment),
            dice,
            memories,
            strategy,
            replicas,
            class,
            bounds,
            log,
            events: 0,
        };
        game.bounds = game.bounds();
        game
    }

    fn strategy_number(&self, field: &str) -> usize {
        usize::try_from(self.strategy["rollingUpdate"][field].as_u64().unwrap_or(0)).unwrap()
    }

    /// The bounds that follow from the goal and from the sizes of sets before it.
    fn bounds(&self) -> Bounds {
        let sizes = self.sizes();
        let may_exist: usize = sizes.iter().map(|size| size.wants.max(size.live) + size.leaving).sum();
        let stay_ready: usize = sizes.iter().map(|size| size.wants.min(size.ready)).sum();
        let ceiling = if self.replicas == 0 { 0 } else { self.replicas + self.strategy_number("maxSurge") };
        let is_rolling = self.strategy["type"] == "RollingUpdate";
        let floor = self.replicas.saturating_sub(self.strategy_number("maxUnavailable"));
        let least_ready = if is_rolling { floor.min(stay_ready) } else { 0 };
        Bounds { most: ceiling.max(may_exist), least_ready }
    }

    fn sizes(&self) -> Vec<Size> {
        let size = |(name, set): (String, Arc<Value>)| {
            let machines = self.cluster.machines_of(&name);
            let leaving = machines.iter().filter(|(_, it)| it["metadata"]["deletionTimestamp"].is_string()).count();
            let ready = machines.iter().filter(|(_, it)| is_ready(it)).count();
            let class = set["spec"]["template"]["spec"]["class"]["name"].as_str().unwrap().to_owned();
            let wants = usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap();
            Size { class, wants, live: machines.len() - leaving, leaving, ready }
        };
        let mut sizes: Vec<_> = self.cluster.sets().into_iter().map(size).collect();
        sizes.sort_by(|a, b| a.class.cmp(&b.class));
        sizes
    }

    /// Notes what has happened, and checks the bounds.
    fn note(&mut self, what: &str) {
        self.events += 1;
        let sizes = self.sizes();
        let is_used = |size: &&Size| size.wants + size.live + size.leaving > 0;
        let texts = sizes.iter().filter(is_used).map(|it| {
            let leave = if it.leaving > 0 { format!(", {} leave", it.leaving) } else { String::new() };
            format!("{} wants {}, has {} ({} ready){leave}", it.class, it.wants, it.live, it.ready)
        });
        let state = texts.collect::<Vec<_>>().join(" | ");
        writeln!(self.log, "{}", format!("{:4} {what:<28} {state}", self.events).trim_end()).unwrap();
        let all: usize = sizes.iter().map(|size| size.live + size.leaving).sum();
        let ready: usize = sizes.iter().map(|size| size.ready).sum();
        let Bounds { most, least_ready } = self.bounds;
        assert!(all <= most, "{all} machines of at most {most}\n{}", self.log);
        assert!(ready >= least_ready, "{ready} of at least {least_ready} are ready\n{}", self.log);
        // What was reached since the user's last change is not lost again.
        let now = self.bounds();
        self.bounds = Bounds { most: most.min(now.most), least_ready: least_ready.max(now.least_ready) };
    }

    fn deployment_acts(&mut self) -> bool {
        let acted = self.cluster.act();
        if acted {
            self.note("the deployment acts");
        }
        acted
    }

    fn set_acts(&mut self, name: &str) -> bool {
        let plan = self.plan_of(name);
        let memory = self.memories.entry(name.to_owned()).or_default();
        let now = self.cluster.now();
        memory.notes = plan.notes.clone().after(std::mem::take(&mut memory.notes), now);
        let is_status = |step: &Step<Never>| matches!(step, Step::Apply(apply) if apply.subresource == STATUS);
        if plan.steps().any(|planned| is_status(&planned.step)) {
            memory.status_written = Some(now);
        }
        self.cluster.execute(&plan, "machine-set");
        let class = self.cluster.sets()[name]["spec"]["template"]["spec"]["class"]["name"].as_str().unwrap().to_owned();
        if !plan.is_idle() {
            self.note(&format!("the set of {class} acts"));
        }
        !plan.is_idle()
    }

    fn plan_of(&self, name: &str) -> Plan {
        let controller = MachineSetController {
            namespace: "default".into(),
            full_schema: true.into(),
            fleet: FleetSettings::default(),
            stale: StaleMachines::default(),
        };
        let stores = self.stores();
        let snapshot = controller.snapshot(&stores, &ObjectRef::new(CONTROL, "default", name)).unwrap();
        let none = Memory::default();
        let memory = self.memories.get(name).unwrap_or(&none);
        let (now, outcomes) = (self.cluster.now(), Outcomes::default());
        let context =
            Context { notes: &memory.notes, status_written: memory.status_written, ..Context::new(now, &outcomes) };
        MachineSetController::plan(&context, &snapshot)
    }

    fn stores(&self) -> Stores {
        let machines = Store::<Machine>::new(CONTROL, "default");
        for index in [ORPHAN_MACHINES, MACHINE_BY_INSTANCE, MACHINES_BY_SET_NAME] {
            machines.add_index(index);
        }
        for machine in self.cluster.machines().values() {
            machines.apply(serde_json::from_value((**machine).clone()).unwrap());
        }
        let sets = Store::<MachineSet>::new(CONTROL, "default");
        sets.add_index(SET_BY_UID);
        for set in self.cluster.sets().values() {
            sets.apply(serde_json::from_value((**set).clone()).unwrap());
        }
        let deployments = Store::<MachineDeployment>::new(CONTROL, "default");
        deployments.add_index(DEPLOYMENT_BY_UID);
        deployments.apply(serde_json::from_value((*self.cluster.live()).clone()).unwrap());
        let stores = Stores::default();
        stores.add(Arc::new(machines));
        stores.add(Arc::new(sets));
        stores.add(Arc::new(deployments));
        stores
    }

    fn machine_gets_ready(&mut self) -> bool {
        let waits = |machine: &Value| machine["metadata"]["deletionTimestamp"].is_null() && !is_ready(machine);
        let waiting: Vec<_> =
            self.cluster.machines().into_iter().filter(|(_, it)| waits(it)).map(|(name, _)| name).collect();
        if waiting.is_empty() {
            return false;
        }
        let name = &waiting[self.dice.roll(waiting.len())];
        self.cluster.edit_machine(name, |machine| {
            machine["spec"]["providerID"] = format!("simulated:///{name}").into();
            machine["status"]["currentStatus"] = json!({"phase": "Running"});
        });
        self.note("a machine gets ready");
        true
    }

    fn machine_is_gone(&mut self) -> bool {
        let leaves = |machine: &Value| machine["metadata"]["deletionTimestamp"].is_string();
        let leaving: Vec<_> =
            self.cluster.machines().into_iter().filter(|(_, it)| leaves(it)).map(|(name, _)| name).collect();
        if leaving.is_empty() {
            return false;
        }
        self.cluster.remove_machine(&leaving[self.dice.roll(leaving.len())]);
        self.note("a machine is gone");
        true
    }

    fn user_acts(&mut self) {
        let what = if self.dice.roll(3) == 0 {
            self.replicas = self.dice.roll(8);
            self.cluster.change("/spec/replicas", json!(self.replicas));
            format!("the user: {} machines", self.replicas)
        } else {
            self.class = format!("v{}", 1 + self.dice.roll(3));
            self.cluster.change("/spec/template/spec/class/name", json!(self.class));
            format!("the user: class {}", self.class)
        };
        self.bounds = self.bounds();
        self.note(&what);
    }

    fn random_event(&mut self) {
        match self.dice.roll(40) {
            0..12 => drop(self.deployment_acts()),
            12..26 => {
                let names: Vec<_> = self.cluster.sets().into_keys().collect();
                if !names.is_empty() {
                    let name = names[self.dice.roll(names.len())].clone();
                    self.set_acts(&name);
                }
            }
            26..32 => drop(self.machine_gets_ready()),
            32..36 => drop(self.machine_is_gone()),
            36..39 => self.cluster.set_now(self.cluster.now() + SignedDuration::from_secs(2)),
            _ => self.user_acts(),
        }
    }

    /// Everything happens in turn until nothing changes.
    fn end(&mut self) {
        for _ in 0..TURNS {
            let mut changed = self.deployment_acts();
            for name in self.cluster.sets().into_keys().collect::<Vec<_>>() {
                changed |= self.set_acts(&name);
            }
            changed |= self.machine_gets_ready() | self.machine_is_gone();
            changed |= self.cluster.plan().waits.iter().any(|wait| wait.until.is_some());
            self.cluster.set_now(self.cluster.now() + SignedDuration::from_secs(3));
            if !changed {
                return self.check_goal();
            }
        }
        panic!("it never comes to rest\n{}", self.log);
    }

    fn check_goal(&self) {
        for size in self.sizes() {
            let wanted = if size.class == self.class { self.replicas } else { 0 };
            let has = (size.wants, size.live, size.ready, size.leaving);
            assert_eq!(has, (wanted, wanted, wanted, 0), "{}\n{}", size.class, self.log);
        }
        assert_eq!(self.cluster.reason("Progressing"), "NewMachineSetAvailable", "{}", self.log);
        assert!(self.cluster.condition("Reconciling").is_none(), "{}", self.log);
    }
}

#[derive(Clone, Debug)]
struct Size {
    class: String,
    wants: usize,
    live: usize,
    leaving: usize,
    ready: usize,
}

fn is_ready(machine: &Value) -> bool {
    machine["status"]["currentStatus"]["phase"] == "Running" && machine["metadata"]["deletionTimestamp"].is_null()
}

#[test]
fn rollouts_in_any_order_keep_their_bounds_and_end_at_their_goal() {
    for case in 0..CASES {
        let mut game = Game::new(case);
        (0..EVENTS).for_each(|_| game.random_event());
        game.log.push_str("\nno further change\n\n");
        game.end();
    }
}
