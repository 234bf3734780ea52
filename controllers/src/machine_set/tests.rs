//! Tests from a snapshot to a plan.

mod awaited;
mod backoff;
mod limits;
mod moved;
mod overshoot;
mod preserved;
mod refused;
mod released;
mod reported;
mod retired;
mod traced;
mod unreadable;

use std::sync::Arc;

use nodewright_api::{Machine, MachineSet, annotations};
use nodewright_runtime::{
    effect::{Never, Outcomes},
    object::{ObjectRef, name},
    plan::{Failure, FailureClass, Planned, Step, StepVerb},
};
use serde_json::{Value, json};

use super::{
    Snapshot,
    memory::{Context, Plan},
    plan::plan,
    snapshot::Population,
};
use crate::{
    shared::{
        CONTROL,
        fleet::{FleetSettings, PlanSettings},
        ledger::Ledger,
    },
    testing::{MachineBuilder, MachineExt, NOW, machine, machine_set},
};

const LEDGER: &str = "k7f;";

fn index_name(ledger: &str, index: usize) -> String {
    let empty: Ledger = LEDGER.parse().unwrap();
    assert!(ledger.starts_with("k7f;"));
    let indices = empty.lowest_free(&std::collections::BTreeSet::new(), index + 1);
    empty.name("set", indices[index])
}

/// The Machine of an index of the set.
fn member(set: &MachineSet, index: usize) -> MachineBuilder {
    machine(&index_name(LEDGER, index))
        .owned_by(set)
        .label("name", "set")
        .annotation("nodewright.dev/index", &index.to_string())
        .phase("Running")
}

fn snapshot(set: MachineSet, machines: Vec<Machine>) -> Snapshot {
    Snapshot {
        set: Arc::new(set),
        deployment: None,
        machines: machines.into_iter().map(Arc::new).collect(),
        orphans: vec![],
        contested: vec![],
        namesakes: vec![],
        unreadable: vec![],
        population: Population::default(),
        settings: PlanSettings { fleet: FleetSettings::default(), full_schema: true },
    }
}

fn planned(snapshot: &Snapshot) -> Plan {
    let outcomes = Outcomes::default();
    let at = Context { now: NOW.parse().unwrap(), ..Context::new("2026-06-01T09:00:00Z".parse().unwrap(), &outcomes) };
    plan(&at, snapshot)
}

/// What each stage does to which object, without the status.
fn steps(plan: &Plan) -> Vec<Vec<String>> {
    let tell = |step: &Step<Never>| match step {
        Step::Apply(apply) if apply.fragment().get("status").is_some() => None,
        Step::Apply(apply) => Some(format!("apply {} {}", apply.at.key().name, apply.fragment())),
        Step::Create { key, .. } => Some(format!("create {}", key.name)),
        Step::Edit { at, .. } => Some(format!("edit {}", at.key().name)),
        Step::Delete(at) => Some(format!("delete {}", at.key().name)),
        other => Some(format!("{other:?}")),
    };
    let stages = plan.stages.iter().map(|stage| stage.iter().filter_map(|planned| tell(&planned.step)).collect());
    stages.filter(|stage: &Vec<String>| !stage.is_empty()).collect()
}

/// The written status, if any.
fn status_of(snapshot: &Snapshot) -> Option<serde_json::Value> {
    let plan = planned(snapshot);
    plan.steps().find_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    })
}

fn ledger_apply(text: &str) -> String {
    format!("apply set {}", json!({"metadata": {"annotations": {"nodewright.dev/ledger": text}}}))
}

#[test]
fn the_ledger_is_fixed_before_the_first_machine() {
    let plan = planned(&snapshot(machine_set("set", 3, None), vec![]));
    let steps = steps(&plan);
    assert_eq!(steps.len(), 1);
    assert!(steps[0][0].starts_with("apply set") && steps[0][0].contains("nodewright.dev/ledger"), "{steps:?}");
}

#[test]
fn a_ledger_that_cannot_be_read_stops_everything_and_is_reported_once() {
    let set = machine_set("set", 3, Some("nonsense"));
    let member = member(&set, 0).build();
    let mut snapshot = snapshot(set, vec![member]);
    let plan = planned(&snapshot);
    assert!(steps(&plan).is_empty());
    assert_eq!((plan.waits[0].reason, plan.events[0].reason), ("InvalidLedger", "InvalidLedger"));
    let status = status_of(&snapshot).unwrap();
    assert_eq!(status["replicas"], 1, "its machines are counted all the same");
    let reported = &status["machineSetCondition"][0];
    assert_eq!((&reported["type"], &reported["status"]), (&json!("ReplicaFailure"), &json!("True")));
    assert_eq!((&reported["reason"], &reported["lastTransitionTime"]), (&json!("InvalidLedger"), &json!(NOW)));
    let message = reported["message"].as_str().unwrap();
    assert!(message.starts_with("annotation nodewright.dev/ledger: `nonsense` is no ledger"), "{message}");
    assert!(message.contains("restore it, or delete the machines of the set and remove the annotation"), "{message}");

    Arc::make_mut(&mut snapshot.set).status = serde_json::from_value(status).unwrap();
    let again = planned(&snapshot);
    assert_eq!((again.waits.len(), again.events.len(), again.stages.len()), (1, 0, 0));
    let mended = machine_set("set", 1, Some(LEDGER));
    Arc::make_mut(&mut snapshot.set).metadata.annotations = mended.metadata.annotations;
    assert_eq!(status_of(&snapshot).unwrap().get("machineSetCondition"), None);
}

#[test]
fn missing_machines_are_created_under_the_lowest_free_names() {
    let set = machine_set("set", 3, Some(LEDGER));
    let one = member(&set, 1).build();
    let plan = planned(&snapshot(set, vec![one]));
    assert_eq!(
        steps(&plan),
        [[format!("create {}", index_name(LEDGER, 0)), format!("create {}", index_name(LEDGER, 2))]]
    );
    let Step::Create { body, .. } = &plan.stages[0][0].step else { panic!() };
    assert_eq!(body["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
    assert_eq!(body["metadata"]["annotations"]["nodewright.dev/index"], "0");
    assert_eq!(body["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(body["metadata"]["labels"], json!({"name": "set"}));
    assert_eq!(body["spec"]["class"]["name"], "class");
}

/// machine-controller-manager made 43 machines too many in its issue 1091.
#[test]
fn mcm_defect_21_a_stale_cache_asks_for_the_same_machines_again() {
    let set = machine_set("set", 3, Some(LEDGER));
    let asked = |shown: &[usize]| {
        let machines = shown.iter().map(|index| member(&set, *index).build()).collect();
        steps(&planned(&snapshot(set.clone(), machines))).concat()
    };
    let first = asked(&[]);
    assert_eq!(first.len(), 3);
    assert_eq!(asked(&[]), first, "nothing shows yet");
    for index in 0..3 {
        let again = asked(&[index]);
        assert!(again.len() == 2 && again.iter().all(|step| first.contains(step)), "{index} shows: {again:?}");
    }
    assert!(asked(&[0, 1, 2]).is_empty());
}

#[test]
fn only_a_trace_context_reaches_the_machines() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let born_with = |of_set: &str, of_template: &str| {
        let mut set = machine_set("set", 1, Some(LEDGER));
        let note = |text: &str| (annotations::TRACEPARENT.to_owned(), text.to_owned());
        set.metadata.annotations.get_or_insert_default().extend([note(of_set)]);
        set.spec.template.metadata.annotations.get_or_insert_default().extend([note(of_template)]);
        let plan = planned(&snapshot(set, vec![]));
        let Step::Create { body, .. } = &plan.stages[0][0].step else { panic!() };
        (plan.traceparent, body["metadata"]["annotations"][annotations::TRACEPARENT].clone())
    };
    assert_eq!(born_with(trace, "x\n"), (trace.parse().ok(), json!(trace)));
    assert_eq!(born_with("x\n", trace), (None, Value::Null));
    assert_eq!(born_with("x\n", "y\n"), (None, Value::Null));
}

#[test]
fn machines_of_an_older_template_keep_the_bounds_of_the_schema() {
    let mut set = machine_set("set", 1, Some(LEDGER));
    set.spec.template.spec.drain_timeout = "-5m".parse().ok();
    set.spec.template.spec.max_evict_retries = Some(-1);
    let plan = planned(&snapshot(set, vec![]));
    let Step::Create { body, .. } = &plan.stages[0][0].step else { panic!() };
    let spec = &body["spec"];
    assert_eq!((&spec["drainTimeout"], &spec["maxEvictRetries"]), (&json!("0s"), &json!(0)));
}

#[test]
fn enough_machines_need_nothing() {
    let set = machine_set("set", 2, Some(LEDGER));
    let machines = vec![member(&set, 0).build(), member(&set, 1).build()];
    assert!(steps(&planned(&snapshot(set, machines))).is_empty());
}

#[test]
fn a_name_is_retired_before_its_machine_is_deleted() {
    let set = machine_set("set", 1, Some(LEDGER));
    let machines = vec![member(&set, 0).build(), member(&set, 1).phase("Pending").build()];
    let plan = planned(&snapshot(set, machines));
    assert_eq!(steps(&plan), [[ledger_apply("k7f;1")], [format!("delete {}", index_name(LEDGER, 1))]]);
    let Step::Apply(retire) = &plan.stages[0][0].step else { panic!() };
    assert!(retire.at.version().is_some(), "the ledger is written under the version that was seen");
}

#[test]
fn a_crash_between_retiring_and_deleting_is_made_good() {
    let set = machine_set("set", 1, Some("k7f;1"));
    let machines = vec![member(&set, 0).build(), member(&set, 1).build()];
    assert_eq!(steps(&planned(&snapshot(set, machines))), [[format!("delete {}", index_name(LEDGER, 1))]]);
}

/// The same plan as text: what it does, in which order, and why.
#[test]
fn a_scale_down_reads_as_two_stages() {
    let set = machine_set("set", 1, Some(LEDGER));
    let plan = planned(&snapshot(set.clone(), vec![member(&set, 0).build(), member(&set, 1).phase("Pending").build()]));
    let text = plan.to_string();
    let mut lines = text.lines().filter(|line| !line.contains("status of"));
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(first.starts_with("1 apply MachineSet default/set at version 20 {"), "{text}");
    let victim = index_name(LEDGER, 1);
    assert!(second.starts_with(&format!("2 delete Machine default/{victim} | ")), "{text}");
}

#[test]
fn mcm_defect_22_what_a_user_deletes_is_retired_at_first_sight_and_then_replaced() {
    let set = machine_set("set", 2, Some(LEDGER));
    let machines = vec![member(&set, 0).build(), member(&set, 1).deleting().build()];
    assert_eq!(steps(&planned(&snapshot(set, machines.clone()))), [[ledger_apply("k7f;1")]]);
    let noted = machine_set("set", 2, Some("k7f;1"));
    assert_eq!(steps(&planned(&snapshot(noted.clone(), machines))), [[format!("create {}", index_name(LEDGER, 2))]]);
    // Whatever its phase still says, it is no surplus: no other one goes for it.
    let three = vec![member(&noted, 0).build(), member(&noted, 1).deleting().build(), member(&noted, 2).build()];
    assert!(steps(&planned(&snapshot(noted, three))).is_empty());
}

#[test]
fn a_failed_machine_is_replaced_by_exactly_one() {
    let set = machine_set("set", 2, Some(LEDGER));
    let machines = vec![member(&set, 0).phase("Failed").build(), member(&set, 1).build()];
    let first = steps(&planned(&snapshot(set, machines.clone())));
    assert_eq!(first, [[ledger_apply("k7f;0")], [format!("delete {}", index_name(LEDGER, 0))]]);
    let noted = machine_set("set", 2, Some("k7f;0"));
    let leaving = member(&noted, 0).phase("Failed").deleting().build();
    let second = planned(&snapshot(noted, vec![leaving, machines[1].clone()]));
    assert_eq!(steps(&second), [[format!("create {}", index_name(LEDGER, 2))]]);
}

/// In deletion order, a machine without a VM comes before a failed one, and a marked one that is preserved comes after both.
#[test]
fn who_goes_anyway_is_of_the_surplus() {
    let set = machine_set("set", 1, Some(LEDGER));
    let machines = vec![member(&set, 0).phase("Failed").build(), member(&set, 1).phase("").build()];
    let steps_of = |set: &MachineSet, machines: Vec<Machine>| steps(&planned(&snapshot(set.clone(), machines)));
    assert_eq!(
        steps_of(&set, machines),
        [[ledger_apply("k7f;0")], [format!("delete {}", index_name(LEDGER, 0))]],
        "the one that is on its way is all that is left"
    );
    let mut scaled = set.clone();
    let annotations = scaled.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time".into(),
        "2026-06-01T11:00:00Z".into(),
    );
    let marked = member(&scaled, 0)
        .annotation("machinepriority.machine.sapcloud.io", "1")
        .annotation("machine.sapcloud.io/marked-for-deletion-time", "2026-06-01T11:00:00Z")
        .preserved_until("2026-06-02T00:00:00Z")
        .build();
    assert_eq!(
        steps_of(&scaled, vec![marked, member(&scaled, 1).build()]),
        [[ledger_apply("k7f;0")], [format!("delete {}", index_name(LEDGER, 0))]]
    );
}

#[test]
fn a_preserved_failed_machine_stays_until_its_time_is_over() {
    let set = machine_set("set", 1, Some(LEDGER));
    let kept = member(&set, 0).phase("Failed").preserved_until("2026-06-02T00:00:00Z").build();
    assert!(steps(&planned(&snapshot(set.clone(), vec![kept]))).is_empty());
    let over = member(&set, 0).phase("Failed").preserved_until("2026-06-01T00:00:00Z").build();
    assert_eq!(steps(&planned(&snapshot(set, vec![over]))).len(), 2);
}

#[test]
fn the_status_of_many_failures_fits_into_etcd_and_says_how_many_are_left_out() {
    let set = machine_set("set", 70, Some(LEDGER));
    let failed = |index| {
        let operation = json!({"type": "Create", "state": "Failed", "description": "x".repeat(30_000)});
        member(&set, index).phase("CrashLoopBackOff").with("/status/lastOperation", operation).build()
    };
    let snapshot = snapshot(set.clone(), (0..70).map(failed).collect());
    let status = status_of(&snapshot).unwrap();
    assert_eq!(status["failedMachines"].as_array().unwrap().len(), 50);
    let size = status.to_string().len();
    assert!(size < 100_000, "{size} bytes");
    let condition = &status["machineSetCondition"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("FailedMachinesTruncated"), &json!("True")));
    assert!(condition["message"].as_str().unwrap().contains("20 are left out"), "{condition}");
    let mut reported = set;
    reported.status = serde_json::from_value(status).unwrap();
    let again = Snapshot { set: Arc::new(reported), ..snapshot };
    assert_eq!(status_of(&again), None, "written once");
}

#[test]
fn a_foreign_machine_under_a_name_of_ours_costs_the_name() {
    let set = machine_set("set", 1, Some(LEDGER));
    let mut snapshot = snapshot(set, vec![]);
    snapshot.namesakes = vec![Arc::new(machine(&index_name(LEDGER, 0)).build())];
    assert_eq!(steps(&planned(&snapshot)), [[ledger_apply("k7f;0")]]);
}

#[test]
fn a_machine_without_index_counts_and_can_be_deleted() {
    let set = machine_set("set", 1, Some(LEDGER));
    let adopted = machine("set-abcde").owned_by(&set).label("name", "set").phase("Pending").build();
    let own = member(&set, 0).build();
    let first = planned(&snapshot(set, vec![adopted.clone(), own.clone()]));
    assert_eq!(
        steps(&first),
        [[ledger_apply("k7f;;set-abcde")], ["delete set-abcde".to_owned()]],
        "noted first, as the others are retired"
    );
    let Step::Apply(note) = &first.stages[0][0].step else { panic!() };
    assert!(note.at.version().is_some());
    // After a crash in between, the same Machine is deleted, and no other.
    let noted = machine_set("set", 1, Some("k7f;;set-abcde"));
    assert_eq!(steps(&planned(&snapshot(noted, vec![adopted.clone(), own.clone()]))), [["delete set-abcde"]]);
    // The next note forgets what is gone.
    let noted = machine_set("set", 1, Some("k7f;;set-gone"));
    assert_eq!(steps(&planned(&snapshot(noted, vec![adopted, own])))[0], [ledger_apply("k7f;;set-abcde")]);
}

#[test]
fn the_annotation_of_a_set_chooses_which_machines_go_first() {
    for (order, ordinal) in [(None, 0), (Some("Oldest"), 0), (Some("Newest"), 1)] {
        let mut set = machine_set("set", 1, Some(LEDGER));
        set.metadata
            .annotations
            .get_or_insert_default()
            .extend(order.map(|order| ("nodewright.dev/deletion-order".to_owned(), order.to_owned())));
        let members = [(0, "2026-06-01T10:00:00Z"), (1, "2026-06-01T11:00:00Z")];
        let members = members.map(|(ordinal, at)| member(&set, ordinal).created(at).build());
        let plan = planned(&snapshot(set, members.into()));
        assert_eq!(steps(&plan)[1], [format!("delete {}", index_name(LEDGER, ordinal))], "{order:?}");
    }
}

#[test]
fn the_autoscalers_choice_goes_once_its_replica_count_has_come() {
    let marked = |set: &MachineSet| {
        member(set, 0)
            .annotation("machinepriority.machine.sapcloud.io", "1")
            .annotation("machine.sapcloud.io/marked-for-deletion-time", "2026-06-01T11:00:00Z")
            .build()
    };
    let set = machine_set("set", 1, Some(LEDGER));
    assert!(steps(&planned(&snapshot(set.clone(), vec![marked(&set)]))).is_empty());
    let mut later = set;
    let annotations = later.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "machine.sapcloud.io/last-deployment-replica-change-by-scaler-time".into(),
        "2026-06-01T11:00:00Z".into(),
    );
    let steps = steps(&planned(&snapshot(later.clone(), vec![marked(&later)])));
    assert_eq!(steps[1], [format!("delete {}", index_name(LEDGER, 0))]);
}

#[test]
fn a_machine_whose_vm_is_anothers_is_not_adopted_and_the_set_says_so() {
    let set = machine_set("set", 1, Some(LEDGER));
    let mut snapshot = snapshot(set.clone(), vec![member(&set, 0).build()]);
    snapshot.contested = vec![Arc::new(machine("copy").label("name", "set").build())];
    let plan = planned(&snapshot);
    let writes =
        plan.steps().filter(|planned| !matches!(&planned.step, Step::Apply(apply) if apply.at.uid() == "uid-set"));
    assert_eq!(writes.count(), 0, "{:?}", plan.stages);
    let wait = plan.waits.iter().find(|wait| wait.reason == "ProviderIDNotUnique").unwrap();
    assert!(wait.message.contains("copy") && plan.events[0].message == wait.message, "{wait:?}");
}

#[test]
fn machines_without_an_owner_are_adopted_before_any_is_created() {
    let set = machine_set("set", 3, Some(LEDGER));
    let mut snapshot = snapshot(set.clone(), vec![]);
    let restored = machine("set-old")
        .label("name", "set")
        .with("/spec/providerID", json!("p:///1"))
        .with("/metadata/finalizers", json!(null));
    snapshot.orphans = vec![Arc::new(restored.build())];
    let plan = planned(&snapshot);
    let Step::Confirm(at) = &plan.stages[0][0].step else { panic!("{:?}", plan.stages) };
    assert_eq!(at.uid(), "uid-set", "before anything is taken");
    assert_eq!(steps(&plan).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    let Step::Apply(adopt) = &plan.stages[1][0].step else { panic!("{:?}", plan.stages) };
    assert_eq!(adopt.fragment()["metadata"]["ownerReferences"][0]["uid"], "uid-set");
    assert_eq!(adopt.fragment()["metadata"]["finalizers"], json!(["machine.sapcloud.io/machine-controller-manager"]));
    assert!(adopt.at.version().is_some(), "refused if anybody else was faster");
    // A step that is refused repeatedly must be reported: the confirmation alone is no write.
    let tells = |planned: &Planned<Never>| matches!(&planned.step, Step::Apply(apply) if apply.fragment().get("status").is_some());
    let mut unreported = snapshot.clone();
    Arc::make_mut(&mut unreported.set).status = None;
    assert!(planned(&unreported).steps().any(tells), "the status is written beside an adoption");
    // A set is created without replicas: it would delete Machines that it adopted before it has its size.
    let mut young = machine_set("set", 0, Some(LEDGER));
    let owned = machine("any").owned_by(&machine_set("owner", 1, None)).build();
    young.metadata.owner_references = owned.metadata.owner_references;
    let newborn = Snapshot { set: Arc::new(young.clone()), ..snapshot.clone() };
    assert!(steps(&planned(&newborn)).is_empty());
    assert_eq!(planned(&newborn).waits[0].reason, "SurplusOrphans");
    // A set with its size also adopts surplus Machines, and then deletes them.
    let annotations = young.metadata.annotations.get_or_insert_default();
    annotations.insert("deployment.kubernetes.io/desired-replicas".into(), "0".into());
    let sized = Snapshot { set: Arc::new(young), ..snapshot.clone() };
    assert_eq!(steps(&planned(&sized))[1].len(), 1);
    // Once adopted, it counts.
    let adopted = machine("set-old").label("name", "set").owned_by(&set).build();
    snapshot.orphans.clear();
    snapshot.machines = vec![Arc::new(adopted)];
    assert_eq!(steps(&planned(&snapshot))[0].len(), 2);
}

#[test]
fn negative_replicas_delete_nothing() {
    let mut set = machine_set("set", -1, Some(LEDGER));
    set.spec.replicas = -1;
    let plan = planned(&snapshot(set.clone(), vec![member(&set, 0).build()]));
    assert!(steps(&plan).is_empty());
    assert_eq!(plan.waits[0].reason, "InvalidSpec");
}

#[test]
fn an_own_machine_that_does_not_count_costs_its_name() {
    let set = machine_set("set", 2, Some(LEDGER));
    let unindexed = machine(&index_name(LEDGER, 0)).owned_by(&set).label("name", "set").phase("Running").build();
    assert_eq!(steps(&planned(&snapshot(set, vec![unindexed]))), [[ledger_apply("k7f;0")]]);
}

fn with_failure(snapshot: &Snapshot, class: FailureClass, created: &str) -> Plan {
    let outcomes = Outcomes::default();
    let now: jiff::Timestamp = NOW.parse().unwrap();
    let created = ObjectRef::new(CONTROL, "default", created);
    let failure = Failure::of::<Machine>(StepVerb::Create, created, class, "no");
    let at = Context { attempt: 1, failure: Some(&failure), ..Context::new(now, &outcomes) };
    plan(&at, snapshot)
}

#[test]
fn a_name_that_is_taken_by_what_the_cache_does_not_show_fails() {
    let snapshot = snapshot(machine_set("set", 1, Some(LEDGER)), vec![]);
    let taken = index_name(LEDGER, 0);
    assert_eq!(steps(&with_failure(&snapshot, FailureClass::AlreadyExists, &taken)), [[ledger_apply("k7f;0")]]);
}

#[test]
fn what_is_refused_shows_in_the_status_before_it_is_tried_again() {
    let snapshot = snapshot(machine_set("set", 1, Some(LEDGER)), vec![]);
    let plan = with_failure(&snapshot, FailureClass::Forbidden, "x");
    let Step::Apply(status) = &plan.stages[0][0].step else { panic!("{:?}", plan.stages) };
    assert_eq!(status.fragment()["status"]["machineSetCondition"][0]["type"], "ReplicaFailure");
    assert!(matches!(plan.stages[1][0].step, Step::Create { .. }));
}

#[test]
fn what_is_refused_is_an_event_unless_another_writer_was_faster() {
    let snapshot = snapshot(machine_set("set", 1, Some(LEDGER)), vec![]);
    let events = |class| {
        let plan = with_failure(&snapshot, class, "x");
        plan.events.into_iter().map(|event| (event.reason, event.message)).collect::<Vec<_>>()
    };
    for class in [FailureClass::Forbidden, FailureClass::Invalid, FailureClass::TooManyRequests, FailureClass::Unknown]
    {
        let all = events(class);
        let (_, message) = all.iter().find(|(reason, _)| *reason == "FailedCreate").unwrap();
        assert!(message.starts_with("failed to create Machine default/x: no"), "{message}");
    }
    for class in [FailureClass::Conflict, FailureClass::AlreadyExists] {
        assert!(events(class).iter().all(|(reason, _)| *reason != "FailedCreate"), "{class:?}");
    }
}

#[test]
fn mcm_defect_2_a_set_without_selector_does_nothing() {
    let mut set = machine_set("set", 3, Some(LEDGER));
    set.spec.selector = None;
    let gone = member(&set, 0).deleting().build();
    assert_eq!(
        steps(&planned(&snapshot(set.clone(), vec![gone]))),
        [[ledger_apply("k7f;0")]],
        "but what was deleted is retired"
    );
    let plan = planned(&snapshot(set, vec![]));
    assert!(steps(&plan).is_empty());
    assert_eq!(plan.waits[0].reason, "InvalidSpec");
}

#[test]
fn a_deleted_set_takes_its_machines_along_and_goes_last() {
    let mut set = machine_set("set", 3, Some(LEDGER));
    set.metadata.deletion_timestamp = serde_json::from_value(json!("2026-06-01T11:00:00Z")).unwrap();
    let machines = vec![member(&set, 0).build(), member(&set, 1).build()];
    let plan = planned(&snapshot(set.clone(), machines));
    assert_eq!(steps(&plan)[0], [ledger_apply("k7f;0-1")]);
    assert_eq!(steps(&plan)[1].len(), 2);
    assert_eq!(steps(&planned(&snapshot(set, vec![]))), [["edit set"]]);
}

#[test]
fn machines_that_are_to_be_orphaned_stay() {
    let mut set = machine_set("set", 1, Some(LEDGER));
    set.metadata.deletion_timestamp = serde_json::from_value(json!("2026-06-01T11:00:00Z")).unwrap();
    let machines = vec![member(&set, 0).build()];
    let mut orphaning = set.clone();
    orphaning.metadata.finalizers.get_or_insert_default().push("orphan".to_owned());
    let plan = planned(&snapshot(orphaning, machines.clone()));
    assert!(steps(&plan).is_empty());
    assert_eq!(plan.waits[0].reason, "Orphaning");
    // The cache may show the set without that finalizer before it shows the machines without their owner.
    let plan = planned(&snapshot(set, machines));
    let deletions = plan.steps().filter_map(|planned| match &planned.step {
        Step::Delete(at) => Some(at.version().is_some()),
        _ => None,
    });
    assert_eq!(deletions.collect::<Vec<_>>(), [true], "only what is still as it was seen");
}

#[test]
fn the_template_reaches_living_machines_but_not_their_class_or_what_others_wrote() {
    let mut set = machine_set("set", 1, Some(LEDGER));
    let one = member(&set, 0).annotation("users", "own").with("/spec/providerID", json!("p:///1")).build();
    assert!(steps(&planned(&snapshot(set.clone(), vec![one.clone()]))).is_empty());
    let template = std::sync::Arc::make_mut(&mut set.spec.template.spec.node_template);
    template.metadata.labels = Some([("pool".to_owned(), "a".to_owned())].into());
    set.spec.template.spec.class.name = "other".into();
    let plan = planned(&snapshot(set, vec![one]));
    let Step::Apply(apply) = &plan.stages[0][0].step else { panic!() };
    assert_eq!(apply.fragment()["spec"]["nodeTemplate"]["metadata"]["labels"], json!({"pool": "a"}));
    assert_eq!(apply.fragment()["spec"]["class"]["name"], "class");
    assert_eq!(apply.fragment()["metadata"]["annotations"], json!({"nodewright.dev/index": "0"}));
    assert_eq!(apply.fragment()["spec"].get("providerID"), None);
}

#[test]
fn counts_alone_wait_and_the_final_state_does_not() {
    let set = machine_set("set", 3, Some(LEDGER));
    let snapshot = snapshot(set.clone(), vec![member(&set, 0).build()]);
    let outcomes = Outcomes::default();
    let now: jiff::Timestamp = NOW.parse().unwrap();
    let mut at =
        Context { status_written: Some(now - jiff::SignedDuration::from_millis(500)), ..Context::new(now, &outcomes) };
    let mut known = snapshot.clone();
    let mut with_generation = set;
    with_generation.status = Some(serde_json::from_value(json!({"replicas": 0, "observedGeneration": 1})).unwrap());
    known.set = Arc::new(with_generation);
    let has_status = |plan: &Plan| {
        plan.steps()
            .any(|planned| matches!(&planned.step, Step::Apply(apply) if apply.fragment().get("status").is_some()))
    };
    let paced = plan(&at, &known);
    assert!(!has_status(&paced) && paced.wake.is_some());
    at.status_written = None;
    assert!(has_status(&plan(&at, &known)));
}

#[test]
fn planning_again_on_what_a_plan_leads_to_changes_nothing() {
    let set = machine_set("set", 2, Some(LEDGER));
    let first = planned(&snapshot(set.clone(), vec![]));
    let made: Vec<Machine> = first
        .steps()
        .filter_map(|planned| match &planned.step {
            Step::Create { body, .. } => serde_json::from_value(body.clone()).ok(),
            _ => None,
        })
        .collect();
    assert_eq!(made.len(), 2);
    assert!(made.iter().all(|machine| name(machine).starts_with("set-")));
    assert!(steps(&planned(&snapshot(set, made))).is_empty());
}
