//! Updates in place: what a Machine and its Node get at each step, and what is an answer.

use super::{preserve::Life, *};

const CANDIDATE: &str = "node.machine.sapcloud.io/candidate-for-update";
const SELECTED: &str = "node.machine.sapcloud.io/selected-for-update";
const RESULT: &str = "node.machine.sapcloud.io/update-result";
const REASON: &str = "node.machine.sapcloud.io/update-failed-reason";
const CORDONED: &str = "nodewright.dev/cordoned";

/// A Machine that runs, whose Node is a candidate.
fn candidate() -> Life {
    let mut life = Life::of(linked("Running"), READY);
    life.label(CANDIDATE, Some("true"));
    life.settle();
    life
}

fn selected() -> Life {
    let mut life = candidate();
    life.label(SELECTED, Some("true"));
    life
}

/// One whose Node the program may update.
fn ready() -> Life {
    let mut life = selected();
    life.settle();
    assert_eq!((life.phase(), life.reason()), ("InPlaceUpdating", Some("ReadyForUpdate")));
    life
}

impl Life {
    fn label(&mut self, key: &str, value: Option<&str>) {
        let node = self.node.as_mut().unwrap();
        match value {
            Some(value) => node["metadata"]["labels"][key] = value.into(),
            None => drop(node["metadata"]["labels"].as_object_mut().unwrap().remove(key)),
        }
    }

    fn answers(&mut self, result: &str) -> &mut Self {
        self.label(RESULT, Some(result));
        self
    }

    fn phase(&self) -> &str {
        self.machine["status"]["currentStatus"]["phase"].as_str().unwrap()
    }

    fn reason(&self) -> Option<&str> {
        let all = self.node.as_ref()?["status"]["conditions"].as_array()?;
        all.iter().find(|it| it["type"] == "InPlaceUpdate")?["reason"].as_str()
    }

    fn says(&mut self, reason: &str, since: &str) {
        let condition =
            json!({"type": "InPlaceUpdate", "status": "True", "reason": reason, "lastTransitionTime": since});
        self.node.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap().push(condition);
    }

    fn is_closed(&self) -> bool {
        self.node.as_ref().unwrap()["spec"]["unschedulable"] == true
    }

    fn cordoned(&self) -> Option<&str> {
        self.node.as_ref()?["metadata"]["annotations"][CORDONED].as_str()
    }

    fn turns(&mut self, ready: &str) {
        let all = self.node.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap();
        all.iter_mut().find(|it| it["type"] == "Ready").unwrap()["status"] = ready.into();
    }

    fn passes(&mut self, minutes: i64) {
        self.now += SignedDuration::from_mins(minutes);
    }

    fn operation(&self) -> [&str; 3] {
        ["type", "state", "description"].map(|field| self.machine["status"]["lastOperation"][field].as_str().unwrap())
    }
}

#[test]
fn a_candidate_waits_and_costs_nothing() {
    let mut life = candidate();
    assert_eq!((life.phase(), life.reason(), life.is_closed()), ("Running", None, false));
    assert_eq!(life.settle().0.len(), 0);
    life.label(CANDIDATE, None);
    life.label(SELECTED, Some("true"));
    assert_eq!(life.settle().0.len(), 0, "one that is no candidate is not updated");
}

#[test]
fn a_selected_node_is_drained_and_then_permitted_in_three_writes() {
    let mut life = selected();
    let (writes, events) = life.settle();
    assert_eq!(writes, ["node", "machine status", "node status"]);
    assert_eq!(events, ["InPlaceUpdating: its node is drained, and may be updated in place"]);
    assert_eq!((life.is_closed(), life.cordoned()), (true, Some("true")));
    let description = "Machine m is undergoing an in-place update";
    assert_eq!(life.operation(), ["InPlaceUpdate", "Processing", description]);
    life.turns("Unknown");
    life.passes(19);
    assert_eq!(life.settle().0.len(), 0, "its node reboots");
}

#[test]
fn pods_leave_first() {
    let mut life = selected();
    life.pods = vec![json!({"metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {"nodeName": "n"}})];
    let (writes, _) = life.settle();
    assert_eq!(writes, ["node", "pod", "machine status", "node status"]);
    let mut life = selected();
    life.pods = vec![json!({"metadata": {"name": "a", "namespace": "default", "uid": "u", "deletionTimestamp": NOW},
        "spec": {"nodeName": "n"}})];
    life.settle_writes("node");
    let plan = life.fixture().plan();
    assert!(plan.waits.iter().any(|wait| wait.reason == "PodsLeft"), "{plan}");
    assert!(!plan.forgets_outcomes, "the drain goes by what it was answered about volumes");
    assert_eq!((life.phase(), life.reason()), ("Running", None), "its health counts until then");
}

impl Life {
    /// Carries out one plan.
    fn settle_writes(&mut self, expected: &str) -> Plan {
        let plan = self.fixture().plan();
        let writes: Vec<_> = plan.steps().map(|planned| self.carry_out(&planned.step)).collect();
        assert_eq!(writes, [expected]);
        plan
    }
}

#[test]
fn a_successful_answer_shows_on_the_node_and_then_the_machine_runs() {
    let mut life = ready();
    let (writes, events) = life.answers("successful").settle();
    assert_eq!(writes, ["node status", "machine status"]);
    assert_eq!(events, ["InPlaceUpdateSuccessful: its node was updated in place"]);
    assert_eq!((life.phase(), life.reason()), ("Running", Some("UpdateSuccessful")));
    assert_eq!(life.operation(), ["InPlaceUpdate", "Successful", "Machine m successfully updated dependencies"]);
    let copied = life.machine["status"]["conditions"].as_array().unwrap();
    let copied = copied.iter().find(|it| it["type"] == "InPlaceUpdate").unwrap();
    assert_eq!(copied["reason"], "UpdateSuccessful", "machine-controller-manager moves the machine by that");
    assert!(life.is_closed(), "until it has moved");
}

#[test]
fn one_that_is_not_ready_after_its_update_is_evaluated_by_its_health() {
    let mut life = ready();
    life.turns("False");
    life.answers("successful");
    let plans: Vec<_> = (0..2)
        .flat_map(|_| {
            let plan = life.fixture().plan();
            plan.steps().map(|planned| life.carry_out(&planned.step)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(plans, ["node status", "machine status"]);
    assert_eq!(life.phase(), "InPlaceUpdateSuccessful");
    life.turns("True");
    life.settle();
    assert_eq!(life.phase(), "Running");
}

#[test]
fn a_failure_is_named_and_ends_in_the_replacement_of_the_machine() {
    let mut life = ready();
    life.node.as_mut().unwrap()["metadata"]["annotations"][REASON] = "no space left".into();
    life.answers("failed");
    life.settle_writes("node status");
    let event = life.settle_writes("machine status").events.remove(0).message;
    assert_eq!(life.reason(), Some("UpdateFailed"));
    assert_eq!(life.phase(), "InPlaceUpdateFailed");
    assert!(event.contains("failed to update dependencies: no space left"), "{event}");
    life.passes(11);
    let plan = life.fixture().plan();
    assert!(plan.steps().any(|planned| tell(&planned.step) == "status Failed"), "{plan:?}");
    // Although its node is healthy: machine-controller-manager replaces it, too.
    life.set_phase("Failed", "True");
    assert!(!life.fixture().plan().steps().any(|planned| tell(&planned.step) == "status Running"));
}

#[test]
fn a_program_that_is_asked_again_finds_no_reason_of_its_former_failure() {
    let mut life = ready();
    life.node.as_mut().unwrap()["metadata"]["annotations"][REASON] = "no space left".into();
    life.answers("failed").settle_writes("node status");
    life.settle_writes("machine status");
    life.label(RESULT, None);
    life.settle_writes("machine status");
    assert_eq!(life.phase(), "Running", "its health counts until it is drained");
    life.settle_writes("node");
    assert_eq!(life.node.as_ref().unwrap()["metadata"]["annotations"][REASON], json!(null));
}

#[test]
fn a_node_that_was_updated_and_takes_no_pods_is_named() {
    let mut life = ready();
    life.answers("successful").settle();
    assert!(life.fixture().plan().waits.is_empty());
    let taint = json!([{"key": "node.gardener.cloud/critical-components-not-ready", "effect": "NoSchedule"}]);
    life.node.as_mut().unwrap()["spec"]["taints"] = taint;
    let plan = life.fixture().plan();
    assert_eq!(plan.waits[0].reason, "CriticalComponentsNotReady");
    assert!(plan.waits[0].message.starts_with("node n was updated, and waits until"), "{:?}", plan.waits);
}

#[test]
fn a_second_answer_counts() {
    let mut life = ready();
    for answer in ["failed", "successful", "failed"] {
        life.answers(answer);
        life.settle_writes("node status");
        life.settle_writes("machine status");
        let expected = if answer == "failed" { "InPlaceUpdateFailed" } else { "Running" };
        assert_eq!(life.phase(), expected);
    }
    assert_eq!((life.phase(), life.reason()), ("InPlaceUpdateFailed", Some("UpdateFailed")));
}

#[test]
fn without_an_answer_it_fails_at_the_time_that_is_named() {
    for without_node in [false, true] {
        let mut life = ready();
        let waits = life.fixture().plan().waits;
        assert!(waits[0].message.contains("has failed at 2026-06-01T12:20:00Z"), "{waits:?}");
        if without_node {
            life.node = None;
        }
        life.passes(19);
        assert_eq!(life.fixture().steps(), [""; 0], "{without_node}");
        life.passes(1);
        assert_eq!(life.fixture().steps(), ["status InPlaceUpdateFailed"], "{without_node}");
    }
    let mut own = ready();
    own.machine["spec"]["inPlaceUpdateTimeout"] = "1m".into();
    own.passes(1);
    assert_eq!(own.fixture().steps(), ["status InPlaceUpdateFailed"]);
    own.settle_writes("machine status");
    own.answers("successful").settle();
    assert_eq!(own.phase(), "Running", "a late answer is one");
}

#[test]
fn an_answer_to_an_earlier_question_does_not_count() {
    let mut life = candidate();
    life.answers("successful").settle();
    assert_eq!((life.phase(), life.reason()), ("Running", None), "of a candidate");
    life.label(SELECTED, Some("true"));
    life.settle();
    assert_eq!((life.phase(), life.reason()), ("InPlaceUpdating", Some("ReadyForUpdate")), "it was not asked yet");
    assert_eq!(life.node.as_ref().unwrap()["metadata"]["labels"].get(RESULT), None, "it went with the cordon");
}

#[test]
fn what_a_user_has_cordoned_is_remembered() {
    let mut life = candidate();
    life.node.as_mut().unwrap()["spec"]["unschedulable"] = true.into();
    life.label(SELECTED, Some("true"));
    life.settle();
    assert_eq!((life.cordoned(), life.reason()), (Some("false"), Some("ReadyForUpdate")));
    // machine-controller-manager shows that it drains before it cordons.
    let mut theirs = candidate();
    theirs.node.as_mut().unwrap()["spec"]["unschedulable"] = true.into();
    theirs.label(SELECTED, Some("true"));
    theirs.says("SelectedForUpdate", "2026-06-01T11:59:00Z");
    theirs.settle();
    assert_eq!((theirs.cordoned(), theirs.reason()), (Some("true"), Some("ReadyForUpdate")));
}

#[test]
fn mcm_defect_12_a_drain_that_is_forced_for_an_update_ends() {
    let blocked = || {
        let mut life = selected();
        life.pods =
            vec![json!({"metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {"nodeName": "n"}})];
        life.settle_writes("node");
        life
    };
    let mut late = blocked();
    late.passes(121);
    assert_eq!(late.fixture().steps(), ["delete now Pod default/a"]);
    let mut labelled = blocked();
    labelled.machine["metadata"]["labels"]["force-drain"] = "True".into();
    assert_eq!(labelled.fixture().steps(), ["delete now Pod default/a"]);
    assert_eq!(blocked().fixture().steps(), ["evict Pod default/a"]);
}

#[test]
fn the_update_of_another_manager_is_continued_at_each_step() {
    // The phase was written, and the condition was not.
    let mut phase = selected();
    phase.set_phase("InPlaceUpdating", READY);
    phase.says("SelectedForUpdate", "2026-06-01T11:59:00Z");
    assert_eq!(phase.settle().0, ["node status"]);
    assert_eq!(phase.reason(), Some("ReadyForUpdate"));
    // The condition was written, and the phase was not.
    for reason in ["DrainSuccessful", "ReadyForUpdate"] {
        let mut condition = selected();
        condition.says(reason, "2026-06-01T11:59:00Z");
        condition.settle();
        assert_eq!((condition.phase(), condition.reason()), ("InPlaceUpdating", Some("ReadyForUpdate")), "{reason}");
    }
    let mut answered = selected();
    answered.set_phase("InPlaceUpdating", READY);
    answered.says("ReadyForUpdate", "2026-06-01T11:59:00Z");
    answered.answers("successful").settle();
    assert_eq!((answered.phase(), answered.reason()), ("Running", Some("UpdateSuccessful")));
}

#[test]
fn an_update_that_is_taken_back_leaves_the_machine_to_its_health() {
    let mut life = selected();
    life.set_phase("InPlaceUpdating", READY);
    life.label(SELECTED, None);
    life.label(CANDIDATE, None);
    life.settle();
    assert_eq!(life.phase(), "Running");
    // The permission fails if the label goes in the same moment.
    let mut raced = selected();
    raced.set_phase("InPlaceUpdating", READY);
    let plan = raced.fixture().plan();
    raced.label(SELECTED, None);
    let Step::Edit { patch, .. } = &plan.stages[0][0].step else { panic!("{plan:?}") };
    assert!(nodewright_testing::json_patch(raced.node.as_mut().unwrap(), patch).is_err());
}

#[test]
fn a_permission_that_nobody_took_back_does_not_count_for_the_next_update() {
    let mut life = candidate();
    life.says("ReadyForUpdate", "2026-05-01T11:59:00Z");
    life.settle();
    assert_eq!(life.reason(), Some("CandidateForUpdate"));
    life.label(SELECTED, Some("true"));
    assert_eq!(life.settle().0, ["node", "machine status", "node status"], "it is closed and drained first");
}

#[test]
fn the_time_of_the_program_begins_with_its_permission() {
    let mut life = ready();
    life.machine["status"]["currentStatus"]["lastUpdateTime"] = "2026-06-01T11:00:00Z".into();
    life.passes(19);
    assert_eq!(life.fixture().steps(), [""; 0], "the permission was late");
    life.passes(1);
    assert_eq!(life.fixture().steps(), ["status InPlaceUpdateFailed"]);
}

#[test]
fn a_node_that_is_unhealthy_before_its_update_fails_as_ever() {
    let mut life = selected();
    life.turns("Unknown");
    life.passes(7);
    let plan = life.fixture().plan();
    assert!(plan.waits.iter().any(|wait| wait.reason == "Unhealthy"), "{:?}", plan.waits);
}
