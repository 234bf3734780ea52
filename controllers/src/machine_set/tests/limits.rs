//! Ceilings for the number of machines and for the size of a template.

use super::*;
use crate::machine_set::memory::{Context, Plan};

fn limited(in_all: usize, of_deployment: usize) -> FleetSettings {
    FleetSettings { max_machines: in_all, max_machines_per_deployment: of_deployment, ..FleetSettings::default() }
}

/// A set that has one machine of `replicas`, where this many exist in the namespace and in the deployment.
fn crowded(replicas: i32, namespace: usize, deployment: usize) -> Snapshot {
    let set = machine_set("set", replicas, Some(LEDGER));
    let only = member(&set, 0).build();
    let population = Population { namespace, deployment, ..Population::default() };
    Snapshot { population, ..snapshot(set, vec![only]) }
}

fn plan_of(snapshot: &Snapshot, fleet: &FleetSettings) -> Plan {
    let settings = PlanSettings { fleet: fleet.clone(), full_schema: true };
    let outcomes = Outcomes::default();
    let context = Context::new(NOW.parse().unwrap(), &outcomes);
    plan(&context, &Snapshot { settings, ..snapshot.clone() })
}

fn created(plan: &Plan) -> usize {
    plan.steps().filter(|planned| matches!(planned.step, Step::Create { .. })).count()
}

/// Reason and message of the condition `ReplicaFailure`.
fn said(plan: &Plan) -> Option<(String, String)> {
    let status = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    })?;
    let condition = status["machineSetCondition"].as_array()?.iter().find(|it| it["type"] == "ReplicaFailure")?.clone();
    Some((condition["reason"].as_str()?.to_owned(), condition["message"].as_str()?.to_owned()))
}

#[test]
fn no_machine_is_created_beyond_a_limit_and_the_condition_names_the_flag() {
    let (of_all, of_one) = ("raise --max-machines", "raise --max-machines-per-deployment");
    for (in_all, of_deployment, room, remedy) in
        [(20, 20, 9, ""), (15, 20, 5, of_all), (20, 12, 6, of_one), (10, 20, 0, of_all), (20, 6, 0, of_one)]
    {
        let plan = plan_of(&crowded(10, 10, 6), &limited(in_all, of_deployment));
        assert_eq!(created(&plan), room, "{in_all} in all, {of_deployment} of a deployment");
        let (reason, message) = said(&plan).unwrap_or_default();
        assert_eq!(reason == "TooManyMachines", room < 9, "{message}");
        assert!(message.ends_with(remedy), "{message}");
        assert_eq!(plan.wake.is_some(), room < 9, "others may go");
    }
}

#[test]
fn a_limit_deletes_nothing_and_does_not_concern_a_set_that_has_its_machines() {
    let plan = plan_of(&crowded(1, 500, 500), &limited(10, 10));
    assert_eq!(steps(&plan), Vec::<Vec<String>>::new());
    assert_eq!(said(&plan), None);
}

#[test]
fn a_template_that_is_too_large_is_copied_into_no_machine() {
    let large = |count: usize, bytes: usize| {
        let mut snapshot = crowded(3, 1, 1);
        let set = Arc::make_mut(&mut snapshot.set);
        let annotations = (0..count).map(|index| (format!("key-{index:04}"), "x".repeat(bytes)));
        let template = Arc::make_mut(&mut set.spec.template.spec.node_template);
        template.metadata.annotations = Some(annotations.collect());
        plan_of(&snapshot, &FleetSettings::default())
    };
    for (count, bytes) in [(1, 70_000), (257, 1), (200, 400)] {
        let plan = large(count, bytes);
        assert_eq!(steps(&plan), Vec::<Vec<String>>::new(), "neither created nor changed");
        let (reason, message) = said(&plan).unwrap();
        assert!(reason == "TemplateTooLarge" && message.contains("nodeTemplate.metadata.annotations"), "{message}");
    }
    assert_eq!(created(&large(256, 200)), 2);
}
