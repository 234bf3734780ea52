//! Machines that leave their set and come back, and limits of what a set creates.

use std::collections::BTreeSet;

use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{Machine, MachineSet, annotations, labels};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, objects::POOL_LABEL, waits::is_running};
use serde_json::json;

async fn sets(env: &Environment) -> TestResult<Vec<MachineSet>> {
    let api: Api<MachineSet> = Api::namespaced(env.client(), env.namespace());
    Ok(api.list(&ListParams::default()).await?.items)
}

async fn event_reasons(env: &Environment) -> TestResult<String> {
    env.kubectl("get events -o jsonpath={.items[*].reason}").await
}

/// How often an event was sent.
async fn times(env: &Environment, reason: &str) -> TestResult<usize> {
    let query = format!("get events --field-selector=reason={reason} -o jsonpath={{.items[*].count}}");
    let counts = env.kubectl(&query).await?;
    Ok(counts.split_whitespace().filter_map(|count| count.parse::<usize>().ok()).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_another_label_is_released_and_one_that_gets_the_label_back_is_adopted() -> TestResult {
    let env = Environment::start("release").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let before = env.wait_for_running(2).await?;
    let free = before.keys().next().cloned().unwrap_or_default();
    let label = before[&free].labels().get(POOL_LABEL).cloned().unwrap_or_default();
    env.kubectl(&format!("label machine {free} {POOL_LABEL}=another --overwrite")).await?;
    let all = env.wait_for_running(3).await?;
    ensure(all[&free].owner_references().is_empty(), || format!("it has an owner: {:?}", all[&free]))?;
    ensure(before.keys().all(|name| all.contains_key(name)), || format!("a machine went: {:?}", all.keys()))?;
    ensure(event_reasons(&env).await?.contains("Released"), || "no event tells of the release".to_owned())?;
    // A set that is scaled does not touch it.
    env.scale("a", 0).await?;
    let left = env.wait_for_running(1).await?;
    ensure(left.contains_key(&free), || format!("the released machine went: {:?}", left.keys()))?;

    // Its name is used up, so the set gets it back to let it go.
    env.kubectl(&format!("label machine {free} {POOL_LABEL}={label} --overwrite")).await?;
    env.wait_for_nothing().await?;
    assert_eq!(env.cloud().stats().await?.created, 3, "no VM too many");
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_selects_otherwise_leaves_its_machines_alone() -> TestResult {
    let env = Environment::start("selector").await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 2);
    env.apply(&pool).await?;
    let before = env.wait_for_running(2).await?;
    let labels = json!({POOL_LABEL: pool.name(), "tier": "b"});
    let spec = json!({"class": {"kind": "MachineClass", "name": "small"}});
    let other = pool
        .spec("selector", json!({"matchLabels": labels}))
        .spec("template", json!({"metadata": {"labels": labels}, "spec": spec}));
    env.apply(&other).await?;
    let after = env.wait_for_running(4).await?;
    ensure(before.keys().all(|name| after.contains_key(name)), || format!("a machine went: {:?}", after.keys()))?;
    let free: Vec<_> = sets(&env).await?.into_iter().filter(|set| set.owner_references().is_empty()).collect();
    ensure(free.len() == 1 && free[0].spec.replicas == 2, || format!("{free:?}"))?;
    env.end().await
}

/// Whether the only set of a pool says why it lacks machines, and how to change that.
async fn says(env: &Environment, pool: &str, flag: &str) -> TestResult<bool> {
    let label = format!("{}-{pool}", env.namespace());
    let sets = sets(env).await?;
    let of_pool = sets.iter().filter(|set| set.labels().get(POOL_LABEL) == Some(&label));
    let failures = of_pool.filter_map(|set| set.condition("ReplicaFailure"));
    Ok(failures.into_iter().any(|failure| failure.reason == "TooManyMachines" && failure.message.contains(flag)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_stops_creations_and_says_so_until_there_is_room() -> TestResult {
    let flags = ["--max-machines=4", "--max-machines-per-deployment=3"];
    let env = Environment::builder("ceiling").manager_flags(flags).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 5)).await?;
    env.wait_for_running(3).await?;
    let of_deployment = async || says(&env, "a", "--max-machines-per-deployment").await;
    env.wait_for("the set to say that its deployment has the most machines", of_deployment).await?;
    env.apply(&env.pool("b", 3)).await?;
    env.wait_for_running(4).await?;
    let of_all = async || Ok(says(&env, "b", "--max-machines").await? && !says(&env, "b", "-per-deployment").await?);
    env.wait_for("the other set to say that the namespace has the most machines", of_all).await?;

    env.scale("a", 1).await?;
    env.wait_for("no set to lack machines", async || {
        Ok(sets(&env).await?.iter().all(|set| set.condition("ReplicaFailure").is_none()))
    })
    .await?;
    env.wait_for_running(4).await?;
    env.machines().states(0, |at, machines| {
        ensure(machines.len() <= 4, || format!("at {at} there were {} machines", machines.len()))
    })?;
    env.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_that_machine_controller_manager_froze_work_again() -> TestResult {
    let env = Environment::start("thaw").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let mut manager = env.manager().await?;
    manager.terminate().await?;
    // It froze them while it scaled down, and was then replaced.
    let label = format!("{}={}", labels::FREEZE, labels::FREEZE_VALUE);
    env.kubectl(&format!("label machinesets,machinedeployments --all {label}")).await?;
    let set = sets(&env).await?.first().map(ResourceExt::name_any).unwrap_or_default();
    let frozen = json!({"status": {"machineSetCondition": [{"type": "Frozen", "status": "True",
        "reason": "OverShootingReplicaCount", "message": "The number of machines backing MachineSet"}]}});
    env.kubectl(&format!("patch machineset {set} --subresource=status --type=merge -p={}", compact(&frozen))).await?;
    manager.start_again().await?;
    drop(manager);
    env.scale("a", 3).await?;
    env.wait_for_running(3).await?;
    env.wait_for("no label and no condition to be left", async || {
        let left = "get machinesets,machinedeployments -o jsonpath={.items[*].metadata.labels.freeze}";
        let left = env.kubectl(left).await?;
        Ok(left.trim().is_empty() && sets(&env).await?.iter().all(|set| set.condition("Frozen").is_none()))
    })
    .await?;
    env.end().await
}

/// JSON as one argument of kubectl: no blanks.
fn compact(value: &serde_json::Value) -> String {
    value.to_string().replace(' ', "\\u0020")
}

/// A policy by which nobody may adopt the machines that this scenario makes by hand, nor annotate any with `probe`.
async fn deny_adoptions(env: &Environment) -> TestResult<String> {
    let name = format!("{}-adoptions", env.namespace());
    let expression = format!(
        "request.namespace != '{}' || !(has(object.metadata.annotations) && 'probe' in object.metadata.annotations) && \
         (!object.metadata.name.startsWith('by-hand') || !has(object.metadata.ownerReferences))",
        env.namespace()
    );
    let rule = json!({"apiGroups": ["machine.sapcloud.io"], "apiVersions": ["v1alpha1"], "operations": ["UPDATE"],
        "resources": ["machines"]});
    env.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression, "message": "made by hand"}]},
    }))
    .await?;
    env.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .await?;
    Ok(name)
}

/// Makes a machine without an owner that the pool's set selects.
async fn by_hand(env: &Environment, model: &Machine, number: usize) -> TestResult {
    let labels = model.labels();
    env.apply(&json!({
        "apiVersion": nodewright_api::API_VERSION, "kind": "Machine",
        // Of those that run equally well the oldest would go first.
        "metadata": {"name": format!("by-hand-{number}"), "labels": labels,
            "annotations": {annotations::MACHINE_PRIORITY: "1"}},
        "spec": {"class": model.spec.class},
    }))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_that_may_not_be_adopted_block_no_other_and_a_user_ends_the_freeze_once() -> TestResult {
    let env = Environment::builder("denied").cloud_flags(["--delete-seconds=0"]).start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    let wanted = env.wait_for_running(2).await?;
    let model = wanted.values().next().ok_or_else(|| Failure::new("no machine"))?.clone();
    let policy = deny_adoptions(&env).await?;
    let probe = format!("annotate machine {} probe=denied --dry-run=server", model.name_any());
    env.wait_for("the policy to be in force", async || Ok(env.kubectl_refused(&probe).await.is_ok())).await?;
    by_hand(&env, &model, 0).await?;

    // One that may not be adopted does not keep the set from growing.
    env.scale("a", 4).await?;
    env.wait_for_machines("four machines of the set, and the other one", |all| {
        let owned = all.values().filter(|it| is_running(it) && !it.owner_references().is_empty()).count();
        (owned, all.len()) == (4, 5)
    })
    .await?;

    // Many are too many: the set is frozen until a user says otherwise, and again after that.
    for number in 1..5 {
        by_hand(&env, &model, number).await?;
    }
    env.wait_for("the set to be frozen", async || Ok(times(&env, "FrozeMachineSet").await? == 1)).await?;
    let deployment = format!("{}-a", env.namespace());
    env.kubectl(&format!("annotate machinedeployment {deployment} {}=true", annotations::UNFREEZE)).await?;
    env.wait_for("the freeze to end once", async || {
        Ok(times(&env, "UnfrozeMachineSet").await? == 1 && times(&env, "FrozeMachineSet").await? == 2)
    })
    .await?;
    let wishes = "get machinesets,machinedeployments -o jsonpath={.items[*].metadata.annotations}";
    ensure(!env.kubectl(wishes).await?.contains(annotations::UNFREEZE), || "the wish was not taken away".to_owned())?;

    env.kubectl(&format!("delete validatingadmissionpolicybinding,validatingadmissionpolicy {policy}")).await?;
    let after = env.wait_for_running(4).await?;
    let by_hand: BTreeSet<_> = after.keys().filter(|name| name.starts_with("by-hand")).collect();
    ensure(by_hand.is_empty(), || format!("{by_hand:?}"))?;
    env.wait_for("the freeze to end", async || {
        Ok(!sets(&env).await?.iter().any(|set| set.labels().contains_key(labels::FREEZE)))
    })
    .await?;
    env.end().await
}
