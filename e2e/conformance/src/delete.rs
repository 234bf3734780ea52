//! Deletions.

use serde_json::{Value, json};

use super::{
    objects::{FINALIZER, KINDS, Kind, WRONG_UID, held, with},
    probe::{OURS, Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn at_once(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Lease, Kind::Node, Kind::PodDisruptionBudget, Kind::Secret]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        probe.ask("a deletion", Request::delete(&path, &Value::Null)).await?;
        probe.ask("it is gone", Request::get(&path)).await?;
        probe.ask("a deletion of what is gone", Request::delete(&path, &Value::Null)).await?;
    }
    Ok(())
}

pub(super) async fn preconditions(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Node, Kind::Pod]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let born = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        let changed = probe.quietly(&Request::merge(&path, &json!({"metadata": {"labels": {"second": "2"}}}))).await?;
        let when = |preconditions: Value| json!({"preconditions": preconditions});
        for (what, options) in [
            ("of another object", when(json!({"uid": WRONG_UID}))),
            ("of an old version", when(json!({"resourceVersion": born.version()}))),
            ("of this object in an old version", when(json!({"uid": born.uid(), "resourceVersion": born.version()}))),
            ("of this version", when(json!({"uid": born.uid(), "resourceVersion": changed.version()}))),
        ] {
            probe.ask(&format!("a deletion {what}"), Request::delete(&path, &options)).await?;
        }
        probe
            .ask(
                "a deletion of another that is gone",
                Request::delete(probe.path(kind, "x"), &when(json!({"uid": WRONG_UID}))),
            )
            .await?;
    }
    Ok(())
}

/// Objects with finalizers.
pub(super) async fn finalizers(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::MachineSet, Kind::Node]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let held = with(held(probe.object(kind, "a")), "/metadata/finalizers", json!([FINALIZER, "a.b/c"]));
        let born = probe.quietly(&Request::post(&all, &held)).await?;
        let stays = json!([{"op": "test", "path": "/metadata/deletionTimestamp", "value": null}]);
        probe.ask("whether it stays", Request::json_patch(&path, &stays)).await?;
        probe
            .ask("a deletion that waits", Request::delete(&path, &json!({"preconditions": {"uid": born.uid()}})))
            .await?;
        probe.ask("the same again", Request::delete(&path, &Value::Null)).await?;
        probe.ask("whether it stays now", Request::json_patch(&path, &stays)).await?;
        let add = json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "a.b/late"}]);
        probe.ask("one more finalizer", Request::json_patch(&path, &add)).await?;
        let merge = json!({"metadata": {"finalizers": [FINALIZER, "a.b/other"]}});
        probe.ask("another finalizer", Request::merge(&path, &merge)).await?;
        let late = with(probe.object(kind, "a"), "/metadata/finalizers", json!(["a.b/late"]));
        probe.ask("an apply of another finalizer", Request::apply(&path, OURS, &late)).await?;
        probe.ask("a change beside", Request::merge(&path, &json!({"metadata": {"labels": {"x": "y"}}}))).await?;
        let revive = json!({"metadata": {"deletionTimestamp": null}});
        probe.ask("a return to life", Request::merge(&path, &revive)).await?;
        let first = json!([{"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
            {"op": "remove", "path": "/metadata/finalizers/0"}]);
        probe.ask("without the first finalizer", Request::json_patch(&path, &first)).await?;
        let dry = Request::merge(&path, &json!({"metadata": {"finalizers": null}})).query("dryRun=All");
        probe.ask("a dry removal of the last finalizer", dry).await?;
        let last = json!({"metadata": {"finalizers": null, "labels": {"last": "1"}}});
        probe.ask("without the last finalizer", Request::merge(&path, &last)).await?;
        probe.ask("it is gone", Request::get(&path)).await?;
        probe.ask("a patch of what is gone", Request::merge(&path, &last)).await?;
    }
    Ok(())
}

/// Propagation policies for dependents.
pub(super) async fn propagation(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        for policy in ["Foreground", "Orphan", "Background", "Other"] {
            let name = policy.to_lowercase();
            let path = probe.path(kind, &name);
            probe.quietly(&Request::post(probe.all(kind), &probe.object(kind, &name))).await?;
            let options = json!({"propagationPolicy": policy});
            probe.ask(&format!("a deletion with policy {policy}"), Request::delete(&path, &options)).await?;
            probe.ask("the same again", Request::delete(&path, &options)).await?;
            let other = json!({"propagationPolicy": "Background"});
            probe.ask("with another policy", Request::delete(&path, &other)).await?;
        }
        let path = probe.path(kind, "orphans");
        probe.quietly(&Request::post(probe.all(kind), &probe.object(kind, "orphans"))).await?;
        probe.ask("a deletion that orphans", Request::delete(&path, &json!({"orphanDependents": true}))).await?;
    }
    Ok(())
}

/// A running Pod has a grace period.
pub(super) async fn pods(probe: &mut Probe) -> TestResult {
    let (all, kind) = (probe.all(Kind::Pod), Kind::Pod);
    let path = probe.path(kind, "a");
    probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
    probe.ask("a deletion of a pod on a node", Request::delete(&path, &Value::Null)).await?;
    probe.ask("the same again", Request::delete(&path, &Value::Null)).await?;
    probe.ask("with more time", Request::delete(&path, &json!({"gracePeriodSeconds": 60}))).await?;
    probe.ask("with less time", Request::delete(&path, &json!({"gracePeriodSeconds": 5}))).await?;
    let add = json!({"metadata": {"finalizers": [FINALIZER]}});
    probe.ask("a finalizer that comes too late", Request::merge(&path, &add)).await?;
    probe.ask("without time", Request::delete(&path, &json!({"gracePeriodSeconds": 0}))).await?;
    probe.ask("it is gone", Request::get(&path)).await?;

    let path = probe.path(kind, "held");
    probe.quietly(&Request::post(&all, &held(probe.object(kind, "held")))).await?;
    probe.ask("a deletion of a pod with a finalizer", Request::delete(&path, &Value::Null)).await?;
    probe.ask("without time", Request::delete(&path, &json!({"gracePeriodSeconds": 0}))).await?;
    probe.ask("without the finalizer", Request::merge(&path, &json!({"metadata": {"finalizers": null}}))).await?;
    probe.ask("it is gone as well", Request::get(&path)).await?;

    let path = probe.path(kind, "idle");
    let mut idle = probe.object(kind, "idle");
    if let Some(spec) = idle["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    probe.quietly(&Request::post(&all, &idle)).await?;
    probe.ask("a deletion of a pod on no node", Request::delete(&path, &Value::Null)).await?;

    let path = probe.path(kind, "over");
    probe.quietly(&Request::post(&all, &probe.object(kind, "over"))).await?;
    let over = json!({"status": {"phase": "Succeeded"}});
    probe.quietly(&Request::merge(format!("{path}/status"), &over)).await?;
    probe.ask("a deletion of a pod that is over", Request::delete(&path, &Value::Null)).await?;
    probe.quietly(&Request::post(&all, &probe.object(kind, "b"))).await?;
    let negative = Request::delete(probe.path(kind, "b"), &json!({"gracePeriodSeconds": -5}));
    probe.ask("a negative time", negative).await?;
    Ok(())
}

pub(super) async fn collections(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Pod]].concat() {
        let all = probe.all(kind);
        for (name, pool) in [("a", "blue"), ("b", "red")] {
            probe.quietly(&Request::post(&all, &with(probe.object(kind, name), "/metadata/labels/pool", pool))).await?;
        }
        let held = with(held(probe.object(kind, "c")), "/metadata/labels/pool", "red");
        probe.quietly(&Request::post(&all, &held)).await?;
        let blue = Request::delete(&all, &json!({"gracePeriodSeconds": 0})).query("labelSelector=pool%3Dblue");
        probe.ask("a deletion of those that are blue", blue).await?;
        probe.ask("what is left", Request::get(&all)).await?;
        probe.ask("a deletion of all", Request::delete(&all, &json!({"gracePeriodSeconds": 0}))).await?;
        probe.ask("what is left then", Request::get(&all)).await?;
    }
    Ok(())
}
