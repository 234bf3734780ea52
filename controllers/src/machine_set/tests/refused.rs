//! Requests that the API server refuses, and what goes on beside them.

use super::*;
use crate::machine_set::memory::{Context, Plan};

fn failure(verb: StepVerb, class: FailureClass, machine: &str) -> Failure {
    Failure::of::<Machine>(verb, ObjectRef::new(CONTROL, "default", machine), class, "denied by a policy")
}

fn plan_after(snapshot: &Snapshot, failure: &Failure, attempt: u32) -> Plan {
    let outcomes = Outcomes::default();
    let now = NOW.parse().unwrap();
    let context = Context { attempt, failure: Some(failure), ..Context::new(now, &outcomes) };
    plan(&context, snapshot)
}

#[test]
fn a_machine_that_may_not_be_deleted_does_not_block_its_siblings() {
    // Two of three have failed, and are retired; the API server refuses to delete the first.
    let set = machine_set("set", 3, Some("k7f;0-1"));
    let failed = |index| member(&set, index).phase("Failed").build();
    let snapshot = snapshot(set.clone(), vec![failed(0), failed(1), member(&set, 2).build()]);
    let before = steps(&planned(&snapshot));
    assert_eq!(before.len(), 1, "deletions come first: {before:?}");
    let name = |index| index_name(LEDGER, index);
    let denied = failure(StepVerb::Delete, FailureClass::Forbidden, &name(0));
    let after = steps(&plan_after(&snapshot, &denied, 1));
    let mut expected: Vec<String> = [3, 4].map(|index| format!("create {}", name(index))).into();
    expected.extend([0, 1].map(|index| format!("delete {}", name(index))));
    assert_eq!(after, [expected], "one stage, whose steps fail alone");
}

#[test]
fn a_machine_that_may_not_be_released_does_not_block_its_siblings() {
    let set = machine_set("set", 2, Some(LEDGER));
    let strayed = member(&set, 0).label("name", "another").build();
    let snapshot = snapshot(set, vec![strayed]);
    let name = |index| index_name(LEDGER, index);
    assert_eq!(steps(&planned(&snapshot)), [[format!("edit {}", name(0))]]);
    let denied = failure(StepVerb::Patch, FailureClass::Forbidden, &name(0));
    let expected = [1, 2].map(|index| format!("create {}", name(index)));
    let expected = [expected.to_vec(), vec![format!("edit {}", name(0))]].concat();
    assert_eq!(steps(&plan_after(&snapshot, &denied, 1)), [expected]);
}

#[test]
fn a_machine_that_may_not_be_adopted_does_not_block_its_siblings() {
    let set = machine_set("set", 2, Some(LEDGER));
    let name = |index| index_name(LEDGER, index);
    // One has the name of an ordinal that the set would use.
    let orphan = |name: &str| Arc::new(crate::testing::machine(name).label("name", "set").build());
    for (orphan, expected) in [
        (orphan("stray"), vec![[0, 1].map(|index| format!("create {}", name(index))).to_vec()]),
        (orphan(&name(0)), vec![vec![ledger_apply("k7f;0")]]),
    ] {
        let adoption = machine_of(&orphan);
        let snapshot = Snapshot { orphans: vec![orphan], ..snapshot(set.clone(), vec![]) };
        let first = steps(&planned(&snapshot));
        assert_eq!((first.len(), first[0][0].starts_with("Confirm")), (2, true), "{first:?}");
        let denied = failure(StepVerb::Apply, FailureClass::Forbidden, &adoption);
        let after = steps(&plan_after(&snapshot, &denied, 1));
        let adopts = after.iter().position(|stage| stage[0].starts_with("Confirm")).unwrap();
        let before: Vec<_> = after[..adopts].iter().filter(|stage| !stage[0].contains("status")).cloned().collect();
        assert_eq!(before, expected, "the denied adoption comes last: {after:?}");
        assert_eq!(after[adopts..].len(), 2);
        let conflict = failure(StepVerb::Apply, FailureClass::Conflict, &adoption);
        assert_eq!(
            steps(&plan_after(&snapshot, &conflict, 1)).len(),
            2,
            "another writer was faster: it is tried first"
        );
    }
}

/// An API server that does not answer, or is overloaded, has refused nothing: the Machines are the fleet, and are adopted yet.
#[test]
fn what_may_be_adopted_yet_is_not_replaced() {
    let set = || machine_set("set", 3, Some(LEDGER));
    let own = index_name(LEDGER, 0);
    let orphans = |names: &[&str]| -> Vec<_> {
        names.iter().map(|name| Arc::new(crate::testing::machine(name).label("name", "set").build())).collect()
    };
    let passing =
        [FailureClass::Unknown, FailureClass::Unreachable, FailureClass::Unauthorized, FailureClass::TooManyRequests];
    for class in passing {
        for names in [&[own.as_str()][..], &["a"], &["a", "b", "c", "d"]] {
            let snapshot = Snapshot { orphans: orphans(names), ..snapshot(set(), vec![]) };
            let first = steps(&planned(&snapshot));
            let failed = failure(StepVerb::Apply, class, names[0]);
            let mut after = steps(&plan_after(&snapshot, &failed, 1));
            after.retain(|stage| !stage[0].contains("status"));
            assert_eq!(after, first, "{class:?} {names:?}");
        }
    }
}

fn machine_of(machine: &Machine) -> String {
    nodewright_runtime::object::name(machine).to_owned()
}

#[test]
fn refused_deletions_and_releases_together_do_not_block_creations() {
    let set = machine_set("set", 3, Some("k7f;0"));
    let failed = member(&set, 0).phase("Failed").build();
    let strayed = member(&set, 1).label("name", "another").build();
    let snapshot = snapshot(set.clone(), vec![failed, strayed, member(&set, 2).build()]);
    let name = |index| index_name(LEDGER, index);
    for (verb, machine) in [(StepVerb::Delete, 0), (StepVerb::Patch, 1)] {
        let denied = failure(verb, FailureClass::Forbidden, &name(machine));
        let expected = [
            format!("create {}", name(3)),
            format!("create {}", name(4)),
            format!("delete {}", name(0)),
            format!("edit {}", name(1)),
        ];
        assert_eq!(steps(&plan_after(&snapshot, &denied, 1)), [expected], "after {verb:?}");
    }
}

#[test]
fn a_machine_that_may_not_be_changed_does_not_keep_others_from_being_created() {
    let mut set = machine_set("set", 2, Some(LEDGER));
    set.spec.template.spec.drain_timeout = Some("1h".parse().unwrap());
    let steps = steps(&planned(&snapshot(set.clone(), vec![member(&set, 0).build()])));
    assert_eq!(steps.len(), 1);
    assert!(steps[0][0].starts_with("apply") && steps[0][1].starts_with("create"), "{steps:?}");
}

#[test]
fn what_machines_take_over_reaches_those_in_deletion() {
    let mut set = machine_set("set", 1, Some("k7f;0"));
    set.spec.template.spec.drain_timeout = Some("1m".parse().unwrap());
    let mut current = member(&set, 1);
    current = current.with("/spec/drainTimeout", "1m");
    let leaving = member(&set, 0).deleting().with("/spec/drainTimeout", "2h").build();
    let steps = steps(&planned(&snapshot(set, vec![leaving, current.build()])));
    assert!(steps.len() == 1 && steps[0].len() == 1, "{steps:?}");
    assert!(
        steps[0][0].contains(&index_name(LEDGER, 0)) && steps[0][0].contains(r#""drainTimeout":"1m0s""#),
        "{steps:?}"
    );
}

#[test]
fn a_drain_timeout_that_was_shortened_on_a_machine_in_deletion_stays() {
    for template in [None, Some("1m".parse().unwrap())] {
        let mut set = machine_set("set", 1, Some("k7f;0"));
        set.spec.template.spec.drain_timeout = template;
        let current = template.iter().fold(member(&set, 1), |current, _| current.with("/spec/drainTimeout", "1m"));
        let leaving = member(&set, 0).deleting().with("/spec/drainTimeout", "1s").build();
        let steps = steps(&planned(&snapshot(set, vec![leaving, current.build()])));
        assert!(steps.is_empty(), "{steps:?}");
    }
}

#[test]
fn every_class_of_refusal_is_a_condition_as_soon_as_a_retry_does_not_help() {
    let set = machine_set("set", 1, Some(LEDGER));
    let snapshot = snapshot(set, vec![]);
    let said = |verb, class, attempt| {
        let plan = plan_after(&snapshot, &failure(verb, class, "a"), attempt);
        let status = plan.steps().find_map(|planned| match &planned.step {
            Step::Apply(apply) => apply.fragment().get("status").cloned(),
            _ => None,
        });
        let conditions =
            status.and_then(|status| status["machineSetCondition"].as_array().cloned()).unwrap_or_default();
        conditions.first().map(|condition| condition["reason"].as_str().unwrap().to_owned())
    };
    for (class, at_once, later) in [
        (FailureClass::Invalid, true, true),
        (FailureClass::Forbidden, true, true),
        (FailureClass::TooManyRequests, false, true),
        (FailureClass::Unknown, false, true),
        (FailureClass::Conflict, false, false),
        (FailureClass::AlreadyExists, false, false),
        (FailureClass::Unreachable, false, false),
        (FailureClass::Unauthorized, false, false),
        (FailureClass::Expired, false, false),
    ] {
        for (verb, reason) in
            [(StepVerb::Create, "FailedCreate"), (StepVerb::Delete, "FailedDelete"), (StepVerb::Apply, "FailedUpdate")]
        {
            let expected = |said: bool| said.then(|| reason.to_owned());
            assert_eq!(said(verb, class, 1), expected(at_once), "{verb:?} {class:?} once");
            assert_eq!(said(verb, class, 3), expected(later), "{verb:?} {class:?} three times");
        }
    }
}
