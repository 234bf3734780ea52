//! The status subresource.

use serde_json::{Value, json};

use super::{
    objects::{Kind, WRONG_UID, with, without},
    probe::{OURS, Probe, Request, THEIRS},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn custom(probe: &mut Probe) -> TestResult {
    let (all, path) = (probe.all(Kind::Machine), probe.path(Kind::Machine, "a"));
    let at = format!("{path}/status");
    let born = probe.quietly(&Request::post(&all, &probe.object(Kind::Machine, "a"))).await?.body;
    let phase = |object: &Value, phase: &str| with(object.clone(), "/status/currentStatus/phase", phase);
    let second = probe.ask("an update", Request::put(&at, &phase(&born, "Pending"))).await?.body;
    probe.ask("a stale update", Request::put(&at, &phase(&born, "Running"))).await?;
    probe.ask("an update that changes nothing", Request::put(&at, &second)).await?;
    let wrong = with(phase(&second, "Running"), "/metadata/uid", WRONG_UID);
    probe.ask("an update of another object", Request::put(&at, &wrong)).await?;
    let all_over = with(with(phase(&second, "Running"), "/spec/providerID", "x"), "/metadata/labels/x", "y");
    let third = probe.ask("an update of everything", Request::put(&at, &all_over)).await?.body;
    let unversioned = without(phase(&third, "Failed"), "/metadata", "resourceVersion");
    probe.ask("an update without a version", Request::put(&at, &unversioned)).await?;
    probe.ask("an update without a status", Request::put(&at, &without(third, "", "status"))).await?;
    for (what, patch) in [
        ("a merge", json!({"status": {"currentStatus": {"phase": "Running"}}})),
        (
            "a merge of everything",
            json!({"metadata": {"labels": {"x": "y"}, "finalizers": ["a.b/c"]},
            "spec": {"providerID": "x"}, "status": {"node": "n"}}),
        ),
        ("a merge to another object", json!({"metadata": {"uid": WRONG_UID}, "status": {"node": "m"}})),
        ("a merge without a status", json!({"status": null})),
    ] {
        probe.ask(what, Request::merge(&at, &patch)).await?;
    }
    let node = json!([{"op": "add", "path": "/status", "value": {"node": "n"}}]);
    probe.ask("a JSON patch", Request::json_patch(&at, &node)).await?;
    let main = json!({"status": {"node": "other"}, "spec": {"providerID": "y"}});
    probe.ask("a merge of the status by the main endpoint", Request::merge(&path, &main)).await?;
    probe.ask("a deletion of a status", Request::delete(&at, &Value::Null)).await?;
    probe
        .ask(
            "a status of what is not there",
            Request::merge(format!("{}/status", probe.path(Kind::Machine, "b")), &main),
        )
        .await?;
    probe.quietly(&Request::post(probe.all(Kind::ConfigMap), &probe.object(Kind::ConfigMap, "a"))).await?;
    let nowhere = format!("{}/status", probe.path(Kind::ConfigMap, "a"));
    probe.ask("a status where there is none", Request::merge(&nowhere, &json!({}))).await?;
    Ok(())
}

pub(super) async fn applies(probe: &mut Probe) -> TestResult {
    let path = probe.path(Kind::Machine, "a");
    let at = format!("{path}/status");
    let object = probe.object(Kind::Machine, "a");
    let status = |metadata: Value, status: Value| {
        let metadata = with(metadata, "/name", "a");
        json!({"apiVersion": object["apiVersion"], "kind": "Machine", "metadata": metadata, "status": status})
    };
    let phase = |phase: &str| json!({"currentStatus": {"phase": phase}});
    probe.ask("to nothing", Request::apply(&at, OURS, &status(json!({}), phase("Pending")))).await?;
    let born = probe.quietly(&Request::apply(&path, OURS, &object)).await?;
    let first = status(json!({"uid": born.uid(), "resourceVersion": born.version()}), phase("Pending"));
    probe.ask("a first", Request::apply(&at, OURS, &first)).await?;
    probe.ask("the same again", Request::apply(&at, OURS, &first)).await?;
    let wrong = status(json!({"uid": WRONG_UID}), phase("Running"));
    probe.ask("under another UID", Request::apply(&at, OURS, &wrong)).await?;
    let stale = status(json!({"resourceVersion": born.version()}), phase("Failed"));
    probe.ask("under an old version", Request::apply(&at, OURS, &stale)).await?;
    let labelled = status(json!({"labels": {"x": "y"}}), phase("Running"));
    probe.ask("with labels", Request::apply(&at, OURS, &labelled)).await?;
    probe.ask("by another", Request::apply(&at, THEIRS, &status(json!({}), phase("Failed")))).await?;
    probe.ask("by another by force", Request::force(&at, THEIRS, &status(json!({}), phase("Failed")))).await?;
    let conditions = json!({"conditions": [{"type": "A", "status": "True"}]});
    probe.ask("conditions", Request::apply(&at, OURS, &status(json!({}), conditions))).await?;
    let others = json!({"conditions": [{"type": "B", "status": "True"}]});
    probe.ask("conditions of another", Request::apply(&at, THEIRS, &status(json!({}), others.clone()))).await?;
    probe.ask("conditions of another by force", Request::force(&at, THEIRS, &status(json!({}), others))).await?;
    let mut both = object.clone();
    both["status"] = phase("Pending");
    // Of this apply only the time of ownership stays: in another second that is a change.
    probe.next_second().await;
    probe.ask("a status by the main endpoint", Request::apply(&path, OURS, &both)).await?;
    probe.ask("nothing", Request::apply(&at, OURS, &status(json!({}), json!({})))).await?;
    empty(probe).await
}

/// Applies after which nothing is left of a status.
async fn empty(probe: &mut Probe) -> TestResult {
    let (path, object) = (probe.path(Kind::Machine, "b"), probe.object(Kind::Machine, "b"));
    let at = format!("{path}/status");
    let status = |status: Value| json!({"apiVersion": object["apiVersion"], "kind": "Machine", "metadata": {"name": "b"}, "status": status});
    probe.quietly(&Request::apply(&path, OURS, &object)).await?;
    probe.ask("nothing to one without a status", Request::apply(&at, OURS, &status(json!({})))).await?;
    probe.ask("something", Request::apply(&at, OURS, &status(json!({"node": "n"})))).await?;
    probe.ask("nothing after something", Request::apply(&at, OURS, &status(json!({})))).await?;
    probe.ask("something again", Request::apply(&at, OURS, &status(json!({"node": "n"})))).await?;
    let without = json!({"apiVersion": object["apiVersion"], "kind": "Machine", "metadata": {"name": "b"}});
    probe.ask("no status", Request::apply(&at, OURS, &without)).await?;
    Ok(())
}

pub(super) async fn of_nodes(probe: &mut Probe) -> TestResult {
    let (all, path) = (probe.all(Kind::Node), probe.path(Kind::Node, "a"));
    let at = format!("{path}/status");
    let born = probe.quietly(&Request::post(&all, &probe.object(Kind::Node, "a"))).await?.body;
    let everything = with(with(born.clone(), "/spec/unschedulable", true), "/metadata/labels/x", "y");
    let everything = with(everything, "/status/phase", "Running");
    let second = probe.ask("an update of everything", Request::put(&at, &everything)).await?.body;
    probe.ask("a stale update", Request::put(&at, &with(born, "/status/phase", "Pending"))).await?;
    probe
        .ask(
            "an update of everything by the main endpoint",
            Request::put(&path, &with(second, "/status/phase", "Terminated")),
        )
        .await?;
    let name = probe.name(Kind::Node, "a");
    let condition = |kind: &str| {
        json!([{"type": kind, "status": "True", "reason": "x", "message": "y",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    };
    let status = |kind: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": condition(kind)}})
    };
    probe.ask("an apply of a condition", Request::apply(&at, OURS, &status("One"))).await?;
    probe.ask("an apply of another condition by another", Request::apply(&at, THEIRS, &status("Two"))).await?;
    probe.ask("an apply of the same condition by another", Request::apply(&at, THEIRS, &status("One"))).await?;
    let without = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    probe.ask("an apply without a condition", Request::apply(&at, OURS, &without)).await?;
    probe.ask("a merge to another object", Request::merge(&at, &json!({"metadata": {"uid": WRONG_UID}}))).await?;
    probe.ask("a merge of a finalizer", Request::merge(&at, &json!({"metadata": {"finalizers": ["a.b/c"]}}))).await?;
    probe.quietly(&Request::merge(&path, &json!({"metadata": {"finalizers": null}}))).await?;
    Ok(())
}
