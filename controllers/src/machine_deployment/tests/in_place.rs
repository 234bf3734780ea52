//! Updates in place, with a minimal set controller, and stand-ins for the controllers of Machines and of Nodes.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_api::{labels, stored::Updating};
use serde_json::{Value, json};

use super::cluster::{Cluster, kinds};
use crate::testing::machine_deployment;

const CANDIDATE: &str = labels::CANDIDATE_FOR_UPDATE;
const SELECTED: &str = labels::SELECTED_FOR_UPDATE;
const RESULT: &str = labels::UPDATE_RESULT;

fn strategy(by: &str, surge: i64, unavailable: i64) -> Value {
    let bounds = json!({"maxSurge": surge, "maxUnavailable": unavailable, "orchestrationType": by});
    json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds})
}

/// A deployment that has reached its goal, with Nodes.
fn settled(replicas: i32, by: &str, surge: i64, unavailable: i64) -> Cluster {
    let mut cluster = Cluster::of(machine_deployment(replicas, &strategy(by, surge, unavailable)));
    cluster.nodes = Some(BTreeMap::new());
    cluster.settle();
    cluster.nodes_join();
    cluster.events.clear();
    cluster
}

/// The same, whose Machines are to be updated one by one to another template.
fn rolled(replicas: i32) -> Cluster {
    let mut cluster = settled(replicas, "Auto", 0, 1);
    cluster.new_template("v2");
    cluster
}

fn condition(reason: &str) -> Value {
    json!([{"type": "Ready", "status": "True"}, {"type": "InPlaceUpdate", "status": "True", "reason": reason}])
}

impl Cluster {
    /// Each Machine that runs has a Node.
    fn nodes_join(&mut self) {
        let mut machines = self.machines();
        machines.retain(|_, machine| machine["metadata"]["deletionTimestamp"].is_null());
        let nodes = self.nodes.as_mut().unwrap();
        nodes.retain(|name, _| machines.contains_key(name));
        for (name, _) in machines.into_iter().filter(|(_, machine)| is_running(machine)) {
            nodes.entry(name.clone()).or_insert_with(|| json!({"metadata": {"name": name, "labels": {}}}));
        }
    }

    pub(super) fn listed(&self) -> BTreeSet<String> {
        let sets = self.sets();
        let lists = sets.values().filter_map(|set| set["metadata"]["annotations"]["nodewright.dev/updating"].as_str());
        lists.flat_map(|list| list.parse::<Updating>().unwrap().0).collect()
    }

    fn node(&mut self, name: &str) -> &mut Value {
        self.nodes.as_mut().unwrap().get_mut(name).unwrap()
    }

    fn selected(&self) -> BTreeSet<String> {
        let nodes = self.nodes.as_ref().unwrap().iter();
        nodes
            .filter(|(_, node)| node["metadata"]["labels"][SELECTED].is_string())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The controller of the Nodes selects those that are listed, and takes the labels from those that have moved.
    fn nodes_act(&mut self) -> bool {
        let mut changed = false;
        for name in self.listed() {
            let Some(node) = self.nodes.as_mut().unwrap().get_mut(&name) else { continue };
            changed |= !node["metadata"]["labels"][SELECTED].is_string();
            node["metadata"]["labels"][CANDIDATE] = "true".into();
            node["metadata"]["labels"][SELECTED] = "true".into();
        }
        for (name, machine) in self.machines() {
            if machine["metadata"]["labels"][RESULT].is_string() && self.node(&name)["metadata"]["labels"] != json!({})
            {
                self.node(&name)["metadata"]["labels"] = json!({});
                changed = true;
            }
        }
        changed
    }

    fn select_one(&mut self) -> String {
        self.acts();
        self.selected().pop_first().unwrap()
    }

    /// The next Machine is updated, and has yet to move.
    fn update_one(&mut self) -> String {
        let name = self.select_one();
        self.drain(&name);
        self.answer(&name);
        name
    }

    /// The Machine controller drains a selected Node.
    fn drain(&mut self, name: &str) {
        self.edit_machine(name, |machine| machine["status"]["currentStatus"]["phase"] = "InPlaceUpdating".into());
        self.node(name)["status"]["conditions"] = condition("ReadyForUpdate");
    }

    /// The program on the Node answers, and the Machine controller records that.
    fn answer(&mut self, name: &str) {
        self.node(name)["metadata"]["labels"][RESULT] = "successful".into();
        self.node(name)["status"]["conditions"] = condition("UpdateSuccessful");
        self.edit_machine(name, |machine| machine["status"]["currentStatus"]["phase"] = "Running".into());
    }

    fn phase(&self, name: &str) -> String {
        self.machines()[name]["status"]["currentStatus"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn new_template(&mut self, version: &str) {
        self.change("/spec/template/spec/class/name", json!(version));
    }

    /// Acts until nothing changes, and lets the rollout get older.
    fn acts(&mut self) {
        for _ in 0..3 {
            self.acts_only();
            self.sets_act();
            self.let_time_pass();
        }
    }

    fn deployment_acts(&mut self) {
        for _ in 0..20 {
            if !self.act() {
                return;
            }
            self.sets_act();
        }
        panic!("it never comes to rest: {:?}", self.plan());
    }

    /// The deployment and the controller of the Nodes alone.
    fn acts_only(&mut self) {
        for _ in 0..20 {
            if !self.act() && !self.nodes_act() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.plan());
    }

    fn set_of(&self, version: &str) -> Value {
        let sets = self.sets();
        let found = sets.values().find(|set| set["spec"]["template"]["spec"]["class"]["name"] == version);
        Value::clone(found.unwrap())
    }

    fn members(&self, version: &str) -> BTreeSet<String> {
        let name = self.set_of(version)["metadata"]["name"].as_str().unwrap().to_owned();
        self.machines_of(&name).into_iter().map(|(name, _)| name).collect()
    }

    fn creates(&self, version: &str) -> bool {
        self.set_of(version)["metadata"]["labels"][labels::SCALE_UP_DISABLED].is_null()
    }
}

fn is_running(machine: &Value) -> bool {
    machine["status"]["currentStatus"]["phase"] == "Running"
}

/// Updates all, one plan and one event at a time, and checks the bounds after each.
fn run(cluster: &mut Cluster, ceiling: usize, floor: usize, selected: usize) {
    let before = cluster.machines();
    for _ in 0..400 {
        let mut changed = cluster.act();
        check(cluster, ceiling, floor, selected);
        cluster.sets_act();
        check(cluster, ceiling, floor, selected);
        changed |= cluster.nodes_act() || cluster.one_vanishes() || one_step(cluster);
        cluster.nodes_join();
        check(cluster, ceiling, floor, selected);
        changed |= cluster.plan().waits.iter().any(|wait| wait.until.is_some());
        cluster.set_now(cluster.now() + jiff::SignedDuration::from_secs(1));
        if !changed {
            let kept = cluster.machines().keys().filter(|name| before.contains_key(*name)).count();
            assert!(kept + ceiling.saturating_sub(before.len()) >= before.len(), "machines were replaced");
            return;
        }
    }
    panic!("it never comes to rest: {:#?}", cluster.sets());
}

fn one_step(cluster: &mut Cluster) -> bool {
    for name in cluster.selected() {
        match cluster.phase(&name).as_str() {
            "Running" if cluster.node(&name)["metadata"]["labels"][RESULT].is_null() => cluster.drain(&name),
            "InPlaceUpdating" => cluster.answer(&name),
            _ => continue,
        }
        return true;
    }
    let waiting =
        cluster.machines().into_iter().find(|(_, machine)| machine["status"]["currentStatus"]["phase"].is_null());
    waiting.is_some() && cluster.one_gets_ready()
}

fn check(cluster: &Cluster, ceiling: usize, floor: usize, selected: usize) {
    let machines = cluster.machines();
    assert!(machines.len() <= ceiling, "{} machines", machines.len());
    let running = machines.values().filter(|machine| is_running(machine)).count();
    assert!(running >= floor, "{running} are available");
    let is_staying =
        |name: &&String| machines.get(*name).is_some_and(|machine| machine["metadata"]["deletionTimestamp"].is_null());
    let updating = cluster.selected().union(&cluster.listed()).filter(is_staying).count();
    assert!(updating <= selected, "{updating} are being updated");
}

#[test]
fn each_machine_keeps_its_vm_and_moves_to_the_new_set_within_the_bounds() {
    // Replicas, surge, unavailable; the most Machines, the fewest available, and how many are updated at once.
    for (replicas, surge, unavailable, [ceiling, floor, selected]) in
        [(3, 0, 1, [3, 2, 1]), (3, 1, 0, [4, 3, 1]), (4, 1, 1, [5, 3, 2]), (1, 0, 1, [1, 0, 1]), (5, 0, 2, [5, 3, 2])]
    {
        let mut cluster = settled(replicas, "Auto", surge, unavailable);
        cluster.new_template("v2");
        run(&mut cluster, ceiling, floor, selected);
        let wanted = usize::try_from(replicas).unwrap();
        assert_eq!(
            (cluster.members("v2").len(), cluster.members("v1").len()),
            (wanted, 0),
            "{replicas} {surge} {unavailable}"
        );
        assert_eq!((cluster.listed().len(), cluster.selected().len(), cluster.ready()), (0, 0, wanted));
        assert!(cluster.machines().values().all(|machine| machine["metadata"]["labels"][RESULT].is_null()));
        assert!(cluster.creates("v2"), "the new set may grow");
        cluster.change("/spec/replicas", json!(replicas + 1));
        cluster.settle();
        assert_eq!(cluster.ready(), wanted + 1);
    }
}

#[test]
fn nothing_is_selected_before_a_change_has_lasted_nor_while_nodes_are_unknown() {
    let mut cluster = rolled(3);
    cluster.deployment_acts();
    assert_eq!(cluster.listed().len(), 0, "it may be taken back");
    let nodes = cluster.nodes.take();
    cluster.let_time_pass();
    cluster.deployment_acts();
    assert_eq!(cluster.listed().len(), 0);
    cluster.nodes = nodes;
    cluster.acts();
    assert_eq!(cluster.listed().len(), 1);
}

#[test]
fn without_nodes_machines_stay_as_they_are() {
    let mut cluster = Cluster::settled(machine_deployment(3, &strategy("Auto", 1, 0)));
    cluster.new_template("v2");
    cluster.change("/spec/replicas", json!(4));
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![4], 4), "scaled, and nothing else");
    assert_eq!(cluster.reason("Stalled"), "InPlaceUpdateUnsupported");
    assert_eq!(cluster.events.iter().filter(|event| event.contains("in place")).count(), 1, "said once");
    assert!(kinds(&cluster.plan()).is_empty());
}

#[test]
fn a_user_selects_in_a_manual_update() {
    let mut cluster = settled(3, "Manual", 0, 1);
    cluster.new_template("v2");
    cluster.acts();
    assert_eq!((cluster.listed().len(), cluster.members("v2").len()), (0, 0));
    assert_eq!((cluster.replicas(), cluster.creates("v1")), (vec![3, 0], false));
    let message = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("wait for a user to label their nodes"), "{message}");
    let names: Vec<_> = cluster.machines().into_keys().collect();
    for name in &names[..2] {
        cluster.node(name)["metadata"]["labels"] = json!({CANDIDATE: "true", SELECTED: "true"});
    }
    cluster.acts();
    assert_eq!(cluster.listed(), names[..2].iter().cloned().collect(), "the target of their updates is noted");
    cluster.node(&names[1])["metadata"]["labels"] = json!({CANDIDATE: "true"});
    cluster.act();
    assert_eq!(cluster.listed(), BTreeSet::from([names[0].clone()]), "it is taken back");
    cluster.drain(&names[0]);
    cluster.answer(&names[0]);
    cluster.acts();
    assert_eq!((cluster.members("v2"), cluster.replicas()), (BTreeSet::from([names[0].clone()]), vec![2, 1]));
}

#[test]
fn the_move_is_safe_at_each_step() {
    let mut cluster = rolled(3);
    let name = cluster.select_one();
    assert!(!cluster.creates("v1"), "the former set replaces nothing");
    cluster.drain(&name);
    cluster.answer(&name);
    assert_eq!(kinds(&cluster.plan()), ["edit Machine"], "the move, and nothing else");
    cluster.act();
    let moved = cluster.machines()[&name].clone();
    assert_eq!((&moved["metadata"]["labels"][RESULT], cluster.replicas()), (&json!("successful"), vec![3, 0]));
    assert_eq!(moved["metadata"]["ownerReferences"][0]["uid"], cluster.set_of("v2")["metadata"]["uid"]);
    let hash = |value: &Value| value["metadata"]["labels"]["machine-template-hash"].clone();
    assert_eq!(hash(&moved), hash(&cluster.set_of("v2")));
    cluster.act();
    assert_eq!(cluster.replicas(), [2, 1], "both sets count it in one plan");
    assert!(!cluster.listed().contains(&name));
    assert!(cluster.machines()[&name]["metadata"]["labels"][RESULT].is_string(), "its node has yet to be cleaned");
    cluster.nodes_act();
    cluster.act();
    assert!(cluster.machines()[&name]["metadata"]["labels"][RESULT].is_null());
    // A pause in between, and even another strategy, leave it counted.
    for change in [json!(true), json!(false)] {
        cluster.change("/spec/replicas", json!(3));
        cluster.edit(|live| live["spec"]["paused"] = change.clone());
        cluster.act();
        assert_eq!(cluster.replicas(), [2, 1]);
    }
}

#[test]
fn a_moved_machine_is_counted_while_the_deployment_is_paused_and_with_another_strategy() {
    type Edit = fn(&mut Cluster);
    let edits: [Edit; 2] = [
        |cluster| cluster.edit(|live| live["spec"]["paused"] = true.into()),
        |cluster| cluster.change("/spec/strategy", crate::testing::rolling(1, 0)),
    ];
    for edit in edits {
        let mut cluster = rolled(3);
        let name = cluster.update_one();
        cluster.act();
        assert_eq!(cluster.members("v2"), BTreeSet::from([name.clone()]));
        edit(&mut cluster);
        cluster.act();
        assert_eq!(cluster.replicas(), [2, 1]);
        assert_eq!(cluster.machines().len(), 3);
        cluster.acts_only();
        assert!(cluster.machines()[&name]["metadata"]["labels"][RESULT].is_null(), "its set may delete it again");
        assert!(cluster.creates("v1"), "and the other one may grow");
    }
}

#[test]
fn while_the_deployment_is_paused_a_lost_machine_is_created_again() {
    let mut cluster = rolled(3);
    cluster.acts();
    cluster.edit(|live| live["spec"]["paused"] = true.into());
    let lost = cluster.members("v1").into_iter().find(|name| !cluster.selected().contains(name)).unwrap();
    cluster.remove_machine(&lost);
    cluster.nodes.as_mut().unwrap().remove(&lost);
    cluster.settle();
    assert_eq!((cluster.members("v1").len(), cluster.members("v2").len()), (3, 0));
    cluster.change("/spec/replicas", json!(5));
    cluster.settle();
    assert_eq!(cluster.machines().len(), 5);
}

/// The taints of a Node whose critical components are not ready.
fn without_components() -> Value {
    json!([{"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"}])
}

#[test]
fn no_other_machine_is_selected_before_the_node_of_the_last_one_takes_pods() {
    let mut cluster = rolled(3);
    let name = cluster.update_one();
    cluster.node(&name)["spec"]["taints"] = without_components();
    cluster.acts();
    assert_eq!((cluster.members("v2").len(), cluster.listed().len()), (1, 0));
    cluster.node(&name)["spec"]["taints"] = json!([]);
    cluster.acts();
    assert_eq!(cluster.listed().len(), 1);
}

#[test]
fn the_last_node_that_was_updated_is_named_while_it_takes_no_pods() {
    let mut cluster = rolled(1);
    let name = cluster.update_one();
    cluster.node(&name)["spec"]["taints"] = without_components();
    cluster.settle();
    let said = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(said.starts_with(&format!("node {name} waits until its critical components are ready")), "{said}");
    cluster.node(&name)["spec"]["taints"] = json!([]);
    cluster.settle();
    assert!(cluster.condition("Reconciling").is_none());
}

#[test]
fn a_set_does_not_shrink_while_a_machine_moves_to_it() {
    let mut cluster = rolled(2);
    for _ in 0..2 {
        cluster.update_one();
        cluster.deployment_acts();
    }
    assert_eq!(cluster.replicas(), [0, 2]);
    cluster.change("/spec/replicas", json!(1));
    cluster.deployment_acts();
    assert_eq!(cluster.replicas(), [0, 2], "its node has yet to be cleaned");
    cluster.acts();
    assert_eq!(cluster.replicas(), [0, 1]);
}

#[test]
fn a_template_that_is_taken_back_takes_the_selection_back() {
    let mut cluster = rolled(3);
    let name = cluster.select_one();
    cluster.new_template("v1");
    cluster.deployment_acts();
    assert_eq!(cluster.listed(), BTreeSet::from([name.clone()]), "its node is still selected");
    assert!(cluster.creates("v1"), "it may grow meanwhile");
    cluster.node(&name)["metadata"]["labels"] = json!({});
    cluster.deployment_acts();
    assert_eq!((cluster.listed().len(), cluster.replicas()), (0, vec![3, 0]));
    assert!(cluster.creates("v1"));
}

/// Both Machines have moved, and the last one is not counted.
fn last_one_uncounted() -> Cluster {
    let mut cluster = rolled(2);
    for _ in 0..2 {
        cluster.update_one();
        cluster.act();
    }
    assert_eq!((cluster.members("v2").len(), cluster.replicas()), (2, vec![1, 1]), "the last one is not counted");
    cluster
}

fn returns_without_another_machine(mut cluster: Cluster) {
    cluster.new_template("v1");
    for _ in 0..9 {
        cluster.act();
        cluster.sets_act();
        assert_eq!(cluster.machines().len(), 2);
    }
    run(&mut cluster, 2, 1, 1);
    assert_eq!((cluster.members("v1").len(), cluster.creates("v1")), (2, true));
}

#[test]
fn a_template_that_returns_right_after_a_move_costs_no_machine() {
    let cluster = last_one_uncounted();
    // Another change of the former set is not observed yet.
    cluster.edit_sets(|set| set["metadata"]["generation"] = 9.into());
    returns_without_another_machine(cluster);
}

#[test]
fn a_former_set_that_was_not_made_smaller_creates_nothing_when_its_template_returns() {
    let cluster = last_one_uncounted();
    // One of two writes has failed.
    let new = cluster.set_of("v2")["metadata"]["name"].clone();
    cluster.edit_sets(|set| {
        if set["metadata"]["name"] == new {
            set["spec"]["replicas"] = 2.into();
        }
    });
    returns_without_another_machine(cluster);
}

#[test]
fn one_whose_update_has_begun_moves_to_the_template_that_it_was_updated_to() {
    let mut cluster = rolled(2);
    let name = cluster.select_one();
    cluster.drain(&name);
    cluster.new_template("v3");
    cluster.acts();
    cluster.answer(&name);
    cluster.deployment_acts();
    assert!(cluster.machines().len() <= 2);
    assert_eq!(cluster.members("v2"), BTreeSet::from([name]));
    cluster.nodes_act();
    run(&mut cluster, 2, 1, 1);
    assert_eq!(cluster.members("v3").len(), 2, "it is a candidate again");
}

#[test]
fn selections_of_machine_controller_manager_count() {
    let mut cluster = settled(4, "Auto", 0, 1);
    let names: Vec<_> = cluster.machines().into_keys().collect();
    cluster.new_template("v2");
    cluster.node(&names[3])["metadata"]["labels"] = json!({CANDIDATE: "true", SELECTED: "true"});
    cluster.acts();
    assert_eq!(cluster.listed(), BTreeSet::from([names[3].clone()]), "no other one besides");
    // It had moved this one, and had not counted it.
    let mut cluster = rolled(4);
    cluster.update_one();
    cluster.act();
    cluster.edit_sets(|set| {
        set["metadata"]["annotations"].as_object_mut().unwrap().remove("nodewright.dev/updating");
    });
    cluster.act();
    assert_eq!(cluster.replicas(), [3, 1]);
    run(&mut cluster, 4, 3, 1);
    assert_eq!(cluster.members("v2").len(), 4);
}

#[test]
fn one_that_is_a_candidate_again_at_once_has_arrived_all_the_same() {
    let mut cluster = rolled(2);
    let name = cluster.update_one();
    cluster.act();
    cluster.new_template("v1");
    cluster.node(&name)["metadata"]["labels"] = json!({CANDIDATE: "true"});
    cluster.deployment_acts();
    assert!(cluster.machines()[&name]["metadata"]["labels"][RESULT].is_null());
    run(&mut cluster, 2, 1, 1);
    assert_eq!(cluster.members("v1").len(), 2);
}

#[test]
fn one_that_is_lost_is_created_by_the_new_set() {
    let mut cluster = rolled(3);
    let name = cluster.select_one();
    cluster.remove_machine(&name);
    cluster.nodes.as_mut().unwrap().remove(&name);
    run(&mut cluster, 3, 1, 1);
    assert_eq!((cluster.members("v2").len(), cluster.members("v1").len(), cluster.ready()), (3, 0, 3));
}

#[test]
fn it_is_scaled_during_an_update() {
    for wanted in [5, 2] {
        let mut cluster = rolled(3);
        cluster.acts();
        cluster.change("/spec/replicas", json!(wanted));
        run(&mut cluster, 5, 1, 1);
        let ready = usize::try_from(wanted).unwrap();
        assert_eq!((cluster.members("v2").len(), cluster.ready()), (ready, ready), "{wanted}");
    }
}

#[test]
fn another_leader_cannot_select_besides() {
    let mut cluster = rolled(4);
    cluster.deployment_acts();
    cluster.let_time_pass();
    let plan = cluster.plan();
    let pinned = plan.steps().all(|planned| match &planned.step {
        nodewright_runtime::plan::Step::Apply(apply) if apply.subresource.is_empty() => apply.at.version().is_some(),
        _ => true,
    });
    assert!(kinds(&plan).contains(&"apply MachineSet".to_owned()) && pinned, "{plan:?}");
}
