//! `kubectl nodewright report` reads the metrics of Pods by a port-forward, for which an API server needs a kubelet.

use std::{fs, path::PathBuf, time::Instant};

use kube::config::Kubeconfig;
use nodewright_e2e_lab::process::{executable, repository};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{finish, real_nodes, workload::script};

/// Metrics for all, as of a manager without `--secure-metrics`.
const OPEN: &str = "mkdir /www; echo open_metric 1 >/www/metrics; exec httpd -f -p 10258 -h /www";

/// A kubelet stands in for a manager with `--secure-metrics`: behind the port of a Pod in its node's network it serves metrics over TLS,
/// with a certificate that it made itself, to whom the API server lets.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_rights_of_the_roles_gets_the_metrics() -> TestResult {
    let Some(builder) = real_nodes("report") else { return Ok(()) };
    let env = builder.start().await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    let mut secure = script(&env, "secure", None, "exec sleep 100000");
    secure["spec"]["hostNetwork"] = true.into();
    for (pod, flags) in
        [(script(&env, "open", None, OPEN), json!([])), (secure, json!(["--secure-metrics", "--port=10250"]))]
    {
        env.apply(&manager(&pod, &flags)).await?;
        env.apply(&pod).await?;
    }
    env.kubectl("wait pods --all --for=condition=Ready --timeout=60s").await?;
    let (namespace, user) = (env.namespace(), format!("{}-user", env.namespace()));

    let reader = format!("{namespace}-report");
    env.kubectl(&format!("create clusterrole {reader} --verb=get --resource=nodes/metrics")).await?;
    let account = format!("--serviceaccount={namespace}:nodewright-report");
    env.kubectl(&format!("create clusterrolebinding {reader} --clusterrole={reader} {account}")).await?;
    env.kubectl(&format!("apply --server-side --kustomize={}", repository().join("config/plugin").display())).await?;
    env.kubectl(&format!("create rolebinding view --clusterrole=nodewright-view --user={user}")).await?;
    let without = report(&env, &user, "without").await?;
    for line in ["no metrics of Deployment open: you may not list pods", "no metrics of Deployment secure: you may not"]
    {
        ensure(without.contains(line), || format!("no line {line:?} in {without}"))?;
    }
    env.kubectl(&format!("create rolebinding report --clusterrole=nodewright-report --user={user}")).await?;
    let started = Instant::now();
    env.wait_for("the metrics of both Pods", async || {
        let name = format!("with-{}", started.elapsed().as_millis());
        let text = report(&env, &user, &name).await?;
        // Zeros fill the archive up between the files.
        let gaps: Vec<_> = text.split(['\n', '\0']).filter(|line| line.starts_with("no metrics")).collect();
        println!("{gaps:?}");
        Ok(text.contains("metrics/open.txt")
            && text.contains("open_metric 1")
            && text.contains("metrics/secure.txt")
            && text.contains("kubelet_node_name{node=")
            && gaps.is_empty())
    })
    .await?;
    env.kubectl(&format!("delete clusterrole,clusterrolebinding {reader}")).await?;
    env.kubectl("delete clusterrole nodewright-view nodewright-report nodewright-plan-drain").await?;
    finish(env).await
}

/// A Deployment as that of a manager, which selects the Pod and makes none.
fn manager(pod: &Value, flags: &Value) -> Value {
    let labels = &pod["metadata"]["labels"];
    let spec = json!({"containers": [{"name": "manager", "image": "nodewright", "args": flags}]});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": pod["metadata"]["name"]}, "spec": {
        "replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec},
    }})
}

/// The text of the archive that a user gets, whose files are in it as they are.
async fn report(env: &Environment, user: &str, name: &str) -> TestResult<String> {
    let file = env.directory().join(name).with_extension("tar");
    let mut command = Command::new(executable("kubectl-nodewright", "KUBECTL_NODEWRIGHT_BIN")?);
    command.arg("--kubeconfig").arg(kubeconfig(env, user)?).args(["--namespace", env.namespace(), "report"]);
    let output = command.arg("--filename").arg(&file).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success(), || format!("report: {said}"))?;
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}

/// The administrator's kubeconfig, who acts as a user.
fn kubeconfig(env: &Environment, user: &str) -> TestResult<PathBuf> {
    let mut config = Kubeconfig::read_from(env.cluster().kubeconfig())?;
    for known in &mut config.auth_infos {
        let info =
            known.auth_info.as_mut().ok_or_else(|| Failure::new("the kubeconfig has no credentials".to_owned()))?;
        info.impersonate = Some(user.to_owned());
    }
    let path = env.directory().join("user.kubeconfig");
    fs::write(&path, serde_json::to_string(&config)?)?;
    Ok(path)
}
