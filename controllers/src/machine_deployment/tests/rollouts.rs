//! When the sets get which size.

use std::sync::Arc;

use jiff::SignedDuration;
use nodewright_api::Machine;
use nodewright_runtime::plan::Waiting;
use serde_json::json;

use super::cluster::{Cluster, kinds};
use crate::testing::{MachineExt, machine, machine_deployment, machine_set, rolling};

#[test]
fn a_roll_keeps_its_bounds_whatever_the_strategy_allows() {
    for (replicas, surge, unavailable) in [(3, 1, 0), (3, 0, 1), (5, 2, 1), (1, 1, 0), (4, 4, 4), (10, 3, 0)] {
        let mut cluster = Cluster::settled(machine_deployment(replicas, &rolling(surge, unavailable)));
        cluster.change("/spec/template/spec/class/name", json!("v2"));
        let most = usize::try_from(replicas + surge).unwrap();
        let least = usize::try_from(replicas - unavailable).unwrap();
        cluster.settle_checking(|cluster| {
            assert!(cluster.machines().len() <= most, "{} machines of at most {most}", cluster.machines().len());
            assert!(cluster.ready() >= least, "{} ready of at least {least}", cluster.ready());
        });
        assert_eq!(cluster.replicas(), [0, i64::from(replicas)]);
        assert!(cluster.machines().values().all(|machine| machine["metadata"]["deletionTimestamp"].is_null()));
        assert_eq!(cluster.reason("Progressing"), "NewMachineSetAvailable");
        assert_eq!(cluster.live()["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    }
}

#[test]
fn a_template_that_is_taken_back_keeps_what_runs_under_every_strategy() {
    for strategy in [rolling(1, 1), rolling(0, 3), json!({"type": "Recreate"})] {
        let mut cluster = Cluster::settled(machine_deployment(3, &strategy));
        let before = cluster.machines();
        cluster.change("/spec/template/spec/class/name", json!("v2"));
        for _ in 0..3 {
            while cluster.act() {}
            cluster.sets_act();
        }
        cluster.change("/spec/template/spec/class/name", json!("v1"));
        while cluster.act() {}
        let sized: Vec<i64> = cluster.replicas();
        assert_eq!((sized[0], sized.iter().sum::<i64>()), (3, 3), "{strategy}: {sized:?}");
        cluster.settle();
        assert!(cluster.machines().keys().eq(before.keys()), "{strategy}");
    }
}

/// Three machines are replaced: the first new one is ready, and the old set has not yet observed that it shrinks.
fn rolled_by_one() -> Cluster {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    while cluster.replicas() != [3, 1] {
        assert!(cluster.act());
    }
    cluster.sets_act();
    while cluster.one_gets_ready() {}
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [3, 1], "the rollout is too young to cost a machine");
    cluster.let_time_pass();
    while cluster.act() {}
    cluster
}

#[test]
fn a_second_plan_before_the_set_has_acted_takes_nothing_more() {
    let mut cluster = rolled_by_one();
    assert_eq!(cluster.replicas(), [2, 1]);
    cluster.sets_act();
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [2, 1], "the old machine is still in deletion");
    cluster.one_vanishes();
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [2, 2]);
}

#[test]
fn machines_that_a_set_has_yet_to_take_back_count_as_its_own() {
    let mut cluster = rolled_by_one();
    assert_eq!((cluster.replicas(), cluster.machines().len()), (vec![2, 1], 4));
    // A backup keeps no owners: the restored machines have none.
    for name in cluster.machines().keys() {
        cluster.edit_machine(name, |machine| machine["metadata"]["ownerReferences"] = json!([]));
    }
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [2, 1], "four are all that there may be");
}

#[test]
fn a_set_that_is_rolled_away_before_it_has_its_size_takes_what_it_selects_and_is_replaced() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    // A user created the deployment again without its machines, and rolls it at once.
    cluster.edit_sets(|set| {
        set["spec"]["replicas"] = 0.into();
        set["metadata"]["annotations"].as_object_mut().unwrap().remove("deployment.kubernetes.io/desired-replicas");
    });
    let before = cluster.machines();
    for name in before.keys() {
        cluster.edit_machine(name, |machine| machine["metadata"]["ownerReferences"] = json!([]));
    }
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [3, 0], "nothing is made beside machines that have yet to be taken");
    for (name, machine) in before {
        let owners = machine["metadata"]["ownerReferences"].clone();
        cluster.edit_machine(&name, |machine| machine["metadata"]["ownerReferences"] = owners);
    }
    cluster.settle_checking(|cluster| assert!(cluster.machines().len() <= 4 && cluster.ready() >= 3));
    assert_eq!(cluster.replicas(), [0, 3]);
}

#[test]
fn who_has_seen_an_older_deployment_than_its_sets_leaves_them_alone() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let old = cluster.live();
    cluster.change("/spec/replicas", json!(5));
    cluster.settle();
    assert_eq!(cluster.replicas(), [5]);
    // Another manager whose cache lags: it would delete two machines.
    cluster.cached = Some(old);
    let plan = cluster.plan();
    assert_eq!(kinds(&plan), ["confirm unchanged MachineDeployment", "apply MachineSet"]);
    assert_eq!((plan.waits[0].reason, plan.stages[0].len()), ("OldView", 1), "nothing is sent beside the question");
    cluster.act();
    assert_eq!(cluster.replicas(), [5], "there is a newer version: the rest of the plan is not carried out");
    // The generation of a restored deployment starts at 1 again: the generations noted for its predecessor mean nothing.
    cluster.cached = None;
    cluster.change("/spec/replicas", json!(3));
    cluster.edit_sets(|set| set["metadata"]["annotations"]["nodewright.dev/sized-for"] = "uid-before/7".into());
    cluster.settle();
    assert_eq!(cluster.replicas(), [3]);
}

/// As after a restore of etcd under a manager that had seen a newer generation, and wrote it to a restored set.
#[test]
fn a_generation_that_a_restore_has_undone_holds_nobody_up() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let uid = cluster.live()["metadata"]["uid"].as_str().unwrap().to_owned();
    let is_noted = |cluster: &Cluster, text: &str| {
        let (_, set) = cluster.only_set();
        set["metadata"]["annotations"]["nodewright.dev/sized-for"] == text
    };
    let newer = format!("{uid}/99");
    cluster.edit_sets(|set| {
        set["metadata"]["annotations"]["nodewright.dev/sized-for"] = newer.as_str().into();
        set["spec"]["replicas"] = 1.into();
    });
    cluster.settle();
    assert_eq!(cluster.replicas(), [3], "the deployment counts");
    assert!(!is_noted(&cluster, &newer) && cluster.condition("Stalled").is_none());
}

#[test]
fn while_nobody_confirms_that_a_newer_generation_is_gone_the_deployment_is_stalled() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let uid = cluster.live()["metadata"]["uid"].as_str().unwrap().to_owned();
    cluster.edit_sets(|set| set["metadata"]["annotations"]["nodewright.dev/sized-for"] = format!("{uid}/99").into());
    let begun = cluster.now();
    cluster.waits = vec![Waiting::new("OldView", begun)];
    assert_eq!(kinds(&cluster.plan())[0], "confirm unchanged MachineDeployment", "at first it is only asked");
    cluster.set_now(begun + SignedDuration::from_secs(10));
    assert_eq!(kinds(&cluster.plan()), ["apply MachineDeployment/status"]);
    cluster.act();
    assert_eq!(cluster.reason("Stalled"), "OldView");
    let message = cluster.condition("Stalled").unwrap()["message"].to_string();
    assert!(message.contains("generation 99") && message.contains("restore of etcd"), "{message}");
    assert_eq!(kinds(&cluster.plan())[0], "confirm unchanged MachineDeployment", "it is asked again");
    cluster.settle();
    assert!(cluster.condition("Stalled").is_none());
}

#[test]
fn scaling_changes_the_one_active_set_and_is_no_rollout() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    for (replicas, direction) in [(50, "up"), (5, "down"), (0, "down"), (2, "up")] {
        cluster.change("/spec/replicas", json!(replicas));
        cluster.settle_checking(|cluster| {
            assert_eq!(cluster.reason("Progressing"), "NewMachineSetAvailable");
        });
        assert_eq!((cluster.replicas(), cluster.ready()), (vec![replicas], usize::try_from(replicas).unwrap()));
        let reported = cluster.events.last().unwrap();
        assert!(
            reported.starts_with(&format!("Scaled {direction} machine set"))
                && reported.ends_with(&format!(" to {replicas}")),
            "{reported}"
        );
        let (_, set) = cluster.only_set();
        assert_eq!(set["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"], replicas.to_string());
    }
}

#[test]
fn scaling_amid_a_rollout_grows_the_new_set_and_shrinks_all() {
    let mut cluster = Cluster::settled(machine_deployment(10, &rolling(2, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    while cluster.replicas() != [10, 2] {
        assert!(cluster.act());
    }
    cluster.sets_act();
    cluster.change("/spec/replicas", json!(4));
    cluster.act();
    assert_eq!(cluster.replicas(), [4, 2], "those of the former template go first");
    cluster.settle();
    cluster.change("/spec/template/spec/class/name", json!("v3"));
    while cluster.replicas() != [0, 4, 2] {
        assert!(cluster.act());
    }
    cluster.sets_act();
    cluster.change("/spec/replicas", json!(6));
    while cluster.act() {}
    assert_eq!(cluster.replicas(), [0, 4, 4]);
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![0, 0, 6], 6));
}

#[test]
fn going_back_to_a_former_template_uses_its_set_again() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.settle();
    cluster.change("/spec/template/spec/class/name", json!("v1"));
    cluster.act();
    assert_eq!(cluster.reason("Progressing"), "FoundNewMachineSet", "the autoscaler must not scale down now");
    cluster.settle();
    assert_eq!(cluster.replicas(), [3, 0]);
    let sets = cluster.sets();
    let v1 = sets
        .values()
        .map(|set| &set["metadata"]["annotations"])
        .find(|it| it["deployment.kubernetes.io/revision"] == "3")
        .unwrap();
    assert_eq!(v1["deployment.kubernetes.io/revision-history"], "1");
}

#[test]
fn a_rollback_restores_the_template_and_clears_the_field() {
    let mut cluster = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.annotate("team", "red");
    cluster.settle();
    let request = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    cluster.annotate("nodewright.dev/traceparent", request);
    cluster.edit(|live| live["spec"]["rollbackTo"] = json!({"revision": 0}));
    cluster.act();
    let live = cluster.live();
    assert!(live["spec"].get("rollbackTo").is_none());
    assert_eq!(live["metadata"]["annotations"]["nodewright.dev/traceparent"], request, "not that of the revision");
    assert_eq!(live["spec"]["template"]["spec"]["class"]["name"], "v1");
    assert_eq!(live["spec"]["template"]["metadata"]["labels"], json!({"name": "pool"}));
    assert_eq!(live["metadata"]["annotations"]["team"], "blue");
    assert_eq!(live["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"], "{}");
    assert!(cluster.events.last().unwrap().contains("to revision 1"));
    cluster.edit(|live| live["spec"]["rollbackTo"] = json!({"revision": 7}));
    cluster.act();
    assert!(cluster.live()["spec"].get("rollbackTo").is_none());
    assert_eq!(
        cluster.events.last().unwrap(),
        "Unable to find the revision to rollback to. Wanted: 7; there are: 2, 1"
    );
}

#[test]
fn recreation_has_no_old_and_new_machine_at_the_same_time() {
    let mut cluster = Cluster::settled(machine_deployment(3, &json!({"type": "Recreate"})));
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.settle_checking(|cluster| {
        let machines = cluster.machines();
        let owners: std::collections::BTreeSet<_> =
            machines.values().map(|it| it["metadata"]["ownerReferences"][0]["name"].as_str().unwrap()).collect();
        assert!(owners.len() <= 1, "{owners:?}");
    });
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![0, 3], 3));
}

#[test]
fn a_paused_deployment_is_scaled_and_not_rolled() {
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    cluster.edit(|live| live["spec"]["paused"] = true.into());
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.change("/spec/replicas", json!(5));
    cluster.settle();
    assert_eq!((cluster.replicas(), cluster.ready()), (vec![5], 5));
    assert_eq!(cluster.reason("Progressing"), "DeploymentPaused");
    assert_eq!(cluster.condition("Progressing").unwrap()["status"], "Unknown");
    assert!(cluster.condition("Reconciling").is_none());
    cluster.change("/spec/paused", json!(false));
    cluster.act();
    assert!(["NewMachineSetCreated", "DeploymentResumed"].contains(&cluster.reason("Progressing").as_str()));
    cluster.settle();
    assert_eq!(cluster.replicas(), [0, 5]);
}

#[test]
fn with_no_strategy_a_paused_deployment_replaces_machines() {
    let in_place = |by: &str| json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 1, "maxUnavailable": 0, "orchestrationType": by}});
    for strategy in [rolling(1, 0), rolling(0, 1), json!({"type": "Recreate"}), in_place("Auto"), in_place("Manual")] {
        let mut cluster = Cluster::settled(machine_deployment(3, &strategy));
        let before: Vec<_> = cluster.machines().into_keys().collect();
        cluster.edit(|live| live["spec"]["paused"] = true.into());
        cluster.change("/spec/template/spec/class/name", json!("v2"));
        cluster.settle();
        assert_eq!(cluster.machines().into_keys().collect::<Vec<_>>(), before, "{strategy}");
        assert_eq!(cluster.replicas(), [3], "{strategy}: no set for the new template");
        cluster.change("/spec/replicas", json!(2));
        cluster.settle();
        assert_eq!((cluster.replicas(), cluster.ready()), (vec![2], 2), "{strategy}: it is scaled");
    }
}

#[test]
fn mcm_defect_17_machines_that_the_autoscaler_names_are_marked_and_forgotten_once_they_leave() {
    let key = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
    let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
    let names: Vec<_> = cluster.machines().into_keys().collect();
    let time = "2026-06-01T11:00:00Z";
    cluster.annotate("machine.sapcloud.io/last-deployment-replica-change-by-scaler-time", time);
    let foreign = machine("foreign").owned_by(&machine_set("other", 1, None)).label("name", "other").build();
    cluster.add::<Machine>(serde_json::to_value(foreign).unwrap());
    cluster.annotate(key, &format!("{}~{time},{},foreign~{time},{}~yesterday", names[0], names[1], names[2]));
    cluster.act();
    for name in &names[..2] {
        let annotations = &cluster.machines()[name]["metadata"]["annotations"];
        assert_eq!(annotations["machinepriority.machine.sapcloud.io"], "1");
        assert_eq!(annotations["machine.sapcloud.io/marked-for-deletion-time"], time);
    }
    for spared in [names[2].as_str(), "foreign"] {
        let annotations = cluster.machines()[spared]["metadata"]["annotations"].clone();
        assert!(annotations.get("machinepriority.machine.sapcloud.io").is_none(), "{spared}");
    }
    let list = format!("{}~{time},{}~{time}", names[0], names[1]);
    assert_eq!(cluster.live()["metadata"]["annotations"][key], list.as_str());
    while cluster.act() {}
    cluster.delete("machines", &names[0]);
    cluster.remove_machine(&names[1]);
    while cluster.act() {}
    assert!(cluster.live()["metadata"]["annotations"].get(key).is_none());
}

#[test]
fn mcm_defect_23_a_rollout_waits_for_min_ready_seconds_only_if_configured() {
    for (honors, duration) in [(false, 60), (true, 1_500)] {
        let mut cluster = Cluster::settled(machine_deployment(3, &rolling(1, 0)));
        cluster.fleet.honor_min_ready_seconds = honors;
        cluster.set_now(cluster.now() + jiff::SignedDuration::from_secs(600));
        cluster.change("/spec/template/spec/class/name", json!("v2"));
        let begun = cluster.now();
        cluster.settle();
        while cluster.replicas() != [0, 3] {
            let wake = cluster.plan().wake.expect("it knows when the next machine is available");
            cluster.set_now(cluster.now().max(wake));
            cluster.settle();
        }
        let took = cluster.now().duration_since(begun).as_secs();
        assert!(if honors { took >= duration } else { took <= duration }, "{honors}: {took} s");
    }
}

#[test]
fn a_list_of_very_many_names_is_read_once_and_not_for_each_machine() {
    let key = "node.machine.sapcloud.io/trigger-deletion-by-mcm";
    let time = "2026-06-01T11:00:00Z";
    let names = (0..100_000).map(|index| format!("gone-{index}~{time}")).chain([format!("pool-12~{time}")]);
    let names = names.collect::<Vec<_>>().join(",");
    // The shortest of some times: others use the processor as well.
    let cost = |machines: usize| {
        let mut cluster = Cluster::settled(machine_deployment(1, &rolling(1, 0)));
        let set: nodewright_api::MachineSet = serde_json::from_value((*cluster.only_set().1).clone()).unwrap();
        for index in 0..machines {
            let machine = machine(&format!("pool-{index}")).owned_by(&set).label("name", "pool").phase("Running");
            cluster.add::<Machine>(serde_json::to_value(machine.build()).unwrap());
        }
        cluster.annotate(key, &names);
        let times = (0..3).map(|_| {
            let begun = std::time::Instant::now();
            assert_eq!(kinds(&cluster.plan()), ["edit Machine", "edit MachineDeployment"]);
            begun.elapsed()
        });
        times.min().unwrap()
    };
    let (few, many) = (cost(20), cost(2_000));
    assert!(many < few * 20, "a hundred times the machines take {many:?}, and {few:?} without");
}

#[test]
fn a_former_set_without_a_readable_ledger_does_not_stop_a_rollout_for_ever() {
    let mut cluster = Cluster::settled(machine_deployment(2, &rolling(1, 0)));
    let (former, _) = cluster.only_set();
    let since = cluster.now().to_string();
    let condition = json!({"type": "ReplicaFailure", "status": "True", "reason": "InvalidLedger", "message": "it is spoilt",
        "lastTransitionTime": since});
    cluster.edit_sets(|set| set["status"]["machineSetCondition"] = json!([condition]));
    cluster.stuck_set = Some(former.clone());
    cluster.change("/spec/template/spec/class/name", json!("v2"));
    cluster.settle();
    assert_eq!(
        (cluster.machines().len(), cluster.replicas()[1]),
        (3, 1),
        "there is no room for the second new machine"
    );
    let said = cluster.condition("Reconciling").unwrap()["message"].as_str().unwrap().to_owned();
    let first = cluster.machines().into_keys().find(|name| name.starts_with(&former)).unwrap();
    assert!(said.contains(&format!("machine set {former} cannot delete machine {first}")), "{said}");
    assert!(said.contains("it is spoilt"), "{said}");
    let wake = cluster.plan().wake.unwrap();
    assert_eq!(
        wake.to_string(),
        (since.parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_mins(15)).to_string()
    );
    cluster.set_now(wake);
    cluster.settle();
    assert_eq!((cluster.machines().len(), cluster.replicas()), (4, vec![0, 2]), "they are beside the others");
    assert_eq!(cluster.status()["updatedReplicas"], 2);
}

/// A pool has claimed its Node to give it a configuration: it is about to start again.
#[test]
fn a_machine_whose_node_is_being_configured_is_not_available_to_a_rollout() {
    let cluster = rolled_by_one();
    let names: Vec<String> = cluster.machines().keys().cloned().collect();
    for name in &names {
        cluster.edit_machine(name, |machine| machine["metadata"]["labels"]["node"] = format!("node-of-{name}").into());
    }
    let available = |configured: &[&String]| -> i64 {
        let mut snapshot = cluster.snapshot();
        let configured = Arc::new(configured.iter().map(|name| format!("node-of-{name}")).collect());
        snapshot.sets.iter_mut().for_each(|view| view.configured = Arc::clone(&configured));
        snapshot.sets.iter().map(|view| view.size().available).sum()
    };
    let ready = available(&[]);
    assert_eq!(available(&[&names[0], &"another".to_owned()]), ready - 1);
    assert_eq!(available(&names.iter().collect::<Vec<_>>()), 0);
}
