//! Patches: JSON patches, merge patches, strategic merge patches.

use serde_json::{Value, json};

use super::{
    objects::{KINDS, Kind, WRONG_UID, held, with},
    probe::{OURS, Probe, Request, THEIRS},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn merge(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Lease, Kind::Node]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let first = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        let metadata = |metadata: Value| json!({"metadata": metadata});
        let patches = [
            ("a merge", metadata(json!({"labels": {"second": "2"}, "annotations": {"a.b/c": "d"}}))),
            ("a merge that changes nothing", metadata(json!({"labels": {"second": "2"}}))),
            ("a merge that removes", metadata(json!({"labels": {"second": null}, "annotations": null}))),
            ("a stale merge", metadata(json!({"resourceVersion": first.version(), "labels": {"second": "3"}}))),
            ("a merge to another object", metadata(json!({"uid": WRONG_UID}))),
            ("a merge with another name", metadata(json!({"name": "other"}))),
            ("a merge with another namespace", metadata(json!({"namespace": "elsewhere"}))),
            ("a merge that removes the version", metadata(json!({"resourceVersion": null, "labels": {"second": "4"}}))),
            ("a merge of a wrong label", metadata(json!({"labels": {"second": "no label!"}}))),
            (
                "a merge of system fields",
                metadata(json!({"generation": 77, "creationTimestamp": "2020-01-01T00:00:00Z"})),
            ),
            ("a merge of a status", json!({"status": {"phase": "Running"}})),
            ("an empty merge", json!({})),
            ("a merge of finalizers", metadata(json!({"finalizers": ["a.b/c", "a.b/d"]}))),
            ("a merge of other finalizers", metadata(json!({"finalizers": ["a.b/d"]}))),
            ("a merge without finalizers", metadata(json!({"finalizers": null}))),
            ("a merge that drops managedFields", metadata(json!({"managedFields": [{}]}))),
            ("a merge when nobody is tracked", metadata(json!({"labels": {"fifth": "5"}}))),
        ];
        for (what, patch) in patches {
            let request = Request::merge(&path, &patch).query(&format!("fieldManager={THEIRS}"));
            probe.ask(what, request).await?;
        }
        let missing = Request::merge(probe.path(kind, "b"), &metadata(json!({"labels": {"a": "b"}})));
        probe.ask("a merge to what is not there", missing).await?;
        // The message comes from Go's JSON decoder.
        let nonsense = Request::merge(&path, &Value::Null).raw("application/merge-patch+json", "[1");
        let said = probe.silently(&nonsense).await?;
        probe.note("a merge that is no JSON", &json!({"code": said.code, "reason": said.body["reason"]}));
        let unknown = Request::merge(&path, &json!({})).raw("application/json", "{}");
        probe.ask("a patch of no known form", unknown).await?;
    }
    Ok(())
}

pub(super) async fn json(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let first = probe.quietly(&Request::post(&all, &held(probe.object(kind, "a")))).await?;
        let op = |op: &str, path: &str, value: &Value| json!({"op": op, "path": path, "value": value});
        let label = |name: &str| op("add", &format!("/metadata/labels/{name}"), &"x".into());
        let patches = [
            ("an addition", json!([label("second")])),
            ("a replacement", json!([op("replace", "/metadata/labels/first", &"2".into())])),
            ("a replacement of a key that is not there", json!([op("replace", "/metadata/labels/none", &"2".into())])),
            (
                "a replacement in a map that is not there",
                json!([op("replace", "/metadata/annotations/none", &"2".into())]),
            ),
            ("an addition to a map that is not there", json!([op("add", "/metadata/annotations/none", &"2".into())])),
            ("a removal", json!([{"op": "remove", "path": "/metadata/labels/second"}])),
            ("a removal of what is not there", json!([{"op": "remove", "path": "/metadata/labels/second"}])),
            ("a test that holds", json!([op("test", "/metadata/uid", &first.uid().into()), label("third")])),
            ("a test that fails", json!([op("test", "/metadata/uid", &WRONG_UID.into()), label("fourth")])),
            (
                "a test for nothing where there is nothing",
                json!([op("test", "/metadata/annotations", &Value::Null), label("fifth")]),
            ),
            (
                "a test for nothing where there is something",
                json!([op("test", "/metadata/labels", &Value::Null), label("sixth")]),
            ),
            (
                "a test for nothing in a map that is not there",
                json!([op("test", "/metadata/annotations/x", &Value::Null), label("seventh")]),
            ),
            ("a test for something where there is nothing", json!([op("test", "/metadata/annotations", &json!({}))])),
            ("an addition at the end of a list", json!([op("add", "/metadata/finalizers/-", &"a.b/c".into())])),
            ("an addition within a list", json!([op("add", "/metadata/finalizers/0", &"a.b/d".into())])),
            ("an addition beyond a list", json!([op("add", "/metadata/finalizers/9", &"a.b/e".into())])),
            ("a removal from a list", json!([{"op": "remove", "path": "/metadata/finalizers/0"}])),
            ("a removal beyond a list", json!([{"op": "remove", "path": "/metadata/finalizers/9"}])),
            ("a replacement beyond a list", json!([op("replace", "/metadata/finalizers/9", &"a.b/e".into())])),
            ("a move", json!([{"op": "move", "from": "/metadata/labels/third", "path": "/metadata/labels/moved"}])),
            ("a copy", json!([{"op": "copy", "from": "/metadata/labels/moved", "path": "/metadata/labels/copied"}])),
            ("a stale version", json!([op("replace", "/metadata/resourceVersion", &first.version().into())])),
            ("another UID", json!([op("replace", "/metadata/uid", &WRONG_UID.into())])),
            ("an operation that is none", json!([op("other", "/metadata/labels/first", &"2".into())])),
            ("no operation", json!([])),
            ("a path that is none", json!([op("add", "metadata", &"2".into())])),
        ];
        for (what, patch) in patches {
            probe.ask(what, Request::json_patch(&path, &patch)).await?;
        }
        let said = probe.silently(&Request::json_patch(&path, &json!({"op": "add"}))).await?;
        probe.note("no list", &json!({"code": said.code, "reason": said.body["reason"]}));
        probe.ask("what is not there", Request::json_patch(probe.path(kind, "b"), &json!([label("a")]))).await?;
    }
    Ok(())
}

/// Writes that are answered by the metadata of the object.
pub(super) async fn for_metadata(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Node]].concat() {
        let path = probe.path(kind, "a");
        let object = probe.object(kind, "a");
        let create = with(object, "/metadata/resourceVersion", "1");
        let patch = |value: &str| json!([{"op": "add", "path": "/metadata/labels/second", "value": value}]);
        for (what, request) in [
            ("a creation by apply", Request::force(&path, OURS, &create)),
            ("the same again", Request::force(&path, OURS, &create)),
            ("a JSON patch", Request::json_patch(&path, &patch("2"))),
            ("a JSON patch that is refused", Request::json_patch(&path, &patch("no label!"))),
            ("a merge", Request::merge(&path, &json!({"metadata": {"finalizers": ["a.b/c"]}}))),
            ("a deletion that waits", Request::delete(&path, &Value::Null)),
            ("the end", Request::merge(&path, &json!({"metadata": {"finalizers": null}}))),
            ("a deletion of what is gone", Request::delete(&path, &Value::Null)),
        ] {
            probe.ask(what, request.for_metadata()).await?;
        }
        probe.quietly(&Request::post(probe.all(kind), &probe.object(kind, "b"))).await?;
        probe.ask("a deletion", Request::delete(probe.path(kind, "b"), &Value::Null).for_metadata()).await?;
    }
    Ok(())
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Because", "message": "because"})
}

pub(super) async fn strategic(probe: &mut Probe) -> TestResult {
    let node = with(probe.object(Kind::Node, "a"), "/spec/taints", json!([{"key": "a", "effect": "NoSchedule"}]));
    probe.quietly(&Request::post(probe.all(Kind::Node), &node)).await?;
    let path = probe.path(Kind::Node, "a");
    let status = format!("{path}/status");
    let address = |kind: &str, address: &str| json!({"type": kind, "address": address});
    for (what, at, patch) in [
        (
            "first conditions",
            &status,
            json!({"status": {"conditions": [condition("Ready", "False")],
            "addresses": [address("InternalIP", "10.0.0.1")], "capacity": {"cpu": "2"}}}),
        ),
        ("one more condition", &status, json!({"status": {"conditions": [condition("DiskPressure", "False")]}})),
        (
            "a changed condition",
            &status,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [address("Hostname", "a")], "capacity": {"memory": "1Gi"}}}),
        ),
        (
            "conditions that change nothing",
            &status,
            json!({"status": {"conditions": [condition("DiskPressure", "False")]}}),
        ),
        (
            "a removed condition",
            &status,
            json!({"status": {"conditions": [{"type": "DiskPressure", "$patch": "delete"}]}}),
        ),
        (
            "replaced conditions",
            &status,
            json!({"status": {"conditions": [condition("Ready", "Unknown"),
            {"$patch": "replace"}]}}),
        ),
        ("a removed part", &status, json!({"status": {"capacity": null}})),
        ("another object", &status, json!({"metadata": {"uid": WRONG_UID}, "status": {"phase": "Running"}})),
        ("the spec by the status", &status, json!({"spec": {"unschedulable": true}})),
        ("the metadata by the status", &status, json!({"metadata": {"labels": {"by": "status"}}})),
        ("taints", &path, json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}})),
        ("labels", &path, json!({"metadata": {"labels": {"x": "y", "first": null}}})),
        ("finalizers", &path, json!({"metadata": {"finalizers": ["a.b/c"]}})),
        ("more finalizers", &path, json!({"metadata": {"finalizers": ["a.b/d"]}})),
        ("fewer finalizers", &path, json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c", "a.b/d"]}})),
        ("the status by the spec", &path, json!({"status": {"phase": "Running"}})),
    ] {
        probe.ask(&format!("a strategic merge of {what}"), Request::strategic(at, &patch)).await?;
    }
    strategic_pod(probe).await?;
    let machine = probe.path(Kind::Machine, "a");
    probe.quietly(&Request::post(probe.all(Kind::Machine), &probe.object(Kind::Machine, "a"))).await?;
    probe.ask("a strategic merge of a custom kind", Request::strategic(&machine, &json!({}))).await?;
    let missing = Request::strategic(probe.path(Kind::Node, "missing"), &json!({}));
    probe.ask("a strategic merge of what is not there", missing).await?;
    Ok(())
}

async fn strategic_pod(probe: &mut Probe) -> TestResult {
    probe.quietly(&Request::post(probe.all(Kind::Pod), &probe.object(Kind::Pod, "a"))).await?;
    let status = format!("{}/status", probe.path(Kind::Pod, "a"));
    let ready = json!({"type": "Ready", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for (what, patch) in [
        (
            "a running pod",
            json!({"status": {"phase": "Running", "conditions": [ready],
            "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "startTime": "2026-01-01T00:00:00Z"}}),
        ),
        ("an unready pod", json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})),
        ("a failed pod", json!({"status": {"phase": "Failed", "reason": "x"}})),
    ] {
        probe.ask(&format!("a strategic merge of {what}"), Request::strategic(&status, &patch)).await?;
    }
    Ok(())
}
