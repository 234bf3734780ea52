//! What `nodewright plan pool` says before a change is what happens after it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use kube::ResourceExt;
use nodewright_api::machine_config::{CURRENT_CONFIG, DESIRED_CONFIG};
use nodewright_e2e_lab::process::executable;
use nodewright_e2e_scenarios::{
    Failure, TestResult, ensure,
    node_agent::{is_disrupted, said},
    worker_pool::target,
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    pool_rollout::{Fixture, given, motd},
    why::succeeds,
};

/// Nodes in each zone, and how many of all may be unavailable.
const PER_ZONE: u32 = 3;
const BUDGET: usize = 3;

/// What a run has printed, or its errors.
pub(crate) async fn run(kubeconfig: &Path, arguments: &[&str]) -> TestResult<Result<String, String>> {
    let program = executable("nodewright", "NODEWRIGHT_BIN")?;
    let mut command = Command::new(program);
    command.args(["plan", "pool", "worker", "--kubeconfig"]).arg(kubeconfig).args(arguments);
    let output = command.output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("plan {arguments:?}:\n{}{}", text(&output.stdout), text(&output.stderr));
    Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
}

async fn plan(kubeconfig: &Path, arguments: &[&str]) -> TestResult<Value> {
    let text = run(kubeconfig, &[arguments, &["-o", "json"]].concat()).await?.map_err(Failure::new)?;
    Ok(serde_json::from_str(&text)?)
}

/// The names of the nodes in each round.
fn rounds(plan: &Value) -> Vec<Vec<String>> {
    let names = |round: &Value| {
        round.as_array().into_iter().flatten().map(|it| it["node"].as_str().unwrap_or_default().to_owned()).collect()
    };
    plan["rounds"].as_array().into_iter().flatten().map(names).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_moves_its_nodes_as_planned() -> TestResult {
    let Some(fixture) = Fixture::start("plan", 1, PER_ZONE, json!(BUDGET)).await? else { return Ok(()) };
    let env = &fixture.env;
    let kubeconfig = env.cluster().kubeconfig();
    let nodes: Vec<_> = env.nodes().current().into_keys().collect();
    let before = target(env).await?;
    let rest = plan(kubeconfig, &[]).await?;
    assert_eq!((&rest["rounds"], &rest["staying"]), (&json!([]), &json!([])), "there is nothing to do");
    assert_eq!((&rest["target"]["name"], &rest["updated"]), (&json!(before), &json!(nodes.len())));

    // One node takes a part of the budget, and stays; another one goes first.
    let (closed, first) = (&nodes[0], &nodes[nodes.len() - 1]);
    env.kubectl(&format!("cordon {closed}")).await?;
    env.kubectl(&format!("annotate node {first} nodewright.dev/update-priority=1")).await?;
    let file = env.directory().join("change.json");
    fs::write(&file, motd("second").to_string())?;
    let change = file.to_str().unwrap_or_default();
    let planned = plan(kubeconfig, &["-f", change]).await?;
    let text = run(kubeconfig, &["-f", change]).await?.map_err(Failure::new)?;
    let flags = "--field-manager=end-to-end --force-conflicts -o json";
    let applied: Vec<Value> = serde_json::from_str(&succeeds(env, &format!("plan {change} {flags}")).await?)?;
    let mark = env.nodes().mark();
    assert_eq!(target(env).await?, before, "nothing is written");
    assert_eq!((&planned["present"], &planned["target"]["exists"]), (&json!(before), &json!(false)));
    assert_eq!((&planned["maxUnavailable"], &planned["unavailable"]), (&json!(BUDGET), &json!(1)));
    let staying = &planned["staying"][0];
    assert_eq!((&staying["node"], &staying["reason"]), (&json!(closed), &json!("Cordoned")));
    let expected = rounds(&planned);
    assert_eq!(expected.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2, 2]);
    assert_eq!(planned["rounds"][0][0]["cost"], "reboot");
    let of_pools: Vec<_> = applied.iter().filter(|part| part["plan"]["pool"].is_string()).collect();
    let [worker] = of_pools[..] else { return Err(Failure::new(format!("one pool would change: {applied:?}"))) };
    assert_eq!(
        (&worker["object"], &worker["plan"]["target"]),
        (&json!("machineconfigpool/worker"), &planned["target"])
    );
    assert_eq!(rounds(&worker["plan"]), expected, "kubectl nodewright plan FILE");
    assert!(text.contains("~ spec.config.storage.files[/etc/motd]  by 00-worker"), "{text}");
    assert!(text.contains("8 of 9 nodes move in 4 rounds") && !text.contains("second"), "{text}");

    let config = fixture.retarget("second").await?;
    assert_eq!(planned["target"]["name"], json!(config));
    let order: Vec<String> = expected.concat();
    env.wait_for("the nodes of the plan to move", async || {
        let current = env.nodes().current();
        Ok(order
            .iter()
            .all(|name| current.get(name).is_some_and(|it| said(it, CURRENT_CONFIG) == config && !is_disrupted(it))))
    })
    .await?;
    let moved = given(env.nodes(), mark, &config)?;
    let names: Vec<_> = moved.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>(), order.iter().collect(), "who moves");
    // Nodes of one round may be faster than others.
    for (at, name) in order.iter().enumerate() {
        let then = names.iter().position(|it| it == name).unwrap_or(usize::MAX);
        ensure(at.abs_diff(then) < BUDGET, || format!("{name} was planned as {at}, and moved as {then}: {names:?}"))?;
    }
    assert!(env.nodes().current().get(closed).is_some_and(|it| said(it, DESIRED_CONFIG) == before));
    let after = plan(kubeconfig, &[]).await?;
    assert_eq!((&after["rounds"], &after["staying"][0]["node"]), (&json!([]), &json!(closed)));

    // It is the last one once it is open, and what the pool would refuse is no plan.
    env.kubectl(&format!("uncordon {closed}")).await?;
    fixture.wait_for_all().await?;
    let mut refused = motd("third");
    refused["spec"]["fips"] = true.into();
    fs::write(&file, refused.to_string())?;
    let error = run(kubeconfig, &["-f", change]).await?.err().unwrap_or_default();
    assert!(error.contains("MachineConfigPool worker: the target stays: spec.fips"), "{error}");
    let error = run(&nobody(kubeconfig, env.directory())?, &[]).await?.err().unwrap_or_default();
    assert!(error.contains("nobody") && error.contains("cannot list resource \"machineconfigpools\""), "{error}");
    fixture.check_clean()?;
    fixture.end().await
}

/// A kubeconfig with which nothing may be read.
fn nobody(kubeconfig: &Path, directory: &Path) -> TestResult<PathBuf> {
    let mut config: Value = serde_saphyr::from_str(&fs::read_to_string(kubeconfig)?)?;
    config["users"][0]["user"]["as"] = "nobody".into();
    let path = directory.join("nobody.json");
    fs::write(&path, config.to_string())?;
    Ok(path)
}
