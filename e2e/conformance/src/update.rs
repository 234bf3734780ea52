//! Updates (PUT).

use serde_json::json;

use super::{
    objects::{KINDS, Kind, WRONG_UID, held, with, without},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn versions_and_uids(probe: &mut Probe) -> TestResult {
    for kind in [
        KINDS.as_slice(),
        &[Kind::Lease, Kind::MachineSet, Kind::Node, Kind::Pod, Kind::PodDisruptionBudget, Kind::Secret],
    ]
    .concat()
    {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let first = probe.quietly(&Request::post(&all, &probe.object(kind, "a"))).await?.body;
        let labelled = |label: &str| with(first.clone(), "/metadata/labels/second", label);
        let second = probe.ask("an update", Request::put(&path, &labelled("2"))).await?.body;
        probe.ask("a stale update", Request::put(&path, &labelled("3"))).await?;
        probe.ask("an update that changes nothing", Request::put(&path, &second)).await?;
        let wrong = with(second.clone(), "/metadata/uid", WRONG_UID);
        probe.ask("an update of another object", Request::put(&path, &wrong)).await?;
        let unversioned = without(with(second.clone(), "/metadata/labels/second", "4"), "/metadata", "resourceVersion");
        probe.ask("an update without a version", Request::put(&path, &unversioned)).await?;
        let bare = without(second, "/metadata", "uid");
        probe.ask("an update without a UID", Request::put(&path, &bare)).await?;
        let missing = with(labelled("5"), "/metadata/name", probe.name(kind, "b"));
        probe.ask("an update of what is not there", Request::put(probe.path(kind, "b"), &missing)).await?;
        let new = probe.object(kind, "c");
        probe.ask("an update that could be a create", Request::put(probe.path(kind, "c"), &new)).await?;
    }
    Ok(())
}

/// The fields that an update can change, and those that it leaves.
pub(super) async fn bodies(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let mut live = probe.quietly(&Request::post(&all, &held(probe.object(kind, "a")))).await?.body;
        let steps = [
            (
                "with other system fields",
                json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 77,
                "deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}}),
            ),
            ("with a status", json!({"status": {"currentStatus": {"phase": "Running"}}})),
            ("with empty labels", json!({"metadata": {"labels": {}}})),
            ("without finalizers", json!({"metadata": {"finalizers": []}})),
            ("with a wrong label", json!({"metadata": {"labels": {"a": "-"}}})),
            ("with another name", json!({"metadata": {"name": "b"}})),
            ("with another namespace", json!({"metadata": {"namespace": "elsewhere"}})),
            ("of another kind", json!({"kind": "Other"})),
            ("without managedFields", json!({"metadata": {"managedFields": []}})),
            ("with a label when nobody is tracked", json!({"metadata": {"labels": {"late": "1"}}})),
        ];
        for (what, change) in steps {
            let mut body = live.clone();
            json_patch::merge(&mut body, &change);
            let said = probe.ask(&format!("an update {what}"), Request::put(&path, &body)).await?;
            if said.code == 200 {
                live = said.body;
            }
        }
    }
    let path = probe.path(Kind::ConfigMap, "a");
    let live = probe.quietly(&Request::get(&path)).await?.body;
    probe.ask("an update without data", Request::put(&path, &without(live, "", "data"))).await?;
    let path = probe.path(Kind::Machine, "b");
    let live = probe.quietly(&Request::post(probe.all(Kind::Machine), &probe.object(Kind::Machine, "b"))).await?.body;
    let changed = with(live, "/spec/providerID", "cloud:///1");
    let changed = probe.ask("a change of the spec is a new generation", Request::put(&path, &changed)).await?.body;
    let labelled = with(changed, "/metadata/annotations/x", "y");
    probe.ask("a change of the metadata is none", Request::put(&path, &labelled)).await?;
    let node = probe.quietly(&Request::post(probe.all(Kind::Node), &probe.object(Kind::Node, "b"))).await?.body;
    let other = with(node, "/spec/providerID", "cloud:///2");
    probe.ask("a Node with another providerID", Request::put(probe.path(Kind::Node, "b"), &other)).await?;
    Ok(())
}
