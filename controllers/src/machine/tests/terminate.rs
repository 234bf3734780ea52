//! Snapshots in, plans out: how a Machine is terminated.

use nodewright_api::labels;
use nodewright_observability::trace::SpanRecord;
use nodewright_runtime::plan::Notes;
use std::collections::BTreeMap;

use super::*;
use crate::{
    machine::memory::Note,
    shared::{disruption::SharedBudget, drain},
};

pub(super) fn dying() -> MachineBuilder {
    let joined = json!([{"type": "NodeJoined", "status": "True", "lastTransitionTime": "2026-06-01T11:30:00Z"}]);
    unseen().with("/status/conditions", joined)
}

/// A linked Machine that is being deleted and whose Node has never been there.
fn unseen() -> MachineBuilder {
    linked("Terminating").deleting().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:58Z"))
}

pub(super) fn cordoned() -> Value {
    let mut node = synced(READY);
    node["spec"]["unschedulable"] = true.into();
    node["metadata"]["labels"][labels::EXCLUDE_FROM_LOAD_BALANCERS] = "".into();
    node["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Terminating", "status": "True", "reason": "ScaleDown"}));
    node
}

#[test]
fn a_termination_begins_with_the_phase_and_the_cordon() {
    assert_eq!(fixture(linked("Running").deleting()).steps(), ["status Terminating"]);
    let begun = fixture(dying()).node(synced(READY));
    assert_eq!(begun.steps(), ["edit Node n", "edit Node n"]);
    let listing = fixture(dying()).node(cordoned());
    assert!(listing.steps().is_empty());
    assert_eq!(listing.plan().scoped_watches[0].selector(), "spec.nodeName=n");
}

/// The condition by which machine-controller-manager's other controllers know a Node that goes.
#[test]
fn the_node_says_whether_its_machine_had_failed() {
    let joined = |status: &str, reason: &str| json!([{"type": "NodeJoined", "status": status, "reason": reason, "lastTransitionTime": "2026-06-01T11:30:00Z"}]);
    let (failed, scaled) =
        ("Machine Controller is terminating failed machine", "Machine Controller is scaling down machine");
    let table = [
        (joined("True", "Joined"), "False", "Unhealthy", failed),
        (joined("False", "Timeout"), "False", "Unhealthy", failed),
        (joined("False", "NodeAwaited"), "False", "ScaleDown", scaled),
        (json!([]), "False", "ScaleDown", scaled),
        (joined("True", "Joined"), "True", "ScaleDown", scaled),
    ];
    for (joined, ready, reason, message) in table {
        let case = format!("{joined} {ready}");
        // That there is a VM has been asked.
        let dying = fixture(unseen().with("/status/conditions", joined)).node(synced(ready));
        let plan = dying.answered(Verb::Status, 1, vm()).plan();
        let said = plan.steps().find_map(|planned| match &planned.step {
            Step::Edit { patch, .. } => serde_json::to_value(patch).unwrap().as_array()?.iter().find_map(|operation| {
                let condition = &operation["value"];
                (condition["type"] == "Terminating").then(|| condition.clone())
            }),
            _ => None,
        });
        let said = said.unwrap_or_else(|| panic!("{case}: {plan}"));
        let texts =
            ["status", "reason", "message", "lastTransitionTime", "lastHeartbeatTime"].map(|key| said[key].as_str());
        assert_eq!(texts, [Some("True"), Some(reason), Some(message), Some(NOW), Some(NOW)], "{case}");
    }
}

#[test]
fn a_drain_waits_for_the_answer_whether_a_node_that_is_not_ready_has_a_vm() {
    let not_ready = || fixture(dying()).node(synced("False"));
    assert_eq!(not_ready().steps(), ["call Status"]);
    let asked = not_ready().running(Verb::Status);
    assert_eq!((asked.steps(), asked.plan().waits[0].reason), (vec![], "CallingProvider"));
    assert_eq!(not_ready().answered(Verb::Status, 1, vm()).steps(), ["edit Node n", "edit Node n"], "it has one");
}

#[test]
fn pods_are_evicted_and_waited_for_before_the_vm_goes() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let daemon = json!({"metadata": {"name": "d", "namespace": "default", "uid": "uid-d", "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "x", "controller": true}]}});
    let full = fixture(dying()).node(cordoned()).pods(&[pod.clone(), daemon.clone()]);
    assert_eq!(full.steps(), ["evict Pod default/p"]);
    let mut leaving = pod;
    leaving["metadata"]["deletionTimestamp"] = NOW.into();
    let waiting = fixture(dying()).node(cordoned()).pods(&[leaving, daemon.clone()]);
    assert!(waiting.steps().is_empty());
    assert_eq!(waiting.plan().waits[0].reason, "PodsLeft");
    assert_eq!(fixture(dying()).node(cordoned()).pods(&[daemon]).steps(), ["call Delete"]);
}

#[test]
fn an_eviction_that_is_refused_is_repeated_for_as_long_as_machine_or_flag_say() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let first = |own: Option<i32>, seconds: i64| {
        let machine = own.into_iter().fold(dying(), |machine, own| machine.with("/spec/maxEvictRetries", json!(own)));
        let mut held = fixture(machine).node(cordoned()).pods(std::slice::from_ref(&pod));
        held.refusals = vec![Refusal {
            uid: "uid-p".into(),
            since: held.now - SignedDuration::from_secs(seconds + 20),
            at: held.now - SignedDuration::from_secs(20),
            class: FailureClass::TooManyRequests,
            message: "needs 2".into(),
            retry_after: None,
        }];
        let settings = MachineSettings {
            max_evict_retries: 6,
            evict_retry: std::time::Duration::from_secs(20),
            ..MachineSettings::default()
        };
        held.plan_with(settings).steps().next().map(|planned| planned.step.to_string()).unwrap_or_default()
    };
    // What the machine says, and how long before the last refusal the first one was; 6 times 20 s by the flags.
    let table = [(None, 119), (None, 120), (Some(3), 59), (Some(3), 60), (Some(0), 19), (Some(0), 20), (Some(9), 120)];
    let forced = [false, true, false, true, false, true, false];
    for ((own, seconds), forced) in table.into_iter().zip(forced) {
        let step = first(own, seconds);
        assert_eq!(step.contains("without grace"), forced, "{own:?} after {seconds} s: {step}");
        assert_eq!(step.starts_with("evict Pod"), !forced, "{own:?} after {seconds} s: {step}");
    }
}

#[test]
fn a_pod_that_its_budget_holds_back_is_asked_again_later_and_the_machine_says_so() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let mut held = fixture(dying().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z")))
        .node(cordoned())
        .pods(&[pod]);
    held.refusals = vec![Refusal {
        uid: "uid-p".into(),
        since: held.now,
        at: held.now,
        class: FailureClass::TooManyRequests,
        message: "needs 2".into(),
        retry_after: None,
    }];
    let mut plan = held.plan();
    assert_eq!(held.steps(), ["status Terminating"]);
    assert_eq!(plan.wake, Some(held.now + SignedDuration::from_secs(20)));
    let drained = status_of(&plan)["conditions"][1].clone();
    assert_eq!((drained["type"].as_str(), drained["status"].as_str()), (Some("Drained"), Some("False")));
    let message = "pod default/p is not evicted: needs 2; pods that are left are deleted without grace \
                   at 2026-06-01T13:59:00Z";
    assert_eq!(drained["message"], message);
    assert_eq!(plan.events[0].reason, "EvictionRefused");
    for (refusals, what) in [
        (vec![], "nothing is refused for a moment"),
        (vec![Refusal { message: "needs 3".into(), ..held.refusals[0].clone() }], "for another reason"),
        (held.refusals.clone(), "the same refusal"),
    ] {
        held.notes = plan.notes.after(std::mem::take(&mut held.notes), held.now);
        held.refusals = refusals;
        plan = held.plan();
        assert!(plan.events.is_empty(), "one event for a drain: {what}");
    }
    held.now = at("2026-06-01T13:59:00Z");
    assert_eq!(held.steps()[0], "delete now Pod default/p", "it does what it has said");
    assert!(!status_of(&held.plan()).to_string().contains("without grace"), "it is no more to come");
}

#[test]
fn a_drain_that_is_forced_says_so_once() {
    let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")}});
    let pods = ["a", "b", "c", "d", "e"].map(pod);
    let mut overdue = fixture(dying().with("/spec/drainTimeout", json!("30s"))).node(cordoned()).pods(&pods);
    let plan = overdue.plan();
    assert_eq!((plan.events[0].reason, plan.events[0].is_warning, plan.events.len()), ("DrainForced", true, 1));
    let message = "the drain timeout is over: deleting without grace, ignoring disruption budgets, 5 pods: default/a, \
                   default/b, default/c, and 2 more";
    assert_eq!(plan.events[0].message, message);
    overdue.notes = plan.notes.after(BTreeMap::new(), overdue.now);
    assert_eq!(overdue.steps().len(), 5, "they are asked for until they are gone");
    assert!(overdue.plan().events.is_empty());
}

#[test]
fn a_deletion_that_is_forced_by_its_label_says_once_that_nothing_is_drained() {
    let forced = || fixture(dying().label("force-deletion", "true"));
    let plan = forced().node(cordoned()).plan();
    assert_eq!((plan.events[0].reason, plan.events.len()), ("DrainForced", 1));
    assert!(plan.events[0].message.starts_with("label force-deletion is set: node n is not drained"));
    assert!(forced().plan().events.is_empty(), "there is no node");
    assert!(fixture(dying()).node(cordoned()).pods(&[]).plan().events.is_empty(), "it is drained");
    let refused = forced().node(cordoned()).answered(Verb::Delete, 700, failed(Code::Internal));
    assert_eq!((refused.steps(), refused.plan().events.len()), (vec!["call Delete".to_owned()], 0), "it was reported");
}

#[test]
fn a_drain_whose_time_is_over_deletes_the_pods() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let overdue = || fixture(dying().with("/spec/drainTimeout", json!("30s"))).node(cordoned());
    assert_eq!(overdue().pods(std::slice::from_ref(&pod)).steps(), ["delete now Pod default/p"]);
    let mut held = pod;
    json_patch::merge(
        &mut held,
        &json!({"metadata": {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 0, "finalizers": ["x"]}}),
    );
    assert_eq!(overdue().pods(&[held]).steps(), ["call Delete"], "a finalizer on a pod blocks no forced drain");
}

#[test]
fn the_pods_of_a_node_that_has_been_read_only_for_long_are_deleted() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let since = |status: &str, since: &str| {
        let mut node = cordoned();
        let condition = json!({"type": "ReadonlyFilesystem", "status": status, "lastTransitionTime": since});
        node["status"]["conditions"].as_array_mut().unwrap().push(condition);
        fixture(dying()).node(node).pods(std::slice::from_ref(&pod))
    };
    assert_eq!(since("True", "2026-06-01T11:55:00Z").steps(), ["delete now Pod default/p"]);
    assert_eq!(since("True", "2026-06-01T11:56:00Z").steps(), ["evict Pod default/p"]);
    assert_eq!(since("False", "2026-06-01T11:00:00Z").steps(), ["evict Pod default/p"]);
}

#[test]
fn a_forced_drain_whose_requests_fail_writes_its_status_every_half_minute() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let reported = json!({"conditions": [{"type": "Drained", "status": "False", "reason": "RequestFailed",
        "message": "failed to delete Pod default/p: denied"}]});
    let overdue = dying()
        .with("/spec/drainTimeout", json!("30s"))
        .with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z"))
        .with("/status/conditions", reported["conditions"].clone());
    let mut overdue = fixture(overdue).node(cordoned()).pods(&[pod]);
    for (ago, steps) in
        [(29, &["delete now Pod default/p"][..]), (30, &["delete now Pod default/p", "status Terminating"])]
    {
        overdue.status_written = Some(overdue.now - SignedDuration::from_secs(ago));
        assert_eq!(overdue.steps(), steps, "the failure was reported {ago} s ago");
    }
}

#[test]
fn a_node_without_a_vm_is_not_drained_and_one_that_a_user_deleted_is() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let mut dead = cordoned();
    dead["status"]["conditions"][0]["status"] = "Unknown".into();
    let asked = fixture(dying()).node(dead.clone()).pods(std::slice::from_ref(&pod));
    assert_eq!(asked.steps(), ["call Status"]);
    assert_eq!(asked.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Delete"]);
    let mut stale = fixture(linked("Running")).answered(Verb::Status, 60, failed(Code::NotFound));
    stale.snapshot.machine = Arc::new(dying().build());
    let stale = stale.node(dead.clone()).pods(std::slice::from_ref(&pod));
    assert_eq!(stale.steps(), ["call Status"], "an answer from before the VM was made says nothing");
    let there = fixture(dying()).node(dead).pods(std::slice::from_ref(&pod)).answered(Verb::Status, 0, vm());
    assert_eq!(there.steps(), ["evict Pod default/p"]);
    let mut deleted = cordoned();
    deleted["metadata"]["deletionTimestamp"] = NOW.into();
    assert_eq!(fixture(dying()).node(deleted).pods(&[pod]).steps(), ["evict Pod default/p"]);
}

#[test]
fn volumes_are_waited_for_but_not_for_ever() {
    let mut node = cordoned();
    node["status"]["volumesAttached"] = json!([{"name": "v", "devicePath": ""}]);
    let attached = |lasting: MachineBuilder| {
        let mut fixture = fixture(lasting).node(node.clone()).pods(&[]);
        fixture.snapshot.drain.volumes = Volumes::Known(Attached::default());
        fixture
    };
    let begun = attached(dying());
    assert!(begun.steps().is_empty() && begun.plan().scoped_watches.len() == 3, "it may end within seconds");
    let lasts = attached(dying().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z")));
    let conditions = status_of(&lasts.plan())["conditions"].clone();
    let reported =
        |index: usize| (conditions[index]["type"].as_str().unwrap(), conditions[index]["status"].as_str().unwrap());
    assert_eq!([reported(1), reported(2)], [("Drained", "True"), ("VolumesDetached", "False")]);
    let mut stuck = attached(dying());
    stuck.notes = [(Note::Drain(drain::Note::Detaching(drain::Volume::OfNode)), at("2026-06-01T11:58:00Z"))].into();
    assert_eq!(stuck.steps(), ["call Delete"]);
}

#[test]
fn a_drain_goes_on_at_its_limit_although_the_api_server_refuses_everything() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let overdue = |seconds: i64, node: Value| {
        let mut fixture =
            fixture(dying().with("/spec/drainTimeout", json!("30s"))).node(node).pods(std::slice::from_ref(&pod));
        fixture.now = at("2026-06-01T11:59:30Z") + SignedDuration::from_secs(seconds);
        (fixture.attempt, fixture.failure) = (4, Some(refusal()));
        fixture
    };
    let forced = |mut fixture: Fixture| {
        fixture.notes = [(Note::Drain(drain::Note::Forced), at("2026-06-01T11:59:30Z"))].into();
        fixture.steps()
    };
    assert_eq!(overdue(0, cordoned()).steps(), ["delete now Pod default/p"]);
    assert_eq!(overdue(500, cordoned()).steps(), ["delete now Pod default/p"], "a process that starts late asks, too");
    assert_eq!(overdue(0, synced(READY)).steps(), ["delete now Pod default/p", "edit Node n", "edit Node n"]);
    assert_eq!(forced(overdue(60, cordoned())), ["call Delete"]);
    assert_eq!(forced(overdue(60, synced(READY))), ["call Delete"], "the Node could not be marked, either");
}

#[test]
fn the_machine_ends_only_after_the_provider_has_confirmed_that_the_vm_is_gone() {
    let asked = || fixture(dying()).answered(Verb::Delete, 2, Outcome::Done);
    assert_eq!(asked().steps(), ["call Status"]);
    let there = asked().answered(Verb::Status, 1, vm());
    assert!(there.steps().is_empty());
    assert_eq!(there.plan().waits[0].reason, "Removing");
    let gone = asked().answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(gone.steps(), ["edit Machine default/m"]);
    assert_eq!(
        asked().node(synced(READY)).answered(Verb::Status, 1, failed(Code::NotFound)).steps(),
        ["delete Node n"]
    );
    let stale =
        fixture(dying()).answered(Verb::Status, 5, failed(Code::NotFound)).answered(Verb::Delete, 2, Outcome::Done);
    assert_eq!(stale.steps(), ["call Status"], "an answer from before the deletion does not count");
}

#[test]
fn a_forced_deletion_frees_the_volumes_once_the_vm_is_gone_and_waits_a_minute_for_that() {
    let node = || {
        let mut node = synced(READY);
        node["status"]["volumesAttached"] = json!([{"name": "v", "devicePath": ""}]);
        node
    };
    let forced = || fixture(dying().label("force-deletion", "true")).node(node());
    assert_eq!(forced().steps(), ["call Delete"], "the VM comes first");
    let gone = || forced().answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    let asks = gone();
    assert_eq!((asks.steps(), asks.plan().scoped_watches.len()), (vec![], 2), "the volumes are watched");
    let with = |attachments: Value| {
        let mut fixture = gone();
        let here = serde_json::from_value(attachments).unwrap();
        fixture.snapshot.drain.volumes = Volumes::Known(Attached { here, ..Attached::default() });
        fixture
    };
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}});
    assert_eq!(with(json!([attachment])).steps(), ["delete VolumeAttachment a"]);
    let going = json!({"metadata": {"name": "a", "deletionTimestamp": NOW}, "spec": {"nodeName": "n"}});
    assert_eq!(with(json!([going])).steps(), ["delete Node n"]);
    // Whatever the target cluster says.
    let mut late = with(json!([attachment]));
    late.notes = [(Note::Drain(drain::Note::Forced), at("2026-06-01T11:59:00Z"))].into();
    assert_eq!(late.steps(), ["delete Node n"]);
}

#[test]
fn the_volumes_of_a_vm_that_was_gone_before_are_freed() {
    let mut dead = cordoned();
    dead["status"]["conditions"][0]["status"] = "Unknown".into();
    let gone = |node: Value| {
        let fixture = fixture(dying()).node(node).answered(Verb::Delete, 2, Outcome::Done);
        fixture.answered(Verb::Status, 1, failed(Code::NotFound))
    };
    assert_eq!(gone(dead.clone()).steps(), ["delete Node n"], "without volumes nothing is watched");
    dead["status"]["volumesAttached"] = json!([{"name": "v", "devicePath": ""}]);
    let mut fixture = gone(dead);
    assert_eq!((fixture.steps(), fixture.plan().scoped_watches.len()), (vec![], 2), "the volumes are watched");
    let here = json!([{"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}]);
    let here = serde_json::from_value(here).unwrap();
    fixture.snapshot.drain.volumes = Volumes::Known(Attached { here, ..Attached::default() });
    assert_eq!(fixture.steps(), ["delete VolumeAttachment a"]);
}

#[test]
fn the_nodes_finalizer_goes_once_the_node_is_being_deleted() {
    let mut node = synced(READY);
    node["metadata"]["deletionTimestamp"] = NOW.into();
    let fixture = fixture(dying()).node(node).pods(&[]).answered(Verb::Delete, 2, Outcome::Done).answered(
        Verb::Status,
        1,
        failed(Code::NotFound),
    );
    assert_eq!(fixture.steps(), ["edit Node n"]);
}

#[test]
fn mcm_defect_8_what_a_driver_notes_in_a_deletion_is_kept_before_it_is_asked_again() {
    let noted =
        |machine: MachineBuilder| fixture(machine).answered(Verb::Delete, 2, Outcome::Noted("disk-1 is left".into()));
    assert_eq!(status_of(&noted(dying()).plan())["lastKnownState"], "disk-1 is left");
    let newer = noted(dying().with("/status/lastKnownState", json!("newer"))).answered(Verb::Status, 1, vm());
    assert!(newer.steps().is_empty(), "a later answer counts: {:?}", newer.steps());
    let known = || dying().with("/status/lastKnownState", json!("disk-1 is left"));
    assert_eq!(noted(known()).steps(), ["call Status"]);
    assert_eq!(
        fixture(known()).answered(Verb::Delete, 2, Outcome::Done).steps(),
        ["call Status"],
        "no notes change none"
    );
    let refused = fixture(known()).answered(Verb::Delete, 2, failed(Code::Internal));
    assert_eq!(status_of(&refused.plan())["lastKnownState"], "disk-1 is left");
}

#[test]
fn mcm_defect_6_a_machine_that_is_made_again_under_its_name_starts_over() {
    let gone =
        fixture(dying()).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(gone.steps(), ["edit Machine default/m"]);
    let again = |machine: MachineBuilder| Fixture {
        outcomes: gone.outcomes.clone(),
        ..fixture(machine.with("/metadata/uid", json!("uid-again")))
    };
    assert_eq!(again(machine("m")).steps(), ["call Status"], "the calls of the first one are not its own");
    let begun = again(machine("m")).answered(Verb::Status, 0, failed(Code::NotFound));
    assert_eq!(begun.steps(), ["call Create"]);
    // machine-controller-manager may have written so: it does not look whether the Machine is being deleted.
    assert_eq!(again(machine("m").phase("Terminating")).steps(), ["call Status"]);
    let joined = again(linked("Terminating")).node(synced(READY));
    assert_eq!(joined.steps(), ["status Running"]);
}

/// machine-controller-manager finds the stage of a deletion by these texts, and a provider may say anything.
#[test]
fn mcm_defect_10_no_text_chooses_the_stage_of_a_deletion() {
    let stages = [
        "Set machine status to termination. Now, getting VM Status",
        "Initiate node drain",
        "Delete Volume Attachments",
        "Initiate VM deletion",
        "Initiate node object deletion",
        "Initiate machine object finalizer removal",
    ];
    for stage in stages {
        let text = format!("VM deletion failed due to - machine codes error: code = [Internal] message = [{stage}]");
        let operation = json!({"type": "Delete", "state": "Failed", "description": text});
        let reported = || dying().with("/status/lastOperation", operation.clone());
        assert_eq!(fixture(reported()).node(synced(READY)).steps(), ["edit Node n", "edit Node n"], "{stage}");
        assert_eq!(fixture(reported()).node(cordoned()).pods(&[]).steps(), ["call Delete"], "{stage}");
        let gone = fixture(reported()).answered(Verb::Delete, 2, Outcome::Done);
        assert_eq!(gone.steps(), ["call Status"], "{stage}");
        assert_eq!(
            gone.answered(Verb::Status, 1, failed(Code::NotFound)).steps(),
            ["edit Machine default/m"],
            "{stage}"
        );
    }
}

#[test]
fn the_token_of_a_machine_that_never_joined_is_deleted() {
    let gone = |machine: MachineBuilder| {
        let mut fixture = fixture(machine);
        let secret = json!({"data": {"userData": "PDxCT09UU1RSQVBfVE9LRU4+Pg=="}});
        let secret = SecretData::of(vec![Arc::new(serde_json::from_value(secret).unwrap())]);
        fixture.snapshot.class.as_mut().unwrap().secret = secret;
        let mut fixture = fixture.answered(Verb::Delete, 40, Outcome::Done);
        fixture.now += SignedDuration::from_secs(40);
        let mut fixture = fixture.answered(Verb::Status, 1, failed(Code::NotFound));
        fixture.snapshot.unseen_node = Lookup::Missing;
        fixture
    };
    assert_eq!(gone(unseen()).steps()[0], "call DropToken");
    assert_eq!(gone(dying()).steps(), ["edit Machine default/m"], "it has joined: its token is gone");
    let waiting = gone(unseen()).running(Verb::DropToken);
    assert_eq!((waiting.steps().len(), waiting.plan().waits[0].reason), (0, "DroppingToken"));
    assert_eq!(
        gone(unseen().label("force-deletion", "true")).running(Verb::DropToken).steps(),
        ["edit Machine default/m"]
    );
    let refused = gone(unseen()).answered(Verb::DropToken, 1, failed(Code::Unavailable));
    assert_eq!(refused.steps(), ["edit Machine default/m"], "it expires by itself");
}

#[test]
fn a_refused_deletion_is_tried_again_and_shows() {
    let refused = fixture(dying()).answered(Verb::Delete, 2, failed(Code::Internal));
    let status = status_of(&refused.plan());
    assert_eq!(
        (status["lastOperation"]["state"].as_str(), status["lastOperation"]["errorCode"].as_str()),
        (Some("Failed"), Some("Internal"))
    );
    assert_eq!(fixture(dying()).answered(Verb::Delete, 6, failed(Code::Internal)).steps(), ["call Delete"]);
}

#[test]
fn a_deletion_that_the_provider_refuses_is_tried_less_and_less_often() {
    let refused = |times: u32, verb: Verb| {
        let mut fixture = fixture(dying());
        if verb == Verb::Status {
            fixture = fixture.answered(Verb::Delete, 2, Outcome::Done);
        }
        for _ in 0..times {
            fixture = fixture.answered(verb, 1, failed(Code::PermissionDenied));
        }
        fixture
    };
    for verb in [Verb::Delete, Verb::Status] {
        // The call ended a second ago.
        let pause = |times| refused(times, verb).plan().wake.unwrap().duration_since(at(NOW)).as_secs() + 1;
        let pauses = [1, 2, 3, 20].map(pause);
        assert_eq!(pauses, [5, 10, 20, 600], "{verb:?}");
        let mut corrected = refused(20, verb);
        if let Ok(class) = &mut corrected.snapshot.class {
            class.revision = "another".into();
        }
        assert_eq!(corrected.steps(), [format!("call {verb:?}")], "other credentials are tried at once");
    }
}

#[test]
fn a_machine_without_a_known_vm_waits_for_a_vm_that_may_still_come() {
    let unlinked = || machine("m").phase("Terminating").deleting();
    let done = |fixture: Fixture| {
        fixture.answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound))
    };
    // An earlier process may have asked for a VM just before it died.
    let mut fresh = done(fixture(unlinked()));
    fresh.since = fresh.now - SignedDuration::from_secs(20);
    assert_eq!(fresh.plan().waits[0].reason, "Confirming");
    assert_eq!(fresh.plan().wake, Some(fresh.now + SignedDuration::from_secs(20)));
    assert_eq!(done(fixture(unlinked())).steps(), ["edit Machine default/m"], "long ago");
    // This process has asked for one, and never got an answer.
    let asked = done(fixture(unlinked()).answered(Verb::Create, 10, failed(Code::DeadlineExceeded)));
    assert_eq!(asked.plan().waits[0].reason, "Confirming");
    // That it is younger than this process is a word of another clock.
    let mut young = done(fixture(unlinked().created("2026-06-01T11:59:59Z")));
    young.since = young.now - SignedDuration::from_secs(20);
    assert_eq!(young.plan().waits[0].reason, "Confirming");
}

#[test]
fn a_vm_that_the_provider_does_not_show_yet_is_waited_for() {
    let gone = |machine: MachineBuilder| {
        fixture(machine).answered(Verb::Delete, 1, Outcome::Done).answered(Verb::Status, 0, failed(Code::NotFound))
    };
    let made = |at: &str| {
        let provisioned = json!([{"type": "InstanceProvisioned", "status": "True", "lastTransitionTime": at}]);
        unseen().with("/status/conditions", provisioned)
    };
    let young = gone(made("2026-06-01T11:59:55Z"));
    assert_eq!(young.plan().waits[0].reason, "Confirming");
    assert!(young.plan().wake.is_some_and(|wake| wake <= at("2026-06-01T12:00:05Z")));
    let mut shown = gone(made("2026-06-01T11:59:45Z"));
    shown.snapshot.unseen_node = Lookup::Pending;
    assert_eq!(shown.plan().waits[0].reason, "LookingForNode", "it has had time to show");
    assert_eq!(gone(dying()).steps(), ["edit Machine default/m"], "it joined long ago");
    // The clock was set meanwhile: this process knows how long ago it was reported, and one that begins asks no clock at all.
    let reported = gone(made("2026-06-01T11:00:00Z")).answered(Verb::Create, 2, Outcome::Done);
    assert_eq!(reported.plan().waits[0].reason, "Confirming");
    let mut new = gone(made("2026-06-01T11:00:00Z"));
    new.since = new.now - SignedDuration::from_secs(2);
    assert_eq!(new.plan().waits[0].reason, "Confirming");
    let mut ahead = gone(made("2026-06-02T12:00:00Z"));
    ahead.snapshot.unseen_node = Lookup::Missing;
    assert_eq!(ahead.steps(), ["edit Machine default/m"], "a time in the future is not waited for");
}

#[test]
fn before_a_vm_goes_without_a_drain_its_node_is_asked_for() {
    let seen = |machine: MachineBuilder, seen: Lookup<Node>| {
        let mut fixture = fixture(machine);
        fixture.snapshot.unseen_node = seen;
        fixture
    };
    let node = json!({"metadata": {"name": "n", "uid": "uid-n"}, "spec": {"providerID": "p:///1"}});
    let node = || Lookup::Found(Arc::new(serde_json::from_value(node.clone()).unwrap()));
    let asking = seen(dying(), Lookup::Pending);
    assert_eq!((asking.steps(), asking.plan().scoped_watches[0].selector()), (vec![], "metadata.name=n"));
    assert_eq!(asking.plan().waits[0].reason, "LookingForNode");
    assert_eq!(seen(dying(), node()).plan().waits[0].message, "node n is yet to show in the cache");
    assert_eq!(seen(dying(), Lookup::Missing).steps(), ["call Delete"], "it was deleted by somebody");

    let awaited = json!([{"type": "NodeJoined", "status": "False", "reason": "NodeAwaited", "message": "n",
        "lastTransitionTime": "2026-06-01T11:30:00Z"}]);
    let awaited = unseen().with("/status/conditions", awaited);
    assert_eq!(seen(awaited, Lookup::Pending).steps(), ["call Delete"], "there was never anything to drain");
    let forced = dying().label("force-deletion", "true");
    assert_eq!(seen(forced, node()).steps(), ["call Delete"]);
    let overdue = dying().with("/spec/drainTimeout", json!("1s"));
    let mut overdue = seen(overdue, Lookup::Pending);
    assert_eq!(overdue.plan().waits[0].reason, "LookingForNode");
    overdue.now += SignedDuration::from_mins(10);
    assert_eq!(overdue.steps(), ["call Delete"], "the target cluster is not waited for without end");
}

#[test]
fn a_node_that_joined_in_the_last_moment_goes_too() {
    let long_ago = json!([{"type": "InstanceProvisioned", "status": "True", "lastTransitionTime": NOW}]);
    let gone = |seen: Lookup<Node>| {
        let machine = unseen().with("/status/conditions", long_ago.clone());
        let mut fixture = fixture(machine).answered(Verb::Delete, 40, Outcome::Done);
        fixture.now += SignedDuration::from_secs(40);
        let mut fixture = fixture.answered(Verb::Status, 1, failed(Code::NotFound));
        fixture.snapshot.unseen_node = seen;
        fixture
    };
    let asking = gone(Lookup::Pending).plan();
    assert_eq!((asking.scoped_watches[0].selector(), asking.waits[0].reason), ("metadata.name=n", "LookingForNode"));
    assert_eq!(gone(Lookup::Missing).steps(), ["edit Machine default/m"]);
    let node = json!({"metadata": {"name": "n", "uid": "uid-late"}, "spec": {"providerID": "p:///1"}});
    let late = gone(Lookup::Found(Arc::new(serde_json::from_value(node).unwrap())));
    assert_eq!(late.steps(), ["delete Node n"]);
    assert_eq!(late.plan().scoped_watches.len(), 1, "it is looked at until it is gone");
    // A node that was seen may have been seen by another manager, whose watch was not silent.
    let mut seen =
        fixture(dying()).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    seen.snapshot.unseen_node = Lookup::Pending;
    assert_eq!((seen.plan().scoped_watches.len(), seen.steps()), (1, vec![]), "that it goes has been reported");
    // This process has deleted it.
    let going = fixture(dying()).node(synced(READY)).answered(Verb::Delete, 2, Outcome::Done);
    let notes = going.answered(Verb::Status, 1, failed(Code::NotFound)).plan().notes;
    seen.notes = notes.after(BTreeMap::new(), at(NOW));
    assert_eq!(
        (seen.plan().notes, seen.steps()),
        (Notes::Replace(vec![Note::NodeDeleted]), vec!["edit Machine default/m".to_owned()])
    );
}

#[test]
fn a_vm_is_not_deleted_before_the_provider_has_said_which_one_it_is() {
    let unlinked = || fixture(dying().with("/spec/providerID", Value::Null));
    assert_eq!(unlinked().steps(), ["call Status"]);
    let away = unlinked().answered(Verb::Status, 1, failed(Code::Unavailable));
    assert!(!away.steps().contains(&"call Delete".to_owned()), "{:?}", away.steps());
    let none = unlinked().answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(none.steps(), ["call Delete"], "it may be one that is on its way");
    // One that an earlier process asked for may come and have a Node before it is deleted.
    let mut fresh = unlinked().answered(Verb::Status, 1, failed(Code::NotFound));
    fresh.since = fresh.now - SignedDuration::from_secs(20);
    assert_eq!((fresh.plan().waits[0].reason, fresh.steps()), ("Confirming", vec![]));
    fresh.now += SignedDuration::from_secs(21);
    assert_eq!(fresh.steps(), ["call Status"]);
    let fresh = fresh.answered(Verb::Status, 0, failed(Code::NotFound));
    assert_eq!(fresh.steps(), ["call Delete"]);
    // As of a machine that was removed by force and made again: machine-controller-manager asks for ever.
    let several = unlinked().answered(Verb::Status, 1, failed(Code::OutOfRange));
    assert_eq!(several.steps(), ["call Delete"], "all go");
    let mut left = several.answered(Verb::Delete, 90, Outcome::Done);
    left.now += SignedDuration::from_secs(90);
    let left = left.answered(Verb::Status, 5, failed(Code::OutOfRange));
    assert_eq!(left.steps(), ["call Delete", "status Terminating"], "they are still there");
}

#[test]
fn a_vm_of_which_only_the_provider_knew_is_linked_before_it_is_deleted() {
    let unlinked = || fixture(machine("m").phase("Terminating").deleting());
    assert_eq!(unlinked().steps(), ["call Status"]);
    let steps = unlinked().answered(Verb::Status, 0, vm()).steps();
    assert!(steps[0].starts_with("apply ") && steps[0].contains("p:///1"), "{steps:?}");
    let made = unlinked().answered(Verb::Create, 1, vm());
    assert!(made.steps()[0].starts_with("apply "));
    // It shows only after a first deletion that had nothing to delete.
    let late = unlinked().answered(Verb::Delete, 9, Outcome::Done).answered(Verb::Status, 0, vm());
    assert!(late.steps()[0].starts_with("apply "));
    let mut linked_later = fixture(machine("m").phase("Terminating").deleting())
        .answered(Verb::Delete, 9, Outcome::Done)
        .answered(Verb::Status, 0, vm());
    linked_later.snapshot.machine = Arc::new(unseen().build());
    linked_later.snapshot.claim.vm = Vm::Proven;
    assert_eq!(linked_later.steps(), ["call Delete"], "the deletion of a VM that was not known does not count");
}

#[test]
fn a_machine_ends_only_once_its_name_is_retired() {
    let name = "k7f;"
        .parse::<Ledger>()
        .unwrap()
        .name("set", Ledger::lowest_free(&"k7f;".parse().unwrap(), &std::collections::BTreeSet::new(), 1)[0]);
    let dead = |ledger: &str| {
        let set = machine_set("set", 1, Some(ledger));
        let machine =
            machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0").phase("Terminating").deleting();
        fixture(machine).set(set).answered(Verb::Delete, 2, Outcome::Done).answered(
            Verb::Status,
            1,
            failed(Code::NotFound),
        )
    };
    assert!(dead("k7f;").steps()[0].contains("k7f;0"), "the set has not for a minute: the machine does it itself");
    assert_eq!(dead("k7f;").plan().waits[0].reason, "Retiring");
    assert_eq!(dead("k7f;0").steps(), [format!("edit Machine default/{name}")]);
}

fn traced(fixture: Fixture) -> Vec<SpanRecord> {
    Fixture { traces: true, ..fixture }.plan().spans
}

#[test]
fn a_deletion_is_one_trace_that_links_to_the_creation() {
    let gone =
        fixture(dying()).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    let mut spans = traced(gone);
    let names: Vec<_> = spans.iter().map(|span| &span.name).collect();
    assert_eq!(names, ["pending deletion", "drain", "VM deletion", "node deletion", "machine deletion"]);
    assert!(spans.windows(2).take(3).all(|pair| pair[0].end == pair[1].start), "nothing is between them");
    let deletion = spans.pop().unwrap();
    assert_eq!((spans[0].start, spans[3].end), (deletion.start, deletion.end));
    assert!(spans.iter().all(|span| span.context == deletion.context && span.context.span_id == deletion.id));
    assert_eq!(deletion.links.len(), 1);
    assert_ne!(deletion.links[0].trace_id, deletion.context.trace_id);
}

#[test]
fn a_deletion_that_a_set_decided_hangs_below_the_decision() {
    let decision = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let gone = dying().annotation(nodewright_api::annotations::DELETION_TRACEPARENT, decision);
    let gone = fixture(gone).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    let deletion = traced(gone).pop().unwrap();
    assert_eq!((deletion.context.to_string().as_str(), deletion.name.as_ref()), (decision, "machine deletion"));
    assert_ne!(deletion.id, deletion.context.span_id, "it is a child");
}

#[test]
fn a_machine_that_never_joined_has_a_creation_that_failed() {
    let joined = json!([{"type": "NodeJoined", "status": "False"}]);
    let mut gone = fixture(dying().with("/status/conditions", joined)).answered(Verb::Delete, 40, Outcome::Done);
    gone.now += SignedDuration::from_secs(40);
    let mut gone = gone.answered(Verb::Status, 1, failed(Code::NotFound));
    gone.snapshot.unseen_node = Lookup::Missing;
    let failed: Vec<_> = traced(gone).into_iter().filter(|span| span.error.is_some()).collect();
    let names: Vec<_> = failed.iter().map(|span| &span.name).collect();
    assert_eq!(names, ["VM creation", "boot and join", "machine creation"]);
}

#[test]
fn what_ends_of_a_drain_is_a_child_of_its_span() {
    let mut drained = fixture(dying()).node(cordoned()).pods(&[]);
    let leaver = drain::Leaver {
        uid: "uid-p".into(),
        namespace: "default".into(),
        name: "p".into(),
        ending_since: Some(at("2026-06-01T11:58:50Z")),
    };
    drained.notes = [(Note::Drain(drain::Note::Leaving(leaver.into())), at("2026-06-01T11:59:00Z"))].into();
    assert!(drained.plan().spans.is_empty(), "spans are not exported");
    let spans = traced(drained);
    assert_eq!((spans.len(), spans[0].name.as_ref()), (1, "pod default/p"));
    assert_eq!((spans[0].start, spans[0].end), (at("2026-06-01T11:58:50Z"), at(NOW)));
    assert!(spans[0].attributes.contains(&("k8s.pod.uid", "uid-p".to_owned())));
    let mut gone =
        fixture(dying()).answered(Verb::Delete, 2, Outcome::Done).answered(Verb::Status, 1, failed(Code::NotFound));
    gone.notes = [(Note::Drain(drain::Note::Leavers { reported: 100, others: 7 }), at(NOW))].into();
    let drain = &traced(gone)[1];
    assert_eq!((spans[0].context.trace_id, spans[0].context.span_id), (drain.context.trace_id, drain.id));
    assert!(drain.attributes.contains(&("nodewright.drain.other_pods", "7".to_owned())));
}

#[test]
fn a_machine_whose_class_never_was_needs_none_to_end() {
    let missing = || Err(ClassError { reason: "ClassNotFound", message: "create it".into(), never_used: false });
    let reported = json!([{"type": "ConfigurationValid", "status": "False", "reason": "ClassNotFound"}]);
    let dying = || machine("m").phase("Terminating").deleting().with("/status/conditions", reported.clone());
    let mut typo = fixture(dying());
    typo.snapshot.class = missing();
    assert_eq!(typo.steps(), ["edit Machine default/m"]);
    // What has a VM, or may have one, needs the class with which it was made.
    for other in [dying().with("/spec/providerID", json!("p:///1")), dying().with("/status/conditions", json!([]))] {
        let mut other = fixture(other);
        other.snapshot.class = missing();
        assert!(!other.steps().contains(&"edit Machine default/m".to_owned()));
        assert_eq!(other.plan().waits[0].reason, "ClassNotFound");
    }
}

#[test]
fn a_machine_whose_class_could_never_be_used_needs_none_to_end() {
    let unusable = |never_used| Err(ClassError { reason: "SecretNotFound", message: "create it".into(), never_used });
    let dying = || fixture(machine("m").phase("Terminating").deleting());
    let mut typo = dying();
    typo.snapshot.class = unusable(true);
    assert_eq!(typo.steps(), ["edit Machine default/m"]);
    // What an edited class named before may have been there, and what has a VM or was asked for one needs a class.
    let asked = dying().answered(Verb::Create, 60, failed(Code::Internal));
    let linked = fixture(unseen());
    for (mut other, never_used) in [(dying(), false), (asked, true), (linked, true)] {
        other.snapshot.class = unusable(never_used);
        assert!(!other.steps().contains(&"edit Machine default/m".to_owned()), "{:?}", other.steps());
        assert_eq!(other.plan().waits[0].reason, "SecretNotFound");
    }
}

#[test]
fn a_deletion_that_waits_for_a_secret_says_so() {
    let waiting = dying().with("/status/currentStatus/lastUpdateTime", json!("2026-06-01T11:59:00Z"));
    let mut waiting = fixture(waiting);
    let message = "Secret \"s\" does not exist: create it".to_owned();
    waiting.snapshot.class = Err(ClassError { reason: "SecretNotFound", message: message.clone(), never_used: false });
    let status = status_of(&waiting.plan());
    let message = format!(
        "{message}; the class is needed to remove VM p:///1: if that is not to be removed, take finalizer \
         machine.sapcloud.io/machine-controller-manager off the Machine"
    );
    assert_eq!(status["lastOperation"]["description"], format!("Initiate VM deletion: {message}"));
    assert_eq!(status["conditions"][1]["message"], message);
}

#[test]
fn a_deletion_needs_no_user_data() {
    let mut dying = fixture(dying());
    dying.snapshot.class = Ok(Class { secret: without_user_data(), ..class() });
    assert_eq!(dying.steps(), ["call Delete"]);
}

#[test]
fn a_deletion_asks_the_provider_though_the_identity_of_the_class_was_changed() {
    let mut dying = fixture(dying());
    dying.snapshot.changed_identity = Some(changed_identity());
    assert_eq!(dying.steps(), ["call Delete"], "a VM that it does not find is a mismatch, and not gone");
}

/// The Machine of a rollout, whose Node is one of a pool with these claims.
fn of_pool(node: Value, claims: &Value) -> Fixture {
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "effect": "PreferNoSchedule"}]);
    let mut node = node;
    node["spec"]["taints"] = taint;
    let mut fixture = fixture(dying()).node(node);
    let pool = json!({"metadata": {"name": "worker", "resourceVersion": "5",
        "annotations": {"nodewright.dev/disruptions": claims.to_string()}}, "spec": {"maxUnavailable": 1}});
    let node = fixture.snapshot.node.as_deref().cloned();
    fixture.snapshot.shared_budget = Some(SharedBudget::with(serde_json::from_value(pool).unwrap(), node));
    fixture
}

#[test]
fn a_rollout_waits_for_the_disruption_budget_of_the_nodes_pool() {
    let mut said = cordoned();
    said["spec"]["unschedulable"] = Value::Null;
    let first = of_pool(synced(READY), &json!({})).plan();
    assert_eq!(first.steps().map(|planned| tell(&planned.step)).collect::<Vec<_>>(), ["edit Node n"]);
    assert!(first.steps().all(|planned| planned.why.contains("announces its end")), "{first:?}");
    assert_eq!(of_pool(said.clone(), &json!({})).steps(), ["edit MachineConfigPool worker"]);

    let claim = |uid: &str| json!({"uid": uid, "target": "machine", "given": 0, "since": NOW});
    let full = of_pool(said.clone(), &json!({"other": claim("uid-other")}));
    let waiting = full.plan();
    assert_eq!(waiting.waits[0].reason, "AwaitingDisruptionBudget");
    assert!(waiting.waits[0].message.ends_with("it waits for other"), "{:?}", waiting.waits);

    let claimed = of_pool(said.clone(), &json!({"n": claim("uid-n")})).plan();
    let Step::Edit { patch, .. } = &claimed.stages[0][0].step else { panic!("{claimed:?}") };
    let mut node = said;
    node["metadata"]["resourceVersion"] = "7".into();
    nodewright_testing::json_patch(&mut node, patch).unwrap();
    assert_eq!(node["spec"]["unschedulable"], true);
    assert_eq!(node["metadata"]["annotations"]["nodewright.dev/config-given"], "1", "the claim is used");
}

/// What a Machine has waited for the budget is no part of its drain timeout.
#[test]
fn the_drain_timeout_begins_with_the_claim() {
    let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}});
    let overdue = |claimed: Option<&str>| {
        let mut fixture =
            fixture(dying().with("/spec/drainTimeout", json!("30s"))).node(cordoned()).pods(std::slice::from_ref(&pod));
        fixture.snapshot.claimed_since = claimed.map(at);
        fixture.now = at("2026-06-01T12:30:00Z");
        fixture.steps().swap_remove(0)
    };
    assert_eq!(overdue(None), "delete now Pod default/p");
    assert_eq!(overdue(Some("2026-06-01T12:29:50Z")), "evict Pod default/p");
    assert_eq!(overdue(Some("2026-06-01T12:29:00Z")), "delete now Pod default/p");
}
