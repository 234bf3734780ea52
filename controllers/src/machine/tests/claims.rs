//! Snapshots in, plans out: a claim is no proof.

use nodewright_driver::Mismatch;
use std::collections::BTreeMap;

use super::*;
use crate::machine::memory::Plan;

/// A Machine that names a VM, of which nothing is noted.
fn unproven(phase: &str) -> Fixture {
    let mut fixture = fixture(linked(phase));
    fixture.snapshot.claim.vm = Vm::Unproven;
    fixture
}

/// A Machine whose status notes the VM.
fn proven(phase: &str) -> MachineBuilder {
    linked(phase).with("/status/conditions", json!([noted("p:///1")]))
}

fn noted(id: &str) -> Value {
    json!({"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": id,
        "lastTransitionTime": "2026-06-01T11:00:00Z"})
}

fn dying(mut fixture: Fixture) -> Fixture {
    let mut machine: Value = serde_json::to_value(fixture.snapshot.machine.as_ref()).unwrap();
    machine["metadata"]["deletionTimestamp"] = "2026-06-01T11:59:00Z".into();
    machine["status"]["currentStatus"] = json!({"phase": "Terminating", "lastUpdateTime": "2026-06-01T11:59:58Z"});
    fixture.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
    fixture
}

fn refuted(mismatch: Mismatch) -> Outcome {
    Outcome::Failed(DriverError::new(Code::FailedPrecondition, "vm 1 is m2's").with_mismatch(mismatch))
}

fn condition(plan: &Plan, kind: &str) -> Value {
    let status = status_of(plan);
    let all = status["conditions"].as_array().unwrap();
    all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

#[test]
fn what_is_taken_over_is_proven_by_one_call_and_one_write() {
    for phase in ["Pending", "Running", "Unknown", "Failed"] {
        assert_eq!(unproven(phase).steps(), ["call Status"]);
        let reported = unproven(phase).answered(Verb::Status, 1, vm());
        assert_eq!(reported.steps(), [format!("status {phase}")], "the phase stays");
        let proof = condition(&reported.plan(), "InstanceProvisioned");
        assert_eq!((proof["status"].as_str(), proof["message"].as_str()), (Some("True"), Some("p:///1")));
        let joined = condition(&reported.plan(), "NodeJoined");
        assert_eq!(joined["message"], "n", "the driver has named the node");
        let expected = if ["Running", "Unknown"].contains(&phase) { "True" } else { "False" };
        assert_eq!(joined["status"], expected, "it has joined under another manager: {phase}");
    }
    let restored = unproven("").answered(Verb::Status, 1, vm());
    assert_eq!(restored.steps(), ["status Pending"]);
    assert_eq!(condition(&restored.plan(), "InstanceProvisioned")["message"], "p:///1");
}

#[test]
fn a_vm_that_is_anothers_is_left_alone_with_its_node() {
    for (phase, then) in [("Running", "Running"), ("Unknown", "Unknown"), ("", "CrashLoopBackOff")] {
        let reported = || unproven(phase).answered(Verb::Status, 1, refuted(Mismatch::Machine));
        let mut fixture = reported();
        fixture.snapshot.machine = Arc::new(linked(phase).created("2026-06-01T11:59:00Z").build());
        assert_eq!(fixture.steps(), [format!("status {then}")], "no node is touched");
        let plan = fixture.plan();
        let proof = condition(&plan, "InstanceProvisioned");
        assert_eq!((proof["status"].as_str(), proof["reason"].as_str()), (Some("False"), Some("ProviderIDMismatch")));
        assert_eq!((proof["message"].as_str(), plan.events.len()), (Some("vm 1 is m2's"), 1));
        // Said once.
        let mut machine: Value = serde_json::to_value(fixture.snapshot.machine.as_ref()).unwrap();
        machine["status"] = status_of(&plan);
        fixture.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
        assert!(fixture.plan().is_idle() && fixture.plan().events.is_empty(), "{:?}", fixture.steps());
        assert_eq!(fixture.plan().waits[0].reason, "ProviderIDMismatch");
        // The class has been corrected.
        if let Ok(class) = &mut fixture.snapshot.class {
            class.revision = "another".into();
        }
        assert_eq!(fixture.steps(), ["call Status"]);
    }
}

#[test]
fn nothing_is_done_while_the_provider_has_not_said_whose_vm_it_is() {
    let away = unproven("Running").answered(Verb::Status, 1, failed(Code::Unavailable));
    assert_eq!(away.steps(), ["status Running"], "only why nothing is done");
    assert_eq!(away.plan().waits[0].reason, "Unavailable");
    let mut classless = unproven("Running");
    classless.snapshot.class =
        Err(ClassError { reason: "ClassNotFound", message: "create it".into(), never_used: false });
    assert_eq!(classless.steps(), ["status Running"]);
    assert_eq!(classless.plan().waits[0].reason, "ClassNotFound");
}

#[test]
fn a_vm_of_which_the_provider_knows_nothing_proves_no_node() {
    let gone = || unproven("Running").answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(gone().steps(), ["status Unknown"], "evaluated as a machine without a node");
    assert_eq!(gone().plan().events[0].message, "the provider knows no VM p:///1");
    // A ready Node with its id speaks against it.
    let mut lives = gone();
    lives.snapshot.claim.node = Some(Arc::new(serde_json::from_value(synced(READY)).unwrap()));
    assert!(lives.steps().is_empty());
    assert_eq!(lives.plan().waits[0].reason, "VMNotFound");
    lives.now += SignedDuration::from_secs(30);
    assert_eq!(lives.steps(), ["call Status"], "it may not have shown yet");
    let restored = unproven("").answered(Verb::Status, 1, failed(Code::NotFound));
    assert_eq!(condition(&restored.plan(), "InstanceProvisioned")["status"], "False");
}

#[test]
fn a_driver_that_does_not_know_is_named_by_the_machine() {
    let mute = unproven("Running").answered(Verb::Status, 1, failed(Code::Unimplemented));
    assert_eq!(mute.steps(), ["call Namesakes"], "another machine of the name would have it");
    let mute = mute.answered(Verb::Namesakes, 1, Outcome::Namesakes(vec![]));
    let proof = condition(&mute.plan(), "InstanceProvisioned");
    assert_eq!((proof["status"].as_str(), proof["reason"].as_str()), (Some("True"), Some("Unverified")));
}

#[test]
fn a_machine_that_dies_proves_its_vm_before_anything_is_torn_down() {
    assert_eq!(dying(unproven("")).steps(), ["call Status"]);
    let own = dying(unproven("")).answered(Verb::Status, 1, vm());
    assert_eq!(own.steps(), ["status Terminating"]);
    assert_eq!(condition(&own.plan(), "InstanceProvisioned")["message"], "p:///1");
    let away = dying(unproven("")).answered(Verb::Status, 1, failed(Code::Unavailable));
    assert!(!away.steps().contains(&"call Delete".to_owned()), "{:?}", away.steps());
}

/// After a take-over in the middle of a deletion, when the VM is gone already.
#[test]
fn the_node_of_a_vm_that_was_gone_before_it_could_be_proven_goes_too() {
    let gone = |node: &Value| {
        let mut fixture = dying(unproven("")).answered(Verb::Delete, 2, Outcome::Done);
        fixture.since = at("2026-06-01T11:59:30Z");
        // No VM may still appear.
        fixture.now += SignedDuration::from_secs(20);
        let mut fixture = fixture.answered(Verb::Status, 1, failed(Code::NotFound));
        fixture.snapshot.claim.node = Some(Arc::new(serde_json::from_value(node.clone()).unwrap()));
        fixture
    };
    let mut node = synced("Unknown");
    let named =
        json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
    json_patch::merge(&mut node, &named);
    assert_eq!(gone(&node).steps(), ["delete Node n"]);
    let ready = &mut node.clone();
    json_patch::merge(ready, &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    assert_eq!(gone(ready).steps(), ["status Terminating"], "only what it waits for");
    assert_eq!(gone(ready).plan().waits[0].reason, "NodeReady");
    // machine-controller-manager drains it, and has not written the machine's name yet.
    let unnamed = json!({"metadata": {"labels": {"node.gardener.cloud/machine-name": null}}});
    let draining = &mut node.clone();
    json_patch::merge(draining, &unnamed);
    let condition = json!({"type": "Terminating", "status": "True"});
    draining["status"]["conditions"].as_array_mut().unwrap().push(condition);
    assert_eq!(gone(draining).steps(), ["delete Node n"]);
    // It has drained it, and taken its finalizer off.
    let freed = &mut node.clone();
    json_patch::merge(freed, &json!({"metadata": {"finalizers": null}}));
    freed["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "Terminating", "status": "True"}));
    assert_eq!(gone(freed).steps(), ["delete Node n"]);
    for foreign in [
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"labels": {"node.gardener.cloud/machine-name": "another"}}}),
        unnamed,
        json!({"spec": {"providerID": "p:///2"}}),
    ] {
        let node = &mut node.clone();
        json_patch::merge(node, &foreign);
        assert!(!gone(node).steps().contains(&"delete Node n".to_owned()), "{foreign}");
    }
}

#[test]
fn a_machine_whose_vm_is_anothers_ends_and_leaves_it_there() {
    let reported = |mismatch| dying(unproven("")).answered(Verb::Status, 1, refuted(mismatch));
    assert_eq!(reported(Mismatch::Machine).steps(), ["status Terminating"]);
    assert_eq!(reported(Mismatch::Machine).plan().events[0].reason, "ProviderIDMismatch");
    let said = |mismatch| {
        let known = json!([{"type": "InstanceProvisioned", "status": "False", "reason": "ProviderIDMismatch"}]);
        let mut fixture = dying(fixture(linked("").with("/status/conditions", known)));
        fixture.snapshot.claim.vm = Vm::Unproven;
        fixture.answered(Verb::Status, 3, refuted(mismatch))
    };
    assert_eq!(said(Mismatch::Machine).steps(), ["call Delete"], "its own VMs go, if there are any");
    let deleted = said(Mismatch::Machine).answered(Verb::Delete, 2, refuted(Mismatch::Machine));
    assert_eq!(deleted.steps(), ["call Status"]);
    let mut gone = deleted.answered(Verb::Status, 1, refuted(Mismatch::Machine));
    assert_eq!(gone.plan().waits[0].reason, "Confirming", "one of its own may not show yet");
    gone.now += SignedDuration::from_secs(20);
    let gone = gone.answered(Verb::Status, 1, refuted(Mismatch::Machine));
    assert_eq!(gone.steps(), ["edit Machine default/m"]);
    // It bears this machine's name in another cluster: most likely the class was edited.
    let stays = said(Mismatch::Cluster).answered(Verb::Delete, 2, refuted(Mismatch::Cluster));
    assert_eq!(
        (stays.steps(), stays.plan().waits[0].reason),
        (vec!["status Terminating".to_owned()], "FailedPrecondition")
    );
}

#[test]
fn a_proven_vm_under_other_tags_keeps_its_machine_until_the_class_is_corrected() {
    for mismatch in [Mismatch::Cluster, Mismatch::Machine] {
        let mut stays = dying(fixture(proven(""))).answered(Verb::Delete, 2, refuted(mismatch));
        if mismatch == Mismatch::Machine {
            assert_eq!(stays.steps(), ["call Status"], "whose is it?");
            stays = stays.answered(Verb::Status, 1, refuted(mismatch));
        }
        assert_eq!(stays.steps(), ["status Terminating"]);
        let reported = condition(&stays.plan(), "InstanceTerminated");
        assert_eq!((reported["status"].as_str(), reported["message"].as_str()), (Some("False"), Some("vm 1 is m2's")));
        if let Ok(class) = &mut stays.snapshot.class {
            class.revision = "corrected".into();
        }
        assert_eq!(stays.steps(), ["call Delete"], "at once");
    }
}

/// Its name has been used again and again while VMs were on their way. Those are orphans once the Machine is gone.
#[test]
fn vms_that_were_made_for_others_of_the_name_do_not_keep_a_machine_whose_own_vm_is_deleted() {
    let after = |outcome, mismatch| {
        let deleted = dying(fixture(proven(""))).answered(Verb::Delete, 2, outcome);
        assert_eq!(deleted.steps(), ["call Status"]);
        deleted.answered(Verb::Status, 1, refuted(mismatch))
    };
    assert_eq!(after(Outcome::Done, Mismatch::Machine).steps(), ["edit Machine default/m"]);
    let waits = |outcome, mismatch| after(outcome, mismatch).plan().waits[0].reason;
    assert_eq!(waits(Outcome::Done, Mismatch::Cluster), "FailedPrecondition", "the class was edited");
    let unseen = failed(Code::NotFound);
    assert_eq!(waits(unseen, Mismatch::Machine), "FailedPrecondition", "it may be there, under other tags");
}

#[test]
fn what_two_machines_name_is_touched_by_neither() {
    let contested = |fixture: Fixture| {
        let mut fixture = fixture.node(conditions(READY));
        fixture.snapshot.claim.conflicting = vec!["copy".into()];
        fixture.snapshot.node = None;
        fixture
    };
    for phase in ["Pending", "Running", "Unknown"] {
        let mut held = contested(fixture(proven(phase).created("2026-06-01T01:00:00Z")));
        assert_eq!(held.steps(), [format!("status {phase}")], "only the reason");
        let plan = held.plan();
        let reported = condition(&plan, "ConfigurationValid");
        assert_eq!(
            (reported["status"].as_str(), reported["reason"].as_str()),
            (Some("False"), Some("ProviderIDNotUnique"))
        );
        assert!(reported["message"].as_str().unwrap().contains("copy") && plan.events.len() == 1, "{reported}");
        let mut machine: Value = serde_json::to_value(held.snapshot.machine.as_ref()).unwrap();
        machine["status"] = status_of(&plan);
        held.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
        assert!(held.plan().is_idle() && held.plan().events.is_empty(), "said once: {:?}", held.steps());
        let mut dying = dying_of(&held);
        assert_eq!(dying.steps(), ["status Terminating"], "only the reason");
        let reported = status_of(&dying.plan());
        assert!(reported["lastOperation"]["description"].as_str().unwrap().contains("copy"), "{reported}");
        let mut machine: Value = serde_json::to_value(dying.snapshot.machine.as_ref()).unwrap();
        machine["status"] = reported;
        dying.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
        assert_eq!(dying.steps(), Vec::<String>::new(), "its VM stays while the other machine does");
        held.snapshot.claim.conflicting.clear();
        assert_eq!(held.steps(), [format!("status {phase}")], "and it is in order again");
        assert_eq!(condition(&held.plan(), "ConfigurationValid"), Value::Null);
    }
    let copy = || {
        let known = json!([{"type": "ConfigurationValid", "status": "False", "reason": "ProviderIDNotUnique"}]);
        let mut fixture = contested(fixture(linked("").with("/status/conditions", known)));
        fixture.snapshot.claim.vm = Vm::Unproven;
        fixture
    };
    // Its first status says it; then the provider is asked, and what it says is said, too.
    let mut said = copy();
    let mut machine: Value = serde_json::to_value(said.snapshot.machine.as_ref()).unwrap();
    machine["status"] = status_of(&said.plan());
    said.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
    assert_eq!(said.steps(), ["call Status"]);
    let reported = said.answered(Verb::Status, 1, refuted(Mismatch::Machine));
    assert_eq!(condition(&reported.plan(), "InstanceProvisioned")["reason"], "ProviderIDMismatch");
    let ended = dying(reported);
    assert_eq!(ended.steps(), ["status Terminating"], "the copy goes whatever the other one does");
}

#[test]
fn what_another_machine_keeps_is_left_and_what_is_listed_besides_goes() {
    let shares = || {
        let mut fixture = dying(fixture(proven("")));
        fixture.snapshot.claim = shared();
        let mut machine: Value = serde_json::to_value(fixture.snapshot.machine.as_ref()).unwrap();
        // What is reported at first.
        machine["status"] = status_of(&fixture.plan());
        fixture.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
        // The Node of the other one's VM has the name that the driver gave, and shows late.
        fixture.snapshot.unseen_node = Lookup::Found(Arc::new(serde_json::from_value(synced(READY)).unwrap()));
        fixture.since = at("2026-06-01T11:59:55Z");
        fixture
    };
    assert_eq!(shares().steps(), ["call DeleteOthers"], "and nothing that could meet the other one's VM or Node");
    let begun = shares().answered(Verb::DeleteOthers, 1, Outcome::Done);
    assert_eq!((begun.steps(), begun.plan().waits.last().unwrap().reason), (vec![], "Removing"));
    assert_eq!(
        shares().answered(Verb::DeleteOthers, 3, Outcome::Done).steps(),
        ["call DeleteOthers"],
        "are they gone?"
    );
    let mut refused = shares().answered(Verb::DeleteOthers, 1, failed(Code::Internal));
    assert_eq!(refused.plan().waits.last().unwrap().reason, "Internal");
    refused.now += SignedDuration::from_secs(10);
    assert_eq!(refused.steps(), ["call DeleteOthers"]);
    for code in [Code::NotFound, Code::Unimplemented] {
        let mut none = shares().answered(Verb::DeleteOthers, 1, failed(code));
        assert_eq!(none.plan().waits.last().unwrap().reason, "Confirming", "one may not show yet");
        none.now += SignedDuration::from_secs(20);
        assert_eq!(none.steps(), ["call DeleteOthers"]);
        let over = none.answered(Verb::DeleteOthers, 1, failed(code));
        assert_eq!(over.steps(), ["edit Machine default/m"], "only the finalizer is left");
    }
}

/// Of a VM that another Machine had before.
fn shared() -> Claim {
    Claim { vm: Vm::Proven, conflicting: vec!["first".into()], keeper: Some("first".into()), ..Claim::default() }
}

fn dying_of(fixture: &Fixture) -> Fixture {
    let snapshot = fixture.snapshot.clone();
    dying(Fixture {
        snapshot,
        outcomes: Outcomes::default(),
        refusals: vec![],
        notes: BTreeMap::new(),
        waits: vec![],
        failure: None,
        ..*fixture
    })
}

#[test]
fn a_changed_id_is_reported_and_the_proven_vm_is_acted_on() {
    let patched = fixture(proven("Running").with("/spec/providerID", json!("p:///2"))).node(synced(READY));
    assert_eq!(patched.steps(), ["status Running"]);
    let reported = condition(&patched.plan(), "ConfigurationValid");
    assert_eq!(reported["reason"], "ProviderIDChanged");
    for id in ["p:///1", "p:///2"] {
        assert!(reported["message"].as_str().unwrap().contains(id), "{reported}");
    }
    assert_eq!(patched.call(Verb::Delete).request.machine.provider_id.as_deref(), Some("p:///1"));
    let emptied = fixture(proven("Running").with("/spec/providerID", json!(""))).node(synced(READY));
    assert_eq!(condition(&emptied.plan(), "ConfigurationValid")["reason"], "ProviderIDChanged", "no second VM is made");
}

#[test]
fn several_nodes_of_one_vm_are_left_alone() {
    let mut torn = fixture(proven("Running"));
    torn.snapshot.claim.duplicate_nodes = vec!["aaa".into(), "bbb".into()];
    assert_eq!(torn.steps(), ["status Running"]);
    let reported = condition(&torn.plan(), "ConfigurationValid");
    assert_eq!(reported["reason"], "SeveralNodes");
    assert!(reported["message"].as_str().unwrap().contains("aaa, bbb"), "{reported}");
}

#[test]
fn a_machine_that_is_disputed_blocks_no_other_ones_replacement() {
    for (reason, expected) in [("ProviderIDNotUnique", false), ("SeveralNodes", false), ("ProviderIDChanged", true)] {
        let said = json!([{"type": "ConfigurationValid", "status": "False", "reason": reason}]);
        let machine = linked("Unknown").with("/status/conditions", said).build();
        assert_eq!(may_be_replaced(&machine), expected, "{reason}");
    }
}
