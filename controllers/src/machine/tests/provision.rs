//! Snapshots in, plans out: how a Machine gets its VM.

use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_driver::Exhausted;

use super::*;
use crate::machine::memory::Plan;

#[test]
fn the_provider_is_asked_before_a_vm_is_made() {
    assert_eq!(fixture(machine("m")).steps(), ["call Status"]);
    let none = fixture(machine("m")).answered(Verb::Status, 0, failed(Code::NotFound));
    assert_eq!(none.steps(), ["call Create"]);
    assert!(none.running(Verb::Create).steps().is_empty(), "one call at a time");
}

#[test]
fn a_vm_that_is_there_is_adopted() {
    let found = fixture(machine("m")).answered(Verb::Status, 0, vm());
    let steps = found.steps();
    assert_eq!(steps.len(), 1);
    assert!(steps[0].contains(r#""providerID":"p:///1""#) && steps[0].contains(r#""node":"n""#), "{steps:?}");
}

#[test]
fn what_the_node_will_get_is_remembered_in_the_write_of_the_link() {
    let template =
        json!({"metadata": {"labels": {"a": "1"}}, "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]}});
    let linked = |machine: MachineBuilder| {
        let plan = fixture(machine).answered(Verb::Status, 0, vm()).plan();
        let Step::Apply(apply) = &plan.stages[0][0].step else { panic!("{:?}", plan.stages) };
        apply.fragment()["metadata"]["annotations"]["nodewright.dev/applied-node-template"].clone()
    };
    let templated = machine("m").with("/spec/nodeTemplate", template);
    assert_eq!(linked(templated), json!(r#"{"labels":["a"],"taints":["t:NoSchedule"]}"#));
    assert_eq!(linked(machine("m")), Value::Null);
}

#[test]
fn the_link_is_written_first_then_the_vm_is_set_up_then_the_phase_moves() {
    let made = fixture(machine("m")).answered(Verb::Status, 2, failed(Code::NotFound)).answered(Verb::Create, 1, vm());
    assert!(made.steps()[0].starts_with("apply "));
    let stored = fixture(linked("")).answered(Verb::Status, 2, failed(Code::NotFound)).answered(Verb::Create, 1, vm());
    assert_eq!(stored.steps(), ["call Initialize"]);
    let ready = stored.answered(Verb::Initialize, 0, failed(Code::Unimplemented));
    assert_eq!(ready.steps(), ["status Pending"]);
}

#[test]
fn what_a_driver_notes_in_a_creation_is_kept_before_the_vm_is_set_up() {
    let noting = || {
        let Outcome::Instance(instance) = vm() else { unreachable!() };
        Outcome::Instance(Instance { last_known_state: Some("disk-1".to_owned()), ..instance })
    };
    let made = |machine: MachineBuilder| {
        fixture(machine).answered(Verb::Status, 2, failed(Code::NotFound)).answered(Verb::Create, 1, noting())
    };
    let kept = made(linked(""));
    assert_eq!(status_of(&kept.plan())["lastKnownState"], "disk-1");
    assert!(!kept.steps().iter().any(|step| step.starts_with("call")), "{:?}", kept.steps());
    let written = made(linked("").with("/status/lastKnownState", json!("disk-1")));
    assert_eq!(written.steps(), ["call Initialize"]);
}

#[test]
fn after_a_restart_the_provider_says_whether_the_vm_is_set_up() {
    let lost = fixture(linked(""));
    assert_eq!(lost.steps(), ["call Status"]);
    assert_eq!(lost.answered(Verb::Status, 0, vm()).steps(), ["status Pending"]);
    let bare = Outcome::Instance(Instance {
        uninitialized: true,
        provider_id: "p:///1".into(),
        owner_uid: Some("uid-m".into()),
        ..Instance::default()
    });
    assert_eq!(fixture(linked("")).answered(Verb::Status, 0, bare).steps(), ["call Initialize"]);
}

#[test]
fn a_driver_whose_vms_need_no_initialization_is_not_asked_for_it() {
    let created = |initializes: bool| {
        let mut created = fixture(linked("")).answered(Verb::Create, 0, vm());
        created.snapshot.driver.initializes = initializes;
        created.steps()
    };
    assert_eq!([created(true), created(false)], [["call Initialize"], ["status Pending"]]);
}

/// A driver may answer that code without saying which VM it is.
#[test]
fn mcm_defect_4_a_vm_that_is_not_initialized_and_not_named_is_asked_for_again() {
    let nameless = || failed(Code::Uninitialized);
    let unlinked = fixture(machine("m").created("2026-06-01T11:55:00Z")).answered(Verb::Status, 2, nameless());
    assert_eq!(unlinked.steps(), ["status CrashLoopBackOff"]);
    assert_eq!(status_of(&unlinked.plan())["lastOperation"]["errorCode"], "Uninitialized");
    assert_eq!(unlinked.plan().wake, Some(unlinked.now + SignedDuration::from_secs(178)));
    let linked = || linked("").created("2026-06-01T11:55:00Z");
    assert_eq!(fixture(linked()).answered(Verb::Status, 2, nameless()).steps(), ["status CrashLoopBackOff"]);
    let found = fixture(linked()).answered(Verb::Create, 9, vm()).answered(Verb::Initialize, 2, nameless());
    assert_eq!(found.steps(), ["status CrashLoopBackOff"]);
    let dying = machine("m").phase("Terminating").deleting();
    assert_eq!(fixture(dying).answered(Verb::Status, 9, nameless()).steps(), ["call Status"], "it is asked again");
}

/// machine-controller-manager takes texts that are alike for the same, for half an hour.
#[test]
fn mcm_defect_9_an_error_that_differs_in_one_letter_shows_at_once() {
    let refusal =
        |disk: &str| Outcome::Failed(DriverError::new(Code::Internal, format!("failed to attach disk {disk}")));
    let text = |plan: &Plan| status_of(plan)["lastOperation"]["description"].as_str().unwrap().to_owned();
    let creation = |status: Value, disk: &str| {
        let machine = machine("m").created("2026-06-01T11:55:00Z").with("/status", status);
        fixture(machine).answered(Verb::Status, 9, failed(Code::NotFound)).answered(Verb::Create, 2, refusal(disk))
    };
    let reported = status_of(&creation(json!({}), "1").plan());
    assert!(creation(reported.clone(), "1").plan().is_idle(), "the same is not written again");
    assert!(text(&creation(reported, "2").plan()).contains("disk 2"));
    let deletion = |status: Value, disk: &str| {
        fixture(linked("Terminating").deleting().with("/status", status)).answered(Verb::Delete, 2, refusal(disk))
    };
    let begun = json!({"currentStatus": {"phase": "Terminating", "lastUpdateTime": NOW}});
    let reported = status_of(&deletion(begun, "1").plan());
    assert!(deletion(reported.clone(), "1").plan().is_idle(), "the same is not written again");
    assert!(text(&deletion(reported, "2").plan()).contains("disk 2"));
}

#[test]
fn what_the_class_lacked_is_forgotten_once_the_provider_was_asked() {
    let lacked =
        json!([{"type": "ConfigurationValid", "status": "False", "reason": "SecretNotFound", "message": "none"}]);
    let refused = fixture(machine("m").created("2026-06-01T11:55:00Z").with("/status/conditions", lacked))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::ResourceExhausted));
    let status = status_of(&refused.plan());
    let types: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|it| it["type"].as_str()).collect();
    assert_eq!(types, [Some("InstanceProvisioned")]);
}

#[test]
fn a_refusal_shows_in_the_status_and_is_tried_again_after_the_pause() {
    let refused = fixture(machine("m").created("2026-06-01T11:55:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::ResourceExhausted));
    let plan = refused.plan();
    let status = status_of(&plan);
    assert_eq!(status["currentStatus"]["phase"], "CrashLoopBackOff");
    assert_eq!(status["lastOperation"]["errorCode"], "ResourceExhausted");
    assert_eq!(status["lastOperation"]["state"], "Failed");
    assert_eq!(status["lastOperation"]["type"], "Create");
    assert_eq!(plan.wake, Some(refused.now + SignedDuration::from_secs(598)));
    let later = fixture(machine("m").created("2026-06-01T11:59:00Z"))
        .answered(Verb::Status, 700, failed(Code::NotFound))
        .answered(Verb::Create, 601, failed(Code::ResourceExhausted));
    assert_eq!(later.steps(), ["call Status"], "the provider is asked again before the next attempt");
    assert_eq!(later.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Create"]);
}

#[test]
fn mcm_defect_8_what_a_driver_notes_in_a_failure_is_in_its_next_request() {
    let refusal = DriverError::new(Code::Internal, "half-way").with_last_known_state("disk-1 exists");
    let refused = fixture(machine("m").created("2026-06-01T11:55:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, Outcome::Failed(refusal));
    assert_eq!(status_of(&refused.plan())["lastKnownState"], "disk-1 exists");
    let later = fixture(machine("m").with("/status/lastKnownState", json!("disk-1 exists")));
    assert_eq!(later.call(Verb::Create).request.machine.last_known_state, "disk-1 exists");
    let silent =
        later.answered(Verb::Status, 10, failed(Code::NotFound)).answered(Verb::Create, 2, failed(Code::Internal));
    assert_eq!(status_of(&silent.plan())["lastKnownState"], "disk-1 exists", "a failure without notes keeps them");
}

#[test]
fn refused_creations_are_tried_less_and_less_often() {
    let pause = |code, times, settings: &MachineSettings| {
        super::super::provider::creation_pause(&DriverError::new(code, "no"), times, settings).as_secs()
    };
    let usual = MachineSettings::default();
    assert_eq!([1, 2, 3].map(|times| pause(Code::PermissionDenied, times, &usual)), [180, 360, 600]);
    assert_eq!([1, 2, 20].map(|times| pause(Code::Unavailable, times, &usual)), [5, 10, 60]);
    assert_eq!([1, 20].map(|times| pause(Code::ResourceExhausted, times, &usual)), [600, 600]);
    let none = MachineSettings { exhausted_retry: Duration::ZERO, ..MachineSettings::default() };
    assert_eq!(pause(Code::ResourceExhausted, 1, &none), 5, "--resource-exhausted-retry=0 does not spin");
}

#[test]
fn after_the_creation_timeout_a_refusal_is_final() {
    let old = fixture(machine("m").created("2026-06-01T11:30:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::Internal));
    assert_eq!(old.steps(), ["status Failed"]);
}

#[test]
fn a_class_that_is_missing_says_what_to_do() {
    let mut missing = fixture(machine("m"));
    missing.snapshot.class =
        Err(ClassError { reason: "ClassNotFound", message: "create it".into(), never_used: false });
    let plan = missing.plan();
    let condition = &status_of(&plan)["conditions"][0];
    assert_eq!((condition["type"].as_str(), condition["status"].as_str()), (Some("ConfigurationValid"), Some("False")));
    assert_eq!(condition["reason"], "ClassNotFound");
    assert_eq!(plan.waits[0].reason, "ClassNotFound");
}

#[test]
fn a_class_that_could_vanish_gets_no_vm() {
    let mut loose = fixture(machine("m"));
    loose.snapshot.class_held = false;
    assert!(loose.steps().is_empty());
    assert_eq!(loose.plan().waits[0].reason, "ClassNotHeld");
}

#[test]
fn a_class_whose_identity_was_changed_makes_no_vm() {
    let mut unborn = fixture(machine("m"));
    unborn.snapshot.changed_identity = Some(changed_identity());
    assert_eq!(unborn.steps(), ["status CrashLoopBackOff"]);
    let condition = &status_of(&unborn.plan())["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("ConfigurationValid"), &json!("ClassIdentityChanged"))
    );
}

#[test]
fn a_secret_without_user_data_makes_no_vm() {
    let mut bare = fixture(machine("m"));
    bare.snapshot.class = Ok(Class { secret: without_user_data(), ..class() });
    assert_eq!(bare.plan().waits[0].reason, "UserDataMissing");
    assert_eq!(status_of(&bare.plan())["conditions"][0]["reason"], "UserDataMissing");
    assert_eq!(bare.steps(), ["status CrashLoopBackOff"]);
}

#[test]
fn a_provider_without_capacity_says_where_and_for_how_long() {
    let refused = |exhausted: Exhausted| {
        let error = DriverError::new(Code::ResourceExhausted, "no hosts").with_exhausted(exhausted);
        fixture(machine("m").created("2026-06-01T11:59:00Z"))
            .answered(Verb::Status, 10, failed(Code::NotFound))
            .answered(Verb::Create, 2, Outcome::Failed(error))
    };
    let said = |fixture: &Fixture| {
        let operation = status_of(&fixture.plan())["lastOperation"].clone();
        assert_eq!(operation["errorCode"], "ResourceExhausted");
        operation["description"].as_str().unwrap().to_owned()
    };
    let zone = |retry_after| Exhausted { zone: Some("eu-1a".to_owned()), retry_after };
    let mcm = "Cloud provider message - machine codes error: code = [ResourceExhausted] message = [no hosts]";
    let own = refused(zone(Some(Duration::from_mins(4))));
    assert_eq!(said(&own), format!("{mcm}; exhausted for MachineClass \"class\" in zone \"eu-1a\""));
    assert_eq!(own.plan().wake, Some(at("2026-06-01T12:03:58Z")));
    assert_eq!(said(&refused(Exhausted::default())), format!("{mcm}; exhausted for MachineClass \"class\""));
    assert_eq!(refused(zone(None)).plan().wake, Some(at("2026-06-01T12:09:58Z")), "--resource-exhausted-retry");
    let forever = refused(zone(Some(Duration::MAX))).plan().wake;
    assert!(forever.is_some_and(|wake| wake <= at("2026-06-01T12:59:58Z")), "{forever:?}");
}

#[test]
fn a_machine_without_capacity_says_what_ends_the_wait_and_writes_it_once() {
    let attempt = |machine: MachineBuilder, code, seconds_ago| {
        fixture(machine).answered(Verb::Status, 700, failed(Code::NotFound)).answered(
            Verb::Create,
            seconds_ago,
            failed(code),
        )
    };
    let fresh = || machine("m").created("2026-06-01T11:55:00Z");
    let first = attempt(fresh(), Code::ResourceExhausted, 2).plan();
    let reported = status_of(&first);
    let message = |status: &Value| status["conditions"][0]["message"].as_str().unwrap().to_owned();
    assert_eq!(message(&reported), "no; it is tried again within 600s; without a VM it fails at 2026-06-01T12:15:00Z");
    assert!(!reported["lastOperation"].to_string().contains("again"), "consumers compare it: {reported}");
    let again =
        |seconds_ago| attempt(fresh().with("/status", reported.clone()), Code::ResourceExhausted, seconds_ago).plan();
    for seconds_ago in [2, 1, 300] {
        assert!(again(seconds_ago).is_idle(), "a manager that has asked at another time writes nothing");
    }
    let overdue = attempt(machine("m").created("2026-06-01T11:30:00Z"), Code::ResourceExhausted, 2).plan();
    assert_eq!(message(&status_of(&overdue)), "no", "it has failed: there is no next attempt");
    assert_eq!(message(&status_of(&attempt(fresh(), Code::Unavailable, 2).plan())), "no", "it is soon");
}

/// Providers put ids of requests into their messages, and each of two managers without leader election gets its own.
#[test]
fn an_answer_is_reported_once_whatever_another_manager_has_reported_since() {
    let refused = |text: &str| Outcome::Failed(DriverError::new(Code::Internal, text));
    let scene_with = |status: Value, text: &str| {
        let machine = machine("m").created("2026-06-01T11:55:00Z").with("/status", status);
        fixture(machine).answered(Verb::Status, 700, failed(Code::NotFound)).answered(Verb::Create, 20, refused(text))
    };
    let ours = status_of(&scene_with(Value::Null, "request 1").plan());
    let theirs = status_of(&scene_with(Value::Null, "request 2").plan());
    let mut reported = scene_with(theirs.clone(), "request 1");
    reported.status_written = Some(reported.now - SignedDuration::from_secs(19));
    let plan = reported.plan();
    assert!(plan.is_idle() && plan.events.is_empty(), "{plan:?}");
    let mut unreported = scene_with(theirs.clone(), "request 1");
    unreported.status_written = Some(unreported.now - SignedDuration::from_secs(21));
    assert_eq!(status_of(&unreported.plan())["lastOperation"]["description"], ours["lastOperation"]["description"]);
    let mut other = theirs;
    other["lastOperation"]["state"] = "Processing".into();
    let mut changed = scene_with(other, "request 1");
    changed.status_written = reported.status_written;
    assert!(!changed.plan().is_idle(), "more than texts has changed");
}

#[test]
fn without_a_target_cluster_the_status_has_the_addresses_of_the_vm() {
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    let addresses =
        vec![address("InternalIP", "10.0.0.7"), address("ExternalIP", "1.2.3.4"), address("InternalIP", "10.0.0.7")];
    let instance = Instance {
        provider_id: "p:///1".into(),
        node_name: "n".into(),
        owner_uid: Some("uid-m".into()),
        addresses,
        ..Instance::default()
    };
    let written = |has_target: bool| {
        let fixture = fixture(linked("")).answered(Verb::Status, 2, Outcome::Instance(instance.clone()));
        let settings = MachineSettings { has_target, ..MachineSettings::default() };
        status_of(&fixture.plan_with(settings))["addresses"].clone()
    };
    let expected = json!([
        {"type": "ExternalIP", "address": "1.2.3.4"}, {"type": "Hostname", "address": "n"},
        {"type": "InternalIP", "address": "10.0.0.7"}]);
    assert_eq!(written(false), expected);
    assert_eq!(written(true), Value::Null);
}

#[test]
fn a_retired_name_gets_no_vm() {
    let ledger: Ledger = "k7f;0".parse().unwrap();
    let set = machine_set("set", 1, Some("k7f;0"));
    let first = Ledger::lowest_free(&"k7f;".parse().unwrap(), &std::collections::BTreeSet::new(), 1)[0];
    let name = ledger.name("set", first);
    let retired = fixture(machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0")).set(set);
    assert!(retired.steps().is_empty());
    assert_eq!(retired.plan().waits[0].reason, "Retired");
    let set = machine_set("set", 1, Some("k7f;"));
    let live = fixture(machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0")).set(set);
    assert_eq!(live.steps(), ["call Status"]);
}

#[test]
fn a_corrected_class_is_tried_at_once() {
    let mut refused = fixture(machine("m").created("2026-06-01T11:55:00Z"))
        .answered(Verb::Status, 10, failed(Code::NotFound))
        .answered(Verb::Create, 2, failed(Code::InvalidArgument));
    assert_eq!(refused.steps(), ["status CrashLoopBackOff"]);
    if let Ok(class) = &mut refused.snapshot.class {
        class.revision = "another".into();
    }
    assert_eq!(refused.steps(), ["call Status"]);
    assert_eq!(refused.answered(Verb::Status, 0, failed(Code::NotFound)).steps(), ["call Create"]);
}

#[test]
fn a_vm_whose_create_answer_was_lost_is_set_up_all_the_same() {
    let found = || {
        fixture(linked("CrashLoopBackOff")).answered(Verb::Create, 9, failed(Code::DeadlineExceeded)).answered(
            Verb::Status,
            2,
            vm(),
        )
    };
    assert_eq!(found().steps(), ["call Initialize"], "the newest answer counts, and this process has made the VM");
    assert_eq!(found().answered(Verb::Initialize, 0, failed(Code::Unimplemented)).steps(), ["status Pending"]);
}

#[test]
fn a_name_that_was_retired_once_is_asked_for_again_later() {
    let refused = |seconds| {
        fixture(machine("m")).answered(Verb::Status, 99, failed(Code::NotFound)).answered(
            Verb::Create,
            seconds,
            Outcome::Retired,
        )
    };
    assert!(refused(5).steps().is_empty());
    assert_eq!(refused(5).plan().wake, Some(refused(5).now + SignedDuration::from_secs(25)));
    assert_eq!(refused(31).steps(), ["call Create"]);
}

#[test]
fn what_one_set_said_of_a_name_does_not_bind_the_next() {
    let first = Ledger::lowest_free(&"k7f;".parse().unwrap(), &std::collections::BTreeSet::new(), 1)[0];
    let name = "k7f;".parse::<Ledger>().unwrap().name("set", first);
    let set = machine_set("set", 1, Some("k7f;"));
    let of = |set: MachineSet| fixture(machine(&name).owned_by(&set).annotation("nodewright.dev/index", "0")).set(set);
    let refused = of(set).answered(Verb::Status, 9, failed(Code::NotFound)).answered(Verb::Create, 5, Outcome::Retired);
    assert!(refused.steps().is_empty());
    let mut heir = machine_set("set", 1, Some("bbb;"));
    heir.metadata.uid = Some("uid-heir".to_owned());
    let adopted = Fixture { outcomes: refused.outcomes, ..of(heir) };
    assert_eq!(adopted.steps(), ["call Create"]);
    let plan = adopted.plan();
    let Step::Call(call) = &plan.stages[0][0].step else { panic!("{:?}", plan.stages) };
    assert_eq!(call.request.origin, None, "its ledger does not know the name");
}
