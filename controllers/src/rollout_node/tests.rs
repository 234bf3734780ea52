//! The marks on Nodes while a rollout lasts.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use nodewright_api::{Machine, MachineDeployment, MachineSet, machine_config::MachineConfigPool, stored::Claim};
use nodewright_runtime::{
    cache::{Change, Store, Stores},
    controller::Controller,
    effect::{Never, Outcomes},
    object::ObjectRef,
    plan::{Context, Plan, Step},
};
use serde_json::{Value, json};

use super::{
    RolloutNodeController,
    decision::{Decision, Selection, decide, is_due},
    has_moved,
    snapshot::Snapshot,
};
use crate::{
    shared::{
        CONTROL, TARGET,
        disruption::{DisruptionDecision, SharedBudget},
        indexes::{DEPLOYMENT_BY_UID, MACHINE_BY_NODE, NODES_BY_ROLES, SET_BY_UID},
        node::Node,
        ownership::NodeProof,
    },
    testing::{MachineBuilder, MachineExt, NOW, answer, machine, machine_deployment, machine_set, rolling},
};

const DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
const BY_US: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm";

/// A deployment of class `v1`, its set of this class, one Machine and its Node.
struct Fixture {
    deployment: Value,
    class: &'static str,
    machine: MachineBuilder,
    node: Value,
    annotates: bool,
    /// The class of another set that lists a Machine as one that is being updated.
    listed_by: Option<&'static str>,
    /// The Machine that it lists.
    listed: &'static str,
    /// The replicas of a set of a former template: those that it is to have, and those that it has.
    former: Option<[i32; 2]>,
    proof: NodeProof,
    /// The claims of the pool that the Node is of, if it is of one.
    claims: Option<Value>,
}

impl Fixture {
    fn of(class: &'static str) -> Self {
        let proof = json!([{"type": "InstanceProvisioned", "status": "True", "reason": "Provisioned", "message": "x:///i-1"},
            {"type": "NodeJoined", "status": "True", "reason": "Joined", "message": "n"}]);
        let machine =
            machine("m").label("node", "n").with("/spec/providerID", "x:///i-1").with("/status/conditions", proof);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "5"},
            "spec": {"providerID": "x:///i-1", "taints": [{"key": "theirs", "effect": "NoSchedule"}]}});
        Self {
            deployment: machine_deployment(3, &rolling(1, 0)),
            class,
            machine,
            node,
            annotates: true,
            listed_by: None,
            listed: "m",
            former: None,
            proof: NodeProof::Here,
            claims: None,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let deployment: MachineDeployment = serde_json::from_value(self.deployment.clone()).unwrap();
        let mut set = serde_json::to_value(machine_set("set", 3, None)).unwrap();
        set["spec"]["template"] = self.deployment["spec"]["template"].clone();
        set["spec"]["template"]["spec"]["class"]["name"] = self.class.into();
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "MachineDeployment", "name": "pool",
            "uid": "uid-pool", "controller": true}]);
        let set: MachineSet = serde_json::from_value(set).unwrap();
        let machine = self.machine.clone().owned_by(&set).build();
        let node: Node = serde_json::from_value(self.node.clone()).unwrap();
        let machines = Store::<Machine>::new(CONTROL, "default");
        machines.add_index(MACHINE_BY_NODE);
        machines.apply(machine);
        let sets = Store::<MachineSet>::new(CONTROL, "default");
        sets.add_index(SET_BY_UID);
        if let Some(class) = self.listed_by {
            let mut other = serde_json::to_value(&set).unwrap();
            other["metadata"]["name"] = "other".into();
            other["metadata"]["uid"] = "uid-other".into();
            other["metadata"]["annotations"]["nodewright.dev/updating"] = self.listed.into();
            other["spec"]["template"]["spec"]["class"]["name"] = class.into();
            sets.apply(serde_json::from_value(other).unwrap());
        }
        if let Some([wanted, left]) = self.former {
            let mut former = serde_json::to_value(&set).unwrap();
            former["metadata"]["name"] = "former".into();
            former["metadata"]["uid"] = "uid-former".into();
            former["spec"]["replicas"] = wanted.into();
            former["status"]["replicas"] = left.into();
            former["spec"]["template"]["spec"]["class"]["name"] = "former".into();
            sets.apply(serde_json::from_value(former).unwrap());
        }
        sets.apply(set);
        let deployments = Store::<MachineDeployment>::new(CONTROL, "default");
        deployments.add_index(DEPLOYMENT_BY_UID);
        deployments.apply(deployment);
        let nodes = Store::<Node>::new(TARGET, "");
        nodes.add_index(NODES_BY_ROLES);
        nodes.apply(node);
        let stores = Stores::default();
        stores.add(Arc::new(nodes));
        if let Some(claims) = &self.claims {
            stores.add(Arc::new(Self::pool(claims)));
            let leases = Arc::new(Store::<Lease>::new(TARGET, ""));
            answer(&leases, None);
            stores.add_scoped(&SharedBudget::watch(), leases);
        }
        stores.add(Arc::new(machines));
        stores.add(Arc::new(sets));
        stores.add(Arc::new(deployments));
        let controller = RolloutNodeController {
            namespace: "default".into(),
            annotates: self.annotates,
            proof: self.proof,
            has_pools: true,
        };
        controller.snapshot(&stores, &ObjectRef::new(TARGET, "", "n")).unwrap()
    }

    fn plan(&self) -> Plan<Never> {
        let snapshot = self.snapshot();
        let plan = RolloutNodeController::plan(&Context::new(NOW.parse().unwrap(), &Outcomes::default()), &snapshot);
        // A change wakes the controller only if its plan has steps.
        assert_eq!(is_due(&snapshot), !plan.is_idle(), "{plan:?}");
        plan
    }

    /// A pool with these claims, and a budget of one.
    fn pool(claims: &Value) -> Store<MachineConfigPool> {
        let pool = json!({"metadata": {"name": "worker", "uid": "uid-pool", "resourceVersion": "5",
            "annotations": {"nodewright.dev/disruptions": claims.to_string()}},
            "spec": {"nodeSelector": {"matchLabels": {"node-role.kubernetes.io/worker": ""}}}});
        let pools = Store::new(TARGET, "");
        pools.apply(serde_json::from_value(pool).unwrap());
        pools
    }

    /// Executes the plan. Returns whether there was anything to do.
    fn act(&mut self) -> bool {
        let plan = self.plan();
        for planned in plan.steps() {
            let Step::Edit { patch, .. } = &planned.step else { panic!("{planned:?}") };
            nodewright_testing::json_patch(&mut self.node, patch).unwrap();
        }
        !plan.is_idle()
    }

    fn marks(&self) -> (bool, Option<&str>, Option<&str>) {
        let taints = self.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = json!({"key": "deployment.machine.sapcloud.io/prefer-no-schedule", "value": "True",
            "effect": "PreferNoSchedule"});
        assert_eq!(taints[0]["key"], "theirs", "those of others stay");
        let annotation = |key: &str| self.node["metadata"]["annotations"][key].as_str();
        (taints.contains(&ours), annotation(DISABLED), annotation(BY_US))
    }
}

#[test]
fn a_node_of_a_former_template_has_the_marks_while_the_rollout_lasts() {
    let mut fixture = Fixture::of("former");
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (true, Some("true"), Some("true")));
    assert!(!fixture.act(), "once");
    fixture.class = "v1";
    assert!(fixture.act(), "the template is restored");
    assert_eq!(fixture.marks(), (false, None, None));
    assert!(!fixture.act());
}

#[test]
fn no_marks_without_a_rollout() {
    let of = |change: fn(&mut Fixture)| {
        let mut fixture = Fixture::of("former");
        change(&mut fixture);
        fixture.act();
        let (taint, disabled, by_us) = fixture.marks();
        (taint, disabled.is_some(), by_us.is_some())
    };
    let none = (false, false, false);
    assert_eq!(of(|fixture| fixture.class = "v1"), none, "the present template");
    assert_eq!(of(|fixture| fixture.deployment["spec"]["paused"] = true.into()), none, "paused");
    assert_eq!(of(|fixture| fixture.deployment["spec"]["strategy"] = json!({"type": "Recreate"})), none);
    assert_eq!(of(|fixture| fixture.machine = fixture.machine.clone().deleting()), none, "it goes anyway");
    assert_eq!(of(|fixture| fixture.node["spec"]["providerID"] = "x:///i-2".into()), none, "the node of another VM");
    assert_eq!(of(|fixture| fixture.annotates = false), (true, false, false));
}

const CANDIDATE: &str = "node.machine.sapcloud.io/candidate-for-update";
const SELECTED: &str = "node.machine.sapcloud.io/selected-for-update";
const RESULT: &str = "node.machine.sapcloud.io/update-result";
const CORDONED: &str = "nodewright.dev/cordoned";
const CRITICAL: &str = "node.gardener.cloud/critical-components-not-ready";

impl Fixture {
    /// The Node of a Machine of a former template that is to be updated in place.
    fn in_place(class: &'static str) -> Self {
        let mut fixture = Self::of(class);
        let bounds = json!({"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Auto"});
        fixture.deployment["spec"]["strategy"] = json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds});
        fixture
    }

    fn listed(mut self, by: &'static str) -> Self {
        self.listed_by = Some(by);
        self
    }

    /// Another Machine is being updated already.
    fn begun(self) -> Self {
        Self { listed: "another", ..self.listed("v1") }
    }

    fn with(mut self, labels: &[(&str, &str)], reason: Option<&str>, unschedulable: bool) -> Self {
        for (key, value) in labels {
            self.node["metadata"]["labels"][*key] = (*value).into();
        }
        let condition = reason.map(|reason| json!({"type": "InPlaceUpdate", "status": "True", "reason": reason}));
        self.node["status"]["conditions"] = condition.into_iter().collect();
        if unschedulable {
            self.node["spec"]["unschedulable"] = true.into();
        }
        self
    }

    /// The labels of the update by their last words, whether the Node is closed to Pods, and the mark that says by whom.
    fn update(&self) -> (Vec<&'static str>, bool, Option<&str>) {
        let labels = &self.node["metadata"]["labels"];
        let all = [(CANDIDATE, "candidate"), (SELECTED, "selected"), (RESULT, "result")];
        let present = all.into_iter().filter(|(key, _)| labels[*key].is_string()).map(|(_, word)| word).collect();
        let mark = self.node["metadata"]["annotations"][CORDONED].as_str();
        (present, self.node["spec"]["unschedulable"] == true, mark)
    }

    fn has_taint(&self, key: &str) -> bool {
        self.node["spec"]["taints"].as_array().unwrap().iter().any(|taint| taint["key"] == key)
    }
}

const UPDATED: [(&str, &str); 3] = [(CANDIDATE, "true"), (SELECTED, "true"), (RESULT, "successful")];

#[test]
fn a_candidate_gets_its_label_with_the_marks_and_a_listed_one_is_selected_and_closed() {
    assert!(!Fixture::in_place("former").act(), "it may be selected at once");
    let mut candidate = Fixture::in_place("former").begun();
    assert!(candidate.act());
    assert_eq!(candidate.marks(), (true, Some("true"), Some("true")));
    assert_eq!(candidate.update(), (vec!["candidate"], false, None));
    assert!(!candidate.act());
    let mut listed = Fixture { listed: "m", ..candidate };
    assert!(listed.act());
    assert_eq!(listed.update(), (vec!["candidate", "selected"], true, Some("true")));
    assert!(!listed.act());
    let mut closed = Fixture::in_place("former").listed("v1").with(&[], None, true);
    closed.act();
    assert_eq!(closed.update(), (vec!["candidate", "selected"], true, Some("false")), "a user had cordoned it");
}

#[test]
fn an_answer_of_an_earlier_update_goes_before_the_program_is_asked() {
    for listed in ["another", "m"] {
        let mut fixture = Fixture::in_place("former").with(&[(RESULT, "successful")], Some("UpdateSuccessful"), false);
        fixture = Fixture { listed, ..fixture.begun() };
        fixture.act();
        assert!(!fixture.update().0.contains(&"result"), "{listed}");
    }
}

#[test]
fn what_a_user_or_another_manager_has_selected_stays_selected() {
    let labels = [(CANDIDATE, "true"), (SELECTED, "true")];
    let mut fixture = Fixture::in_place("former").with(&labels, None, false);
    fixture.act();
    assert_eq!(fixture.update(), (vec!["candidate", "selected"], false, None), "the machine controller closes it");
    assert!(!fixture.act());
}

#[test]
fn what_a_user_no_longer_selects_is_opened_again_and_not_selected_for_the_list() {
    let mut fixture = Fixture::in_place("former").listed("v1").with(&[(CANDIDATE, "true")], None, true);
    fixture.deployment["spec"]["strategy"]["inPlaceUpdate"]["orchestrationType"] = "Manual".into();
    fixture.node["metadata"]["annotations"] = json!({CORDONED: "true", "nodewright.dev/update-began": NOW});
    assert!(fixture.act());
    assert_eq!(fixture.update(), (vec!["candidate"], false, None));
    assert!(!fixture.act());
    let mut closed = Fixture::in_place("former").with(&[(CANDIDATE, "true")], None, true);
    closed.node["metadata"]["annotations"] = json!({CORDONED: "false", "nodewright.dev/update-began": NOW});
    closed.act();
    assert_eq!(closed.update(), (vec!["candidate"], true, None), "a user had cordoned it");
}

#[test]
fn an_update_is_taken_back_until_it_is_permitted() {
    let labels = [(CANDIDATE, "true"), (SELECTED, "true")];
    let selected = |class, reason| {
        let mut fixture = Fixture::in_place(class).with(&labels, reason, true);
        fixture.node["metadata"]["annotations"] = json!({CORDONED: "true", "nodewright.dev/update-began": NOW});
        fixture
    };
    let mut back = selected("v1", None);
    assert!(back.act(), "the template is restored");
    assert_eq!(back.update(), (vec![], false, None));
    let mut other = selected("former", None).listed("older");
    assert!(other.act(), "it was selected for a template that is a former one itself");
    assert_eq!(other.update(), (vec![], false, None));
    let mut begun = selected("v1", Some("ReadyForUpdate"));
    assert!(!begun.act());
    let mut updating = selected("v1", None);
    updating.machine = updating.machine.phase("InPlaceUpdating");
    assert!(!updating.act());
    let mut theirs = selected("v1", None);
    theirs.node["metadata"]["annotations"][CORDONED] = "false".into();
    theirs.act();
    assert_eq!(theirs.update(), (vec![], true, None), "it was closed before");
    let raced = selected("v1", None);
    let plan = raced.plan();
    let Step::Edit { patch, .. } = &plan.stages[0][0].step else { panic!() };
    let mut node = raced.node.clone();
    node["metadata"]["resourceVersion"] = "6".into();
    assert!(nodewright_testing::json_patch(&mut node, patch).is_err(), "the permission may be there");
}

#[test]
fn the_node_of_a_machine_that_has_moved_is_opened_and_waits_for_its_critical_components() {
    let finished = |class, moved: bool, mark: Option<&str>| {
        let mut fixture = Fixture::in_place(class).with(&UPDATED, Some("UpdateSuccessful"), true);
        if moved {
            fixture.machine = fixture.machine.label(RESULT, "successful");
        }
        if let Some(mark) = mark {
            fixture.node["metadata"]["annotations"] = json!({CORDONED: mark, "nodewright.dev/update-began": NOW});
        }
        fixture
    };
    let mut waits = finished("former", false, Some("true"));
    assert!(!waits.act(), "its machine has yet to move");
    for (moved, mark) in [(true, Some("true")), (false, Some("true")), (false, None)] {
        let mut fixture = finished("v1", moved, mark);
        assert!(fixture.act());
        assert_eq!(fixture.update(), (vec![], false, None), "{moved} {mark:?}");
        assert!(fixture.has_taint(CRITICAL));
        assert!(!fixture.act());
    }
    let mut kept = finished("v1", true, Some("false"));
    kept.act();
    assert_eq!(kept.update(), (vec![], true, None), "a user had cordoned it");
    let mut behind = finished("former", true, Some("true"));
    assert!(behind.act() && behind.update().0.is_empty());
    behind.machine = behind.machine.label("other", "label");
    behind = behind.begun();
    assert!(behind.act(), "it is of a former template again");
    assert_eq!((behind.update().0, behind.marks().0), (vec!["candidate"], true));
}

#[test]
fn what_machine_controller_manager_leaves_of_our_update_goes() {
    let mut fixture = Fixture::in_place("v1").with(&[], Some("UpdateSuccessful"), false);
    fixture.node["metadata"]["annotations"] = json!({CORDONED: "true", "nodewright.dev/update-began": NOW, "a": "b"});
    assert!(fixture.act());
    assert_eq!(fixture.node["metadata"]["annotations"], json!({"a": "b"}));
}

#[test]
fn where_another_manager_has_provisioned_the_machine_its_claim_counts() {
    let of = |proof, change: fn(&mut Fixture)| {
        let mut fixture = Fixture { proof, ..Fixture::of("former") };
        fixture.machine = fixture.machine.with("/status/conditions", json!([])).phase("Running");
        change(&mut fixture);
        fixture.act()
    };
    assert!(of(NodeProof::Elsewhere, |_| {}));
    assert!(!of(NodeProof::Here, |_| {}), "ours has yet to prove it");
    assert!(!of(NodeProof::Elsewhere, |it| it.machine = it.machine.clone().phase("")), "nobody has provisioned it");
    assert!(
        !of(NodeProof::Elsewhere, |it| it.machine = it.machine.clone().label("node", "m")),
        "it names another node"
    );
    assert!(!of(NodeProof::Elsewhere, |it| it.node["spec"]["providerID"] = "x:///i-2".into()));
}

#[test]
fn what_others_tell_the_autoscaler_stays() {
    let mut fixture = Fixture::of("former");
    fixture.node["metadata"]["annotations"] = json!({DISABLED: "true"});
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (true, Some("true"), None));
    fixture.class = "v1";
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (false, Some("true"), None));

    let mut preserved = Fixture::of("former");
    preserved.act();
    preserved.class = "v1";
    let until = "2026-06-05T12:00:00Z";
    preserved.machine = preserved.machine.clone().with("/status/currentStatus/preserveExpiryTime", until);
    preserved.act();
    assert_eq!(preserved.marks(), (false, Some("true"), Some("true")), "its preservation needs them");
}

#[test]
fn a_taint_that_another_writer_adds_meanwhile_is_not_lost() {
    let mut fixture = Fixture::of("former");
    let plan = fixture.plan();
    fixture.node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "new", "effect": "NoSchedule"}));
    let Step::Edit { patch, .. } = &plan.stages[0][0].step else { panic!() };
    assert!(nodewright_testing::json_patch(&mut fixture.node, patch).is_err());
}

#[test]
fn the_autoscaler_leaves_all_nodes_of_a_rollout_alone() {
    let mut fixture = Fixture { former: Some([2, 2]), ..Fixture::of("v1") };
    assert!(!fixture.act(), "the machine controller has yet to write the node");
    fixture.node["metadata"]["finalizers"] = json!([nodewright_api::finalizers::NODE]);
    assert!(fixture.act());
    assert_eq!(fixture.marks(), (false, Some("true"), Some("true")), "no taint: it is of the present template");
    assert!(!fixture.act());
    fixture.former = Some([0, 1]);
    assert!(!fixture.act(), "the last machine of the former template is being drained");
    fixture.former = Some([0, 0]);
    assert!(fixture.act(), "the rollout is over");
    assert_eq!(fixture.marks(), (false, None, None));

    // Not by this flag, not while the rollout is paused, and not if it replaces no Nodes.
    let node = fixture.node;
    let rolled = || Fixture { former: Some([2, 2]), node: node.clone(), ..Fixture::of("v1") };
    let (mut off, mut paused, mut in_place) = (Fixture { annotates: false, ..rolled() }, rolled(), rolled());
    let mut preserved = rolled();
    preserved.machine = preserved.machine.preserved_until("2026-06-05T12:00:00Z");
    assert!(!preserved.act(), "its preservation has them, and removes them when it ends");
    paused.deployment["spec"]["paused"] = true.into();
    in_place.deployment["spec"]["strategy"] = json!({"type": "InPlaceUpdate"});
    assert!(!off.act() && !paused.act() && !in_place.act());
}

#[test]
fn a_listed_node_of_a_pool_is_selected_within_the_budget_of_the_pool() {
    let claim = |uid: &str| json!({"uid": uid, "target": "machine", "given": 0, "since": NOW});
    let listed = |claims: Value| {
        let mut fixture = Fixture::in_place("former").with(&[(CANDIDATE, "true")], None, false).listed("v1");
        fixture.node["metadata"]["labels"]["node-role.kubernetes.io/worker"] = "".into();
        fixture.act();
        fixture.claims = Some(claims);
        fixture.node["metadata"]["labels"][SELECTED] = Value::Null;
        fixture.node["metadata"]["labels"].as_object_mut().unwrap().remove(SELECTED);
        fixture.node["spec"].as_object_mut().unwrap().remove("unschedulable");
        fixture.node["metadata"]["annotations"].as_object_mut().unwrap().remove(CORDONED);
        fixture
    };
    let full = listed(json!({"other": claim("uid-other")})).plan();
    assert_eq!(full.waits[0].reason, "AwaitingDisruptionBudget");
    assert!(full.waits[0].message.ends_with("it waits for other"), "{:?}", full.waits);
    let free = listed(json!({})).plan();
    let Step::Edit { at, .. } = &free.stages[0][0].step else { panic!("{free:?}") };
    assert_eq!(at.to_string(), "MachineConfigPool worker");
    let mut claimed = listed(json!({"n": claim("uid-n")}));
    assert!(claimed.act());
    assert_eq!(claimed.update(), (vec!["candidate", "selected"], true, Some("true")));
    assert_eq!(claimed.node["metadata"]["annotations"]["nodewright.dev/config-given"], "1");
}

#[test]
fn a_listed_candidate_is_selected_now_or_claimed_or_waits() {
    let claim = |uid: &str| json!({"uid": uid, "target": "machine", "given": 0, "since": NOW});
    let made = Claim {
        uid: "uid-n".to_owned(),
        target: Claim::MACHINE.to_owned(),
        given: 0,
        from: None,
        since: Claim::SINCE_NOW,
    };
    let text = "at most 1 nodes of pool worker may be unavailable; it waits for other".to_owned();
    let none: &[(&str, &str)] = &[];
    let (candidate, selected) = (&[(CANDIDATE, "true")][..], &[(CANDIDATE, "true"), (SELECTED, "true")][..]);
    // The labels, the claims of the pool, if it has one, and whether there is anything to write.
    let table = [
        ("it shares no budget", candidate, None, Selection::Unshared, true),
        ("it does not show yet that it wants a claim", none, Some(json!({})), Selection::None, true),
        ("it is selected already", selected, Some(json!({})), Selection::None, false),
        ("its pool has room", candidate, Some(json!({})), Selection::Shared(DisruptionDecision::Claim(made)), true),
        (
            "its pool has a claim for it",
            candidate,
            Some(json!({"n": claim("uid-n")})),
            Selection::Shared(DisruptionDecision::Granted),
            true,
        ),
        (
            "its pool has none left",
            candidate,
            Some(json!({"other": claim("uid-other")})),
            Selection::Shared(DisruptionDecision::Wait(text)),
            false,
        ),
    ];
    for (what, labels, claims, expected, is_written) in table {
        let mut fixture = Fixture::in_place("former").listed("v1");
        fixture.act();
        fixture.node["metadata"]["labels"] = json!({"node-role.kubernetes.io/worker": ""});
        fixture.node["metadata"]["annotations"] = json!({DISABLED: "true", BY_US: "true"});
        fixture.node["spec"].as_object_mut().unwrap().remove("unschedulable");
        let fixture = Fixture { claims, ..fixture.with(labels, None, false) };
        let snapshot = fixture.snapshot();
        assert_eq!(decide(&snapshot), Decision::MarkForUpdate(expected), "{what}");
        assert_eq!(is_due(&snapshot), is_written, "{what}");
        assert_eq!(!fixture.plan().is_idle(), is_written, "{what}");
    }
}

#[test]
fn only_what_has_yet_to_be_written_is_due() {
    type Edit = fn(&mut Fixture);
    let paused = |fixture: &mut Fixture| fixture.deployment["spec"]["paused"] = true.into();
    let restored = |fixture: &mut Fixture| fixture.class = "v1";
    let foreign = |fixture: &mut Fixture| fixture.node["spec"]["providerID"] = "x:///i-2".into();
    let annotated =
        |fixture: &mut Fixture| fixture.node["metadata"]["annotations"] = json!({DISABLED: "true", BY_US: "true"});
    let preserved = |fixture: &mut Fixture| {
        fixture.class = "v1";
        fixture.node["metadata"]["annotations"] = json!({DISABLED: "true", BY_US: "true"});
        fixture.machine = fixture.machine.clone().preserved_until(NOW);
    };
    // A Node of a former template without marks, and one that has them, after a change.
    let table: [(&str, Edit, bool, bool); 7] = [
        ("a rollout replaces its machine", |_| {}, true, false),
        ("the taint alone is missing", annotated, true, false),
        ("it is paused", paused, false, true),
        ("its template is restored", restored, false, true),
        ("its machine is unknown", foreign, false, false),
        ("its template is restored, and it is preserved", preserved, false, true),
        ("nobody annotates", |fixture| fixture.annotates = false, true, false),
    ];
    for (what, change, bare, marked) in table {
        let (mut first, mut second) = (Fixture::of("former"), Fixture::of("former"));
        second.act();
        change(&mut first);
        change(&mut second);
        assert_eq!([first, second].map(|fixture| is_due(&fixture.snapshot())), [bare, marked], "{what}");
    }
}

/// The agent of its configuration opens it again, maybe in the midst of the update.
#[test]
fn a_node_that_is_cordoned_for_its_configuration_is_not_selected() {
    let of = |claim: Value| {
        let mut fixture = Fixture::in_place("former").with(&[(CANDIDATE, "true")], None, true).listed("v1");
        fixture.node["metadata"]["labels"]["node-role.kubernetes.io/worker"] = "".into();
        fixture.node["metadata"]["annotations"] = json!({"nodewright.dev/config-given": "1"});
        fixture.claims = Some(claim);
        fixture
    };
    let mut moved = of(json!({"n": {"uid": "uid-n", "target": "rendered", "given": 0, "since": NOW}}));
    assert!(moved.act(), "it gets the marks");
    assert_eq!(moved.update(), (vec!["candidate"], true, None));
    let text = "the node is being given a configuration by pool worker";
    assert_eq!(moved.plan().waits[0].message, text);
    let cordoned = of(json!({})).plan();
    let claims = cordoned
        .steps()
        .any(|planned| matches!(&planned.step, Step::Edit { at, .. } if at.to_string() == "MachineConfigPool worker"));
    assert!(claims, "one that a user has cordoned is claimed: {cordoned:?}");
}

/// Found by the simulation: the Node of a Machine that was recreated as a rollout ended kept the annotation for the autoscaler, because
/// nothing woke the controller once the provider had shown whose VM it is.
#[test]
fn what_decides_whose_a_node_is_wakes_it() {
    let proven = || Fixture::of("v1").machine;
    let recreated = || machine("m").label("node", "n").with("/spec/providerID", "x:///i-1");
    let running = || recreated().phase("Running");
    let conditions = |kind: &str| json!([{"type": kind, "status": "True", "message": "x:///i-1"}]);
    let shown = || recreated().with("/status/conditions", conditions("InstanceProvisioned"));
    // Whether it is woken where this process proves VMs, and where another does.
    let table = [
        ("the provider has shown the VM", recreated(), shown(), [true, true]),
        ("all of the status is back", recreated(), proven(), [true, true]),
        ("another name, of which the Node is", shown(), shown().label("node", "o"), [true, true]),
        ("the phase of one that has a VM", recreated(), running(), [false, true]),
        ("another name, unproven", running(), running().label("node", "o"), [false, true]),
        ("another VM, unproven", running(), running().with("/spec/providerID", "x:///i-2"), [false, true]),
        ("another VM without one", recreated(), recreated().with("/spec/providerID", "x:///i-2"), [false, false]),
        ("preservation", proven(), proven().preserved_until(NOW), [true, true]),
        ("an update in place", proven(), proven().phase("InPlaceUpdating"), [true, true]),
        ("another condition", running(), running().with("/status/conditions", conditions("Ready")), [false, false]),
        ("a label of users", proven(), proven().label("x", "y"), [false, false]),
    ];
    for (what, old, new, wakes) in table {
        let change = Change { old: Some(Arc::new(old.build())), new: Some(Arc::new(new.build())) };
        let woken = [NodeProof::Here, NodeProof::Elsewhere].map(|proof| has_moved(&change, proof));
        assert_eq!(woken, wakes, "{what}");
    }
    let new = Some(Arc::new(recreated().build()));
    assert!(has_moved(&Change { old: None, new }, NodeProof::Here));
}
