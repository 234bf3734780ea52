use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{MachineDeployment, MachinePhase, labels, machine_config::MachineConfigPool};
use nodewright_runtime::{
    cache::Stores,
    object::{Kind, ObjectRef, name},
};
use serde_json::{Value, json};

use super::*;
use crate::testing::{NOW, machine_deployment, rolling};

const DURATIONS: Durations = Durations {
    vm: SignedDuration::from_secs(20),
    creation: SignedDuration::from_secs(90),
    deletion: SignedDuration::from_secs(30),
    update: SignedDuration::from_secs(300),
};

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn key() -> ObjectRef {
    ObjectRef::new(CONTROL, "default", "pool")
}

fn fleet(replicas: i32, surge: i32, unavailable: i32) -> Objects {
    let mut deployment: MachineDeployment =
        serde_json::from_value(machine_deployment(replicas, &rolling(surge, unavailable))).unwrap();
    // As a user applies it.
    deployment.metadata.finalizers = None;
    Objects { deployments: vec![deployment], ..Objects::default() }
}

fn foreseen(objects: &Objects) -> Preview {
    preview(objects.clone(), &key(), &FleetSettings::default(), DURATIONS, now()).unwrap()
}

/// The cluster once a fleet is complete, and a moment later.
fn complete(objects: Objects) -> Objects {
    let begun = now() - SignedDuration::from_hours(1);
    let mut forecast = Forecast::new(objects, &key(), &FleetSettings::default(), (DURATIONS, begun));
    let preview = forecast.run().unwrap();
    assert!(matches!(preview.end, End::Complete(_)), "{preview:?}");
    let (stores, nodes) = (forecast.cluster.stores(), forecast.cluster.nodes());
    Objects { deployments: all(stores), sets: all(stores), machines: all(stores), pools: vec![], nodes }
}

fn all<K: Kind + Clone>(stores: &Stores) -> Vec<K> {
    stores.of::<K>(CONTROL).all().iter().map(|object| K::clone(object)).collect()
}

fn change(objects: &mut Objects, change: impl FnOnce(&mut MachineDeployment)) {
    let deployment = &mut objects.deployments[0];
    change(deployment);
    *deployment.metadata.generation.get_or_insert_default() += 1;
}

/// What happens, with the seconds from now, and whether the set was there before.
fn changes(preview: &Preview, old: &Objects) -> Vec<(i64, String)> {
    let is_old = |set: &str| old.sets.iter().any(|it| name(it) == set);
    let one = |change: &Change| {
        let seconds = change.at.duration_since(now()).as_secs();
        let of = if is_old(&change.set) { "old" } else { "new" };
        assert_eq!(change.machine.is_some(), is_old(&change.set), "{change:?}");
        (seconds, format!("{:?} {of}", change.verb).to_lowercase())
    };
    preview.changes.iter().map(one).collect()
}

fn ends(preview: &Preview) -> Option<i64> {
    match preview.end {
        End::Complete(at) => Some(at.duration_since(now()).as_secs()),
        End::Waits(_) => None,
    }
}

#[test]
fn a_new_deployment_gets_its_set_and_its_machines() {
    let preview = foreseen(&fleet(3, 1, 0));
    assert_eq!(
        changes(&preview, &Objects::default()),
        [(0, "create new".to_owned()), (0, "create new".to_owned()), (0, "create new".to_owned())]
    );
    assert_eq!((ends(&preview), preview.new_sets.len(), preview.fewest_running, preview.most), (Some(90), 1, 0, 3));
}

#[test]
fn at_rest_nothing_happens() {
    let objects = complete(fleet(3, 1, 0));
    let preview = foreseen(&objects);
    assert!(preview.changes.is_empty() && preview.new_sets.is_empty(), "{preview:?}");
    assert_eq!((ends(&preview), preview.fewest_running), (Some(0), 3));
}

#[test]
fn a_rollout_goes_in_the_rounds_that_its_bounds_allow() {
    let cases = [
        // surge, unavailable, the fewest that run, the most that exist, how long it takes
        (1, 0, 2, 3, 3 * 90 + 2 * 30),
        (0, 1, 1, 2, 2 * 30 + 2 * 90),
        (2, 0, 2, 4, 90 + 30),
    ];
    for (surge, unavailable, fewest, most, seconds) in cases {
        let mut objects = complete(fleet(2, surge, unavailable));
        let old = objects.clone();
        change(&mut objects, |deployment| deployment.spec.template.spec.class.name = "v2".to_owned());
        let preview = foreseen(&objects);
        let changes = changes(&preview, &old);
        let of = |what: &str| changes.iter().filter(|(_, it)| it == what).count();
        assert_eq!((of("create new"), of("delete old"), changes.len()), (2, 2, 4), "{changes:?}");
        assert_eq!((preview.fewest_running, preview.most), (fewest, most), "{changes:?}");
        assert!(
            ends(&preview).is_some_and(|it| (it - seconds).abs() <= 100),
            "{changes:?}: {:?}, {seconds}",
            preview.end
        );
    }
}

#[test]
fn a_smaller_deployment_deletes_its_oldest_machines_and_a_larger_one_uses_new_names() {
    let mut objects = complete(fleet(3, 1, 0));
    let mut names: Vec<_> = objects.machines.iter().map(|machine| name(machine).to_owned()).collect();
    names.sort();
    change(&mut objects, |deployment| deployment.spec.replicas = 2);
    let preview = foreseen(&objects);
    let deleted: Vec<_> = preview.changes.iter().map(|it| (it.verb, it.machine.clone())).collect();
    assert_eq!(deleted, [(Verb::Delete, Some(names[0].clone()))]);
    change(&mut objects, |deployment| deployment.spec.replicas = 4);
    let preview = foreseen(&objects);
    assert_eq!(preview.changes.len(), 1);
    let created = preview.changes[0].machine.as_ref();
    assert!(created.is_some_and(|created| !names.contains(created)), "{preview:?}");
}

#[test]
fn what_keeps_a_rollout_from_its_end_is_named() {
    let mut objects = complete(fleet(3, 1, 0));
    change(&mut objects, |deployment| {
        deployment.spec.template.spec.class.name = "v2".to_owned();
        deployment.spec.paused = true;
    });
    let preview = foreseen(&objects);
    assert!(preview.changes.is_empty(), "{preview:?}");
    let End::Waits(waits) = preview.end else { panic!("it is paused") };
    assert!(waits[0].starts_with("machinedeployment/pool: spec.paused is true"), "{waits:?}");

    let mut objects = fleet(3, 1, 0);
    objects.deployments[0].spec.template.spec.class.name = String::new();
    let End::Waits(waits) = foreseen(&objects).end else { panic!("it cannot end") };
    assert!(waits[0].contains("spec.template.spec.class.name"), "{waits:?}");
}

#[test]
fn a_progress_deadline_that_passes_is_named_now_and_later() {
    let mut objects = fleet(2, 1, 0);
    objects.deployments[0].spec.progress_deadline_seconds = Some(600);
    let mut forecast = Forecast::new(objects, &key(), &FleetSettings::default(), (DURATIONS, now()));
    forecast.settle().unwrap();
    let stores = forecast.cluster.stores();
    let mut machines = all::<Machine>(stores);
    for machine in &mut machines {
        machine.status.get_or_insert_default().current_status.phase = MachinePhase::CrashLoopBackOff;
    }
    let objects = Objects { deployments: all(stores), sets: all(stores), machines, pools: vec![], nodes: None };
    for hours in [0, 2] {
        let at = now() + SignedDuration::from_hours(hours);
        let preview = preview(objects.clone(), &key(), &FleetSettings::default(), DURATIONS, at).unwrap();
        let End::Waits(waits) = preview.end else { panic!("no machine runs") };
        assert!(waits[0].contains("Progressing is False: ProgressDeadlineExceeded: "), "{waits:?}");
    }
}

#[test]
fn what_changes_without_a_replacement_is_an_update() {
    let mut objects = complete(fleet(2, 1, 0));
    change(&mut objects, |deployment| {
        deployment.spec.template.spec.drain_timeout = Some("9m".parse().unwrap());
    });
    let preview = foreseen(&objects);
    let verbs: Vec<_> = preview.changes.iter().map(|change| change.verb).collect();
    assert_eq!(verbs, [Verb::Update; 2]);
}

#[test]
fn what_cannot_be_foreseen_is_an_error_that_says_why() {
    let error = preview(Objects::default(), &key(), &FleetSettings::default(), DURATIONS, now()).unwrap_err();
    assert_eq!(error, "MachineDeployment pool: not found");
    let mut objects = complete(in_place(3, 0, 1, "Auto"));
    objects.pools = vec![MachineConfigPool::default()];
    let error = preview(objects, &key(), &FleetSettings::default(), DURATIONS, now()).unwrap_err();
    assert!(error.contains("the budgets of MachineConfigPools is not foreseen"), "{error}");
}

/// A fleet whose machines are updated in place.
fn in_place(replicas: i32, surge: i32, unavailable: i32, by: &str) -> Objects {
    let mut objects = fleet(replicas, surge, unavailable);
    let bounds = json!({"maxSurge": surge, "maxUnavailable": unavailable, "orchestrationType": by});
    let strategy = json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds});
    objects.deployments[0].spec.strategy = serde_json::from_value(strategy).unwrap();
    objects.nodes = Some(vec![]);
    objects
}

fn new_template(objects: &mut Objects) {
    change(objects, |deployment| {
        let labels = deployment.spec.template.metadata.labels.get_or_insert_default();
        labels.insert("version".to_owned(), "2".to_owned());
    });
}

/// The seconds, verbs and old machines of a preview.
fn steps(preview: &Preview) -> Vec<(i64, Verb, bool)> {
    let seconds = |change: &Change| change.at.duration_since(now()).as_secs();
    preview.changes.iter().map(|change| (seconds(change), change.verb, change.machine.is_some())).collect()
}

#[test]
fn machines_are_updated_in_place_as_many_at_once_as_may_be_missing() {
    let update = |at| (at, Verb::UpdateInPlace, true);
    for (unavailable, expected, fewest, ends_at) in
        [(1, vec![update(5), update(305), update(605)], 2, 905), (2, vec![update(5), update(5), update(305)], 1, 605)]
    {
        let mut objects = complete(in_place(3, 0, unavailable, "Auto"));
        assert_eq!(objects.nodes.as_ref().map(Vec::len), Some(3));
        let before = foreseen(&objects);
        assert!(before.changes.is_empty(), "{before:?}");
        new_template(&mut objects);
        let preview = foreseen(&objects);
        assert_eq!(steps(&preview), expected);
        let machines: BTreeSet<_> = preview.changes.iter().filter_map(|change| change.machine.as_deref()).collect();
        assert_eq!(machines, objects.machines.iter().map(name).collect(), "each once");
        assert_eq!((preview.fewest_running, preview.most, ends(&preview)), (fewest, 3, Some(ends_at)), "{preview:?}");
    }
}

#[test]
fn a_machine_of_the_new_template_stands_in_while_others_are_updated() {
    let mut objects = complete(in_place(2, 1, 0, "Auto"));
    new_template(&mut objects);
    let preview = foreseen(&objects);
    let verbs: Vec<_> = steps(&preview).into_iter().map(|(_, verb, _)| verb).collect();
    // The machine that stood in stays, and the last one of the former template goes.
    assert_eq!(verbs, [Verb::Create, Verb::UpdateInPlace, Verb::Delete], "{preview:?}");
    assert_eq!((preview.fewest_running, preview.most), (2, 3), "{preview:?}");
    assert!(ends(&preview).is_some(), "{preview:?}");
}

#[test]
fn where_users_select_nodes_only_those_that_are_selected_are_updated() {
    let mut objects = complete(in_place(3, 0, 1, "Manual"));
    new_template(&mut objects);
    let preview = foreseen(&objects);
    assert!(preview.changes.is_empty(), "{preview:?}");
    let End::Waits(waits) = &preview.end else { panic!("nobody selects a node: {preview:?}") };
    assert!(waits.iter().any(|wait| wait.contains("node.machine.sapcloud.io/selected-for-update")), "{waits:?}");

    let node = &mut objects.nodes.as_mut().unwrap()[1];
    let selected = node["metadata"]["name"].clone();
    node["metadata"]["labels"][labels::CANDIDATE_FOR_UPDATE] = "true".into();
    node["metadata"]["labels"][labels::SELECTED_FOR_UPDATE] = "true".into();
    let preview = foreseen(&objects);
    let updated: Vec<_> = preview.changes.iter().map(|change| (change.verb, change.machine.as_deref())).collect();
    assert_eq!(updated, [(Verb::UpdateInPlace, selected.as_str())]);
    assert!(matches!(preview.end, End::Waits(_)) && preview.fewest_running == 2, "{preview:?}");
}

#[test]
fn a_machine_that_has_yet_to_join_is_updated_once_it_has() {
    let mut objects = complete(in_place(2, 0, 1, "Auto"));
    let machine = &mut objects.machines[0];
    machine.status.as_mut().unwrap().current_status.phase = MachinePhase::Pending;
    let joins = name(machine).to_owned();
    objects.nodes.iter_mut().for_each(|nodes| nodes.retain(|node| node["metadata"]["name"] != joins.as_str()));
    new_template(&mut objects);
    let preview = foreseen(&objects);
    let updated: BTreeSet<_> = preview.changes.iter().filter_map(|change| change.machine.as_deref()).collect();
    assert_eq!(updated, objects.machines.iter().map(name).collect(), "{preview:?}");
    assert!(preview.changes.iter().all(|change| change.verb == Verb::UpdateInPlace) && ends(&preview).is_some());
}

/// The objects while the first Node is updated in place, and its place among the Nodes.
fn under_way() -> (Objects, usize) {
    let mut objects = complete(in_place(2, 0, 1, "Auto"));
    new_template(&mut objects);
    let mut forecast = Forecast::new(objects, &key(), &FleetSettings::default(), (DURATIONS, now()));
    forecast.settle().unwrap();
    for what in ["its selection, after five seconds", "its drain"] {
        assert!(forecast.advance() && forecast.settle().is_ok(), "{what}");
    }
    let (stores, nodes) = (forecast.cluster.stores(), forecast.cluster.nodes());
    let objects = Objects { deployments: all(stores), sets: all(stores), machines: all(stores), pools: vec![], nodes };
    let selected = |node: &Value| node["metadata"]["labels"][labels::SELECTED_FOR_UPDATE] == "true";
    let places: Vec<_> = objects.nodes.iter().flatten().enumerate().filter(|(_, node)| selected(node)).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    let place = places[0].0;
    (objects, place)
}

#[test]
fn an_update_in_place_that_has_begun_goes_on_from_where_it_is() {
    let (mut objects, place) = under_way();
    let after = |objects: &Objects, seconds: i64| {
        let at = now() + SignedDuration::from_secs(5 + seconds);
        let preview = preview(objects.clone(), &key(), &FleetSettings::default(), DURATIONS, at).unwrap();
        let seconds = |at: Timestamp| at.duration_since(now()).as_secs() - 5;
        let End::Complete(end) = preview.end else { panic!("{preview:?}") };
        (preview.changes.iter().map(|change| seconds(change.at)).collect::<Vec<_>>(), seconds(end))
    };
    // The first one is under way: only the second one has yet to begin.
    assert_eq!(after(&objects, 100), (vec![300], 600));
    // Nothing is selected in the first five seconds in which a manager sees a change.
    assert_eq!(after(&objects, 1000), (vec![1005], 1305), "the program is late");
    let nodes = objects.nodes.as_mut().unwrap();
    nodes[place]["metadata"]["labels"][labels::UPDATE_RESULT] = labels::UPDATE_SUCCESSFUL.into();
    assert_eq!(after(&objects, 100), (vec![105], 405), "it has answered");
}
