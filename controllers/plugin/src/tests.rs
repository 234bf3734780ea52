//! Commands against an API server in process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use kube::{Client, client::Body, core::Status};
use nodewright_testing::api_server::{ApiServer, Fault, Match};
use serde_json::{Value, json};

use crate::{
    client::Cluster,
    machines,
    names::{Target, TargetKind},
    output::{Colours, Format, State},
    plan,
    read::Scope,
    report, rollout, tree, why,
};

const GROUP: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/shoot";
const SECRET: &str = "hunter2-hunter2";

fn scope_within(server: &ApiServer, timeout: Duration) -> Scope {
    let cluster = Cluster::of(server.client(), timeout);
    Scope { control: cluster.clone(), target: cluster, namespace: Some("shoot".to_owned()), is_namespace_given: true }
}

fn scope(server: &ApiServer) -> Scope {
    scope_within(server, Duration::from_secs(30))
}

fn object(kind: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "shoot"}});
    for (key, value) in fields.as_object().into_iter().flatten() {
        if key == "metadata" {
            value.as_object().into_iter().flatten().for_each(|(key, value)| object["metadata"][key] = value.clone());
        } else {
            object[key] = value.clone();
        }
    }
    object
}

fn template(class: &str) -> Value {
    json!({"metadata": {"labels": {"name": "pool"}}, "spec": {"class": {"kind": "MachineClass", "name": class}}})
}

fn owner(kind: &str, owner: &Value) -> Value {
    json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true}])
}

/// A deployment that was rolled from class `small` to `large`, with a machine and its node.
fn fleet() -> ApiServer {
    fleet_on(ApiServer::new())
}

fn fleet_on(server: ApiServer) -> ApiServer {
    let seed = |plural: &str, object: Value| server.seed(&format!("{GROUP}/{plural}"), object);
    let revision = |number: &str| json!({"deployment.kubernetes.io/revision": number, "note": number});
    let selector = json!({"matchLabels": {"name": "pool"}});
    let fields = json!({"spec": {"replicas": 1, "selector": selector, "template": template("large")},
        "metadata": {"annotations": {"deployment.kubernetes.io/revision": "2", "note": "2"}}});
    let deployment = seed("machinedeployments", object("MachineDeployment", "pool", &fields));
    let of = owner("MachineDeployment", &deployment);
    let set = |name: &str, number: &str, class: &str| {
        let mut template = template(class);
        template["metadata"]["labels"]["machine-template-hash"] = number.into();
        let labels = json!({"name": "pool", "machine-template-hash": number});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
        let metadata = json!({"annotations": revision(number), "labels": labels, "ownerReferences": of});
        let fields = json!({"spec": spec, "metadata": metadata});
        seed("machinesets", object("MachineSet", name, &fields))
    };
    set("pool-a", "1", "small");
    let current = set("pool-b", "2", "large");
    let fields = json!({"spec": {"class": {"kind": "MachineClass", "name": "large"}, "providerID": "simulated:///1"},
        "status": {"currentStatus": {"phase": "Running"}},
        "metadata": {"labels": {"node": "pool-b-1", "name": "pool", "machine-template-hash": "2"}, "ownerReferences": owner("MachineSet", &current)}});
    seed("machines", object("Machine", "pool-b-1", &fields));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "pool-b-1"},
        "spec": {"providerID": "simulated:///1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    server.seed("/api/v1/nodes", node);
    server
}

fn machine() -> Target {
    Target::new(TargetKind::Machine, "pool-b-1")
}

#[tokio::test]
async fn lists_are_read_page_by_page_and_no_secret_is_read() {
    let server = fleet();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"userData": SECRET}});
    server.seed("/api/v1/namespaces/shoot/secrets", secret);
    for number in 0..1_200 {
        let fields = json!({"spec": {"class": {"name": "large"}}});
        server.seed(&format!("{GROUP}/machines"), object("Machine", &format!("m-{number:04}"), &fields));
    }
    let snapshot = scope(&server).snapshot().await.unwrap();
    assert_eq!((snapshot.machines.len(), snapshot.gaps.as_slice()), (1_201, [].as_slice()));
    let requests = server.requests();
    let pages = requests.iter().filter(|it| it.path.ends_with("/machines"));
    assert!(pages.clone().count() == 3 && pages.clone().all(|it| it.query.contains("limit=500")), "{requests:?}");
    assert!(requests.iter().all(|it| !it.path.contains("secrets") && it.verb == "list"), "{requests:?}");
    assert!(requests.iter().all(|it| it.user_agent.starts_with("kubectl-nodewright/")), "{requests:?}");
    report::collect(&scope(&server)).await.unwrap();
    assert!(server.requests().iter().all(|it| !it.path.contains("secrets")));
}

#[tokio::test]
async fn an_error_names_the_right_that_is_missing() {
    let server = fleet();
    let forbid = |what: &str| {
        let text = format!("{what} is forbidden: User \"eve\" cannot list resource \"{what}\" in API group \"\"");
        Fault::Refuse(Box::new(Status::failure(&text, "Forbidden").with_code(403)))
    };
    server.fail_always(Match::verb("list").path_end("/nodes"), forbid("nodes"));
    let snapshot = scope(&server).snapshot().await.unwrap();
    assert_eq!(snapshot.gaps, ["not read: you may not list nodes"]);
    let deployment = Target::new(TargetKind::Deployment, "pool");
    let text = why::explain(&snapshot, &deployment).unwrap().text(Colours::default());
    assert!(text.contains("note     not read: you may not list nodes"), "{text}");
    server.fail_always(Match::verb("list").path_end("/machines"), forbid("machines"));
    let error = scope(&server).snapshot().await.unwrap_err().to_string();
    let words = "you may not list machines.machine.sapcloud.io in namespace shoot: ask for the verb list on the resource \
        machines.machine.sapcloud.io";
    assert!(error.starts_with(words) && error.contains("User \"eve\""), "{error}");
    let files = report::collect(&scope(&server)).await.unwrap();
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let gaps = "no tree.txt and no why.txt: you may not list machines.machine.sapcloud.io in namespace shoot\n\
        not read: you may not list machines.machine.sapcloud.io in namespace shoot\nnot read: you may not list nodes\n";
    assert!(text("gaps.txt").is_some_and(|text| text.ends_with(gaps)), "{:?}", text("gaps.txt"));
    assert!(text("objects/machinesets.yaml").is_some_and(|text| text.contains("pool-b")));
    assert_eq!((text("tree.txt"), text("why.txt")), (None, None));
}

#[tokio::test]
async fn a_cluster_without_our_kinds_or_that_is_silent_is_reported() {
    let server = fleet();
    let status = Status::failure("the server could not find the requested resource", "NotFound").with_code(404);
    server.fail_always(Match::any().path("/machinedeployments"), Fault::Refuse(Box::new(status)));
    let error = scope(&server).snapshot().await.unwrap_err().to_string();
    assert!(error.contains("does not serve machinedeployments of machine.sapcloud.io/v1alpha1"), "{error}");
    assert!(error.contains("kubectl apply --server-side -k config/crd"), "{error}");
    server.heal();
    server.fail_always(Match::any().path("/machinedeployments"), Fault::Hang);
    let error = scope_within(&server, Duration::from_millis(50)).snapshot().await.unwrap_err().to_string();
    assert!(error.contains("has not answered") && error.contains("--request-timeout"), "{error}");
}

#[tokio::test]
async fn a_rollout_is_undone_with_kubectls_words() {
    let server = fleet();
    let deployment = || server.object(&format!("{GROUP}/machinedeployments/pool")).unwrap();
    let undo = async |to: i64| rollout::undo(&scope(&server), "pool", to, (false, false)).await;
    assert_eq!(undo(7).await.unwrap_err().to_string(), "unable to find specified revision 7 in history");
    assert!(undo(2).await.unwrap().contains("skipped rollback (current template already matches revision 2)"));
    let shown = rollout::undo(&scope(&server), "pool", 0, (false, true)).await.unwrap();
    assert!(shown.contains("name: small") && !shown.contains("machine-template-hash"), "{shown}");
    assert_eq!(deployment()["spec"]["template"], template("large"));
    let said = undo(0).await.unwrap();
    assert_eq!(said, "machinedeployment.machine.sapcloud.io/pool rolled back\n");
    assert_eq!((&deployment()["spec"]["template"], &deployment()["spec"]["replicas"]), (&template("small"), &json!(1)));
    let annotations = &deployment()["metadata"]["annotations"];
    assert_eq!((&annotations["note"], &annotations["deployment.kubernetes.io/revision"]), (&json!("1"), &json!("2")));
    assert!(rollout::pause(&scope(&server), "pool", false).await.unwrap().ends_with("paused\n"));
    let again = rollout::pause(&scope(&server), "pool", false).await.unwrap_err().to_string();
    assert_eq!(again, "machinedeployments.machine.sapcloud.io \"pool\" is already paused");
    let refused = undo(2).await.unwrap_err().to_string();
    assert!(refused.starts_with("cannot rollback a paused deployment; resume it first with"), "{refused}");
    let refused = rollout::restart(&scope(&server), "pool", false).await.unwrap_err().to_string();
    assert!(refused.contains("can't restart paused deployment"), "{refused}");
    rollout::resume(&scope(&server), "pool", false).await.unwrap();
    assert_eq!(deployment()["spec"].get("paused"), None);
    assert!(rollout::resume(&scope(&server), "pool", false).await.is_err());
    rollout::restart(&scope(&server), "pool", false).await.unwrap();
    let at = &deployment()["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"];
    assert!(at.is_string() && deployment()["spec"]["template"]["spec"] == template("small")["spec"], "{at}");
    let history = rollout::history(&scope(&server), "pool", 0, None).await.unwrap();
    assert_eq!(
        history,
        "machinedeployment.machine.sapcloud.io/pool\nREVISION   CHANGE-CAUSE\n1          <none>\n2          <none>\n"
    );
}

#[tokio::test]
async fn an_undo_of_what_has_changed_meanwhile_is_refused() {
    let server = fleet();
    let changed = server.clone();
    server.decide(move |request| {
        if request.verb == "patch" {
            changed.change(&request.path, |object| object["spec"]["replicas"] = 5.into());
        }
        None
    });
    let error = rollout::undo(&scope(&server), "pool", 0, (false, false)).await.unwrap_err().to_string();
    server.decide_no_more();
    assert!(error.contains("has changed since it was read: run the command again"), "{error}");
    let deployment = server.object(&format!("{GROUP}/machinedeployments/pool")).unwrap();
    assert_eq!(deployment["spec"]["template"], template("large"));
}

#[tokio::test]
async fn a_machine_is_preserved_by_its_node_and_replaced_by_its_set() {
    let server = fleet();
    let said = machines::preserve(&scope(&server), &machine(), false, false).await.unwrap();
    assert!(said.contains("is preserved once it has failed") && said.contains("of node/pool-b-1"), "{said}");
    let node = || server.object("/api/v1/nodes/pool-b-1").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(node(), json!({"node.machine.sapcloud.io/preserve": "when-failed"}));
    machines::release(&scope(&server), &Target::new(TargetKind::Node, "pool-b-1"), false).await.unwrap();
    assert_eq!(node(), json!({"node.machine.sapcloud.io/preserve": "false"}));
    let mut going = server.object(&format!("{GROUP}/machines/pool-b-1")).unwrap().as_ref().clone();
    machines::replace(&scope(&server), &machine(), true, false).await.unwrap();
    let delete = server.requests().into_iter().find(|it| it.verb == "delete").unwrap();
    assert!(delete.body.unwrap()["preconditions"]["uid"].is_string());
    let label = server.requests().into_iter().rfind(|it| it.verb == "patch" && it.path.contains("/machines/")).unwrap();
    assert_eq!(label.body.unwrap()["metadata"]["labels"], json!({"force-deletion": "true"}));
    going["metadata"]["name"] = "going".into();
    going["metadata"]["finalizers"] = json!(["example.com/held"]);
    server.seed(&format!("{GROUP}/machines"), going);
    let going = Target::new(TargetKind::Machine, "going");
    machines::replace(&scope(&server), &going, false, false).await.unwrap();
    let text = machines::replace(&scope(&server), &going, false, false).await.unwrap();
    assert!(text.starts_with("machine/going is being deleted already"), "{text}");
    let lone = object("Machine", "lone", &json!({"spec": {"class": {"name": "small"}}}));
    server.seed(&format!("{GROUP}/machines"), lone);
    let lone = Target::new(TargetKind::Machine, "lone");
    let error = machines::replace(&scope(&server), &lone, false, false).await.unwrap_err().to_string();
    assert!(error.contains("nothing would replace it"), "{error}");
}

/// Each change with `--dry-run` leaves all objects as they are.
#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = fleet();
    let paths =
        ["machinedeployments/pool", "machinesets/pool-b", "machines/pool-b-1"].map(|it| format!("{GROUP}/{it}"));
    let paths = || paths.iter().map(String::as_str).chain(["/api/v1/nodes/pool-b-1"]);
    server.change("/api/v1/nodes/pool-b-1", |node| {
        node["metadata"]["labels"] = json!({"node.machine.sapcloud.io/candidate-for-update": "true"});
    });
    // Without a finalizer a deletion would be its end.
    let before: Vec<_> = paths().map(|path| server.object(path).unwrap()).collect();
    let (scope, node) = (scope(&server), Target::new(TargetKind::Node, "pool-b-1"));
    for force in [false, true] {
        let text = machines::replace(&scope, &machine(), force, true).await.unwrap();
        assert!(text.ends_with("(server dry run)\n"), "{text}");
    }
    machines::replace(&scope, &node, false, true).await.unwrap();
    machines::preserve(&scope, &node, true, true).await.unwrap();
    machines::release(&scope, &machine(), true).await.unwrap();
    machines::approve(&scope, &node, None, true).await.unwrap();
    rollout::undo(&scope, "pool", 0, (true, false)).await.unwrap();
    rollout::pause(&scope, "pool", true).await.unwrap();
    rollout::restart(&scope, "pool", true).await.unwrap();
    let after: Vec<_> = paths().map(|path| server.object(path).unwrap()).collect();
    assert_eq!(after, before);
    let changes = server.requests().into_iter().filter(|it| it.verb != "get" && it.verb != "list").count();
    assert!(changes >= 9, "they reach the API server: {changes}");
}

#[tokio::test]
async fn only_what_waits_is_approved() {
    let server = fleet();
    let node = Target::new(TargetKind::Node, "pool-b-1");
    let error = machines::approve(&scope(&server), &node, None, false).await.unwrap_err().to_string();
    assert!(error.contains("candidate-for-update=true"), "{error}");
    server.change("/api/v1/nodes/pool-b-1", |node| {
        node["metadata"]["labels"] = json!({"node.machine.sapcloud.io/candidate-for-update": "true"});
    });
    machines::approve(&scope(&server), &node, None, false).await.unwrap();
    let labels = server.object("/api/v1/nodes/pool-b-1").unwrap()["metadata"]["labels"].clone();
    assert_eq!(labels["node.machine.sapcloud.io/selected-for-update"], "true");
}

#[tokio::test]
async fn a_plan_of_a_drain_names_what_leaves_and_what_holds_it_back() {
    let server = fleet();
    let pod = |name: &str, owner: Value| {
        let metadata = json!({"name": name, "namespace": "apps", "labels": {"app": name}, "ownerReferences": owner});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "pool-b-1"}})
    };
    let of = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
    for pod in [pod("web", of("ReplicaSet")), pod("alone", json!([])), pod("daemon", of("DaemonSet"))] {
        server.seed("/api/v1/namespaces/apps/pods", pod);
    }
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "apps"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "expectedPods": 1, "currentHealthy": 1, "desiredHealthy": 1}});
    server.seed("/apis/policy/v1/namespaces/apps/poddisruptionbudgets", budget);
    let text = plan::drain(&scope(&server), &machine(), None).await.unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "node pool-b-1 of machine pool-b-1");
    assert!(lines[3].starts_with("1      apps/alone"), "{text}");
    assert!(
        lines[4].contains("disruption budget web allows no disruption although all its 1 pods are healthy"),
        "{text}"
    );
    assert_eq!(lines[6], "1 pod would leave in 1 turn; 1 pod is blocked; 1 stay");
    assert_eq!(lines[7], "no controller makes these again: apps/alone");
    assert!(lines[8].contains("(2h, or --machine-drain-timeout of the manager)"), "{text}");
    let json: Value =
        serde_json::from_str(&plan::drain(&scope(&server), &machine(), Some(Format::Json)).await.unwrap()).unwrap();
    assert_eq!(json["staying"], json!([{"pod": "apps/daemon", "reason": "of a DaemonSet"}]));
    let other = Target::new(TargetKind::Machine, "none");
    let error = plan::drain(&scope(&server), &other, None).await.unwrap_err().to_string();
    assert_eq!(error, "there is no machine none (see --namespace)");
}

/// A Pod on the node of the machine of the former set, which a rollout drains, and a budget for it.
fn seed_held_pod(server: &ApiServer) {
    let of = object("Machine", "pool-a-1", &json!({}))["metadata"].clone();
    let set = server.object(&format!("{GROUP}/machinesets/pool-a")).unwrap();
    let fields = json!({"spec": {"class": {"kind": "MachineClass", "name": "small"}, "providerID": "simulated:///2"},
        "status": {"currentStatus": {"phase": "Running"}, "conditions": [{"type": "RemediationAllowed", "status": "False",
            "reason": "ReplacementBlocked", "message": "the fleet brake holds it"}]},
        "metadata": {"labels": {"node": of["name"], "name": "pool", "machine-template-hash": "1"}, "ownerReferences": owner("MachineSet", &set)}});
    server.seed(&format!("{GROUP}/machines"), object("Machine", "pool-a-1", &fields));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "pool-a-1"},
        "spec": {"providerID": "simulated:///2"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    server.seed("/api/v1/nodes", node);
    for named in ["web-1", "web-2"] {
        let owners =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u", "controller": true}]);
        let metadata = json!({"name": named, "namespace": "apps", "labels": {"app": "web"}, "ownerReferences": owners});
        server.seed(
            "/api/v1/namespaces/apps/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "pool-a-1"}}),
        );
    }
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "apps"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 2}});
    server.seed("/apis/policy/v1/namespaces/apps/poddisruptionbudgets", budget);
}

#[tokio::test]
async fn a_plan_of_a_rollout_names_the_budgets_and_the_brake_that_hold_it_back() {
    let (server, takes) = (fleet(), plan::Takes::default());
    let planned = async |format| plan::rollout(&scope(&server), "pool", &takes, format).await.unwrap();
    assert!(!planned(None).await.contains("disruption budget"), "nothing is drained: {}", planned(None).await);
    seed_held_pod(&server);
    let text = planned(None).await;
    let lines = [
        "of 1 machine that is drained, 1 has pods that wait for disruption budgets now, so it takes longer:",
        "  machine/pool-a-1: apps/web-1: disruption budget web allows no disruption although all its 2 pods are healthy: \
            raise its maxUnavailable or lower its minAvailable (2 such pods)",
        "machine/pool-a-1 is unhealthy and not replaced for that yet: the fleet brake holds it",
    ];
    for line in lines {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
    let json: Value = serde_json::from_str(&planned(Some(Format::Json)).await).unwrap();
    assert_eq!(
        (&json["holds"]["drained"], &json["holds"]["pods"][0]["pods"][1]["pod"]),
        (&1.into(), &"apps/web-2".into())
    );
    let text = "pods is forbidden: User \"eve\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
    let forbidden = Status::failure(text, "Forbidden").with_code(403);
    server.fail_always(Match::verb("list").path_end("/pods"), Fault::Refuse(Box::new(forbidden)));
    let text = planned(None).await;
    let words = "whether its pods wait for disruption budgets is not known: you may not list pods in all namespaces: ask for the verb list on the \
        resource pods (the ClusterRole nodewright-plan-drain has it)";
    assert!(text.contains(words), "{text}");
}

#[tokio::test]
async fn who_has_rights_in_one_namespace_alone_plans_and_preserves() {
    let server = fleet();
    let forbid = |what: &str, verb| {
        let text = format!("{what} is forbidden: User \"eve\" cannot {verb} resource \"{what}\" in API group \"\"");
        let forbidden = Status::failure(&text, "Forbidden").with_code(403);
        server.fail_always(Match::verb(verb).path_end(what), Fault::Refuse(Box::new(forbidden)));
    };
    forbid("/machineconfigpools", "list");
    forbid("/nodes", "list");
    forbid("/nodes/pool-b-1", "get");
    plan::rollout(&scope(&server), "pool", &plan::Takes::default(), None).await.unwrap();
    let text = machines::preserve(&scope(&server), &machine(), false, false).await.unwrap();
    assert!(text.ends_with("annotation node.machine.sapcloud.io/preserve of machine/pool-b-1\n"), "{text}");
}

#[tokio::test]
async fn a_planted_secret_is_in_no_file_of_a_report() {
    let server = fleet();
    let class = object(
        "MachineClass",
        "small",
        &json!({"providerSpec": {"token": SECRET}, "secretRef": {"name": "user-data"}}),
    );
    server.seed(&format!("{GROUP}/machineclasses"), class);
    server.change(&format!("{GROUP}/machines/pool-b-1"), |machine| {
        machine["status"] = json!({"currentStatus": {"phase": "CrashLoopBackOff"}, "conditions": [{"type": "InstanceProvisioned",
            "status": "False", "reason": "Internal", "message": format!("the provider says {SECRET}")}]});
    });
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "shoot"}, "type": "Warning",
        "involvedObject": {"kind": "Machine", "name": "pool-b-1"}, "reason": "FailedProvision", "message": SECRET});
    server.seed("/api/v1/namespaces/shoot/events", event);
    let config = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "c"}, "spec": {"config": {"storage": {"files": [{"contents": SECRET}]}}}});
    server.seed("/apis/machineconfiguration.openshift.io/v1/machineconfigs", config);
    let files = report::collect(&scope(&server)).await.unwrap();
    let all = files.iter().map(|file| format!("{}\n{}", file.path, file.text)).collect::<Vec<_>>().join("\n");
    assert!(!all.contains("hunter2"), "{all}");
    for kept in ["objects/machines.yaml", "user-data", "the provider says (removed)", "why.txt", "versions.json"] {
        assert!(all.contains(kept), "{kept}: {all}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.tar");
    report::write(&path, &files).unwrap();
    let names = tar::Archive::new(std::fs::File::open(&path).unwrap());
    assert_eq!({ names }.entries().unwrap().count(), files.len());
    assert!(report::write(&path, &files).is_err(), "a file is not overwritten");
}

/// An answer of the API server.
type Answer = (u16, &'static str);

const TOKEN: Answer = (201, r#"{"kind": "TokenRequest", "status": {"token": "t"}}"#);
const REFUSED: Answer = (500, r#"{"kind": "Status", "message": "error dialing backend: EOF", "code": 500}"#);

/// A report with a manager that has a Pod, where the API server answers to the request of a token and of a port with these. The requests
/// of both.
async fn reported(args: &Value, token: Answer, port: Answer) -> (Vec<String>, Vec<report::Entry>) {
    let server = fleet();
    let labels = json!({"app": "manager"});
    let spec = json!({"selector": {"matchLabels": labels},
        "template": {"spec": {"containers": [{"name": "manager", "image": "nodewright", "args": args}]}}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
        "metadata": {"name": "nodewright", "namespace": "shoot"}});
    server.seed("/apis/apps/v1/namespaces/shoot/deployments", deployment);
    for (name, labels) in [("manager-1", labels), ("other", json!({"app": "other"}))] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shoot", "labels": labels}});
        server.seed("/api/v1/namespaces/shoot/pods", pod);
    }
    let (asked, inner) = (Arc::new(Mutex::new(vec![])), server.client());
    let noted = asked.clone();
    let special = tower::service_fn(move |request: Request<Body>| {
        let asked = format!("{} {}", request.method(), request.uri());
        let answer = match request.uri().path() {
            path if path.ends_with("/token") => Some(token),
            path if path.ends_with("/portforward") => Some(port),
            _ => None,
        };
        noted.lock().unwrap().extend(answer.map(|_| asked));
        let inner = inner.clone();
        async move {
            let Some((code, text)) = answer else { return inner.send(request).await };
            Ok(Response::builder().status(code).body(Body::from(text.as_bytes().to_vec())).unwrap())
        }
    });
    let cluster = Cluster::of(Client::new(special, "default"), Duration::from_secs(30));
    let scope = Scope {
        control: cluster.clone(),
        target: cluster,
        namespace: Some("shoot".to_owned()),
        is_namespace_given: true,
    };
    let files = report::collect(&scope).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    (asked, files)
}

fn text_of<'a>(files: &'a [report::Entry], path: &str) -> Option<&'a str> {
    files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
}

#[tokio::test]
async fn a_report_asks_for_the_ports_of_the_managers_pods_and_for_a_token_where_they_want_one() {
    let token = "POST /api/v1/namespaces/shoot/serviceaccounts/nodewright-report/token";
    let port = |number: u16| format!("GET /api/v1/namespaces/shoot/pods/manager-1/portforward?&ports={number}");
    for (args, expected) in [
        (json!(["manager"]), vec![port(10258)]),
        (json!(["mc"]), vec![port(10259)]),
        (json!(["--secure-metrics=false", "--port=80"]), vec![port(80)]),
        (json!(["--port=8443", "--secure-metrics"]), vec![token.to_owned(), port(8443)]),
    ] {
        let (asked, _) = reported(&args, TOKEN, REFUSED).await;
        assert_eq!(asked, expected, "{args}");
    }
}

#[tokio::test]
async fn a_report_without_metrics_has_a_line_that_says_why() {
    let no_right = |verb: &str, on: &str| {
        let message = format!(
            "pods \\\"manager-1\\\" is forbidden: User \\\"eve\\\" cannot {verb} resource \\\"{on}\\\" in API group \\\"\\\" in the \
             namespace \\\"shoot\\\""
        );
        let text = format!(r#"{{"kind": "Status", "message": "{message}", "reason": "Forbidden", "code": 403}}"#);
        (403, &*text.leak())
    };
    let no_account =
        (404, r#"{"kind": "Status", "message": "not found", "details": {"name": "nodewright-report"}, "code": 404}"#);
    let no_pod = (404, r#"{"kind": "Status", "message": "not found", "details": {"name": "manager-1"}, "code": 404}"#);
    let (open, secure) = (&json!(["manager"]), &json!(["--secure-metrics=true"]));
    let (pod, deployment) = ("Pod manager-1", "Deployment nodewright");
    for (args, token, port, of, why) in [
        (open, TOKEN, no_right("get", "pods/portforward"), pod, "you may not get pods/portforward in namespace shoot"),
        (
            open,
            TOKEN,
            no_right("create", "pods/portforward"),
            pod,
            "you may not create pods/portforward in namespace shoot",
        ),
        (open, TOKEN, no_pod, pod, "pods/portforward \"manager-1\" not found in namespace shoot"),
        (
            secure,
            TOKEN,
            REFUSED,
            pod,
            "failed to create pods/portforward manager-1 in namespace shoot: error dialing backend: EOF",
        ),
        (
            secure,
            no_right("create", "serviceaccounts/token"),
            REFUSED,
            deployment,
            "you may not create serviceaccounts/token in namespace shoot",
        ),
        (
            secure,
            no_account,
            REFUSED,
            deployment,
            "with --secure-metrics it wants a token, and namespace shoot has no service account nodewright-report, whose it \
             could be: install config/rbac/metrics.yaml",
        ),
        (&json!(["--port=no"]), TOKEN, REFUSED, deployment, "--port=no is no port"),
    ] {
        let (_, files) = reported(args, token, port).await;
        assert_eq!(text_of(&files, "gaps.txt"), Some(format!("no metrics of {of}: {why}\n").as_str()));
        assert!(text_of(&files, "why.txt").is_some() && text_of(&files, "metrics/manager-1.txt").is_none(), "{why}");
    }
}

#[tokio::test]
async fn a_report_goes_on_without_the_pods_of_the_manager() {
    let files = report::collect(&scope(&fleet())).await.unwrap();
    let none = "no metrics: no Deployment of a manager is known (see --namespace)\n";
    assert_eq!(text_of(&files, "gaps.txt"), Some(none));
}

#[tokio::test]
async fn a_fleet_that_runs_is_reported_in_a_line() {
    let server = fleet();
    let snapshot = scope(&server).snapshot().await.unwrap();
    let explanation = why::explain(&snapshot, &machine()).unwrap();
    assert_eq!(
        (explanation.state, explanation.cause.as_str()),
        (State::Done, "it runs, and its node pool-b-1 is ready")
    );
    let trees = tree::trees(&snapshot, Some(&tree::Wanted::parse("pool").unwrap()), false);
    assert_eq!((trees.len(), trees[0].children.len()), (1, 2), "{trees:?}");
}

#[tokio::test]
async fn a_plan_of_an_update_in_place_reads_the_nodes_and_names_the_machine() {
    let server = fleet();
    let rolled = plan::rollout(&scope(&server), "pool", &plan::Takes::default(), None).await.unwrap();
    assert!(!rolled.contains("in place"), "{rolled}");
    assert!(
        server.requests().iter().all(|it| !it.path.ends_with("/nodes")),
        "they are read only where they are needed"
    );
    server.change(&format!("{GROUP}/machinedeployments/pool"), |deployment| {
        deployment["spec"]["strategy"] =
            json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
        deployment["spec"]["template"]["metadata"]["labels"]["version"] = "2".into();
    });
    let plan = plan::rollout(&scope(&server), "pool", &plan::Takes::default(), None).await.unwrap();
    let line = |line: &str| line.split_whitespace().eq(["+5s", "update", "pool-b", "pool-b-1"]);
    assert!(plan.lines().any(line), "{plan}");
    assert!(plan.contains("0 machines created, 0 deleted, 1 updated in place, 0 changed"), "{plan}");
    assert!(
        plan.contains(", 10m for an update (assumed, as no object remembers it; set it with --update-takes)"),
        "{plan}"
    );
}

/// Applies a deployment as another manager than kubectl.
async fn applied_by_others(server: &ApiServer, applied: &Value) {
    let path = format!("{GROUP}/machinedeployments/other?fieldManager=flux&force=true");
    let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
    let response = server.client().send(request.body(Body::from(applied.to_string().into_bytes())).unwrap()).await;
    assert!(response.unwrap().status().is_success());
}

fn manifest(replicas: i32) -> Value {
    let spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"name": "pool"}}, "template": template("small")});
    object("MachineDeployment", "other", &json!({"spec": spec}))
}

/// What a plan of this object prints, by the manager `kubectl`.
async fn planned(server: &ApiServer, object: &Value) -> Result<String, String> {
    planned_as(plan::Apply::default(), server, object).await
}

async fn planned_as(apply: plan::Apply, server: &ApiServer, object: &Value) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    let text = plan::file(&scope(server), file.path(), (&apply, &plan::Takes::default()), None).await;
    text.map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_plan_of_fields_of_another_manager_is_a_conflict_unless_it_is_forced() {
    let server = fleet();
    applied_by_others(&server, &manifest(3)).await;
    let conflict = "MachineDeployment other: Apply failed with 1 conflict: conflict with \"flux\": .spec.replicas; \
        with --force-conflicts these fields are taken over";
    assert_eq!(planned(&server, &manifest(5)).await.unwrap_err(), conflict);
    let forced = plan::Apply { force_conflicts: true, ..plan::Apply::default() };
    let text = planned_as(forced, &server, &manifest(5)).await.unwrap();
    assert!(text.contains("machinedeployment/other: 5 machines of class small"), "{text}");
}

#[tokio::test]
async fn a_plan_of_nothing_is_an_error() {
    let error = planned(&fleet(), &Value::Null).await.unwrap_err();
    assert!(error.ends_with(" has no object"), "{error}");
}

#[tokio::test]
async fn a_class_that_the_file_corrects_is_no_obstacle() {
    let server = fleet();
    let class = |secret: &str| {
        let fields =
            json!({"provider": "simulated", "providerSpec": {}, "secretRef": {"name": secret, "namespace": "shoot"}});
        object("MachineClass", "small", &fields)
    };
    let mut stored = class("missing");
    stored["status"] = json!({"conditions": [{"type": "SecretsFound", "status": "False", "reason": "SecretNotFound", "message": "create it"}]});
    server.seed(&format!("{GROUP}/machineclasses"), stored);
    let scope = scope(&server);
    let as_json = async |object: &Value| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        let apply = plan::Apply { force_conflicts: true, ..plan::Apply::default() };
        let text =
            plan::file(&scope, file.path(), (&apply, &plan::Takes::default()), Some(Format::Json)).await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let alone = as_json(&manifest(3)).await;
    assert_eq!(alone[0]["plan"]["waits"], json!(["machineclass/small: SecretNotFound: create it"]), "{alone}");
    let both =
        as_json(&json!({"apiVersion": "v1", "kind": "List", "items": [class("credentials"), manifest(3)]})).await;
    assert_eq!((&both[1]["plan"]["waits"], both[1]["plan"]["complete"].is_string()), (&Value::Null, true), "{both}");
}

#[tokio::test]
async fn what_is_not_foreseen_of_one_object_does_not_hide_the_others() {
    let server = fleet();
    let pool = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool", "metadata": {"name": "worker"}, "spec": {}});
    server.seed("/apis/machineconfiguration.openshift.io/v1/machineconfigpools", pool);
    let mut in_place = manifest(2);
    in_place["spec"]["strategy"] =
        json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    let mut second = manifest(1);
    second["metadata"]["name"] = "second".into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [in_place, second]});
    let error = planned(&server, &list).await.unwrap_err();
    assert_eq!(error, "what becomes of 1 object is not foreseen");
    assert!(
        server.requests().iter().any(|it| it.verb == "patch" && it.path.ends_with("/second")),
        "the second one is planned"
    );
}

#[tokio::test]
async fn a_plan_of_an_object_of_another_namespace_is_refused_as_by_kubectl() {
    let mut other = manifest(2);
    other["metadata"]["namespace"] = "other".into();
    let error = planned(&fleet(), &other).await.unwrap_err();
    assert_eq!(
        error,
        "MachineDeployment other is of namespace other, and --namespace=shoot is given: leave it out, or name that of the object"
    );
}

#[tokio::test]
async fn a_plan_after_a_client_side_apply_removes_what_the_file_omits() {
    let server = fleet();
    let mut before = manifest(2);
    before["spec"]["strategy"] =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 7, "maxUnavailable": 3}});
    let mut live = before.clone();
    live["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": before.to_string(), "other": "a"});
    live["metadata"]["managedFields"] = json!([{"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": live["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:strategy": {}, "f:replicas": {}}}}]);
    server.seed(&format!("{GROUP}/machinedeployments"), live);
    let text = planned(&server, &manifest(2)).await.unwrap();
    assert!(text.contains("2 machines of class small, maxSurge 1, maxUnavailable 0"), "{text}");
    let kept = planned(&server, &before).await.unwrap();
    assert!(kept.starts_with("machinedeployment/other unchanged") && kept.contains("maxSurge 7"), "{kept}");
    let flux = plan::Apply { field_manager: Some("flux".to_owned()), ..plan::Apply::default() };
    let of_another = planned_as(flux, &server, &manifest(2)).await.unwrap();
    assert!(of_another.contains("maxSurge 7"), "{of_another}");
    assert_eq!(server.object(&format!("{GROUP}/machinedeployments/other")).unwrap()["spec"], before["spec"]);
}

#[tokio::test]
async fn a_tree_is_of_the_kind_that_is_named() {
    let server = fleet();
    let tree = async |text: &str| tree::run(&scope(&server), Some(text.to_owned()), None).await;
    for named in ["pool", "mcd/pool", "machinedeployment/pool"] {
        assert!(tree(named).await.unwrap().contains("machinedeployment/pool"), "{named}");
    }
    for (text, expected) in [
        ("mcp/pool", "there is no MachineConfigPool pool"),
        ("mcd/no", "there is no MachineDeployment no (see --namespace)"),
        ("no", "there is no MachineDeployment and no MachineConfigPool no (see --namespace)"),
        (
            "machine/pool",
            "tree takes a MachineDeployment or MachineConfigPool: see kubectl nodewright why machine/pool",
        ),
    ] {
        assert_eq!(tree(text).await.unwrap_err().to_string(), expected);
    }
    assert!(tree("pod/pool").await.unwrap_err().to_string().starts_with("there is no kind \"pod\" here"));
}

#[tokio::test]
async fn plans_name_that_no_manager_leads() {
    let takes = plan::Takes::default();
    for (age, is_absent) in [(3_600, true), (0, false)] {
        let then = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(age);
        let server = fleet_on(ApiServer::with_time(move || then));
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "machine-controller-manager", "namespace": "shoot"},
            "spec": {"holderIdentity": "m-1", "leaseDurationSeconds": 15}});
        server.seed("/apis/coordination.k8s.io/v1/namespaces/shoot/leases", lease);
        let of_rollout = plan::rollout(&scope(&server), "pool", &takes, None).await.unwrap();
        let of_file = planned(&server, &manifest(2)).await.unwrap();
        let line =
            "\nno manager runs: m-1 has not renewed the lease for 60m; nothing of this happens before one does\n";
        for text in [of_rollout, of_file] {
            assert_eq!(text.ends_with(line), is_absent, "{text}");
            assert_eq!(text.contains("no manager runs"), is_absent, "{text}");
        }
    }
}
