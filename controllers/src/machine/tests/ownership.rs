//! Snapshots in, plans out: a VM of the Machine's name is no proof, either.

use super::*;
use crate::machine::memory::Plan;

/// A VM that was made for another Machine of the name; or by a provider that keeps no token.
fn made_for(owner: Option<&str>) -> Outcome {
    let Outcome::Instance(instance) = vm() else { unreachable!() };
    Outcome::Instance(Instance { owner_uid: owner.map(str::to_owned), ..instance })
}

fn others(names: &[&str]) -> Outcome {
    Outcome::Namesakes(names.iter().map(|&name| name.to_owned()).collect())
}

fn forbidden() -> Outcome {
    Outcome::Failed(DriverError::new(Code::PermissionDenied, "may not list machines in all namespaces: allow it"))
}

fn young() -> MachineBuilder {
    machine("m").created("2026-06-01T11:55:00Z")
}

fn unproven(machine: MachineBuilder) -> Fixture {
    let mut fixture = fixture(machine);
    fixture.snapshot.claim.vm = Vm::of(&fixture.snapshot.machine);
    fixture
}

fn condition(plan: &Plan, kind: &str) -> Value {
    let status = status_of(plan);
    let all = status["conditions"].as_array().unwrap();
    all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

#[test]
fn a_vm_that_was_not_made_for_the_machine_is_taken_only_if_no_other_machine_has_the_name() {
    for owner in [Some("uid-of-another"), None] {
        let found = || unproven(young()).answered(Verb::Status, 2, made_for(owner));
        assert_eq!(found().steps(), ["call Namesakes"], "{owner:?}");
        assert!(found().running(Verb::Namesakes).steps().is_empty(), "one call at a time");
        let free = found().answered(Verb::Namesakes, 1, others(&[]));
        assert!(free.steps()[0].contains(r#""providerID":"p:///1""#), "{:?}", free.steps());
        let taken = found().answered(Verb::Namesakes, 1, others(&["b/m"]));
        assert_eq!(taken.steps(), ["status CrashLoopBackOff"], "{owner:?}");
        let plan = taken.plan();
        let reported = condition(&plan, "InstanceProvisioned");
        assert_eq!((reported["status"].as_str(), reported["reason"].as_str()), (Some("False"), Some("VMNotOwned")));
        assert!(reported["message"].as_str().unwrap().contains("b/m"), "{reported}");
        assert_eq!((plan.events[0].reason, plan.waits[0].reason), ("VMNotOwned", "VMNotOwned"));
        let often = [1; 4].iter().fold(found(), |found, ago| found.answered(Verb::Namesakes, *ago, forbidden()));
        let again = at(NOW) + SignedDuration::from_secs(3 * 60 - 1);
        assert_eq!(often.plan().wake, Some(again), "a right may be granted at any time: the pause does not grow");
    }
}

#[test]
fn an_older_list_of_machines_says_nothing_about_a_newer_answer() {
    let fixture = unproven(young()).answered(Verb::Namesakes, 4, others(&[])).answered(
        Verb::Status,
        2,
        made_for(Some("uid-of-another")),
    );
    assert_eq!(fixture.steps(), ["call Namesakes"]);
}

#[test]
fn without_the_right_to_list_machines_nothing_is_adopted_and_the_machine_says_what_to_grant() {
    let fixture = unproven(young()).answered(Verb::Status, 2, made_for(Some("uid-of-another"))).answered(
        Verb::Namesakes,
        1,
        forbidden(),
    );
    assert_eq!(fixture.steps(), ["status CrashLoopBackOff"]);
    let plan = fixture.plan();
    let reported = condition(&plan, "InstanceProvisioned");
    assert_eq!(reported["reason"].as_str(), Some("VMOwnerUnknown"));
    assert!(reported["message"].as_str().unwrap().contains("list machines in all namespaces: allow it"), "{reported}");
    assert_eq!(plan.wake, Some(fixture.now + SignedDuration::from_secs(179)), "it is asked again");
}

#[test]
fn an_adoption_is_noted_and_needs_no_list_afterwards() {
    let restored = || unproven(linked("")).answered(Verb::Status, 2, made_for(Some("uid-of-former")));
    let adopted = restored().answered(Verb::Namesakes, 1, others(&[]));
    let plan = adopted.plan();
    assert_eq!(condition(&plan, "InstanceProvisioned")["status"], "True");
    let noted = condition(&plan, "VMAdopted");
    assert_eq!((noted["status"].as_str(), noted["message"].as_str()), (Some("True"), Some("uid-of-former")));
    let mut later = restored();
    let mut machine: Value = serde_json::to_value(later.snapshot.machine.as_ref()).unwrap();
    machine["status"] = status_of(&plan);
    later.snapshot.machine = Arc::new(serde_json::from_value(machine).unwrap());
    let call = later.call(Verb::Delete);
    assert_eq!(call.request.machine.adopted_uid.as_deref(), Some("uid-of-former"));
    let again = later.answered(Verb::Status, 1, made_for(Some("uid-of-former")));
    assert!(!again.steps().contains(&"call Namesakes".to_owned()), "{:?}", again.steps());
}

#[test]
fn the_token_of_the_machine_itself_ends_what_is_noted_of_an_adoption() {
    let adopted = json!([{"type": "VMAdopted", "status": "True", "reason": "VMAdopted", "message": "uid-of-former"}]);
    let found = unproven(linked("").with("/status/conditions", adopted)).answered(Verb::Status, 1, vm());
    assert_eq!(condition(&found.plan(), "InstanceProvisioned")["status"], "True");
    assert_eq!(condition(&found.plan(), "VMAdopted"), Value::Null);
}

#[test]
fn an_id_is_noted_as_the_machine_writes_it_if_only_its_beginning_differs() {
    let Outcome::Instance(instance) = vm() else { unreachable!() };
    for (answered, noted) in [("p:///1", "p:///1"), ("p:///zone/1", "p:///1"), ("p:///2", "p:///2")] {
        let answer = Instance { provider_id: answered.into(), ..instance.clone() };
        let found = unproven(linked("Running")).answered(Verb::Status, 1, Outcome::Instance(answer));
        assert_eq!(condition(&found.plan(), "InstanceProvisioned")["message"], noted, "{answered}");
    }
}

/// A message of another controller in the condition is no name: the driver's is noted, and the status stays.
#[test]
fn the_name_that_the_driver_gives_is_noted_with_whether_the_node_has_joined() {
    for (phase, joined, expected) in [
        ("Pending", None, "False"),
        ("Pending", Some("False"), "False"),
        ("Pending", Some("True"), "True"),
        ("Running", None, "True"),
        ("Unknown", None, "True"),
    ] {
        let known = joined.map(|status| json!({"type": "NodeJoined", "status": status, "reason": "Other"}));
        let known = json!(known.into_iter().collect::<Vec<_>>());
        let found = unproven(linked(phase).with("/status/conditions", known)).answered(Verb::Status, 1, vm());
        let noted = condition(&found.plan(), "NodeJoined");
        assert_eq!(
            (noted["status"].as_str(), noted["message"].as_str()),
            (Some(expected), Some("n")),
            "{phase} {joined:?}"
        );
    }
}

fn dying(machine: MachineBuilder) -> Fixture {
    let begun = json!({"phase": "Terminating", "lastUpdateTime": "2026-06-01T11:59:58Z"});
    let mut fixture = unproven(machine.phase("Terminating").deleting().with("/status/currentStatus", begun));
    fixture.since = at("2026-06-01T11:00:00Z");
    fixture
}

/// The status is from a backup, or from a version that kept no tokens.
fn noted() -> MachineBuilder {
    let noted = json!([{"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "p:///1",
        "lastTransitionTime": "2026-06-01T11:00:00Z"}]);
    linked("").with("/status/conditions", noted)
}

#[test]
fn a_machine_that_goes_leaves_a_vm_that_another_machine_of_the_name_has() {
    let found = || dying(machine("m")).answered(Verb::Status, 2, made_for(Some("uid-of-another")));
    assert_eq!(found().steps(), ["call Namesakes"]);
    let taken = found().answered(Verb::Namesakes, 1, others(&["b/m"]));
    // A driver whose VMs keep tokens deletes what is this Machine's alone.
    assert_eq!(taken.steps(), ["call Delete"]);
    assert_eq!(taken.call(Verb::Delete).request.machine.provider_id, None);
    let left = taken
        .answered(Verb::Delete, 1, Outcome::Done)
        .answered(Verb::Status, 1, made_for(Some("uid-of-another")))
        .answered(Verb::Namesakes, 0, others(&["b/m"]));
    assert!(left.steps()[0].starts_with("edit"), "the finalizer goes: {:?}", left.steps());
    let unknown = found().answered(Verb::Namesakes, 1, forbidden());
    assert_eq!(unknown.plan().waits[0].reason, "VMOwnerUnknown", "nothing is deleted before that is known");
    assert!(!unknown.steps().contains(&"call Delete".to_owned()));
}

#[test]
fn a_vm_that_is_noted_and_bears_anothers_token_is_adopted_before_it_goes_or_left() {
    let refuted = DriverError::new(Code::FailedPrecondition, "made for another");
    let refuted = || Outcome::Failed(refuted.clone().with_mismatch(nodewright_driver::Mismatch::Machine));
    let not_deleted = || dying(noted()).answered(Verb::Delete, 3, refuted());
    assert_eq!(not_deleted().steps(), ["call Status"]);
    let found = || not_deleted().answered(Verb::Status, 2, made_for(Some("uid-of-another")));
    assert_eq!(found().steps(), ["call Namesakes"]);
    let free = found().answered(Verb::Namesakes, 1, others(&[]));
    assert_eq!(condition(&free.plan(), "VMAdopted")["message"], "uid-of-another");
    let taken = found().answered(Verb::Namesakes, 1, others(&["b/m"]));
    assert!(taken.steps()[0].starts_with("edit"), "it ends without the VM: {:?}", taken.steps());
}

/// Its status is from a backup, and says which VM it had.
#[test]
fn a_vm_without_a_token_is_the_machines_if_its_status_notes_that_vm() {
    let shown = |machine: MachineBuilder, id: &str| {
        let Outcome::Instance(instance) = made_for(None) else { unreachable!() };
        let answer = Outcome::Instance(Instance { provider_id: id.into(), ..instance });
        unproven(machine).answered(Verb::Status, 2, answer).steps()
    };
    assert_eq!(shown(noted(), "p:///1"), ["status Pending"]);
    assert_eq!(shown(noted(), "p:///2"), ["call Namesakes"], "another VM");
    assert_eq!(shown(linked(""), "p:///1"), ["call Namesakes"], "nothing is noted");
}

#[test]
fn what_is_unclear_is_described() {
    let reported = |outcome: Outcome| {
        let taken =
            unproven(linked("")).answered(Verb::Status, 2, outcome).answered(Verb::Namesakes, 1, others(&["b/m"]));
        condition(&taken.plan(), "InstanceProvisioned")["message"].as_str().unwrap().to_owned()
    };
    for (outcome, expected) in [
        (
            made_for(Some("uid-x")),
            "VM p:///1 has the name of this machine and was made for one with UID uid-x, and machines",
        ),
        (
            made_for(None),
            "VM p:///1 has the name of this machine, and nothing says for which machine it was made, and machines",
        ),
        (failed(Code::Unimplemented), "the provider does not report the owner of VM p:///1, and machines"),
    ] {
        let message = reported(outcome);
        assert!(message.starts_with(expected), "{message}");
    }
}
