//! The effects of controllers on objects: owners, namespaces, disruption budgets. The suite compares the results, not their
//! timing.

use serde_json::{Value, json};

use super::{
    objects::{FINALIZER, Kind, WRONG_UID, held, with},
    probe::{Probe, Request, Said},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

fn owner(owner: &Said, blocks: bool) -> Value {
    json!({"apiVersion": owner.body["apiVersion"], "kind": owner.body["kind"], "name": owner.text("/metadata/name"),
        "uid": owner.uid(), "controller": true, "blockOwnerDeletion": blocks})
}

fn is_gone(said: &Said) -> bool {
    said.code == 404
}

fn is_going(said: &Said) -> bool {
    !said.text("/metadata/deletionTimestamp").is_empty()
}

/// A set with two machines: one that is deleted at once, and one that a finalizer holds.
async fn family(probe: &mut Probe, name: &str) -> TestResult<[String; 3]> {
    let (sets, machines) = (probe.all(Kind::MachineSet), probe.all(Kind::Machine));
    let set = probe.quietly(&Request::post(&sets, &probe.object(Kind::MachineSet, name))).await?;
    let owners = json!([owner(&set, true)]);
    let (free, bound) = (format!("{name}-free"), format!("{name}-held"));
    let machine = |name: &str| with(Kind::Machine.object(name), "/metadata/ownerReferences", owners.clone());
    probe.quietly(&Request::post(&machines, &machine(&free))).await?;
    probe.quietly(&Request::post(&machines, &held(machine(&bound)))).await?;
    // The real collector acts only on objects that it has observed. Once it has deleted an object created later, it knows the
    // earlier ones.
    let mut nobody = owner(&set, true);
    nobody["uid"] = WRONG_UID.into();
    let last = with(Kind::Machine.object(&format!("{name}-last")), "/metadata/ownerReferences", json!([nobody]));
    probe.quietly(&Request::post(&machines, &last)).await?;
    probe.wait_for(&Request::get(probe.path(Kind::Machine, &format!("{name}-last"))), is_gone).await?;
    let paths =
        [probe.path(Kind::MachineSet, name), probe.path(Kind::Machine, &free), probe.path(Kind::Machine, &bound)];
    Ok(paths)
}

fn let_go() -> Value {
    json!({"metadata": {"finalizers": null}})
}

pub(super) async fn background(probe: &mut Probe) -> TestResult {
    let [set, free, bound] = family(probe, "a").await?;
    probe
        .ask("a deletion in the background", Request::delete(&set, &json!({"propagationPolicy": "Background"})))
        .await?;
    probe.ask("the owner", Request::get(&set)).await?;
    probe.wait_for(&Request::get(&free), is_gone).await?;
    probe.wait_for(&Request::get(&bound), is_going).await?;
    probe.ask("the one that is free", Request::get(&free)).await?;
    probe.ask("the one that is held", Request::get(&bound)).await?;
    probe.ask("the one that is held lets go", Request::merge(&bound, &let_go())).await?;
    probe.ask("the one that was held", Request::get(&bound)).await?;
    Ok(())
}

pub(super) async fn foreground(probe: &mut Probe) -> TestResult {
    let [set, free, bound] = family(probe, "a").await?;
    probe
        .ask("a deletion in the foreground", Request::delete(&set, &json!({"propagationPolicy": "Foreground"})))
        .await?;
    probe.wait_for(&Request::get(&free), is_gone).await?;
    probe.wait_for(&Request::get(&bound), is_going).await?;
    probe.ask("the owner waits", Request::get(&set)).await?;
    probe.ask("the one that is held", Request::get(&bound)).await?;
    probe.ask("the one that is held lets go", Request::merge(&bound, &let_go())).await?;
    probe.wait_for(&Request::get(&set), is_gone).await?;
    probe.ask("the owner then", Request::get(&set)).await?;
    Ok(())
}

pub(super) async fn orphans(probe: &mut Probe) -> TestResult {
    let [set, free, bound] = family(probe, "a").await?;
    probe.ask("a deletion that orphans", Request::delete(&set, &json!({"propagationPolicy": "Orphan"}))).await?;
    probe.wait_for(&Request::get(&set), is_gone).await?;
    probe.ask("the one that is free", Request::get(&free)).await?;
    probe.ask("the one that is held", Request::get(&bound)).await?;
    Ok(())
}

/// Owners that do not exist, or of which some do not.
pub(super) async fn owners(probe: &mut Probe) -> TestResult {
    let (sets, machines) = (probe.all(Kind::MachineSet), probe.all(Kind::Machine));
    let first = probe.quietly(&Request::post(&sets, &probe.object(Kind::MachineSet, "first"))).await?;
    let second = probe.quietly(&Request::post(&sets, &probe.object(Kind::MachineSet, "second"))).await?;
    let mut also = owner(&second, false);
    also["controller"] = false.into();
    let both =
        with(probe.object(Kind::Machine, "both"), "/metadata/ownerReferences", json!([owner(&first, true), also]));
    probe.quietly(&Request::post(&machines, &both)).await?;
    let mut nobody = owner(&first, true);
    nobody["uid"] = WRONG_UID.into();
    let orphan = with(probe.object(Kind::Machine, "orphan"), "/metadata/ownerReferences", json!([nobody]));
    probe.quietly(&Request::post(&machines, &orphan)).await?;
    let orphan = probe.path(Kind::Machine, "orphan");
    probe.wait_for(&Request::get(&orphan), is_gone).await?;
    probe.ask("whose owner has never been", Request::get(&orphan)).await?;
    probe.quietly(&Request::delete(probe.path(Kind::MachineSet, "first"), &json!({}))).await?;
    let path = probe.path(Kind::Machine, "both");
    let has_one = |said: &Said| said.body["metadata"]["ownerReferences"].as_array().map(Vec::len) == Some(1);
    probe.wait_for(&Request::get(&path), has_one).await?;
    probe.ask("one of two owners has gone", Request::get(&path)).await?;
    probe.quietly(&Request::delete(probe.path(Kind::MachineSet, "second"), &json!({}))).await?;
    probe.wait_for(&Request::get(&path), is_gone).await?;
    probe.ask("both owners have gone", Request::get(&path)).await?;
    Ok(())
}

/// A namespace is gone when its content is gone.
pub(super) async fn namespaces(probe: &mut Probe) -> TestResult {
    let name = format!("{}-inner", probe.namespace());
    let path = format!("/api/v1/namespaces/{name}");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    probe.ask("a namespace", Request::post("/api/v1/namespaces", &namespace)).await?;
    let of = |kind: Kind| kind.collection(&name);
    probe.quietly(&Request::post(of(Kind::ConfigMap), &Kind::ConfigMap.object("free"))).await?;
    probe.quietly(&Request::post(of(Kind::Machine), &held(Kind::Machine.object("held")))).await?;
    let wrong = json!({"preconditions": {"uid": WRONG_UID}});
    probe.ask("a deletion of another", Request::delete(&path, &wrong)).await?;
    probe.ask("a deletion", Request::delete(&path, &Value::Null)).await?;
    let machine = format!("{}/held", of(Kind::Machine));
    probe.wait_for(&Request::get(&machine), is_going).await?;
    probe.wait_for(&Request::get(format!("{}/free", of(Kind::ConfigMap))), is_gone).await?;
    let again = probe.silently(&Request::delete(&path, &Value::Null)).await?;
    probe.note("the same again", &json!({"code": again.code, "phase": again.body["status"]["phase"]}));
    for kind in [Kind::ConfigMap, Kind::Machine] {
        let object = kind.object("late");
        probe.ask("a create in what is going", Request::post(of(kind), &object)).await?;
        let at = format!("{}/late", of(kind));
        probe.ask("an apply in what is going", Request::apply(&at, FINALIZER, &object)).await?;
    }
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let changed = probe.silently(&Request::merge(&machine, &label)).await?;
    probe.note(
        "a change in what is going",
        &json!({"code": changed.code, "labels": changed.body["metadata"]["labels"]}),
    );
    probe.quietly(&Request::merge(&machine, &let_go())).await?;
    probe.wait_for(&Request::get(&path), is_gone).await?;
    probe.ask("the namespace then", Request::get(&path)).await?;
    probe.ask("a create in what is gone", Request::post(of(Kind::ConfigMap), &Kind::ConfigMap.object("late"))).await?;
    Ok(())
}

/// Times have whole seconds: a client that changes a condition owns the time of the change only if the time differs from the
/// old one. A dry-run create reveals the server's own clock.
async fn a_later_second(probe: &mut Probe, budget: &str) -> TestResult {
    let changed = probe.silently(&Request::get(budget)).await?;
    let changed = changed.text("/status/conditions/0/lastTransitionTime").to_owned();
    let trial = Request::post(probe.all(Kind::ConfigMap), &probe.object(Kind::ConfigMap, "later")).query("dryRun=All");
    probe.wait_for(&trial, |said| said.text("/metadata/creationTimestamp") > changed.as_str()).await
}

/// The pods that a budget counts, and the evictions that it allows.
pub(super) async fn budgets(probe: &mut Probe) -> TestResult {
    let kind = Kind::PodDisruptionBudget;
    let path = probe.path(kind, "a");
    let two = with(probe.object(kind, "a"), "/spec/minAvailable", 2);
    probe.quietly(&Request::post(probe.all(kind), &two)).await?;
    let allows = |number: i64, pods: i64| {
        move |said: &Said| {
            let status = &said.body["status"];
            status["disruptionsAllowed"] == number
                && status["expectedPods"] == pods
                && status["observedGeneration"] == 1
        }
    };
    probe.wait_for(&Request::get(&path), allows(0, 0)).await?;
    probe.ask("a budget without pods", Request::get(&path)).await?;
    for name in ["a", "b", "c"] {
        let pod = with(probe.object(Kind::Pod, name), "/metadata/labels/app", "a");
        probe.quietly(&Request::post(probe.all(Kind::Pod), &pod)).await?;
    }
    probe.wait_for(&Request::get(&path), allows(0, 3)).await?;
    probe.ask("a budget with pods that are not ready", Request::get(&path)).await?;
    for name in ["a", "b", "c"] {
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
            "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        probe.quietly(&Request::merge(format!("{}/status", probe.path(Kind::Pod, name)), &ready)).await?;
    }
    probe.wait_for(&Request::get(&path), allows(1, 3)).await?;
    probe.ask("a budget with pods that are ready", Request::get(&path)).await?;
    let evict = |name: &str| {
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        (format!("{name}/eviction"), body)
    };
    a_later_second(probe, &path).await?;
    let pods = probe.all(Kind::Pod);
    let request = |(at, body): (String, Value)| Request::post(format!("{pods}/{at}"), &body);
    probe.ask("an eviction", request(evict("a"))).await?;
    let is_counted = |said: &Said| said.body["status"]["currentHealthy"] == 2;
    probe.wait_for(&Request::get(&path), is_counted).await?;
    probe.ask("an eviction too many", request(evict("b"))).await?;
    probe.ask("the first again", request(evict("a"))).await?;
    probe.quietly(&Request::delete(probe.path(Kind::Pod, "a"), &json!({"gracePeriodSeconds": 0}))).await?;
    probe.wait_for(&Request::get(&path), allows(0, 2)).await?;
    probe.ask("a budget whose pod has gone", Request::get(&path)).await?;
    probe.ask("another eviction too many", request(evict("c"))).await?;
    Ok(())
}
