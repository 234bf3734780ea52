//! The overshoot freeze.

use nodewright_api::MachineDeployment;

use super::*;
use crate::{
    machine_set::memory::{Context, Plan},
    shared::fleet::OvershootSettings,
    testing::{machine_deployment, rolling},
};

fn frozen(replicas: i32) -> MachineSet {
    let mut set = machine_set("set", replicas, Some(LEDGER));
    set.metadata.labels.get_or_insert_default().insert("freeze".into(), "True".into());
    set
}

/// A set of a deployment with a surge of one, beside other sets with this many Machines.
fn beside(other_sets: usize, replicas: i32, set: MachineSet, machines: Vec<Machine>) -> Snapshot {
    let mut deployment: MachineDeployment =
        serde_json::from_value(machine_deployment(replicas, &rolling(1, 0))).unwrap();
    let observed = deployment.metadata.generation.unwrap_or_default();
    deployment.status.get_or_insert_default().observed_generation = observed;
    // Of the others, as many count as their sizes allow.
    let sizes = usize::try_from(replicas).unwrap() + other_sets;
    let population = Population { other_sets, sizes, ..Population::default() };
    Snapshot { deployment: Some(Arc::new(deployment)), population, ..snapshot(set, machines) }
}

fn orphans(count: usize) -> Vec<Arc<Machine>> {
    (0..count).map(|n| Arc::new(machine(&format!("by-hand-{n}")).label("name", "set").build())).collect()
}

/// The operations on labels and annotations of the set, if that is all that the plan does.
fn edits(plan: &Plan) -> Option<Vec<String>> {
    let [planned] = &plan.steps().collect::<Vec<_>>()[..] else { return None };
    let Step::Edit { at, patch, .. } = &planned.step else { return None };
    let text = |operation: &json_patch::PatchOperation| {
        format!("{} {}", serde_json::to_value(operation).unwrap()["op"].as_str().unwrap(), operation.path())
    };
    let is_set = &*at.key().name == "set";
    is_set.then(|| patch.0.iter().map(text).filter(|text| !text.starts_with("test")).collect())
}

fn creates(plan: &Plan) -> bool {
    plan.steps().any(|planned| matches!(planned.step, Step::Create { .. }))
}

fn condition(plan: &Plan, kind: &str) -> Option<Value> {
    let status = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    })?;
    status["machineSetCondition"].as_array()?.iter().find(|it| it["type"] == kind).cloned()
}

#[test]
fn a_set_is_frozen_when_there_are_two_machines_more_than_replicas_and_surge() {
    let set = machine_set("set", 2, Some(LEDGER));
    let of = |others: usize, by_hand: usize| Snapshot {
        orphans: orphans(by_hand),
        ..beside(others, 2, set.clone(), vec![member(&set, 0).build()])
    };
    for (others, by_hand) in [(9, 0), (1, 2), (0, 3)] {
        let plan = planned(&of(others, by_hand));
        assert_eq!(edits(&plan), None, "{others} {by_hand}: {:?}", plan.stages);
    }
    for (others, by_hand) in [(1, 3), (0, 4)] {
        let plan = planned(&of(others, by_hand));
        assert_eq!(
            edits(&plan),
            Some(vec!["add /metadata/labels".to_owned()]),
            "{others} {by_hand}: {:?}",
            plan.stages
        );
        assert_eq!(plan.events[0].reason, "FrozeMachineSet");
        assert!(plan.events[0].message.contains("5 machines, and 5 are too many"), "{}", plan.events[0].message);
    }
}

#[test]
fn a_set_without_a_deployment_may_have_twice_its_replicas_and_one_more() {
    let set = machine_set("set", 2, Some(LEDGER));
    let of = |by_hand| Snapshot { orphans: orphans(by_hand), ..snapshot(set.clone(), vec![member(&set, 0).build()]) };
    assert_eq!(edits(&planned(&of(4))), None);
    assert!(edits(&planned(&of(5))).is_some());
}

/// machine-controller-manager counts them, and freezes.
#[test]
fn a_scale_down_freezes_nothing() {
    let set = machine_set("set", 2, Some("k7f;2-5"));
    let mut machines: Vec<Machine> = (0..2).map(|n| member(&set, n).build()).collect();
    let before = planned(&beside(0, 2, set.clone(), (0..6).map(|n| member(&set, n).build()).collect()));
    assert!(before.steps().any(|planned| matches!(planned.step, Step::Delete { .. })), "{:?}", before.stages);
    machines.extend((2..6).map(|n| member(&set, n).deleting().build()));
    let plan = planned(&beside(0, 2, set, machines));
    assert_eq!(edits(&plan), None, "{:?}", plan.stages);
}

#[test]
fn a_frozen_set_creates_nothing_and_says_so_until_there_are_fewer() {
    let of = |by_hand| {
        let beside = beside(0, 2, frozen(2), (0..2).map(|n| member(&frozen(2), n).build()).collect());
        Snapshot { orphans: orphans(by_hand), ..beside }
    };
    let mut unexplained = beside(4, 2, frozen(2), vec![member(&frozen(2), 0).build()]);
    unexplained.population.sizes = 0;
    let plan = planned(&unexplained);
    assert!(!creates(&plan) && edits(&plan).is_none(), "{:?}", plan.stages);
    assert_eq!(plan.waits[0].reason, "Frozen");
    let plan = planned(&of(3));
    assert!(!creates(&plan) && edits(&plan).is_none(), "{:?}", plan.stages);
    assert_eq!(plan.wake, Some("2026-06-01T12:01:00Z".parse().unwrap()), "other sets may shrink");
    let reported = condition(&plan, "Frozen").unwrap_or_default();
    assert_eq!(
        (reported["reason"].as_str(), reported["status"].as_str()),
        (Some("OverShootingReplicaCount"), Some("True"))
    );
    let plan = planned(&of(2));
    assert_eq!(edits(&plan), Some(vec!["remove /metadata/labels/freeze".to_owned()]), "{:?}", plan.stages);
    assert_eq!(plan.events[0].reason, "UnfrozeMachineSet");
}

/// Its deployment waits with a rollout, or a manager has an old view of it: its sets are larger than it wants.
#[test]
fn sets_that_have_their_sizes_are_not_frozen() {
    let set = machine_set("set", 6, Some(LEDGER));
    let six = (0..6).map(|n| member(&set, n).build()).collect();
    let mut snapshot = beside(3, 6, set, six);
    Arc::make_mut(snapshot.deployment.as_mut().unwrap()).spec.replicas = 2;
    snapshot.population.sizes = 9;
    assert_eq!(edits(&planned(&snapshot)), None);
    snapshot.orphans = orphans(2);
    assert!(edits(&planned(&snapshot)).is_some());
}

/// machine-controller-manager looks for the surge of each strategy, and ends its check of all sets where there is none.
#[test]
fn mcm_defect_16_a_set_of_a_deployment_that_recreates_is_evaluated_like_others() {
    let set = machine_set("set", 2, Some(LEDGER));
    let evaluated = |by_hand| {
        let mut beside = beside(0, 2, set.clone(), vec![member(&set, 0).build()]);
        beside.orphans = orphans(by_hand);
        let deployment = Arc::make_mut(beside.deployment.as_mut().unwrap());
        deployment.spec.strategy = serde_json::from_value(json!({"type": "Recreate"})).unwrap();
        edits(&planned(&beside)).is_some()
    };
    assert_eq!([2, 3].map(evaluated), [false, true], "it has no surge");
}

#[test]
fn the_thresholds_are_flags() {
    let fleet = FleetSettings {
        overshoot: OvershootSettings { up: 5, down: 3, ..OvershootSettings::default() },
        ..FleetSettings::default()
    };
    let evaluated = |set: MachineSet, by_hand| {
        let outcomes = Outcomes::default();
        let context = Context::new(NOW.parse().unwrap(), &outcomes);
        let one = member(&set, 0).build();
        let settings = PlanSettings { fleet: fleet.clone(), full_schema: true };
        let beside = Snapshot { orphans: orphans(by_hand), settings, ..beside(0, 2, set, vec![one]) };
        edits(&plan(&context, &beside)).is_some()
    };
    let set = || machine_set("set", 2, Some(LEDGER));
    assert_eq!([6, 7].map(|by_hand| evaluated(set(), by_hand)), [false, true], "at eight");
    assert_eq!([4, 5].map(|by_hand| evaluated(frozen(2), by_hand)), [true, false], "until there are five");
}

#[test]
fn a_user_ends_a_freeze_with_an_annotation() {
    let mut set = frozen(2);
    set.metadata.annotations.get_or_insert_default().insert(annotations::UNFREEZE.into(), "now".into());
    let plan = planned(&beside(9, 2, set.clone(), vec![member(&set, 0).build()]));
    let removed =
        ["remove /metadata/labels/freeze", "remove /metadata/annotations/safety.machine.sapcloud.io~1unfreeze"];
    assert_eq!(edits(&plan), Some(removed.map(str::to_owned).to_vec()), "{:?}", plan.stages);
}

#[test]
fn the_condition_of_a_freeze_goes_with_its_label() {
    let mut set = machine_set("set", 1, Some(LEDGER));
    let before = json!({"machineSetCondition": [{"type": "Frozen", "status": "True"}]});
    set.status = Some(serde_json::from_value(before).unwrap());
    let plan = planned(&snapshot(set.clone(), vec![member(&set, 1).build()]));
    let writes_status = plan
        .steps()
        .any(|planned| matches!(&planned.step, Step::Apply(apply) if apply.fragment().get("status").is_some()));
    assert!(writes_status && condition(&plan, "Frozen").is_none(), "{:?}", plan.stages);
}
