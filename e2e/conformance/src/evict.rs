//! Evictions and disruption budgets. The case writes the budget's status itself.

use serde_json::{Value, json};

use super::{
    objects::{Kind, WRONG_UID, held, with},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

fn eviction(name: &str, options: &Value) -> Value {
    let mut body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    if !options.is_null() {
        body["deleteOptions"] = options.clone();
    }
    body
}

async fn pod(probe: &mut Probe, name: &str, app: &str, ready: bool) -> TestResult {
    let pod = with(probe.object(Kind::Pod, name), "/metadata/labels/app", app);
    probe.quietly(&Request::post(probe.all(Kind::Pod), &pod)).await?;
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready,
        "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    probe.quietly(&Request::merge(format!("{}/status", probe.path(Kind::Pod, name)), &status)).await?;
    Ok(())
}

async fn budget(probe: &mut Probe, name: &str, app: &str, status: &Value) -> TestResult {
    let kind = Kind::PodDisruptionBudget;
    let object = with(probe.object(kind, name), "/spec/selector/matchLabels/app", app);
    probe.quietly(&Request::post(probe.all(kind), &object)).await?;
    if !status.is_null() {
        let at = format!("{}/status", probe.path(kind, name));
        probe.quietly(&Request::merge(at, &json!({"status": status}))).await?;
    }
    Ok(())
}

fn evict(probe: &Probe, name: &str, options: &Value) -> Request {
    Request::post(format!("{}/eviction", probe.path(Kind::Pod, name)), &eviction(name, options))
}

pub(super) async fn freely(probe: &mut Probe) -> TestResult {
    pod(probe, "a", "none", true).await?;
    let path = probe.path(Kind::Pod, "a");
    let uid = probe.quietly(&Request::get(&path)).await?.uid().to_owned();
    let when = |uid: &str| json!({"preconditions": {"uid": uid}});
    probe.ask("an eviction of another pod", evict(probe, "a", &when(WRONG_UID))).await?;
    probe.ask("a dry eviction", evict(probe, "a", &Value::Null).query("dryRun=All")).await?;
    probe.ask("a dry eviction, said otherwise", evict(probe, "a", &json!({"dryRun": ["All"]}))).await?;
    probe.ask("it is as it was", Request::get(&path)).await?;
    probe.ask("an eviction", evict(probe, "a", &when(&uid))).await?;
    probe.ask("what it has done", Request::get(&path)).await?;
    probe.ask("the same again", evict(probe, "a", &when(&uid))).await?;
    probe.ask("again without time", evict(probe, "a", &json!({"gracePeriodSeconds": 0}))).await?;
    probe.ask("an eviction of what is not there", evict(probe, "missing", &Value::Null)).await?;
    let wrong = Request::post(format!("{path}/eviction"), &eviction("other", &Value::Null));
    probe.ask("an eviction with another name", wrong).await?;

    probe.quietly(&Request::post(probe.all(Kind::Pod), &held(probe.object(Kind::Pod, "held")))).await?;
    probe.ask("an eviction of a pending pod with a finalizer", evict(probe, "held", &Value::Null)).await?;
    probe.ask("what it has done to it", Request::get(probe.path(Kind::Pod, "held"))).await?;
    let free = json!({"metadata": {"finalizers": null}});
    probe.quietly(&Request::merge(probe.path(Kind::Pod, "held"), &free)).await?;
    Ok(())
}

pub(super) async fn by_budget(probe: &mut Probe) -> TestResult {
    let healthy = |current: i32, desired: i32, allowed: i32| {
        json!({"observedGeneration": 1, "currentHealthy": current, "desiredHealthy": desired,
            "disruptionsAllowed": allowed, "expectedPods": current})
    };
    budget(probe, "unobserved", "unobserved", &Value::Null).await?;
    budget(probe, "exhausted", "exhausted", &healthy(2, 2, 0)).await?;
    budget(probe, "spare", "spare", &healthy(3, 2, 1)).await?;
    budget(probe, "short", "short", &healthy(1, 2, 0)).await?;
    budget(probe, "first", "two", &healthy(3, 2, 1)).await?;
    budget(probe, "second", "two", &healthy(3, 2, 1)).await?;
    for app in ["unobserved", "exhausted", "spare", "short", "two"] {
        pod(probe, app, app, true).await?;
        pod(probe, &format!("{app}-unready"), app, false).await?;
        let pending = with(probe.object(Kind::Pod, &format!("{app}-pending")), "/metadata/labels/app", app);
        probe.quietly(&Request::post(probe.all(Kind::Pod), &pending)).await?;
        probe
            .ask(
                &format!("a dry eviction under a budget that is {app}"),
                evict(probe, app, &Value::Null).query("dryRun=All"),
            )
            .await?;
        probe.ask(&format!("an eviction under a budget that is {app}"), evict(probe, app, &Value::Null)).await?;
        for state in ["unready", "pending"] {
            let name = format!("{app}-{state}");
            let what = format!("an eviction of a pod that is {state} under a budget that is {app}");
            probe.ask(&what, evict(probe, &name, &Value::Null)).await?;
        }
    }
    for name in ["spare", "exhausted"] {
        probe
            .ask(&format!("the budget {name} then"), Request::get(probe.path(Kind::PodDisruptionBudget, name)))
            .await?;
    }
    probe.ask("the pod then", Request::get(probe.path(Kind::Pod, "spare"))).await?;
    let always = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    probe.quietly(&Request::merge(probe.path(Kind::PodDisruptionBudget, "short"), &always)).await?;
    pod(probe, "sick", "short", false).await?;
    probe.ask("an eviction of an unready pod that may always go", evict(probe, "sick", &Value::Null)).await?;
    Ok(())
}
