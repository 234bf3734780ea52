//! Changes get to all nodes, one node at a time, and from there into their systemd and kubelet.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use nodewright_api::{
    conditions::machine_config_pool as conditions,
    machine_config::{DESIRED_CONFIG, DESIRED_DRAIN},
};
use nodewright_e2e_lab::node::BUSYBOX;
use nodewright_e2e_scenarios::{
    History, TestResult, ensure,
    history::State,
    node_agent::{TAKEN_BACK, UPDATE, said},
    worker_pool::{message, target},
};
use serde_json::{Value, json};

use crate::{
    fixture::{FIRST, Fixture, config, motd},
    image::File,
    openshift::QUIET_FILE,
};

const NODES: usize = 3;
const UNIT: &str = "nodewright-test.service";
const MORE_PODS: u32 = 40;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn a_file_a_unit_and_the_limit_of_pods_get_to_one_node_after_the_other() -> TestResult {
    let Some(fixture) = Fixture::start("roll", NODES).await? else { return Ok(()) };
    let env = &fixture.env;
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    env.apply(&web(NODES, 1)).await?;
    env.wait_for("all pods to run", async || Ok(ready(&pods.current()) == NODES)).await?;
    let (mark, pod_mark) = (env.nodes().mark(), pods.mark());

    let unit = json!({"name": UNIT, "enabled": true, "contents": "[Service]\nType=oneshot\nRemainAfterExit=yes\n\
        ExecStart=/bin/cp /etc/motd /run/seen\n[Install]\nWantedBy=multi-user.target\n"});
    fixture.retarget(&config("50-motd", &[motd("second")], &[unit])).await?;
    fixture.wait_for_all().await?;
    for node in fixture.names() {
        assert_eq!(fixture.shell(&node, "cat /etc/motd /run/seen").await?, "second\nsecond\n", "{node}");
        assert_eq!(fixture.shell(&node, &format!("systemctl is-active {UNIT}")).await?, "active\n", "{node}");
        assert_eq!(fixture.boots(&node, mark)?, 1, "{node}");
    }

    fixture.retarget(&kubelet_config()).await?;
    fixture.wait_for_all().await?;
    let limits: Vec<_> = env.nodes().current().values().map(|node| limit(node)).collect();
    assert_eq!(limits, [MORE_PODS.to_string(), MORE_PODS.to_string(), MORE_PODS.to_string()]);
    for node in fixture.names() {
        assert_eq!(fixture.boots(&node, mark)?, 2, "{node}");
    }
    fixture.check_budget(mark)?;
    pods.states(pod_mark, |at, pods| {
        ensure(ready(pods) >= NODES - 1, || format!("at {at} only {} pods were ready", ready(pods)))
    })?;
    env.kubectl("delete deployments,poddisruptionbudgets,pods --all --grace-period=1").await?;
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn the_daemon_writes_what_the_stand_in_of_other_scenarios_writes() -> TestResult {
    let Some(fixture) = Fixture::start("writes", 1).await? else { return Ok(()) };
    let node = fixture.names().remove(0);
    let old = target(&fixture.env).await?;
    let mark = fixture.env.nodes().mark();
    let new = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    fixture.wait_for_all().await?;
    assert_eq!(fixture.said(&node, mark, &[(&old, "OLD"), (&new, "NEW")])?, UPDATE);

    // By the cluster's policies this disrupts nothing: neither a drain nor a reboot is asked for.
    let mark = fixture.env.nodes().mark();
    let quiet = File { path: QUIET_FILE, content: "quiet".to_owned() };
    let third = fixture.retarget(&config("60-quiet", &[quiet], &[])).await?;
    fixture.wait_for_all().await?;
    let wanted = ["state=Working", "desiredDrain=uncordon-NEW", "currentConfig=NEW state=Done"];
    assert_eq!(fixture.said(&node, mark, &[(&third, "NEW")])?, wanted);
    assert_eq!(fixture.boots(&node, mark)?, 0);
    assert_eq!(fixture.shell(&node, &format!("cat {QUIET_FILE}")).await?, "quiet");
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn a_target_that_is_taken_back_midway_leaves_the_nodes_where_they_were() -> TestResult {
    let Some(fixture) = Fixture::start("back", 2).await? else { return Ok(()) };
    let env = &fixture.env;
    let (old, mark) = (target(env).await?, env.nodes().mark());
    let new = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    env.wait_for("a drain for the new target", async || {
        Ok(env.nodes().current().values().any(|node| said(node, DESIRED_DRAIN).starts_with("drain-")))
    })
    .await?;
    assert_eq!(fixture.retarget(&config("50-motd", &[motd(FIRST)], &[])).await?, old);
    fixture.wait_for_all().await?;
    fixture.check_budget(mark)?;
    let mut given = BTreeSet::new();
    for change in env.nodes().changes()?.iter().skip(mark) {
        if said(&change.object, DESIRED_CONFIG) == new {
            given.insert(change.object.name_any());
        }
    }
    assert_eq!(given.len(), 1, "the other node was left alone: {given:?}");
    for node in fixture.names() {
        let (said, boots) = (fixture.said(&node, mark, &[(&old, "OLD"), (&new, "NEW")])?, fixture.boots(&node, mark)?);
        if given.contains(&node) {
            assert_eq!((said, boots), (TAKEN_BACK.map(str::to_owned).to_vec(), 2));
        } else {
            assert_eq!((said, boots), (vec![], 0));
        }
        assert_eq!(fixture.shell(&node, "cat /etc/motd").await?, format!("{FIRST}\n"));
    }
    fixture.end().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn a_held_drain_for_what_was_taken_back_ends_with_another_daemon() -> TestResult {
    let Some(fixture) = Fixture::start("held", 1).await? else { return Ok(()) };
    let env = &fixture.env;
    let node = fixture.names().remove(0);
    let pods: History<Pod> = History::record(Api::namespaced(env.target_client(), env.namespace()), "").await?;
    env.apply(&web(1, 0)).await?;
    env.wait_for("the pod to run", async || Ok(ready(&pods.current()) == 1)).await?;
    let (old, mark, pod_mark) = (target(env).await?, env.nodes().mark(), pods.mark());
    let new = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    let is_held =
        async || Ok(message(env, conditions::UPDATING).await?.contains(&format!("{node} is being drained of ")));
    env.wait_for("the pool to say which pod it waits for", is_held).await?;
    assert_eq!(fixture.retarget(&config("50-motd", &[motd(FIRST)], &[])).await?, old);
    env.wait_for("the node to be given the former target, and the drain to go on", async || {
        let is_back = env.nodes().current().get(&node).is_some_and(|node| said(node, DESIRED_CONFIG) == old);
        Ok(is_back && is_held().await?)
    })
    .await?;
    fixture.kill_daemon(&node).await?;
    fixture.wait_for_all().await?;
    let wanted = ["state=Working", "desiredDrain=drain-NEW", "desiredDrain=uncordon-OLD", "state=Done"];
    assert_eq!(fixture.said(&node, mark, &[(&old, "OLD"), (&new, "NEW")])?, wanted);
    assert_eq!(fixture.boots(&node, mark)?, 0);
    pods.states(pod_mark, |at, pods| ensure(ready(pods) == 1, || format!("at {at} the pod was not ready")))?;
    env.kubectl("delete deployments,poddisruptionbudgets,pods --all --grace-period=1").await?;
    fixture.end().await
}

/// Pods that spread over the nodes, of which so many may be missing.
fn web(replicas: usize, missing: u32) -> Value {
    let labels = json!({"app": "web"});
    let container =
        json!({"name": "web", "image": BUSYBOX, "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1; done"]});
    let spread = json!({
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    });
    let pod =
        json!({"containers": [container], "topologySpreadConstraints": [spread], "terminationGracePeriodSeconds": 2});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": {
            "maxUnavailable": missing, "selector": {"matchLabels": labels},
        }},
    ]})
}

fn ready(pods: &State<Pod>) -> usize {
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    pods.values().filter(|pod| is_ready(pod)).count()
}

fn kubelet_config() -> Value {
    let selector = json!({"matchLabels": {"pools.operator.machineconfiguration.openshift.io/worker": ""}});
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "KubeletConfig", "metadata": {"name": "more-pods"},
        "spec": {"machineConfigPoolSelector": selector, "kubeletConfig": {"maxPods": MORE_PODS}}})
}

/// How many pods the kubelet of a node takes.
fn limit(node: &Node) -> String {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("pods")).map(|pods| pods.0.clone()).unwrap_or_default()
}
