//! The status and its conditions.

use jiff::SignedDuration;
use nodewright_runtime::plan::{FailureClass, Step};
use serde_json::{Value, json};

use super::cluster::{Cluster, failed_creation, kinds};
use crate::testing::{machine_deployment, rolling};

#[test]
fn a_roll_says_what_it_waits_for_and_the_autoscaler_knows_of_it_at_once() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.act();
    assert_eq!(cluster.reason("Progressing"), "NewMachineSetCreated");
    cluster.act();
    assert_eq!(cluster.reason("Reconciling"), "RollingOut");
    let waits = cluster.plan().waits;
    assert_eq!(waits.iter().map(|wait| wait.reason).collect::<Vec<_>>(), ["RolloutSettling", "RollingOut"]);
    assert!(waits[1].message.contains("0 of 3 machines are up to date, 3 are available"), "{}", waits[1].message);
    assert!(
        cluster.events.iter().any(|event| event.starts_with("Scaled up machine set pool-")),
        "{:?}",
        cluster.events
    );
}

#[test]
fn of_many_failed_machines_some_are_listed_and_the_rest_is_counted() {
    let mut cluster = Cluster::of(machine_deployment(70, &rolling(1, 0)));
    while cluster.act() {}
    cluster.sets_act();
    while cluster.one_gets_ready() {}
    for name in cluster.machines().keys() {
        cluster.edit_machine(name, |machine| {
            machine["status"]["lastOperation"] =
                json!({"type": "Create", "state": "Failed", "description": "x".repeat(30_000)});
        });
    }
    cluster.settle();
    let status = cluster.status();
    assert_eq!(status["failedMachines"].as_array().unwrap().len(), 50);
    assert!(status.to_string().len() < 100_000, "{} bytes", status.to_string().len());
    let message = cluster.condition("FailedMachinesTruncated").unwrap()["message"].to_string();
    assert!(message.contains("20 are left out"), "{message}");
    assert!(cluster.plan().is_idle(), "{:?}", cluster.plan().stages);
}

#[test]
fn mcm_defect_2_an_invalid_spec_is_reported_and_not_acted_on() {
    let cases: [(&str, Value, &str); 4] = [
        ("/spec/selector", json!({}), "spec.selector"),
        ("/spec/selector", Value::Null, "spec.selector"),
        ("/spec/selector", json!({"matchLabels": {"name": "other"}}), "spec.template.metadata.labels"),
        ("/spec/strategy", rolling(1, 0), ""),
    ];
    for (pointer, value, place) in cases {
        let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
        cluster.change(pointer, value);
        if place.is_empty() {
            cluster.change("/spec/strategy", json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "many"}}));
        }
        cluster.change("/spec/replicas", json!(5));
        let before = cluster.replicas();
        cluster.settle();
        assert_eq!(cluster.replicas(), before);
        assert_eq!(cluster.reason("Stalled"), "InvalidSpec");
        let message = cluster.condition("Stalled").unwrap()["message"].to_string();
        assert!(message.contains(place), "{message}");
        assert_eq!(cluster.events.len(), 1, "{:?}", cluster.events);
        assert_eq!(cluster.plan().waits[0].reason, "InvalidSpec");
    }
}

#[test]
fn the_status_is_not_written_too_often_while_only_counts_move() {
    let mut cluster = Cluster::settled(machine_deployment(5, &rolling(1, 0)));
    cluster.change("/spec/replicas", json!(8));
    cluster.act();
    cluster.sets_act();
    cluster.act();
    let written = cluster.now();
    assert_eq!(cluster.status_written, Some(written));
    cluster.one_gets_ready();
    cluster.set_now(written + SignedDuration::from_millis(500));
    let plan = cluster.plan();
    assert!(kinds(&plan).is_empty());
    assert_eq!(plan.wake, Some(written + SignedDuration::from_secs(2)));
    cluster.set_now(written + SignedDuration::from_secs(2));
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"]);
    while cluster.one_gets_ready() {}
    cluster.set_now(written + SignedDuration::from_millis(600));
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"], "the goal is reported at once");
}

#[test]
fn counts_are_of_machine_objects_and_failures_are_named() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let names: Vec<_> = cluster.machines().into_keys().collect();
    cluster.delete("machines", &names[0]);
    cluster.edit_machine(&names[1], |machine| {
        machine["status"]["currentStatus"]["phase"] = "Failed".into();
        machine["status"]["lastOperation"] = json!({"state": "Failed", "type": "HealthCheck", "description": "gone"});
        machine["spec"]["providerID"] = "simulated:///1".into();
    });
    cluster.act();
    let status = cluster.status();
    assert_eq!(status["replicas"], 3);
    assert_eq!((&status["readyReplicas"], &status["availableReplicas"]), (&json!(1), &json!(1)));
    assert_eq!((&status["updatedReplicas"], &status["unavailableReplicas"]), (&json!(3), &json!(2)));
    assert_eq!(status["selector"], "name=pool");
    let (set, _) = cluster.only_set();
    assert_eq!(
        status["failedMachines"],
        json!([{"name": names[1], "providerID": "simulated:///1", "ownerRef": set,
            "lastOperation": {"state": "Failed", "type": "HealthCheck", "description": "gone"}}])
    );
    assert_eq!(cluster.reason("Available"), "MinimumReplicasUnavailable");
    cluster.full_schema = false;
    cluster.set_now(cluster.now() + SignedDuration::from_secs(2));
    cluster.act();
    assert!(cluster.status().get("selector").is_none());
}

#[test]
fn a_rollout_that_does_not_get_on_is_called_stuck_at_its_deadline() {
    let mut cluster = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
    cluster.edit(|live| live["spec"]["progressDeadlineSeconds"] = 600.into());
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    while cluster.act() {}
    cluster.sets_act();
    while cluster.act() {}
    let begun = cluster.now();
    cluster.let_time_pass();
    while cluster.act() {}
    let wake = cluster.plan().wake.unwrap();
    assert_eq!(wake, begun + SignedDuration::from_secs(601));
    cluster.set_now(wake);
    cluster.act();
    let stuck = cluster.condition("Progressing").unwrap();
    assert_eq!((&stuck["status"], &stuck["reason"]), (&json!("False"), &json!("ProgressDeadlineExceeded")));
    assert_eq!(cluster.reason("Stalled"), "ProgressDeadlineExceeded");
    assert!(cluster.condition("Reconciling").is_none());
    assert!(kinds(&cluster.plan()).is_empty());
    cluster.settle();
    assert_eq!(cluster.reason("Progressing"), "NewMachineSetAvailable");
    assert!(cluster.condition("Stalled").is_none());
}

#[test]
fn a_refused_creation_is_reported_before_it_is_tried_again() {
    let mut cluster = Cluster::of(machine_deployment(1, &rolling(1, 0)));
    cluster.failure = Some(failed_creation("pool-x", FailureClass::Forbidden, "exceeded quota"));
    let plan = cluster.plan();
    assert_eq!(kinds(&plan)[0], "apply MachineDeployment/status");
    assert!(kinds(&plan)[1].starts_with("create"));
    let status = plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => Some(apply.fragment()["status"]["conditions"][1].clone()),
        _ => None,
    });
    let status = status.unwrap();
    assert_eq!((&status["status"], &status["reason"]), (&json!("False"), &json!("MachineSetCreateError")));
    assert!(plan.events[0].message.contains("exceeded quota"));
}

#[test]
fn the_times_of_a_condition_move_only_when_they_have_to() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let before = cluster.status();
    cluster.set_now(cluster.now() + SignedDuration::from_mins(5));
    cluster.edit(|live| live["spec"]["progressDeadlineSeconds"] = 900.into());
    cluster.act();
    assert_eq!(cluster.status()["observedGeneration"], 2);
    assert_eq!(cluster.status()["conditions"], before["conditions"]);
}

#[test]
fn what_mcm_acts_on_is_acted_on() {
    let mut raw = machine_deployment(1, &rolling(1, 0));
    raw["metadata"]["annotations"]["nodewright.dev/remediation-max-in-flight"] = "many".into();
    raw["spec"]["template"]["spec"]["drainTimeout"] = "-5m".into();
    assert!(kinds(&Cluster::of(raw).plan()).iter().any(|step| step.starts_with("create ")));
}

#[test]
fn a_dip_of_health_that_passes_within_ten_seconds_is_not_written() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let name = cluster.machines().into_keys().next().unwrap();
    let phase = |cluster: &Cluster, phase: &str| {
        cluster.edit_machine(&name, |machine| machine["status"]["currentStatus"]["phase"] = phase.into());
    };
    cluster.set_now(cluster.now() + SignedDuration::from_secs(100));
    phase(&cluster, "Unknown");
    assert!(!cluster.act(), "it may pass");
    assert_eq!(cluster.plan().wake, Some(cluster.now() + SignedDuration::from_secs(10)));
    cluster.set_now(cluster.now() + SignedDuration::from_secs(9));
    phase(&cluster, "Running");
    assert!(!cluster.act(), "it has passed");
    assert_eq!(cluster.status()["availableReplicas"], 3);

    cluster.set_now(cluster.now() + SignedDuration::from_secs(100));
    phase(&cluster, "Unknown");
    assert!(!cluster.act());
    cluster.set_now(cluster.now() + SignedDuration::from_secs(10));
    assert!(cluster.act(), "it has lasted");
    assert_eq!(
        (cluster.status()["availableReplicas"].clone(), cluster.reason("Reconciling")),
        (json!(2), "Scaling".into())
    );
    phase(&cluster, "Running");
    assert!(cluster.act(), "what is good is said at once");
    assert_eq!(cluster.status()["availableReplicas"], 3);
}

#[test]
fn a_machine_that_fails_is_said_at_once() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let name = cluster.machines().into_keys().next().unwrap();
    cluster.set_now(cluster.now() + SignedDuration::from_secs(100));
    cluster.edit_machine(&name, |machine| machine["status"]["currentStatus"]["phase"] = "Failed".into());
    assert!(cluster.act());
    assert_eq!(cluster.status()["availableReplicas"], 2);
}

#[test]
fn a_deployment_that_is_deleted_says_what_its_deletion_waits_for() {
    let mut cluster = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
    let name = cluster.machines().into_keys().next().unwrap();
    cluster.delete("machinedeployments", "pool");
    cluster.delete("machines", &name);
    cluster.edit_machine(&name, |machine| {
        machine["status"]["conditions"] =
            json!([{"type": "Drained", "status": "False", "message": "web-none refuses"}]);
    });
    while cluster.act() {}
    let said = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    let expected = format!("1 machines are not yet gone; machine {name} (without a node): web-none refuses");
    assert!(said.ends_with(&expected), "{said}");
}

#[test]
fn a_failed_machine_that_is_preserved_is_named_as_the_reason() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let name = cluster.machines().into_keys().next().unwrap();
    cluster.edit_machine(&name, |machine| {
        machine["metadata"]["annotations"]["node.machine.sapcloud.io/preserve"] = "now".into();
        machine["status"]["currentStatus"]["phase"] = "Failed".into();
        machine["status"]["currentStatus"]["preserveExpiryTime"] = "2036-01-01T00:00:00Z".into();
    });
    while cluster.act() {}
    let said = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(said.starts_with("machines that have failed are preserved, and replaced when that ends: "), "{said}");
}

#[test]
fn messages_alone_are_written_twice_a_minute_at_most() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.settle_checking(|_| {});
    let name = cluster.machines().into_keys().next().unwrap();
    cluster.delete("machines", &name);
    while cluster.act() {}
    let mut writes = 0;
    for second in 0..120 {
        cluster.set_now(cluster.now() + SignedDuration::from_secs(1));
        let text = format!("pods are evicted, {second}");
        cluster.edit_machine(&name, |machine| machine["status"]["lastOperation"]["description"] = text.into());
        writes += u32::from(cluster.act());
    }
    assert!((3..=5).contains(&writes), "{writes} writes in two minutes");
    let said = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("; machine {name} (without a node): pods are evicted, ")), "{said}");
}

#[test]
fn only_what_changes_says_that_the_target_cluster_is_out_of_reach() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.target = Some(false);
    let plan = cluster.plan();
    assert!(
        plan.is_idle() && plan.waits.is_empty(),
        "an outage costs no write for a deployment that is complete: {plan}"
    );

    cluster.change("/spec/replicas", json!(4));
    while cluster.act() {}
    let said = |cluster: &Cluster| cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(said(&cluster).contains("the API server of the target cluster is out of reach"), "{}", said(&cluster));
    // It looks again by itself, and writes as seldom as for any message.
    for (target, expected) in [(Some(true), false), (Some(false), true), (Some(true), false)] {
        // Nothing else happens: no change, and no write that has to wait.
        let wake = cluster.plan().wake.expect("it looks again");
        assert!(wake <= cluster.now() + SignedDuration::from_mins(1), "{wake}");
        cluster.target = target;
        cluster.set_now(cluster.now() + SignedDuration::from_mins(1));
        while cluster.act() {}
        assert_eq!(said(&cluster).contains("out of reach"), expected, "{}", said(&cluster));
    }
    cluster.target = None;
    assert!(cluster.plan().waits.iter().all(|wait| wait.until.is_none()), "a process that asks the target nothing");
}
