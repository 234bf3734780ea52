//! Preservation: what is asked for, what Machine and Node get, and how it ends.

use nodewright_api::annotations::PRESERVE;

use super::*;

/// A Machine and its Node, which change as plans write them.
pub(super) struct Life {
    pub(super) machine: Value,
    pub(super) node: Option<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) now: Timestamp,
    pub(super) has_set: bool,
}

const LAST: &str = "node.machine.sapcloud.io/last-applied-node-preserve-value";
const SCALE_DOWN: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
const BY_MCM: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";

impl Life {
    pub(super) fn of(machine: MachineBuilder, ready: &str) -> Self {
        let machine = machine.with("/status/currentStatus/lastUpdateTime", "2026-06-01T11:59:20Z");
        let machine = serde_json::to_value(machine.build()).unwrap();
        let mut node = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
        json_patch::merge(&mut node, &synced(ready));
        Self { machine, node: Some(node), pods: vec![], now: at(NOW), has_set: true }
    }

    fn running() -> Self {
        let mut life = Self::of(linked("Running"), READY);
        life.settle();
        life
    }

    fn failed() -> Self {
        Self::of(linked("Failed"), "Unknown")
    }

    fn asks(mut self, value: Option<&str>) -> Self {
        self.annotate_machine(value);
        self
    }

    pub(super) fn annotate_machine(&mut self, value: Option<&str>) {
        self.machine["metadata"]["annotations"][PRESERVE] = value.into();
        if value.is_none() {
            self.machine["metadata"]["annotations"].as_object_mut().unwrap().remove(PRESERVE);
        }
    }

    pub(super) fn annotate_node(&mut self, value: Option<&str>) {
        let node = self.node.as_mut().unwrap();
        match value {
            Some(value) => node["metadata"]["annotations"][PRESERVE] = value.into(),
            None => drop(node["metadata"]["annotations"].as_object_mut().unwrap().remove(PRESERVE)),
        }
    }

    fn by_node(mut self, value: &str) -> Self {
        self.annotate_node(Some(value));
        self
    }

    pub(super) fn fixture(&self) -> Fixture {
        let mut fixture = fixture(machine("m"));
        fixture.snapshot.machine = Arc::new(serde_json::from_value(self.machine.clone()).unwrap());
        fixture.snapshot.claim = Claim { vm: Vm::Proven, ..Claim::default() };
        fixture.snapshot.node = self.node.as_ref().map(|node| Arc::new(serde_json::from_value(node.clone()).unwrap()));
        fixture.now = self.now;
        let fixture = if self.has_set { fixture.set(machine_set("set", 1, None)) } else { fixture };
        fixture.pods(&self.pods)
    }

    /// Carries out what is planned until nothing is left to do, and says what was written, and which events there were.
    pub(super) fn settle(&mut self) -> (Vec<&'static str>, Vec<String>) {
        let (mut writes, mut events) = (vec![], vec![]);
        for _ in 0..9 {
            let plan = self.fixture().plan();
            events.extend(plan.events.iter().map(|event| format!("{}: {}", event.reason, event.message)));
            if plan.is_idle() {
                return (writes, events);
            }
            for planned in plan.steps() {
                writes.push(self.carry_out(&planned.step));
            }
        }
        panic!("it does not settle: {writes:?}");
    }

    pub(super) fn carry_out(&mut self, step: &Step<Call>) -> &'static str {
        match step {
            Step::Apply(apply) => {
                self.machine["status"] = apply.fragment()["status"].clone();
                "machine status"
            }
            Step::Edit { at, subresource, patch, .. } if at.key().cluster == TARGET => {
                let node = self.node.as_mut().unwrap();
                let spec = node["spec"].clone();
                nodewright_testing::json_patch(node, patch).unwrap();
                assert!(subresource.is_empty() || node["spec"] == spec, "a status changes no spec");
                // As an API server stores it.
                if node["spec"]["taints"] == json!([]) {
                    node["spec"].as_object_mut().unwrap().remove("taints");
                }
                if subresource.is_empty() { "node" } else { "node status" }
            }
            Step::Edit { patch, .. } => {
                nodewright_testing::json_patch(&mut self.machine, patch).unwrap();
                "machine"
            }
            Step::Evict(_) | Step::DeleteNow(_) | Step::Delete(_) => {
                self.pods.clear();
                "pod"
            }
            other => panic!("{other}"),
        }
    }

    pub(super) fn expiry(&self) -> Option<&str> {
        self.machine["status"]["currentStatus"]["preserveExpiryTime"].as_str()
    }

    pub(super) fn set_phase(&mut self, phase: &str, ready: &str) {
        self.machine["status"]["currentStatus"]["phase"] = phase.into();
        self.machine["status"]["currentStatus"]["lastUpdateTime"] = self.now.to_string().into();
        let all = self.node.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap();
        all.iter_mut().find(|it| it["type"] == "Ready").unwrap()["status"] = ready.into();
    }

    /// Status, reason and message of the Node's condition; whether it has the taint; and the annotations for the autoscaler.
    pub(super) fn marks(&self) -> (Option<[&str; 3]>, bool, [Option<&str>; 2]) {
        let node = self.node.as_ref().unwrap();
        let condition = node["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["type"] == "Preserved")
            .map(|it| ["status", "reason", "message"].map(|field| it[field].as_str().unwrap_or_default()));
        let taints = node["spec"]["taints"].as_array();
        let is_tainted =
            taints.is_some_and(|all| all.iter().any(|it| it["key"] == "node.machine.sapcloud.io/preserved"));
        let annotations = [SCALE_DOWN, BY_MCM].map(|key| node["metadata"]["annotations"][key].as_str());
        (condition, is_tainted, annotations)
    }

    pub(super) fn requests(&self) -> [Option<&str>; 3] {
        let own = |key: &str| self.machine["metadata"]["annotations"][key].as_str();
        let node = self.node.as_ref().and_then(|node| node["metadata"]["annotations"][PRESERVE].as_str());
        [own(PRESERVE), own(LAST), node]
    }
}

const SET: [Option<&str>; 2] = [Some("true"), Some("true")];
const NONE: [Option<&str>; 2] = [None, None];
const STOPPED: Option<[&str; 3]> = Some(["False", "Preservation stopped.", ""]);
const DRAINED: &str = "Preserved node drained successfully. Machine preserved until 2026-06-05T12:00:00Z.";

#[test]
fn a_running_machine_is_preserved_from_now_on_and_the_autoscaler_kept_off() {
    let mut life = Life::running().asks(Some("now"));
    let (writes, events) = life.settle();
    assert_eq!(writes, ["machine status", "node status", "machine status"], "the last copies the condition");
    assert_eq!(events, ["Preserved: the machine is preserved until 2026-06-05T12:00:00Z: its set deletes it last"]);
    assert_eq!(life.expiry(), Some("2026-06-05T12:00:00Z"));
    let condition = ["True", "Preserved by user.", "Machine preserved until 2026-06-05T12:00:00Z."];
    assert_eq!(life.marks(), (Some(condition), false, SET), "it is neither tainted nor drained");
    life.now += SignedDuration::from_hours(96);
    let (writes, events) = life.settle();
    assert_eq!(writes, ["node status", "machine", "machine status"]);
    assert_eq!(events, ["PreservationEnded: the machine is no longer preserved: its time is over"]);
    assert_eq!((life.expiry(), life.marks(), life.requests()), (None, (STOPPED, false, NONE), [None; 3]));
}

#[test]
fn a_failed_machine_is_tainted_and_drained_and_its_vm_stays() {
    for (asks, reason) in
        [("now", "Preserved by user."), ("when-failed", "Preserved by user."), ("auto-preserved", "Preserved by MCM.")]
    {
        let mut life = Life::failed().asks(Some(asks));
        life.pods = vec![json!({"metadata": {"name": "p", "namespace": "a", "uid": "u"}, "spec": {"nodeName": "n"}})];
        let (writes, events) = life.settle();
        assert_eq!(writes, ["machine status", "node", "pod", "node status"], "{asks}");
        assert_eq!(life.marks(), (Some(["True", reason, DRAINED]), true, SET), "{asks}");
        let text = "Preserved: the failed machine is kept for diagnosis until 2026-06-05T12:00:00Z, and replaced then (annotation \
                    node.machine.sapcloud.io/preserve: `false` ends it)";
        assert_eq!(events[0], text, "{asks}");
    }
}

#[test]
fn a_machine_that_has_not_failed_is_preserved_only_if_asked_for_now() {
    for (asks, kept) in [
        (None, None),
        (Some("when-failed"), Some("when-failed")),
        (Some("auto-preserved"), None),
        (Some("false"), Some("false")),
        (Some("yes"), Some("yes")),
    ] {
        let mut life = Life::running().asks(asks);
        let (_, events) = life.settle();
        assert_eq!((life.expiry(), life.requests()[0], life.marks()), (None, kept, (None, false, NONE)), "{asks:?}");
        assert!(events.is_empty(), "{events:?}");
    }
}

#[test]
fn the_annotation_of_the_node_counts_and_its_removal_ends_it() {
    let mut life = Life::failed().asks(Some("false")).by_node("when-failed");
    let (writes, _) = life.settle();
    assert_eq!(writes, ["machine", "machine status", "node", "node status"]);
    assert_eq!(life.requests(), [None, Some("when-failed"), Some("when-failed")]);
    assert!(life.expiry().is_some());
    life.annotate_node(None);
    let (writes, _) = life.settle();
    assert_eq!(writes, ["node status", "machine", "machine status"]);
    assert_eq!((life.expiry(), life.requests()), (None, [None; 3]));
    assert_eq!(life.marks(), (STOPPED, true, NONE), "no pod comes back to a node that is about to go");
}

#[test]
fn false_ends_it_wherever_it_stands_and_whoever_began_it() {
    for by_node in [false, true] {
        let mut life = Life::failed().asks(Some("auto-preserved"));
        life.settle();
        if by_node {
            life.annotate_node(Some("false"));
        } else {
            life.annotate_machine(Some("false"));
        }
        let (writes, _) = life.settle();
        assert_eq!((life.expiry(), life.marks()), (None, (STOPPED, true, NONE)), "by the node: {by_node}");
        assert!(writes.len() <= 3, "{writes:?}");
        assert_eq!(life.fixture().plan().waits[0].reason, "Failed", "its set replaces it");
    }
}

#[test]
fn a_value_of_the_node_that_is_none_changes_nothing_and_says_so() {
    let mut life = Life::running().asks(Some("now"));
    life.settle();
    let before = (life.machine.clone(), life.marks().0.map(|it| it.map(str::to_owned)));
    life.annotate_node(Some("Now"));
    let plan = life.fixture().plan();
    assert!(plan.is_idle());
    assert_eq!(
        plan.events[0].message,
        "node n, annotation node.machine.sapcloud.io/preserve: \"Now\" has no effect; valid values are now, when-failed, \
         auto-preserved, false"
    );
    assert_eq!((life.machine.clone(), life.marks().0.map(|it| it.map(str::to_owned))), before);
}

#[test]
fn a_machine_that_recovers_takes_pods_again_and_only_now_lasts() {
    for (asks, lasts) in [("now", true), ("when-failed", false), ("auto-preserved", false)] {
        let mut life = Life::failed().asks(Some(asks));
        life.settle();
        life.set_phase("Running", READY);
        let (writes, _) = life.settle();
        let condition = ["True", "Preserved by user.", "Machine preserved until 2026-06-05T12:00:00Z."];
        let marks = if lasts { (Some(condition), false, SET) } else { (STOPPED, false, NONE) };
        assert_eq!((life.expiry().is_some(), life.marks()), (lasts, marks), "{asks}: {writes:?}");
        let kept = if asks == "auto-preserved" { None } else { Some(asks) };
        assert_eq!(life.requests()[0], kept, "{asks}");
        life.set_phase("Failed", "Unknown");
        life.settle();
        let drained = life.marks().0.is_some_and(|it| it[2].starts_with("Preserved node drained"));
        assert_eq!(drained, asks != "auto-preserved", "{asks}: it is drained again");
    }
}

#[test]
fn a_cordon_of_former_versions_of_mcm_ends_with_the_failure() {
    let mut life = Life::failed().asks(Some("now"));
    life.settle();
    let spec = &mut life.node.as_mut().unwrap()["spec"];
    (spec["taints"], spec["unschedulable"]) = (json!(null), json!(true));
    let is_cordoned = |life: &Life| life.node.as_ref().unwrap()["spec"]["unschedulable"] == true;
    let mut failed = Life { machine: life.machine.clone(), node: life.node.clone(), ..Life::failed() };
    failed.settle();
    assert!(is_cordoned(&failed), "it has still failed");
    life.set_phase("Running", READY);
    life.settle();
    assert!(!is_cordoned(&life));
    life.node.as_mut().unwrap()["spec"]["unschedulable"] = json!(true);
    life.settle();
    assert!(is_cordoned(&life), "that is a user's");
}

#[test]
fn marks_of_others_stay() {
    let mut life = Life::running().asks(Some("now"));
    life.node.as_mut().unwrap()["metadata"]["annotations"][SCALE_DOWN] = "true".into();
    life.settle();
    assert_eq!(life.marks().2, [Some("true"), None], "a user has set it");
    life.annotate_machine(Some("false"));
    life.settle();
    assert_eq!(life.marks().2, [Some("true"), None]);
    let mut rolled = Life::running().asks(Some("now"));
    rolled.settle();
    let taint = json!([{"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "value": "True", "effect": "PreferNoSchedule"}]);
    rolled.node.as_mut().unwrap()["spec"]["taints"] = taint.clone();
    rolled.annotate_machine(Some("false"));
    rolled.settle();
    assert_eq!(rolled.marks().2, SET, "the rollout needs them");
    assert_eq!(rolled.node.as_ref().unwrap()["spec"]["taints"], taint);
}

#[test]
fn a_machine_without_a_node_is_preserved_too_and_keeps_what_its_node_had() {
    let mut life = Life::failed().by_node("now");
    life.settle();
    life.node = None;
    assert_eq!(life.settle().0, Vec::<&str>::new(), "the node is gone: it is still asked for");
    assert!(life.expiry().is_some());
    let mut life = Life { node: None, ..Life::failed().asks(Some("now")) };
    assert_eq!(life.settle().0, ["machine status"]);
    life.now += SignedDuration::from_hours(96);
    assert_eq!(life.settle().0, ["machine", "machine status"]);
    assert_eq!(life.expiry(), None);
}

#[test]
fn the_time_of_the_machine_comes_first_and_a_time_that_is_set_stays() {
    let own = linked("Failed").with("/spec/machinePreserveTimeout", "2h");
    let mut life = Life::of(own, "Unknown").asks(Some("now"));
    life.settle();
    assert_eq!(life.expiry(), Some("2026-06-01T14:00:00Z"));
    life.machine["status"]["currentStatus"]["preserveExpiryTime"] = "2026-06-03T00:00:00Z".into();
    life.now += SignedDuration::from_hours(3);
    life.settle();
    assert_eq!(life.expiry(), Some("2026-06-03T00:00:00Z"), "an operator gives it more time");
    let text = "Preserved node drained successfully. Machine preserved until 2026-06-03T00:00:00Z.";
    assert_eq!(life.marks().0, Some(["True", "Preserved by user.", text]));
}

#[test]
fn the_label_and_the_drain_timeout_force_the_drain_and_the_vm_stays() {
    let pod = || json!({"metadata": {"name": "p", "namespace": "a", "uid": "u"}, "spec": {"nodeName": "n"}});
    let evicts = |life: &Life| life.fixture().plan().steps().map(|it| tell(&it.step)).collect::<Vec<_>>();
    let drained = |mut life: Life| {
        life.settle();
        let node = life.node.as_mut().unwrap();
        node["status"]["conditions"].as_array_mut().unwrap().retain(|it| it["type"] != "Preserved");
        life.pods = vec![pod()];
        life
    };
    let life = drained(Life::failed().asks(Some("now")));
    assert_eq!(evicts(&life), ["evict Pod a/p"]);
    let forced = Life::of(linked("Failed").label("force-drain", "True"), "Unknown").asks(Some("now"));
    assert_eq!(evicts(&drained(forced)), ["delete now Pod a/p"]);
    let late = Life { now: at(NOW) + SignedDuration::from_hours(3), ..life };
    assert_eq!(evicts(&late), ["delete now Pod a/p"]);
}

#[test]
fn a_node_that_refuses_its_marks_delays_no_check_of_its_health() {
    let mut life = Life::running().asks(Some("now"));
    let writes = life.fixture().plan().steps().map(|it| tell(&it.step)).collect::<Vec<_>>();
    assert_eq!(writes, ["status Running"], "the time comes first");
    let status = status_of(&life.fixture().plan());
    life.machine["status"] = status;
    life.set_phase("Running", "Unknown");
    let mut fixture = life.fixture();
    fixture.now += SignedDuration::from_mins(9);
    fixture.notes = BTreeMap::from([(Note::Unhealthy, life.now)]);
    let steps = fixture.plan().steps().map(|it| tell(&it.step)).collect::<Vec<_>>();
    assert_eq!(steps[0], "status Unknown", "{steps:?}");
    assert_eq!(steps.len(), 2, "and the marks beside it: {steps:?}");
    assert_eq!(fixture.plan().stages.len(), 1);
}
