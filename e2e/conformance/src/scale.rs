//! The scale subresource.

use serde_json::json;

use super::{
    objects::{Kind, WRONG_UID, with, without},
    probe::{OURS, Probe, Request, THEIRS},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn of_sets(probe: &mut Probe) -> TestResult {
    for kind in [Kind::MachineSet, Kind::MachineDeployment] {
        let (all, path) = (probe.all(kind), probe.path(kind, "a"));
        let at = format!("{path}/scale");
        let born = probe.quietly(&Request::apply(&path, OURS, &probe.object(kind, "a"))).await?;
        let scale = probe.ask("a read", Request::get(&at)).await?.body;
        let five = with(scale.clone(), "/spec/replicas", 5);
        probe.ask("an update", Request::put(&at, &five)).await?;
        probe.ask("what it has done", Request::get(&path)).await?;
        probe.ask("a stale update", Request::put(&at, &with(scale, "/spec/replicas", 6))).await?;
        let unversioned = without(with(five, "/spec/replicas", 7), "/metadata", "resourceVersion");
        probe.ask("an update without a version", Request::put(&at, &unversioned)).await?;
        let wrong = with(unversioned, "/metadata/uid", WRONG_UID);
        probe.ask("an update of another object", Request::put(&at, &wrong)).await?;
        let by = format!("fieldManager={THEIRS}");
        let merge = |replicas: i32| Request::merge(&at, &json!({"spec": {"replicas": replicas}})).query(&by);
        probe.ask("a merge", merge(3)).await?;
        probe.ask("a merge that changes nothing", merge(3)).await?;
        let old = json!({"metadata": {"resourceVersion": born.version()}, "spec": {"replicas": 9}});
        probe.ask("a stale merge", Request::merge(&at, &old)).await?;
        let four = json!([{"op": "test", "path": "/spec/replicas", "value": 3},
            {"op": "replace", "path": "/spec/replicas", "value": 4}]);
        probe.ask("a JSON patch", Request::json_patch(&at, &four)).await?;
        probe.ask("a JSON patch whose test fails", Request::json_patch(&at, &four)).await?;
        probe.ask("who owns what then", Request::get(&path)).await?;
        let status = json!({"status": {"replicas": 2, "selector": "set=a"}});
        probe.silently(&Request::merge(format!("{path}/status"), &status)).await?;
        probe.ask("a read with a status", Request::get(&at)).await?;
        probe.ask("the scale of what is not there", Request::get(format!("{}/scale", probe.path(kind, "b")))).await?;
        let unset = without(probe.object(kind, "c"), "/spec", "replicas");
        probe.quietly(&Request::post(&all, &unset)).await?;
        probe.ask("the scale of what has none", Request::get(format!("{}/scale", probe.path(kind, "c")))).await?;
        let first = Request::merge(format!("{}/scale", probe.path(kind, "c")), &json!({"spec": {"replicas": 2}}));
        probe.ask("a first scale", first).await?;
    }
    let machine = format!("{}/scale", probe.path(Kind::Machine, "a"));
    probe.ask("the scale of a kind that has none", Request::get(machine)).await?;
    Ok(())
}
