//! Which VMs of a list are orphans, and when they go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Machine, MachineClass, MachineSet, annotations, labels, reasons::machine_class as reasons};
use nodewright_driver::ListedVm;
use nodewright_runtime::{
    cache::{Store, Stores, Unreadable},
    effect::{Effect, Outcomes},
    object::ObjectRef,
    plan::Step,
};
use nodewright_testing::object;
use serde_json::{Value, json};

use super::{
    OrphanVmSettings,
    calls::{Call, Listed, Outcome, SweepResult},
    lost_nodes::LOST_BY_CLASS,
    memory::{Context, Note, Plan},
    orphans::orphans as evaluate,
    plan::plan,
    snapshot::{NamespaceMachines, Snapshot},
    swept::Swept,
};
use crate::{
    shared::{
        CONTROL, TARGET,
        cloud_manager::CloudNodeMode,
        driver::Provider,
        indexes::{MACHINE_BY_INSTANCE, MACHINE_BY_NODE, MACHINES_BY_CLASS, NODE_BY_INSTANCE},
        ledger::Ledger,
        node::Node,
    },
    testing::{MachineBuilder, MachineExt, NOW, Uncalled, answer, machine, machine_set, secret_store},
};

fn minutes(minutes: i64) -> Timestamp {
    NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minutes)
}

fn id(vm: &str) -> String {
    format!("p:///{vm}")
}

/// A Machine whose VM is proven.
fn running(name: &str, vm: &str) -> MachineBuilder {
    let noted = json!([{"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": id(vm)}]);
    machine(name).with("/spec/providerID", id(vm)).with("/status/conditions", noted).phase("Running")
}

fn class() -> MachineClass {
    let class = json!({"metadata": {"name": "class", "namespace": "default", "uid": "uid-class", "generation": 1},
        "provider": "simulated", "providerSpec": {}});
    serde_json::from_value(class).unwrap()
}

struct Fixture {
    machines: Vec<MachineBuilder>,
    sets: Vec<MachineSet>,
    unreadable: bool,
    vanished: u64,
    nodes: Vec<Node>,
    mode: CloudNodeMode,
}

impl Fixture {
    fn of(machines: Vec<MachineBuilder>) -> Self {
        Self { machines, sets: vec![], unreadable: false, vanished: 0, nodes: vec![], mode: CloudNodeMode::On }
    }

    fn snapshot(self) -> Snapshot {
        let stores = Stores::default().with(CONTROL, class());
        let machines = Store::<Machine>::new(CONTROL, "default");
        for index in [MACHINES_BY_CLASS, MACHINE_BY_INSTANCE, MACHINE_BY_NODE] {
            machines.add_index(index);
        }
        self.machines.into_iter().for_each(|machine| drop(machines.apply(machine.build())));
        if self.unreadable {
            machines.add_unreadable(Unreadable::named("default", "broken", "u"));
        }
        stores.add(Arc::new(machines));
        let sets = Store::<MachineSet>::new(CONTROL, "default");
        self.sets.into_iter().for_each(|set| drop(sets.apply(set)));
        stores.add(Arc::new(sets));
        let nodes = Store::<Node>::new(TARGET, "");
        for index in [NODE_BY_INSTANCE, LOST_BY_CLASS] {
            nodes.add_index(index);
        }
        nodes.begin_list();
        self.nodes.into_iter().for_each(|node| drop(nodes.apply(node)));
        nodes.end_list(1, tokio::time::Instant::now());
        stores.add(Arc::new(nodes));
        Snapshot::take(
            &stores,
            &ObjectRef::new(CONTROL, "default", "class"),
            (&Provider::of(&Uncalled), Duration::from_secs(30)),
            (OrphanVmSettings::default(), self.vanished),
            (self.mode, Duration::from_secs(30)),
        )
        .unwrap()
    }

    fn fleet(self) -> NamespaceMachines {
        self.snapshot().fleet
    }
}

/// VMs by the last part of their ids, with the Machines of their tags.
fn listed(vms: &[(&str, &str)]) -> Listed {
    vms.iter().map(|(vm, machine)| (id(vm), ListedVm::of(*machine))).collect()
}

/// The same, with the minutes from [`NOW`] at which they were created.
fn dated(vms: &[(&str, &str, i64)]) -> Listed {
    let dated = |created: i64, machine: &str| ListedVm { created: Some(minutes(created)), ..ListedVm::of(machine) };
    vms.iter().map(|(vm, machine, created)| (id(vm), dated(*created, machine))).collect()
}

fn orphans(listed: &Listed, fixture: Fixture) -> Vec<String> {
    let found = evaluate(listed, &fixture.fleet()).unwrap();
    found.into_iter().map(|orphan| orphan.provider_id.trim_start_matches("p:///").to_owned()).collect()
}

#[test]
fn a_vm_is_an_orphan_if_no_machine_has_its_name_or_its_id() {
    let shown = || listed(&[("1", "a"), ("2", "b"), ("3", "c")]);
    let a = || running("a", "1");
    assert_eq!(orphans(&shown(), Fixture::of(vec![a()])), ["2", "3"]);
    assert_eq!(orphans(&shown(), Fixture::of(vec![a(), machine("b")])), ["3"], "it is being created");
    let claims = machine("x").with("/spec/providerID", "other:///2");
    assert_eq!(orphans(&shown(), Fixture::of(vec![a(), claims])), ["3"], "another machine claims it");
    let leaving = machine("b").with("/metadata/deletionTimestamp", NOW);
    assert_eq!(orphans(&shown(), Fixture::of(vec![a(), leaving])), ["3"], "its machine deletes it");
    let going =
        BTreeMap::from([(id("1"), ListedVm::of("a")), (id("2"), ListedVm { is_deleting: true, ..ListedVm::of("b") })]);
    assert_eq!(orphans(&going, Fixture::of(vec![a()])), [""; 0]);
}

#[test]
fn a_vm_whose_machine_a_set_may_create_again_is_kept() {
    let shown = || listed(&[("1", "a"), ("2", "pool-bcdfg")]);
    let with = |set: MachineSet| Fixture { sets: vec![set], ..Fixture::of(vec![running("a", "1")]) };
    assert_eq!(orphans(&shown(), with(machine_set("pool", 1, None))), [""; 0]);
    assert_eq!(orphans(&shown(), with(machine_set("pool", 0, None))), ["2"]);
    let mut leaving = machine_set("pool", 1, None);
    leaving.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    assert_eq!(orphans(&shown(), with(leaving)), ["2"]);
}

#[test]
fn a_vm_whose_machine_is_retired_is_an_orphan_although_the_set_lacks_machines() {
    let (machine, _) = of_pool(true);
    let shown = || listed(&[("1", "a"), ("2", &machine)]);
    let with =
        |ledger| Fixture { sets: vec![machine_set("pool", 1, Some(ledger))], ..Fixture::of(vec![running("a", "1")]) };
    assert_eq!(orphans(&shown(), with("k7f;0")), ["2"], "no set uses a retired name again");
    assert_eq!(orphans(&shown(), with("k7f;")), [""; 0], "the set is about to create it");
}

#[test]
fn of_several_vms_of_a_machine_the_one_stays_that_it_has_or_else_the_oldest() {
    let shown = dated(&[("1", "a", -60), ("2", "a", -90), ("3", "a", -30), ("9", "z", -90)]);
    let with = |machine| Fixture::of(vec![running("z", "9"), machine]);
    assert_eq!(orphans(&shown, with(running("a", "1"))), ["2", "3"]);
    assert_eq!(orphans(&shown, with(machine("a"))), ["1", "3"], "it has none yet");
    assert_eq!(orphans(&shown, with(machine("a").with("/spec/providerID", id("1")))), [""; 0], "a claim is no proof");
    let two = dated(&[("1", "a", -60), ("2", "a", -90), ("9", "z", -90)]);
    assert_eq!(orphans(&two, with(machine("a"))), ["1"]);
    let leaving = running("a", "1").with("/metadata/deletionTimestamp", NOW);
    assert_eq!(orphans(&two, with(leaving)), [""; 0], "its machine deletes them");
    let undated = listed(&[("1", "a"), ("2", "a"), ("9", "z")]);
    assert_eq!(orphans(&undated, with(machine("a"))), [""; 0], "nobody knows which is older");
    let part = dated(&[("2", "a", -90), ("3", "a", -30), ("9", "z", -90)]);
    assert_eq!(
        orphans(&part, with(running("a", "1").phase("Unknown"))),
        [""; 0],
        "the list does not show the one that it has"
    );
}

#[test]
fn a_list_without_a_vm_that_runs_is_not_believed() {
    let fixture = || Fixture::of(vec![running("a", "1"), running("b", "2")]);
    let reason = |listed: &Listed, fixture: Fixture| evaluate(listed, &fixture.fleet()).unwrap_err().0;
    assert_eq!(reason(&listed(&[]), fixture()), "VMListIncomplete", "it is empty");
    assert_eq!(reason(&listed(&[("1", "a"), ("3", "c")]), fixture()), "VMListIncomplete", "it is a part");
    assert_eq!(reason(&listed(&[("7", "x"), ("8", "y")]), fixture()), "VMListIncomplete", "it is another account's");
    assert_eq!(reason(&listed(&[("7", "x")]), Fixture::of(vec![])), "VMListForeign", "it is another cluster's");
    assert_eq!(reason(&listed(&[("7", "x")]), Fixture::of(vec![machine("a")])), "VMListForeign");
    let ill = Fixture::of(vec![running("a", "1"), running("b", "2").phase("Unknown")]);
    assert_eq!(orphans(&listed(&[("1", "a"), ("3", "c")]), ill), ["3"], "a VM may be gone");
}

/// A process that searches: what it remembers from plan to plan.
struct Process {
    settings: OrphanVmSettings,
    outcomes: Outcomes<Call>,
    notes: BTreeMap<Note, Timestamp>,
    started: Timestamp,
    connected: Timestamp,
    /// As the API server has it.
    class: MachineClass,
}

impl Process {
    /// Minutes: period 15, grace 10, minimum age 30. A VM without a Machine needs no explanation.
    fn new() -> Self {
        let settings = OrphanVmSettings { per_pass: 2, vanished_pause: Duration::ZERO, ..OrphanVmSettings::default() };
        let (notes, started) = (BTreeMap::new(), minutes(0));
        Self { settings, outcomes: Outcomes::default(), notes, started, connected: started, class: class() }
    }

    /// With the pause of a day.
    fn daily() -> Self {
        let settings = OrphanVmSettings { per_pass: 2, ..OrphanVmSettings::default() };
        Self { settings, ..Self::new() }
    }

    /// Another process, which knows what the API server does.
    fn restarted(self, minute: i64) -> Self {
        let started = minutes(minute);
        Self { outcomes: Outcomes::default(), notes: BTreeMap::new(), started, connected: started, ..self }
    }

    fn plan(&mut self, minute: i64, snapshot: &Snapshot) -> Plan {
        let context = Context {
            now: minutes(minute),
            connected_since: self.connected,
            notes: &self.notes,
            ..Context::new(self.started, &self.outcomes)
        };
        let (class, settings) = (Arc::new(self.class.clone()), self.settings.clone());
        let plan = plan(&context, &Snapshot { class, settings, ..snapshot.clone() });
        for planned in plan.steps() {
            if let Step::Edit { at, patch, .. } = &planned.step
                && &*at.resource().kind == "MachineClass"
            {
                let mut class = serde_json::to_value(&self.class).unwrap();
                nodewright_testing::json_patch(&mut class, patch).unwrap();
                self.class = serde_json::from_value(class).unwrap();
            }
        }
        self.notes = plan.notes.clone().after(std::mem::take(&mut self.notes), minutes(minute));
        plan
    }

    /// Plans, makes the calls that are planned with these VMs at the provider, and returns those that a sweep would delete.
    fn run(&mut self, minute: i64, snapshot: &Snapshot, listed: &Listed) -> Vec<String> {
        let mut swept = vec![];
        loop {
            let plan = self.plan(minute, snapshot);
            let Some(call) = call_of(&plan) else { return swept };
            assert!(self.outcomes.begin(call, minutes(minute)), "{plan}");
            let outcome = match call {
                Call::List(_) => Outcome::Listed(Arc::new(listed.clone())),
                Call::Sweep(_, orphans) => {
                    swept
                        .extend(orphans.iter().map(|orphan| orphan.provider_id.trim_start_matches("p:///").to_owned()));
                    Outcome::Swept(
                        orphans.iter().map(|orphan| (orphan.provider_id.clone(), SweepResult::Deleted)).collect(),
                    )
                }
            };
            self.outcomes.finish(call, minutes(minute), outcome);
        }
    }

    /// The minutes at which VMs are swept in this many minutes, with a plan at each.
    fn swept(&mut self, until: i64, snapshot: &Snapshot, listed: impl Fn(i64) -> Listed) -> Vec<(i64, String)> {
        let run = |minute| {
            self.run(minute, snapshot, &listed(minute)).into_iter().map(move |vm| (minute, vm)).collect::<Vec<_>>()
        };
        (0..=until).flat_map(run).collect()
    }
}

fn call_of(plan: &Plan) -> Option<&Call> {
    plan.steps().find_map(|planned| match &planned.step {
        Step::Call(call) => Some(call),
        _ => None,
    })
}

/// The name of the first Machine of the set `pool`, and the set, which has retired it or has not.
fn of_pool(is_retired: bool) -> (String, MachineSet) {
    let ledger: Ledger = "k7f;".parse().unwrap();
    let name = ledger.name("pool", ledger.lowest_free(&BTreeSet::new(), 1)[0]);
    (name, machine_set("pool", 0, Some(if is_retired { "k7f;0" } else { "k7f;" })))
}

#[test]
fn a_vm_goes_soon_only_if_a_ledger_says_that_its_machine_was_to_go() {
    let first = |is_retired: bool| {
        let (name, set) = of_pool(is_retired);
        let snapshot = Fixture { sets: vec![set], ..Fixture::of(vec![running("a", "1")]) }.snapshot();
        let list = dated(&[("1", "a", -90), ("2", &name, -90)]);
        Process::daily().swept(26 * 60, &snapshot, |_| list.clone()).first().map(|(minute, _)| *minute)
    };
    assert_eq!(first(true), Some(25));
    // A day after the first list, which is that of minute 15, and at most a period later.
    let day = 15 + 24 * 60;
    assert!(first(false).is_some_and(|at| (day..day + 15).contains(&at)), "it may have vanished: {:?}", first(false));
}

#[test]
fn a_restart_does_not_forget_since_when_a_vm_has_no_machine() {
    let (list, day) = (dated(&[("1", "a", -90), ("2", "b", -90)]), 24 * 60);
    let swept = |mut process: Process, from: i64, to: i64| {
        let swept = (from..=to).filter(|minute| !process.run(*minute, &one_machine(), &list).is_empty()).collect();
        (process, swept)
    };
    // Its Machine may have vanished while no manager ran.
    let (process, early): (_, Vec<i64>) = swept(Process::daily(), 0, 600);
    assert_eq!(early, [0; 0]);
    let (process, early) = swept(process.restarted(600), 600, day + 14);
    assert_eq!(early, [0; 0]);
    let (process, due) = swept(process.restarted(day + 14), day + 14, day + 60);
    assert_eq!(due.first(), Some(&(day + 14 + 25)), "the first list of a process, and one that confirms it");
    // What the record does not have waits for the whole time.
    let forgotten = Process { class: class(), ..process }.restarted(day + 60);
    let (_, early) = swept(forgotten, day + 60, 2 * day);
    assert_eq!(early, [0; 0]);
}

#[test]
fn a_class_for_which_another_one_lists_keeps_no_record() {
    let mut process = Process::daily();
    process.run(15, &one_machine(), &listed(&[("1", "a"), ("2", "b")]));
    let recorded = process.class.metadata.annotations.clone().unwrap_or_default();
    assert!(recorded[annotations::UNEXPLAINED_VMS].contains("p:///2"), "{recorded:?}");
    process.plan(20, &Snapshot { lister: None, ..one_machine() });
    assert_eq!(process.class.metadata.annotations.clone().unwrap_or_default().len(), 0);
}

#[test]
fn the_record_of_vms_has_an_end() {
    let list = |vms: std::ops::Range<usize>| -> Listed {
        let lost = vms.map(|number| (id(&format!("lost-{number:04}")), ListedVm::of("b")));
        lost.chain([(id("1"), ListedVm::of("a"))]).collect()
    };
    let recorded = |process: &Process| {
        let text = process.class.metadata.annotations.as_ref().and_then(|all| all.get(annotations::UNEXPLAINED_VMS));
        text.map_or(0, |text| serde_json::from_str::<BTreeMap<String, Timestamp>>(text).unwrap().len())
    };
    let mut process = Process::daily();
    process.run(15, &one_machine(), &list(0..500));
    assert_eq!(recorded(&process), 100);
    process.run(30, &one_machine(), &list(0..20));
    assert_eq!(recorded(&process), 20, "those that are gone make room");
    process.run(45, &one_machine(), &list(0..0));
    assert_eq!(recorded(&process), 0);
}

fn one_machine() -> Snapshot {
    Fixture::of(vec![running("a", "1")]).snapshot()
}

#[test]
fn an_orphan_goes_after_two_lists_a_grace_apart_and_not_before_it_is_old_enough() {
    // The first list is a period after the start. A VM of unknown age is as old as its first list.
    let unknown = Process::new().swept(60, &one_machine(), |_| listed(&[("1", "a"), ("2", "b")]));
    assert_eq!(unknown[0], (45, "2".to_owned()));
    let old = Process::new().swept(60, &one_machine(), |_| dated(&[("1", "a", -90), ("2", "b", -90)]));
    assert_eq!(old[0], (25, "2".to_owned()));
    let young = Process::new().swept(60, &one_machine(), |_| dated(&[("1", "a", -90), ("2", "b", 10)]));
    assert_eq!(young[0], (40, "2".to_owned()));
    let gone = |minute| {
        if (16..30).contains(&minute) { listed(&[("1", "a")]) } else { dated(&[("1", "a", -90), ("2", "b", -90)]) }
    };
    let again = Process::new().swept(60, &one_machine(), gone);
    assert_eq!(again[0], (50, "2".to_owned()), "one list without it starts the time again");
}

#[test]
fn no_more_go_after_a_list_than_a_pass_allows() {
    let many = dated(&[("1", "a", -90), ("2", "b", -90), ("3", "c", -90), ("4", "d", -90), ("5", "e", -90)]);
    let swept = Process::new().swept(60, &one_machine(), |_| many.clone());
    let first: Vec<_> = swept.iter().filter(|(minute, _)| *minute < 40).map(|(_, vm)| vm.as_str()).collect();
    assert_eq!(first, ["2", "3"]);
    let passes: BTreeSet<i64> = swept.iter().map(|(minute, _)| *minute).collect();
    assert!(passes.iter().zip(passes.iter().skip(1)).all(|(one, next)| next - one >= 15), "{passes:?}");
    let mut none = Process::new();
    none.settings.per_pass = 0;
    assert_eq!(none.swept(60, &one_machine(), |_| many.clone()), []);
}

#[test]
fn nothing_goes_in_doubt() {
    let list = || dated(&[("1", "a", -90), ("2", "b", -90)]);
    let swept = |fixture: Fixture| Process::new().swept(90, &fixture.snapshot(), |_| list());
    let fixture = || Fixture::of(vec![running("a", "1")]);
    assert_eq!(swept(fixture()).len(), 5);
    assert_eq!(swept(Fixture { unreadable: true, ..fixture() }), [], "a machine cannot be read");
    let (name, set) = of_pool(true);
    let vanished = |vanished| {
        let snapshot = Fixture { sets: vec![set.clone()], vanished, ..fixture() }.snapshot();
        let list = dated(&[("1", "a", -90), ("2", &name, -90)]);
        Process::daily().swept(90, &snapshot, |_| list.clone()).len()
    };
    assert_eq!((vanished(0), vanished(1)), (5, 0), "a machine has vanished");
    let snapshot = Fixture { sets: vec![set.clone()], vanished: 1, ..fixture() }.snapshot();
    let list = || dated(&[("1", "a", -90), ("2", &name, -90)]);
    let mut paused = Process::new();
    paused.settings.vanished_pause = Duration::from_mins(55);
    assert_eq!(
        paused.swept(90, &snapshot, |_| list()).first().map(|(minute, _)| *minute),
        Some(70),
        "the first list when the pause is over"
    );
    assert_eq!(swept(Fixture::of(vec![running("a", "7")])), [], "the list lacks a VM");
    let mut dry = Process::new();
    dry.settings.dry_run = true;
    assert_eq!(dry.swept(90, &one_machine(), |_| list()), []);
    let waits = dry.plan(86, &one_machine()).waits;
    assert_eq!(waits[0].reason, "DryRun");
}

#[test]
fn an_outage_and_another_version_of_the_class_start_the_time_again() {
    let list = || dated(&[("1", "a", -90), ("2", "b", -90)]);
    let mut process = Process::new();
    assert_eq!(process.swept(24, &one_machine(), |_| list()), []);
    process.connected = minutes(20);
    let swept: Vec<i64> =
        (25..=60).filter(|minute| !process.run(*minute, &one_machine(), &list()).is_empty()).collect();
    // The next list is at 30.
    assert!(swept.first().is_some_and(|first| (40..=50).contains(first)), "{swept:?}");

    let mut process = Process::new();
    assert_eq!(process.swept(24, &one_machine(), |_| list()), []);
    let mut changed = one_machine();
    if let Some(Ok(class)) = &mut changed.lister {
        class.revision = "other credentials".to_owned();
    }
    assert_eq!(process.run(25, &changed, &list()), [""; 0]);
    assert_eq!(process.run(34, &changed, &list()), [""; 0]);
    assert_eq!(process.run(35, &changed, &list()), ["2"]);
}

#[test]
fn a_failed_list_says_so_and_is_repeated_after_a_period() {
    let (mut process, snapshot) = (Process::new(), one_machine());
    let plan = process.plan(15, &snapshot);
    let Some(call) = call_of(&plan) else { panic!("{plan}") };
    process.outcomes.begin(call, minutes(15));
    process.outcomes.finish(call, minutes(15), call.timeout_outcome());
    let plan = process.plan(16, &snapshot);
    assert!(plan.is_idle() && plan.waits[0].reason == "VMListFailed");
    assert_eq!(plan.wake, Some(minutes(30)));
    assert_eq!(call.deadline(), Duration::from_secs(30));
}

/// Which of these classes list, and whether they can; by their names, credentials and user data.
fn listers<const N: usize>(classes: [(&str, &str, Option<&str>); N]) -> [Option<bool>; N] {
    let store = Store::<MachineClass>::new(CONTROL, "default");
    for (name, credentials, user_data) in classes {
        let secret = |name: &str| serde_json::from_value(json!({"name": name})).unwrap();
        let mut class = class();
        (class.metadata.name, class.metadata.uid) = (Some(name.to_owned()), Some(format!("uid-{name}")));
        (class.credentials_secret_ref, class.secret_ref) = (Some(secret(credentials)), user_data.map(secret));
        store.apply(class);
    }
    let stores = Stores::default();
    stores.add(Arc::new(store));
    for name in ["one", "two"] {
        answer(&secret_store(&stores, name), Some(object(name).build()));
    }
    answer(&secret_store(&stores, "missing"), None);
    let settings = OrphanVmSettings::default;
    let take = |name: &str| {
        Snapshot::take(
            &stores,
            &ObjectRef::new(CONTROL, "default", name),
            (&Provider::of(&Uncalled), Duration::from_secs(30)),
            (settings(), 0),
            (CloudNodeMode::Off, Duration::from_secs(30)),
        )
        .unwrap()
    };
    classes.map(|(name, ..)| take(name).lister.map(|class| class.is_ok()))
}

#[test]
fn nothing_is_decided_while_a_list_or_a_sweep_is_under_way() {
    let (mut process, snapshot) = (Process::new(), one_machine());
    let all = listed(&[("1", "a"), ("2", "b")]);
    process.run(15, &snapshot, &all);
    let asks = process.plan(30, &snapshot);
    let call = call_of(&asks).expect("a list is due");
    assert!(process.outcomes.begin(call, minutes(30)));
    let waiting = process.plan(31, &snapshot);
    assert!(call_of(&waiting).is_none() && waiting.steps().next().is_none(), "{waiting}");
}

#[test]
fn one_class_lists_for_all_with_the_same_cluster_and_credentials() {
    let lists = Some(true);
    assert_eq!(listers([("b", "one", None), ("c", "one", None), ("d", "two", None)]), [lists, None, lists]);
}

#[test]
fn mcm_defect_20_a_class_that_cannot_be_used_does_not_stop_the_search_for_others() {
    let broken = Some("missing");
    assert_eq!(listers([("b", "missing", None), ("c", "one", None)]), [Some(false), Some(true)]);
    assert_eq!(listers([("b", "one", broken), ("c", "one", None)]), [None, Some(true)], "another one lists for it");
}

#[test]
fn a_machine_that_has_gone_with_its_vm_since_the_list_leaves_no_orphan() {
    let mut process = Process::new();
    let both = Fixture::of(vec![running("a", "1"), running("b", "2")]).snapshot();
    assert_eq!(process.run(15, &both, &listed(&[("1", "a"), ("2", "b")])), [""; 0]);
    let plan = process.plan(20, &one_machine());
    assert!(plan.is_idle() && plan.events.is_empty(), "{plan}");
    assert_eq!((process.notes.len(), plan.wake), (0, Some(minutes(30))));
}

/// Machines of other namespaces may have VMs with the same tags. They block no others, and are asked for again after a day.
#[test]
fn a_vm_that_a_machine_of_another_namespace_has_is_left_alone() {
    let mut process = Process::new();
    let others = listed(&[("1", "a"), ("2", "b"), ("3", "c")]);
    let (mut asked, mut events) = (vec![], vec![]);
    for minute in 0..(25 * 60) {
        loop {
            let plan = process.plan(minute, &one_machine());
            events.extend(plan.events.iter().map(|event| (minute, event.reason)));
            let Some(call) = call_of(&plan) else { break };
            assert!(process.outcomes.begin(call, minutes(minute)), "{plan}");
            let outcome = match call {
                Call::List(_) => Outcome::Listed(Arc::new(others.clone())),
                Call::Sweep(_, orphans) => {
                    asked.push((minute, orphans.len()));
                    Outcome::Swept(
                        orphans.iter().map(|orphan| (orphan.provider_id.clone(), SweepResult::Kept)).collect(),
                    )
                }
            };
            process.outcomes.finish(call, minutes(minute), outcome);
        }
    }
    let (first, again) = (asked[0].0, asked[1].0);
    assert_eq!(asked, [(first, 2), (again, 2)]);
    assert_eq!(again - first, 24 * 60, "the first list after a day: {asked:?}");
    let kept = events.iter().filter(|(_, reason)| *reason == reasons::ORPHAN_VMS_KEPT).count();
    assert_eq!((events.len(), kept), (5, 2), "{events:?}");
    assert_eq!(Swept::recorded(&process.class), Swept::default(), "nothing is to follow them");
}

/// A Machine and its VM may go while the provider makes the list.
#[test]
fn an_orphan_is_reported_once_when_a_second_list_shows_it() {
    let mut process = Process::daily();
    let mut report = |minute, listed: &Listed| {
        let plan = process.plan(minute, &one_machine());
        let Some(call) = call_of(&plan) else { panic!("{plan}") };
        assert!(process.outcomes.begin(call, minutes(minute)), "{plan}");
        process.outcomes.finish(call, minutes(minute), Outcome::Listed(Arc::new(listed.clone())));
        let plans = [(); 2].map(|()| process.plan(minute, &one_machine()));
        plans.iter().flat_map(|plan| &plan.events).filter(|event| event.reason == reasons::ORPHAN_VMS).count()
    };
    let (with, without) = (listed(&[("1", "a"), ("2", "b")]), listed(&[("1", "a")]));
    assert_eq!(report(15, &with), 0, "it may have gone since");
    assert_eq!(report(30, &without), 0, "it has");
    assert_eq!([45, 60, 75].map(|minute| report(minute, &with)), [0, 1, 0]);
}

/// The Node of the Machine `gone` and of the VM 2, which is not ready.
fn lost_node(change: &Value) -> Node {
    let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7", "labels": {labels::MACHINE_NAME: "gone"},
        "annotations": {annotations::MACHINE_CLASS: "default/class/uid-class"}}, "spec": {"providerID": id("2")},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    json_patch::merge(&mut node, change);
    serde_json::from_value(node).unwrap()
}

/// The minutes at which the Node of a fixture is marked, and unmarked, by lists of these VMs.
fn marked(fixture: Fixture, listed: impl Fn(i64) -> Listed) -> Vec<(i64, bool)> {
    let (snapshot, mut process) = (fixture.snapshot(), Process::new());
    let of_node = |plan: &Plan| {
        plan.steps().find_map(|planned| match &planned.step {
            Step::Edit { at, patch, .. } if &*at.resource().kind == "Node" => {
                Some(!serde_json::to_string(patch).unwrap().contains("remove"))
            }
            _ => None,
        })
    };
    let mut marks = vec![];
    for minute in 0..=45 {
        process.run(minute, &snapshot, &listed(minute));
        marks.extend(of_node(&process.plan(minute, &snapshot)).map(|mark| (minute, mark)));
    }
    marks.dedup_by_key(|(minute, _)| *minute / 15);
    marks
}

#[test]
fn a_node_without_machine_and_vm_is_marked_by_the_second_list() {
    let with = |change: Value| Fixture { nodes: vec![lost_node(&change)], ..Fixture::of(vec![running("a", "1")]) };
    let own = |_| listed(&[("1", "a")]);
    assert_eq!(marked(with(json!({})), own), [(30, true), (45, true)]);
    let beside = |machine: MachineBuilder| {
        let nodes = vec![lost_node(&json!({}))];
        Fixture { nodes, ..Fixture::of(vec![running("a", "1"), machine]) }
    };
    let kept = [
        (with(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})), "it is ready"),
        (with(json!({"metadata": {"labels": null}})), "it never had a machine"),
        (with(json!({"metadata": {"annotations": null}})), "nobody knows its class"),
        (
            with(json!({"metadata": {"annotations": {annotations::MACHINE_CLASS: "default/class/other"}}})),
            "of another class",
        ),
        (with(json!({"metadata": {"deletionTimestamp": NOW}})), "it goes"),
        (beside(machine("gone")), "its machine"),
        (beside(machine("b").with("/spec/providerID", id("2"))), "of its VM"),
        (beside(machine("b").label("node", "n")), "of its name"),
    ];
    for (fixture, why) in kept {
        assert_eq!(marked(fixture, own), [], "{why}");
    }
}

/// Its kubelet has registered it, and nobody has given it an id before its VM went.
#[test]
fn a_node_without_an_id_is_marked_if_two_lists_lack_a_vm_of_its_machine() {
    let with = |change: Value| Fixture { nodes: vec![lost_node(&change)], ..Fixture::of(vec![running("a", "1")]) };
    let new = || with(json!({"spec": null}));
    let own = |_| listed(&[("1", "a")]);
    let late = |minute| if minute < 30 { listed(&[("1", "a")]) } else { listed(&[("1", "a"), ("9", "gone")]) };
    assert_eq!(marked(new(), own), [(30, true), (45, true)]);
    assert_eq!(marked(new(), |_| listed(&[("1", "a"), ("9", "gone")])), [], "a VM has the tags of its machine");
    assert_eq!(marked(new(), late), [], "the second list has its VM");
    assert_eq!(marked(new(), |_| listed(&[("1", "")])), [], "the list has no tags, as that of machine a shows");
    let mark = json!({"spec": null, "metadata": {"annotations": {annotations::VM_MISSING: ""}}});
    assert_eq!(marked(with(mark), late).first(), Some(&(30, false)), "it loses the mark");
}

#[test]
fn lists_that_have_the_vm_or_prove_nothing_mark_no_node() {
    let lost = || Fixture { nodes: vec![lost_node(&json!({}))], ..Fixture::of(vec![running("a", "1")]) };
    let vm = |shown: bool| if shown { listed(&[("1", "a"), ("2", "gone")]) } else { listed(&[("1", "a")]) };
    assert_eq!(marked(lost(), |_| vm(true)), []);
    let zoned = |_| {
        let all = listed(&[("1", "a"), ("2", "gone")]).into_iter();
        all.map(|(id, vm)| (id.replace("p:///", "p:///zone/"), vm)).collect()
    };
    assert_eq!(marked(lost(), zoned), [], "the provider writes the id in another way");
    assert_eq!(marked(lost(), |minute| vm(minute == 30)), [], "the second list has it: the first was in part");
    assert_eq!(marked(lost(), |_| listed(&[])), [], "an empty list");
    assert_eq!(marked(lost(), |_| listed(&[("9", "z")])), [], "that of another account");
    let many = |phase: &str| {
        let machines = ["1", "3", "4", "5"].map(|vm| running(&format!("m{vm}"), vm).phase(phase));
        Fixture { nodes: vec![lost_node(&json!({}))], ..Fixture::of(machines.into()) }
    };
    let (all, half) = ([("1", "m1"), ("2", "gone"), ("3", "m3"), ("4", "m4"), ("5", "m5")], [("1", "m1"), ("3", "m3")]);
    assert_eq!(marked(many("Running"), |_| listed(&half)), [], "half of all VMs are missing, which run");
    let once = |minute| if minute < 30 { listed(&half) } else { listed(&all) };
    assert_eq!(marked(many("Unknown"), once), [], "half of all VMs, which may be gone, are missing in one answer");
    assert_eq!(marked(many("Unknown"), |_| listed(&half)).first(), Some(&(30, true)), "in each answer");
    let alone = Fixture { nodes: vec![lost_node(&json!({}))], ..Fixture::of(vec![]) };
    assert_eq!(marked(alone, |_| listed(&[])), [], "no machine proves the list");
    assert_eq!(marked(Fixture { mode: CloudNodeMode::Off, ..lost() }, |_| vm(false)), [], "others delete nodes");
    let mark = json!({"metadata": {"annotations": {annotations::VM_MISSING: id("2")}}});
    let reappeared = Fixture { nodes: vec![lost_node(&mark)], ..Fixture::of(vec![running("a", "1")]) };
    assert_eq!(marked(reappeared, |_| vm(true)).first(), Some(&(15, false)), "it loses the mark");
}

/// A process after another has swept VM 2 for Machine `gone`, and what it sees of the VM's Node.
fn after_sweep(fixture: Fixture, change: &Value) -> (Process, Snapshot) {
    let record = [(annotations::SWEPT_VMS.to_owned(), json!({id("2"): "gone"}).to_string())];
    let mut process = Process::new();
    process.class.metadata.annotations = Some(record.into());
    let nodes = [(id("2"), vec![Arc::new(lost_node(change))])].into();
    (process, Snapshot { nodes_of_swept: Some(nodes), ..fixture.snapshot() })
}

/// The minutes at which the Node of VM 2, which was swept for Machine `gone` before this process began, is deleted by lists of these VMs,
/// and whether the record still has the VM in the end.
fn swept_node(fixture: Fixture, change: &Value, listed: impl Fn(i64) -> Listed) -> (Vec<i64>, bool) {
    let (mut process, snapshot) = after_sweep(fixture, change);
    let is_deletion = |step: &Step<Call>| matches!(step, Step::Delete(_));
    let mut minutes = vec![];
    for minute in 0..=45 {
        process.run(minute, &snapshot, &listed(minute));
        let plan = process.plan(minute, &snapshot);
        minutes.extend(plan.steps().any(|planned| is_deletion(&planned.step)).then_some(minute));
    }
    minutes.dedup_by_key(|minute| *minute / 15);
    (minutes, Swept::recorded(&process.class).iter().next().is_some())
}

#[test]
fn the_node_of_a_swept_vm_goes_once_a_list_lacks_the_vm() {
    let of = |machines: Vec<MachineBuilder>| Fixture::of([vec![running("a", "1")], machines].concat());
    let without = |_| listed(&[("1", "a")]);
    let until = |end: i64| move |minute| listed(&[("1", "a"), ("2", "gone")][..if minute < end { 2 } else { 1 }]);
    let same = json!({});
    assert_eq!(swept_node(of(vec![]), &same, without), (vec![15, 30, 45], true));
    assert_eq!(swept_node(of(vec![]), &same, until(30)), (vec![30, 45], true), "it is still listed");
    assert_eq!(
        swept_node(of(vec![]), &json!({"metadata": {"labels": null}}), without).0,
        [15, 30, 45],
        "it has no label yet"
    );
    let kept = [
        (of(vec![machine("b").with("/spec/providerID", id("2"))]), same.clone(), "a machine has the VM"),
        (of(vec![]), json!({"metadata": {"labels": {labels::MACHINE_NAME: "b"}}}), "the node of another machine"),
        (of(vec![]), json!({"metadata": {"deletionTimestamp": NOW}}), "it goes already"),
    ];
    for (fixture, change, why) in kept {
        assert_eq!(swept_node(fixture, &change, without).0, [0; 0], "{why}");
    }
}

/// A list that began before the end of a sweep may lack a VM of which it was only asked early.
#[test]
fn a_list_from_before_a_sweep_proves_no_vm_gone() {
    let plan_after = |list: (i64, i64), sweep: (i64, i64)| {
        let (mut process, snapshot) = after_sweep(Fixture::of(vec![running("a", "1")]), &json!({}));
        let Some(Call::List(request)) = call_of(&process.plan(15, &snapshot)).cloned() else { unreachable!() };
        let outcomes = [
            (Call::Sweep(request.clone(), Arc::new([])), sweep, Outcome::Swept(vec![(id("2"), SweepResult::Deleted)])),
            (Call::List(request), list, Outcome::Listed(Arc::new(listed(&[("1", "a")])))),
        ];
        for (call, (begun, ended), outcome) in outcomes {
            assert!(process.outcomes.begin(&call, minutes(begun)));
            process.outcomes.finish(&call, minutes(ended), outcome);
        }
        let plan = process.plan(32, &snapshot);
        plan.steps().any(|planned| matches!(planned.step, Step::Delete(_)))
    };
    assert!(plan_after((31, 32), (30, 31)), "the list began once the sweep had ended");
    assert!(!plan_after((29, 32), (30, 31)), "the list began before");
}

#[test]
fn a_sweep_that_fails_says_why_until_the_next_list() {
    let list = dated(&[("1", "a", -90), ("2", "b", -90)]);
    let waits = |outcome: Outcome| {
        let (mut process, snapshot) = (Process::new(), one_machine());
        for minute in 0..25 {
            assert_eq!(process.run(minute, &snapshot, &list), [""; 0]);
        }
        for result in [Outcome::Listed(Arc::new(list.clone())), outcome] {
            let call = call_of(&process.plan(25, &snapshot)).cloned().unwrap();
            assert!(process.outcomes.begin(&call, minutes(25)));
            process.outcomes.finish(&call, minutes(25), result);
        }
        process
            .plan(25, &snapshot)
            .waits
            .iter()
            .map(|wait| format!("{}: {}", wait.reason, wait.message))
            .collect::<Vec<_>>()
    };
    let failed = |why: &str| {
        vec![format!("OrphanVMsFailed: failed to delete orphaned VMs, which is tried again after the next list: {why}")]
    };
    assert_eq!(waits(Outcome::Swept(vec![(id("2"), SweepResult::Deleted)])), [""; 0]);
    assert_eq!(waits(Outcome::Swept(vec![(id("2"), SweepResult::Kept)])), [""; 0]);
    let result = SweepResult::Failed("no quota".to_owned());
    assert_eq!(waits(Outcome::Swept(vec![(id("2"), result)])), failed("p:///2: no quota"));
    assert_eq!(waits(Outcome::Failed { throttled: false, message: "timeout".to_owned() }), failed("timeout"));
}
