//! What users of machine-controller-manager reported, on a real control plane. `docs/reference/mcm-defects.md` lists all of it.

use kube::ResourceExt;
use nodewright_api::{Machine, annotations, labels};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, waits};
use serde_json::json;

/// It deleted 39 machines of 40 and made one again (81), and froze a set that was merely scaled down (82).
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issues_81_and_82_a_scale_down_by_38_deletes_38_and_freezes_nothing() -> TestResult {
    let env = Environment::start("plunge").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 40)).await?;
    env.wait_for_running(40).await?;
    let mark = env.machines().mark();
    env.scale("a", 2).await?;
    env.wait_for_running(2).await?;
    env.wait_for("the other VMs to go", async || Ok(env.vms().await?.len() == 2)).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (0, 38));
    let reasons = env.kubectl("get events -o jsonpath={.items[*].reason}").await?;
    ensure(!reasons.contains("Froze"), || format!("something was frozen: {reasons}"))?;
    let sets =
        env.kubectl("get machinesets -o jsonpath={.items[*].metadata.labels}{.items[*].status.conditions}").await?;
    ensure(!sets.contains("freeze") && !sets.contains("Frozen"), || format!("a set is frozen: {sets}"))?;
    env.end().await
}

/// It restarted, and replaced healthy nodes.
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issue_127_a_restart_touches_no_healthy_machine() -> TestResult {
    let env = Environment::start("restart").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 5)).await?;
    let before = env.wait_for_running(5).await?;
    let mark = env.machines().mark();
    let mut manager = env.manager().await?;
    manager.kill_9();
    manager.start_again().await?;
    drop(manager);
    // It works again.
    env.scale("a", 6).await?;
    env.wait_for_running(6).await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (1, 0));
    env.machines().states(mark, |at, state| {
        let is_well = |name: &String| state.get(name).is_some_and(|machine| waits::is_running(machine));
        ensure(before.keys().all(is_well), || format!("at {at} one of the five was not running"))
    })?;
    env.end().await
}

/// It went beyond the surge (425), scaled both sets (754), and once both to zero (802).
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issues_425_754_and_802_a_rollout_that_is_scaled_stays_within_its_bounds() -> TestResult {
    const MOST: usize = 8 + 1;
    const LEAST: usize = 4 - 1;
    let env = Environment::builder("bounds").cloud_flags(["--boot-seconds=2"]).start().await?;
    for class in ["small", "large", "huge"] {
        env.apply_class(class).await?;
    }
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}});
    let pool = |replicas| env.pool("a", replicas).spec("strategy", strategy.clone());
    env.apply(&pool(6)).await?;
    env.wait_for_running(6).await?;
    let mark = env.machines().mark();
    let of = |class: &'static str| move |machine: &Machine| waits::is_running(machine) && machine.class_name() == class;
    for (class, replicas) in [("large", 6), ("large", 4), ("huge", 4), ("huge", 8)] {
        env.apply(&pool(replicas).class(class)).await?;
        let what = format!("a machine of class {class}, of {replicas}");
        env.wait_for_machines(&what, |machines| machines.values().any(|machine| of(class)(machine))).await?;
    }
    env.wait_for_machines("eight machines of the last class", |machines| {
        machines.len() == 8 && machines.values().all(|machine| of("huge")(machine))
    })
    .await?;
    env.machines().states(mark, |at, state| {
        let running = state.values().filter(|machine| waits::is_running(machine)).count();
        let counts = || format!("at {at} {running} of {} machines were running", state.len());
        let staying = state.values().filter(|machine| !machine.is_deleting()).count();
        ensure(staying <= MOST && running >= LEAST, counts)
    })?;
    env.end().await
}

/// It left a Node unschedulable whose machine stayed.
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issue_1087_no_node_stays_unschedulable_after_a_scale_down_that_is_taken_back() -> TestResult {
    let env = Environment::start("regret").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 6)).await?;
    env.wait_for_running(6).await?;
    let is_closed = |node: &k8s_openapi::api::core::v1::Node| {
        node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
    };
    let closed = || env.nodes().current().values().any(|node| is_closed(node));
    for _ in 0..3 {
        let mark = env.nodes().mark();
        env.scale("a", 3).await?;
        let begun = async || {
            let mut any = false;
            env.nodes().states(mark, |_, state| {
                any |= state.values().any(|node| is_closed(node));
                Ok(())
            })?;
            Ok(any)
        };
        env.wait_for("a node to be closed to pods", begun).await?;
        env.scale("a", 6).await?;
        env.wait_for_running(6).await?;
        env.wait_for("all nodes to be open to pods", async || Ok(!closed())).await?;
    }
    env.wait_for("no VM to be too many", async || Ok(env.vms().await?.len() == 6)).await?;
    env.end().await
}

/// Each pass opened the nodes of running machines, also those that users and the autoscaler had closed.
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issues_1107_1108_and_1119_a_node_that_a_user_closed_stays_closed() -> TestResult {
    let env = Environment::start("closed").await?;
    env.apply_class("small").await?;
    let pool = env.pool("a", 3);
    env.apply(&pool).await?;
    let machines = env.wait_for_running(3).await?;
    let (machine, node) = machines
        .iter()
        .find_map(|(name, machine)| Some((name.clone(), machine.node_name()?.to_owned())))
        .ok_or_else(|| Failure::new("no machine has a node"))?;
    env.kubectl(&format!("cordon {node}")).await?;
    let is_closed = async || {
        let nodes = env.nodes().current();
        Ok(nodes.get(&node).and_then(|node| node.spec.as_ref()?.unschedulable) == Some(true))
    };
    env.wait_for("the node to be closed", is_closed).await?;
    let mark = env.nodes().mark();
    // Whatever makes a manager look at the machine and its node.
    let keep = annotations::PRESERVE;
    env.kubectl(&format!("annotate machine {machine} {keep}={}", annotations::PRESERVE_NOW)).await?;
    env.kubectl(&format!("annotate machine {machine} {keep}-")).await?;
    let template = json!({"metadata": {"labels": {"team": "blue"}}});
    env.apply(&pool.machine("nodeTemplate", template)).await?;
    env.manager().await?.terminate().await?;
    env.manager().await?.start_again().await?;
    env.scale("a", 4).await?;
    env.wait_for_running(4).await?;
    env.wait_for("the node to have the new label", async || {
        let nodes = env.nodes().current();
        Ok(nodes.get(&node).is_some_and(|node| node.labels().get("team").is_some_and(|team| team == "blue")))
    })
    .await?;
    env.nodes().states(mark, |at, nodes| {
        let closed = nodes.get(&node).and_then(|node| node.spec.as_ref()?.unschedulable);
        ensure(closed == Some(true), || format!("at {at} the node was open to pods"))
    })?;
    let nodes = env.nodes().current();
    ensure(!nodes[&node].annotations().contains_key(annotations::CORDONED), || "it counts as ours".to_owned())?;
    env.end().await
}

/// A machine without a phase did not get on for 17 hours (1110), nor one without the label with the name of its Node (1070).
#[tokio::test(flavor = "multi_thread")]
async fn mcm_issues_1070_and_1110_a_machine_without_status_and_label_runs_again() -> TestResult {
    let env = Environment::start("blank").await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 2)).await?;
    env.wait_for_running(2).await?;
    let mark = env.machines().mark();
    let machine = env.machines().current().into_keys().next().unwrap_or_default();
    env.kubectl(&format!("label machine {machine} {}-", labels::NODE)).await?;
    env.kubectl(&format!("patch machine {machine} --subresource=status --type=merge -p={{\"status\":null}}")).await?;
    env.wait_for_machines("the machine to run again", |machines| {
        let blank = machines.get(&machine);
        blank.is_some_and(|blank| waits::is_running(blank) && blank.node_name().is_some())
    })
    .await?;
    assert_eq!((env.machines().born_since(mark)?, env.machines().gone_since(mark)?), (0, 0));
    assert_eq!(env.cloud().stats().await?.created, 2, "it has its VM");
    env.end().await
}
