//! Watches: their events, the order, and how they end.

use serde_json::{Value, json};

use super::{
    objects::{KINDS, Kind, held, with},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

fn labels(labels: &Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

/// The life of an object.
pub(super) async fn life(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Pod]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let before = probe.silently(&Request::get(&all)).await?;
        let mut watch = probe.watch(&all, &format!("resourceVersion={}", before.version())).await?;
        probe.quietly(&Request::post(&all, &held(probe.object(kind, "a")))).await?;
        probe.quietly(&Request::merge(&path, &labels(&json!({"second": "2"})))).await?;
        probe.quietly(&Request::merge(&path, &labels(&json!({"second": "2"})))).await?;
        probe.quietly(&Request::delete(&path, &json!({"gracePeriodSeconds": 0}))).await?;
        probe.quietly(&Request::merge(&path, &json!({"metadata": {"finalizers": null}}))).await?;
        probe.quietly(&Request::post(&all, &probe.object(kind, "b"))).await?;
        probe.quietly(&Request::delete(probe.path(kind, "b"), &json!({"gracePeriodSeconds": 0}))).await?;
        let count = if kind == Kind::Pod { 7 } else { 6 };
        probe.events("life", &mut watch, count).await?;
    }
    Ok(())
}

/// The initial events for existing objects.
pub(super) async fn beginnings(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        for name in ["b", "a"] {
            probe.quietly(&Request::post(&all, &probe.object(kind, name))).await?;
        }
        for (what, query, count) in [
            ("a watch without a version", "timeoutSeconds=5", 2),
            ("a watch from any version", "resourceVersion=0", 2),
            ("a watch without a version, with bookmarks", "allowWatchBookmarks=true", 3),
            (
                "a watch that begins with what is there",
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
                3,
            ),
            (
                "a watch that begins with what is there, from any version",
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0",
                3,
            ),
            (
                "a watch that begins with nothing",
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                 &labelSelector=first%3Dother",
                1,
            ),
        ] {
            let mut watch = probe.watch(&all, query).await?;
            probe.events(what, &mut watch, count).await?;
        }
        let newest = probe.quietly(&Request::get(probe.path(kind, "a"))).await?.version().to_owned();
        let query = format!(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion={newest}"
        );
        let mut watch = probe.watch(&all, &query).await?;
        probe.events("a watch that begins with what is there, from a version", &mut watch, 3).await?;
    }
    Ok(())
}

/// Invalid parameters.
pub(super) async fn parameters(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        for query in [
            "watch=true&sendInitialEvents=true",
            "watch=true&resourceVersionMatch=NotOlderThan",
            "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact",
            "watch=true&resourceVersion=x",
            "watch=true&labelSelector=%2D%2D",
            "watch=true&fieldSelector=spec.x%3D1",
        ] {
            probe.ask(&format!("a watch with {query}"), Request::get(probe.all(kind)).query(query)).await?;
        }
    }
    Ok(())
}

/// Objects that enter and leave a selection.
pub(super) async fn selections(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let first = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        let from = format!("resourceVersion={}", first.version());
        let mut blue = probe.watch(&all, &format!("{from}&labelSelector=pool%3Dblue")).await?;
        let mut named = probe.watch(&all, &format!("{from}&fieldSelector=metadata.name%3Da")).await?;
        for pool in ["blue", "red", "blue"] {
            probe.quietly(&Request::merge(&path, &labels(&json!({"pool": pool})))).await?;
        }
        let other = with(probe.object(kind, "b"), "/metadata/labels/pool", "blue");
        probe.quietly(&Request::post(&all, &other)).await?;
        probe.quietly(&Request::delete(&path, &json!({}))).await?;
        probe.events("those that are blue", &mut blue, 5).await?;
        probe.events("the one by its name", &mut named, 4).await?;
    }
    Ok(())
}

/// Watches of metadata only.
pub(super) async fn metadata(probe: &mut Probe) -> TestResult {
    for kind in [KINDS.as_slice(), &[Kind::Secret]].concat() {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let first = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        let from = format!("resourceVersion={}", first.version());
        let mut watch = probe.watch_metadata(&all, &from).await?;
        probe.quietly(&Request::merge(&path, &labels(&json!({"pool": "blue"})))).await?;
        probe.quietly(&Request::post(&all, &probe.object(kind, "b"))).await?;
        probe.quietly(&Request::delete(&path, &json!({}))).await?;
        probe.events("the metadata of what changes", &mut watch, 3).await?;
    }
    Ok(())
}

/// Watches from before the history, and from a future version.
pub(super) async fn edges(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let all = probe.all(kind);
        probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?;
        // Not for ConfigMaps: their cache exists from the beginning, so it contains every event.
        if kind != Kind::ConfigMap {
            let mut old = probe.watch(&all, "resourceVersion=1&timeoutSeconds=2").await?;
            probe.events("a watch from long ago", &mut old, 1).await?;
            probe.end_of("the end of it", &mut old).await?;
        }
        let mut future = probe.watch(&all, "resourceVersion=999999999&timeoutSeconds=1").await?;
        probe.quietly(&Request::post(&all, &probe.object(kind, "b"))).await?;
        probe.end_of("a watch from what is yet to come", &mut future).await?;
        let now = probe.quietly(&Request::get(probe.path(kind, "b"))).await?.version().to_owned();
        let mut short = probe.watch(&all, &format!("resourceVersion={now}&timeoutSeconds=1")).await?;
        probe.end_of("a watch whose time is over", &mut short).await?;
    }
    Ok(())
}
