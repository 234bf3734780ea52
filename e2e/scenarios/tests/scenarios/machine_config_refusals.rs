//! What is wrong in node configuration: kubectl is refused, and where no webhook refuses, the pool or the KubeletConfig says it.

use kube::{Api, ResourceExt, api::ListParams};
use nodewright_api::{
    conditions::controller_config::FAILING,
    machine_config::{CONTROLLER_CONFIG, ControllerConfig, KubeletConfig, MachineConfigPool},
};
use nodewright_e2e_lab::devcluster::ManagerProcess;
use nodewright_e2e_scenarios::{Environment, TestResult, ensure, has_mcm_crds, skip_on_external_cluster};
use serde_json::{Value, json};

use super::machine_configs::{complete, condition, start};

#[path = "../../../../webhooks/tests/machine_config/rows.rs"]
mod rows;

use rows::{ROLE, WORKER};

const WHY: &str = "the API server may not reach webhooks on this machine, and the kinds are cluster-scoped";

/// A row of the table, with what its object is called.
struct Row {
    row: Value,
    name: String,
}

impl Row {
    fn all() -> Vec<Self> {
        rows::refused().into_iter().enumerate().map(|(index, row)| Self { row, name: format!("row-{index}") }).collect()
    }

    fn is(&self, kind: &str) -> bool {
        self.row["kind"] == kind
    }

    fn text(&self, field: &str) -> &str {
        self.row[field].as_str().unwrap_or_default()
    }

    /// Whether the CRD takes it.
    fn is_taken(&self) -> bool {
        self.row["schema"] != true && !(has_mcm_crds() && self.row["stock"] == true)
    }

    fn object(&self) -> Value {
        rows::object(&self.row, &self.name, &self.name)
    }

    fn is_named_in(&self, said: &str) -> bool {
        said.contains(self.text("path")) && said.contains(self.text("rule"))
    }

    /// The object with a pool of its own, which builds on the role worker.
    fn with_its_pool(&self) -> Vec<Value> {
        if self.is("MachineConfigPool") {
            return vec![self.object()];
        }
        let roles = json!({"key": ROLE, "operator": "In", "values": [WORKER, self.name]});
        let pool = pool(&self.name, &json!({"matchExpressions": [roles]}), &json!({"kubelet": self.name}));
        vec![self.object(), pool]
    }

    /// What the cluster says of the object without webhooks.
    async fn said(&self, env: &Environment) -> TestResult<String> {
        let name = self.object()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.is("KubeletConfig") {
            let status = Api::<KubeletConfig>::all(env.client()).get(&name).await?.status.unwrap_or_default();
            let accepted = status.conditions.into_iter().find(|it| it.condition_type == "Accepted");
            return Ok(accepted.filter(|it| it.status.as_str() == "False").map(|it| it.message).unwrap_or_default());
        }
        let status = Api::<MachineConfigPool>::all(env.client()).get(&name).await?.status.unwrap_or_default();
        let degraded = status.conditions.into_iter().find(|it| it.condition_type == "RenderDegraded");
        let message = degraded.filter(|it| it.status.as_str() == "True").map(|it| it.message).unwrap_or_default();
        let names_it = self.is("MachineConfigPool") || message.contains(&self.name);
        Ok(if names_it { message } else { String::new() })
    }
}

fn pool(name: &str, selector: &Value, labels: &Value) -> Value {
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": name, "labels": labels}, "spec": {"machineConfigSelector": selector}})
}

/// The configuration of all pools, with a kubelet that KubeletConfigs can change.
fn worker_config(argument: &str) -> Value {
    let kubelet = json!({"path": "/etc/kubernetes/kubelet.conf", "contents": {"source": "data:,maxPods:%20110"}});
    let config = json!({"ignition": {"version": "3.5.0"}, "storage": {"files": [kubelet]}});
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "00-worker", "labels": {ROLE: WORKER}},
        "spec": {"config": config, "kernelArguments": [argument]}})
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

#[tokio::test(flavor = "multi_thread")]
async fn without_webhooks_pools_and_kubelet_configs_say_what_is_wrong_and_others_go_on() -> TestResult {
    let Some(env) = start("unreviewed").await? else { return Ok(()) };
    let mut manager = ManagerProcess::start(env.manager_options("manager", false, &[])).await?;
    // There is one ControllerConfig, of all pools: those rows come one by one.
    let (controller_configs, rows): (Vec<_>, Vec<_>) =
        Row::all().into_iter().filter(Row::is_taken).partition(|row| row.is("ControllerConfig"));
    let worker = pool(WORKER, &json!({"matchLabels": {ROLE: WORKER}}), &json!({}));
    env.apply(&list(&[worker_config("first=1"), worker])).await?;
    env.apply(&list(&rows.iter().flat_map(Row::with_its_pool).collect::<Vec<_>>())).await?;
    let mut silent = vec![];
    let said = env
        .wait_for("what is wrong with each object", async || {
            silent.clear();
            for row in &rows {
                let said = row.said(&env).await?;
                if !row.is_named_in(&said) {
                    silent.push(format!("{}: {said}", row.row));
                }
            }
            Ok(silent.is_empty())
        })
        .await;
    said.map_err(|failure| failure.and(&silent.join("\n")))?;

    // A pool that has a bad KubeletConfig, and nothing else that is wrong, goes on as well.
    let pools = Api::<MachineConfigPool>::all(env.client());
    let targets = async || {
        let all = pools.list(&ListParams::default()).await?;
        let targets = all.into_iter().map(|pool| (pool.name_any(), pool.spec.configuration.name.unwrap_or_default()));
        TestResult::Ok(targets.filter(|(_, target)| !target.is_empty()).collect::<Vec<_>>())
    };
    env.apply(&worker_config("second=2")).await?;
    let configs: Api<nodewright_api::machine_config::MachineConfig> = Api::all(env.client());
    env.wait_for("the second target of the pool worker", async || {
        let Some((_, target)) = targets().await?.into_iter().find(|(pool, _)| pool == WORKER) else { return Ok(false) };
        Ok(configs.get(&target).await?.spec.kernel_arguments == ["second=2"])
    })
    .await?;
    let bad: Vec<_> = rows.iter().filter(|row| !row.is("KubeletConfig")).map(|row| row.name.as_str()).collect();
    let wrong: Vec<_> = targets().await?.into_iter().filter(|(pool, _)| bad.contains(&pool.as_str())).collect();
    ensure(wrong.is_empty(), || format!("pools with bad objects have targets: {wrong:?}"))?;
    bad_controller_configs_hold_the_targets(&env, &controller_configs).await?;
    manager.check()?;
    drop(manager);
    env.end().await
}

/// Each says in its status what is wrong, and so does the pool `worker`, whose target stays until a right one follows.
async fn bad_controller_configs_hold_the_targets(env: &Environment, rows: &[Row]) -> TestResult {
    ensure(rows.len() >= if has_mcm_crds() { 1 } else { 4 }, || format!("{} rows", rows.len()))?;
    let object = async |spec: &Value| {
        let mut object = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
            "metadata": {"name": CONTROLLER_CONFIG}, "spec": spec});
        if has_mcm_crds() {
            complete(&mut object["spec"]).await?;
        }
        TestResult::Ok(object)
    };
    let pools = Api::<MachineConfigPool>::all(env.client());
    let target = async || TestResult::Ok(pools.get(WORKER).await?.spec.configuration.name);
    let before = target().await?;
    for row in rows {
        env.apply(&object(&row.row["spec"]).await?).await?;
        let mut said = (String::new(), String::new());
        let is_said = env.wait_for("what is wrong with the ControllerConfig", async || {
            said = (failing(env).await?, condition(env, WORKER).await?.2);
            let names_it = said.1.contains(&format!("ControllerConfig {CONTROLLER_CONFIG}: "));
            Ok(row.is_named_in(&said.0) && row.is_named_in(&said.1) && names_it)
        });
        is_said.await.map_err(|failure| failure.and(&format!("{}: {said:?}", row.row)))?;
        ensure(target().await? == before, || format!("{} moves the target", row.row))?;
    }
    env.apply(&worker_config("third=3")).await?;
    env.apply(&object(&json!({"clusterDNSIP": "10.0.0.10"})).await?).await?;
    env.wait_for("the end of the hold", async || Ok(failing(env).await?.is_empty() && target().await? != before)).await
}

/// Why the ControllerConfig has failed.
async fn failing(env: &Environment) -> TestResult<String> {
    let object = Api::<ControllerConfig>::all(env.client()).get(CONTROLLER_CONFIG).await?;
    let conditions = object.status.unwrap_or_default().conditions;
    let failing = conditions.into_iter().find(|it| it.condition_type == FAILING && it.status.as_str() == "True");
    Ok(failing.map(|it| it.message).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_is_refused_by_path_and_rule() -> TestResult {
    if skip_on_external_cluster("refused node configuration", WHY) {
        return Ok(());
    }
    let Some(env) = start("reviewed").await? else { return Ok(()) };
    let mut manager = ManagerProcess::start(env.manager_options("manager", true, &[])).await?;
    let file = env.directory().join("object.json");
    let command = format!("apply -f {}", file.display());
    let mut unclear = vec![];
    // OpenShift's definition requires fourteen fields of a ControllerConfig, and says so first.
    for row in Row::all().into_iter().filter(|row| !(has_mcm_crds() && row.is("ControllerConfig"))) {
        std::fs::write(&file, row.object().to_string())?;
        let mut said = String::new();
        // The API server calls webhooks a moment after they are registered.
        env.wait_for(&format!("the refusal of {}", row.row), async || match env.kubectl_refused(&command).await {
            Ok(refusal) => {
                said = refusal;
                Ok(true)
            }
            Err(_) if row.name == "row-0" => {
                env.kubectl(&format!("delete -f {}", file.display())).await?;
                Ok(false)
            }
            Err(taken) => Err(taken),
        })
        .await?;
        if !row.is_named_in(&said) {
            unclear.push(format!("{}: {said}", row.row));
        }
    }
    ensure(unclear.is_empty(), || unclear.join("\n"))?;

    // What is right is taken, and rendered, through the same webhooks.
    let worker = pool(WORKER, &json!({"matchLabels": {ROLE: WORKER}}), &json!({}));
    env.apply(&list(&[worker_config("first=1"), worker])).await?;
    let pools = Api::<MachineConfigPool>::all(env.client());
    env.wait_for("a target", async || Ok(pools.get(WORKER).await?.spec.configuration.name.is_some())).await?;
    manager.check()?;
    drop(manager);
    env.end().await
}
