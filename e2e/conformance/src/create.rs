//! Creations.

use serde_json::{Value, json};

use super::{
    objects::{KINDS, Kind, held, with, without},
    probe::{OURS, Probe, Request, THEIRS},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn post(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Lease, Kind::MachineSet, Kind::Node, Kind::Pod, Kind::Secret]].concat() {
        let object = probe.object(kind, "a");
        probe.ask("a create", Request::post(probe.all(kind), &object)).await?;
        probe.ask("a create of what is there", Request::post(probe.all(kind), &object)).await?;
    }
    Ok(())
}

/// The allowed content of a create request, and its effect.
pub(super) async fn bodies(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        let object = |name: &str| kind.object(name);
        let bodies = [
            ("with a version", with(object("b"), "/metadata/resourceVersion", "1")),
            ("with another namespace", with(object("b"), "/metadata/namespace", "elsewhere")),
            ("with a UID and times", {
                let object = with(object("c"), "/metadata/uid", "11111111-1111-4111-8111-111111111111");
                with(object, "/metadata/deletionTimestamp", "2026-01-01T00:00:00Z")
            }),
            ("with a finalizer and an owner", {
                let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]);
                with(held(object("d")), "/metadata/ownerReferences", owner)
            }),
            ("with what is empty", {
                let object = with(object("e"), "/metadata/annotations", json!({}));
                with(with(object, "/metadata/finalizers", json!([])), "/metadata/labels", json!({}))
            }),
            ("with an owner without UID", {
                let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}]);
                with(object("f"), "/metadata/ownerReferences", owner)
            }),
            ("without a name", without(object(""), "/metadata", "name")),
            ("with a wrong name", object("No_Name")),
            ("with a wrong label", with(object("g"), "/metadata/labels/first", "no label!")),
            ("with a wrong finalizer", with(object("g"), "/metadata/finalizers", json!(["no finalizer!"]))),
            ("with a field of the metadata that is none", with(object("h"), "/metadata/unknown", "x")),
            ("of another kind", with(object("i"), "/kind", "Other")),
            ("of another version", with(object("i"), "/apiVersion", "v7")),
        ];
        for (what, body) in bodies {
            probe.ask(&format!("a create {what}"), Request::post(&all, &body)).await?;
        }
        let generated = without(with(object(""), "/metadata/generateName", "gen-"), "/metadata", "name");
        probe.ask("a create with a generated name", Request::post(&all, &generated)).await?;
        probe.ask("another", Request::post(&all, &generated)).await?;
    }
    Ok(())
}

/// A create ignores the status, except for Nodes; Pods start with their initial one.
pub(super) async fn statuses(probe: &mut Probe) -> TestResult {
    let machine = with(probe.object(Kind::Machine, "a"), "/status/currentStatus/phase", "Running");
    probe.ask("a create of a Machine with a status", Request::post(probe.all(Kind::Machine), &machine)).await?;
    let node = with(probe.object(Kind::Node, "a"), "/status/phase", "Running");
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "x", "message": "y"}]);
    let node = with(node, "/status/conditions", ready);
    probe.ask("a create of a Node with a status", Request::post(probe.all(Kind::Node), &node)).await?;
    let pod = with(probe.object(Kind::Pod, "a"), "/status/phase", "Running");
    probe.ask("a create of a Pod with a status", Request::post(probe.all(Kind::Pod), &pod)).await?;
    let budget = with(probe.object(Kind::PodDisruptionBudget, "a"), "/status/disruptionsAllowed", 5);
    let all = probe.all(Kind::PodDisruptionBudget);
    probe.ask("a create of a budget with a status", Request::post(all, &budget)).await?;
    Ok(())
}

/// The ledger claims names by an apply with version 1, which no object ever has.
pub(super) async fn under_version_one(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let path = probe.path(kind, "a");
        let first = with(probe.object(kind, "a"), "/metadata/resourceVersion", "1");
        probe.ask("an apply under version 1", Request::force(&path, OURS, &first)).await?;
        probe.ask("the same again", Request::force(&path, OURS, &first)).await?;
        probe.ask("the same by another", Request::force(&path, THEIRS, &first)).await?;
        probe.ask("what is there then", Request::get(&path)).await?;

        let path = probe.path(kind, "leaving");
        let body = held(probe.object(kind, "leaving"));
        probe.quietly(&Request::post(probe.all(kind), &body)).await?;
        probe.quietly(&Request::delete(&path, &Value::Null)).await?;
        let again = with(probe.object(kind, "leaving"), "/metadata/resourceVersion", "1");
        probe.ask("an apply under version 1 to what is going", Request::force(&path, OURS, &again)).await?;
        probe.ask("a create of what is going", Request::post(probe.all(kind), &body)).await?;
        probe.quietly(&Request::merge(&path, &json!({"metadata": {"finalizers": null}}))).await?;
        probe.ask("an apply under version 1 when it is gone", Request::force(&path, OURS, &again)).await?;
    }
    Ok(())
}

/// Dry runs.
pub(super) async fn dry(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path, object) = (probe.all(kind), probe.path(kind, "a"), probe.object(kind, "a"));
        let dry = |request: Request| request.query("dryRun=All");
        probe.ask("a dry create", dry(Request::post(&all, &object))).await?;
        probe.ask("nothing is there", Request::get(&path)).await?;
        probe.ask("a dry apply of nothing", dry(Request::apply(&path, OURS, &object))).await?;
        let live = probe.quietly(&Request::post(&all, &held(object.clone()))).await?.body;
        probe.ask("a dry create of what is there", dry(Request::post(&all, &object))).await?;
        let changed = with(live.clone(), "/metadata/labels/second", "2");
        probe.ask("a dry update", dry(Request::put(&path, &changed))).await?;
        let change = json!({"metadata": {"labels": {"second": "2"}}});
        probe.ask("a dry patch", dry(Request::merge(&path, &change))).await?;
        probe.ask("a dry apply", dry(Request::force(&path, OURS, &object))).await?;
        probe.ask("a dry deletion", dry(Request::delete(&path, &Value::Null))).await?;
        probe.ask("a deletion with dryRun in its body", Request::delete(&path, &json!({"dryRun": ["All"]}))).await?;
        probe.ask("nothing has changed", Request::get(&path)).await?;
    }
    Ok(())
}

/// Unknown paths and unsupported methods.
pub(super) async fn nowhere(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let object = probe.object(kind, "a");
        let elsewhere = kind.collection("conformance-no-such-namespace");
        probe.ask("a create in a namespace that is not there", Request::post(&elsewhere, &object)).await?;
        let path = format!("{elsewhere}/a");
        probe.ask("an apply in a namespace that is not there", Request::apply(&path, OURS, &object)).await?;
        probe.ask("a list in a namespace that is not there", Request::get(&elsewhere)).await?;
        probe.ask("an update of a collection", Request::put(probe.all(kind), &object)).await?;
        probe.ask("a create of an object by its path", Request::post(probe.path(kind, "a"), &object)).await?;
        probe.ask("a part that is none", Request::get(format!("{}/other", probe.path(kind, "a")))).await?;
        // The message comes from Go's JSON decoder.
        let broken = Request::post(probe.all(kind), &object).raw("application/json", "{");
        let said = probe.silently(&broken).await?;
        probe.note("a body that is no JSON", &json!({"code": said.code, "reason": said.body["reason"]}));
    }
    Ok(())
}
