//! A pool that machine-config-operator has described becomes Nodewright's.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use nodewright_api::{
    conditions::machine_config_pool as conditions,
    machine_config::{ControllerConfig, DESIRED_CONFIG, DESIRED_DRAIN, LAST_APPLIED_DRAIN, MachineConfig},
};
use nodewright_e2e_scenarios::{
    Environment, Failure, TestResult, ensure,
    node_agent::said,
    worker_pool::{is, pool, target},
};
use serde_json::{Value, json};

use crate::{
    fixture::{Ground, config, manager, motd, skip},
    openshift::NAMESPACE,
};

const NODES: usize = 2;
/// The Lease of machine-config-operator's controllers.
const LEASE: &str = "machine-config-controller";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "part of make test-mcd"]
async fn taking_over_a_pool_that_machine_config_operator_has_described_moves_no_node() -> TestResult {
    let Some(ground) = Ground::prepare("taken").await? else { return Ok(()) };
    let renderer = ground.daemon.join("render");
    if !renderer.exists() {
        skip("taken", "the sources of machine-config-operator lack pkg/controller/render");
        return ground.env.end_unevaluated().await;
    }
    hold_lease(&ground.env, "machine-config-controller-0").await?;
    let described = describe(&ground.env, &renderer).await?;
    let manager = manager(&ground.env, "manager").await?;
    let fixture = ground.populate(manager, &described, NODES).await?;
    let env = &fixture.env;
    env.wait_for("all nodes to be done under machine-config-operator", async || {
        acknowledge(env).await?;
        let nodes = env.nodes().current();
        let is_done = |node: &Node| said(node, LAST_APPLIED_DRAIN) == format!("uncordon-{described}");
        Ok(nodes.len() == NODES && nodes.values().all(|node| is_done(node)))
    })
    .await?;
    let status = pool(env).await?.status.unwrap_or_default();
    ensure(!is(&status, conditions::UPDATED), || format!("Nodewright has not waited: {status:?}"))?;

    let mark = env.nodes().mark();
    hold_lease(env, "").await?;
    fixture.wait_for_all().await?;
    assert_eq!(target(env).await?, described);
    // From here on it is an ordinary pool. That this is the first change of the nodes shows that the take-over was none.
    let second = fixture.retarget(&config("50-motd", &[motd("second")], &[])).await?;
    fixture.wait_for_all().await?;
    fixture.check_budget(mark)?;
    for change in env.nodes().changes()?.iter().skip(mark) {
        let desired = said(&change.object, DESIRED_CONFIG);
        ensure(desired == described || desired == second, || format!("{}: {desired}", change.object.name_any()))?;
    }
    for node in fixture.names() {
        assert_eq!(fixture.boots(&node, mark)?, 1, "{node}");
    }
    fixture.end().await
}

/// Has machine-config-operator's Lease be held by this one, or nobody.
async fn hold_lease(env: &Environment, holder: &str) -> TestResult {
    let now = jiff::Timestamp::now();
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": format!("{now:.6}"),
        "acquireTime": format!("{now:.6}")});
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec});
    let api: Api<Lease> = Api::namespaced(env.client(), NAMESPACE);
    api.patch(LEASE, &PatchParams::apply("machine-config-operator").force(), &Patch::Apply(lease)).await?;
    Ok(())
}

/// Renders the pool with machine-config-operator's own code, and stores what it makes as its controllers do. Returns the name.
async fn describe(env: &Environment, renderer: &Path) -> TestResult<String> {
    let configs: Api<MachineConfig> = Api::all(env.client());
    let cluster: Api<ControllerConfig> = Api::all(env.client());
    let input = json!({
        "pool": typed(pool(env).await?, "MachineConfigPool")?,
        "configs": configs.list(&ListParams::default()).await?.items,
        "controllerConfig": cluster.get("machine-config-controller").await?,
    });
    let output: Value = serde_json::from_slice(&run(renderer, &input.to_string())?)?;
    let mut config = typed(output["config"].clone(), "MachineConfig")?;
    config["metadata"]["creationTimestamp"] = Value::Null;
    env.apply(&config).await?;
    let api: Api<nodewright_api::machine_config::MachineConfigPool> = Api::all(env.client());
    let (spec, status) = (&output["pool"]["spec"]["configuration"], &output["pool"]["status"]["configuration"]);
    let by = PatchParams::default();
    api.patch("worker", &by, &Patch::Merge(json!({"spec": {"configuration": spec}}))).await?;
    api.patch_status("worker", &by, &Patch::Merge(json!({"status": {"configuration": status}}))).await?;
    let name = config["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    ensure(target(env).await? == name, || format!("the pool has another target than {name}"))?;
    Ok(name)
}

fn typed(object: impl serde::Serialize, kind: &str) -> TestResult<Value> {
    let mut object = serde_json::to_value(object)?;
    object["apiVersion"] = json!("machineconfiguration.openshift.io/v1");
    object["kind"] = json!(kind);
    Ok(object)
}

fn run(program: &Path, input: &str) -> TestResult<Vec<u8>> {
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or_else(|| Failure::new("there is no input"))?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(output.stdout)
}

/// Says that what the daemons ask for is done, as machine-config-operator's controllers do. No pods are there to drain.
async fn acknowledge(env: &Environment) -> TestResult {
    let api: Api<Node> = Api::all(env.target_client());
    for (name, node) in env.nodes().current() {
        let asked = said(&node, DESIRED_DRAIN);
        if asked != said(&node, LAST_APPLIED_DRAIN) {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {LAST_APPLIED_DRAIN: asked}}}));
            api.patch(&name, &PatchParams::default(), &patch).await?;
        }
    }
    Ok(())
}
