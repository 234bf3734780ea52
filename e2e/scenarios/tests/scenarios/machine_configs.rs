//! Node configuration: what pools select becomes what files render.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use nodewright_api::machine_config::{ControllerConfig, MachineConfig, MachineConfigPool};
use nodewright_e2e_control_plane::parse_manifest;
use nodewright_e2e_devcluster::ManagerProcess;
use nodewright_e2e_process::{executable, repository};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, has_mcm_crds, skip_on_external_cluster};
use serde_json::{Value, json};

/// The managers do not wait for one another's Leases: any number of them acts at once, and none is missed when it is killed.
const UNELECTED: &str = "--leader-elect=false";

fn sample() -> PathBuf {
    repository().join("config/samples/machine-config")
}

/// An environment on a control plane of its own, as the kinds are cluster-scoped; without a manager, with the CRDs.
async fn start(name: &str) -> TestResult<Option<Environment>> {
    if skip_on_external_cluster(name, "the kinds are cluster-scoped") || has_mcm_crds() {
        return Ok(None);
    }
    let env = Environment::builder(name).with_own_plane().without_manager().without_kubelets().start().await?;
    let Some(plane) = env.cluster().control_plane() else { return Ok(None) };
    plane.apply_file(repository().join("config/crd/machine-config/bases")).await?;
    Ok(Some(env))
}

async fn manager(env: &Environment, name: &str, flags: &[&str]) -> TestResult<ManagerProcess> {
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Ok(ManagerProcess::start(env.manager_options(name, false, &flags)).await?)
}

/// The objects of the sample, as kubectl reads them.
async fn objects(env: &Environment) -> TestResult<Vec<Value>> {
    let folder = sample();
    let command = format!("create --dry-run=client --validate=false -o json -f {}", folder.display());
    let text = env.kubectl(&command).await?;
    let objects = serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<Vec<Value>, _>>()?;
    ensure(objects.len() > 10, || format!("the sample has {} objects", objects.len()))?;
    Ok(objects)
}

/// What `nodewright render` prints of a folder: specs by the names of the rendered MachineConfigs.
fn rendered_offline(folder: &Path) -> TestResult<BTreeMap<String, Value>> {
    let program = executable("nodewright", "NODEWRIGHT_BIN")?;
    let output = Command::new(program).arg("render").arg("-f").arg(folder).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let objects = parse_manifest(&text, "nodewright render")?;
    let spec = |object: DynamicObject| (object.name_any(), object.data["spec"].clone());
    Ok(objects.into_iter().map(spec).collect())
}

/// The targets of all pools, with the specs that the cluster has of them.
async fn targets(client: &Client) -> TestResult<BTreeMap<String, Value>> {
    let (pools, configs) = (Api::<MachineConfigPool>::all(client.clone()), raw_configs(client));
    let mut found = BTreeMap::new();
    for pool in pools.list(&ListParams::default()).await? {
        if let Some(name) = pool.spec.configuration.name.filter(|name| !name.is_empty()) {
            let object = configs.get_opt(&name).await?;
            found.insert(name, object.map_or(Value::Null, |object| object.data["spec"].clone()));
        }
    }
    Ok(found)
}

/// MachineConfigs as they are on the wire: the type leaves out what is empty.
fn raw_configs(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kube::api::ApiResource::erase::<MachineConfig>(&()))
}

fn pools(env: &Environment) -> Api<MachineConfigPool> {
    Api::all(env.client())
}

async fn target(env: &Environment) -> TestResult<Option<String>> {
    Ok(pools(env).get("worker").await?.spec.configuration.name)
}

async fn condition(env: &Environment, pool: &str) -> TestResult<(String, String, String)> {
    let status = pools(env).get(pool).await?.status.unwrap_or_default();
    let found = status.conditions.into_iter().find(|it| it.condition_type == "RenderDegraded");
    Ok(found.map(|it| (it.status.as_str().to_owned(), it.reason, it.message)).unwrap_or_default())
}

async fn wait_for_targets(env: &Environment, wanted: &BTreeMap<String, Value>) -> TestResult {
    env.wait_for("the targets that files render", async || Ok(targets(&env.client()).await? == *wanted)).await
}

/// Deletes all objects of the kinds, and waits until they are gone.
async fn clear(env: &Environment) -> TestResult {
    let (all, none) = (ListParams::default(), DeleteParams::default());
    Api::<MachineConfigPool>::all(env.client()).delete_collection(&none, &all).await?;
    Api::<ControllerConfig>::all(env.client()).delete_collection(&none, &all).await?;
    let configs = Api::<MachineConfig>::all(env.client());
    env.wait_for("all MachineConfigs to go", async || {
        configs.delete_collection(&none, &all).await?;
        Ok(configs.list(&all).await?.items.is_empty())
    })
    .await
}

/// In any order of creation, with two managers that act at once; and what is taken away moves no target.
#[tokio::test(flavor = "multi_thread")]
async fn pools_target_what_files_render_in_any_order_and_keep_it() -> TestResult {
    let Some(env) = start("configs").await? else { return Ok(()) };
    let wanted = rendered_offline(&sample())?;
    assert_eq!(wanted.len(), 2, "{:?}", wanted.keys());
    let mut first = manager(&env, "first", &[UNELECTED]).await?;
    let mut second = manager(&env, "second", &[UNELECTED]).await?;
    let mut objects = objects(&env).await?;
    for round in 0..3 {
        for object in &objects {
            env.apply(object).await?;
        }
        wait_for_targets(&env, &wanted).await?;
        if round < 2 {
            clear(&env).await?;
            objects.reverse();
            objects.rotate_left(4);
        }
    }
    let shown = env.table("mcp").await?;
    let mut names: Vec<_> = shown.column("TARGET")?.iter().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, wanted.keys().cloned().collect::<Vec<_>>());
    env.wait_for("the conditions", async || Ok(condition(&env, "worker").await?.0 == "False")).await?;
    assert_eq!(shown.column("NAME")?.len(), 2);

    // The image of the operating system is the ControllerConfig's.
    Api::<ControllerConfig>::all(env.client()).delete("machine-config-controller", &DeleteParams::default()).await?;
    let says = async |reason: &str, text: &str| {
        let (status, said, message) = condition(&env, "worker").await?;
        TestResult::Ok(status == "True" && said == reason && message.contains(text))
    };
    env.wait_for("what is missing", async || says("WaitingForInputs", "create the ControllerConfig").await).await?;
    assert_eq!(targets(&env.client()).await?, wanted);
    for object in objects.iter().filter(|object| object["kind"] == "ControllerConfig") {
        env.apply(object).await?;
    }
    env.wait_for("the end of the hold", async || Ok(condition(&env, "worker").await?.0 == "False")).await?;

    let ours = ListParams::default().labels("machineconfiguration.openshift.io/role");
    Api::<MachineConfig>::all(env.client()).delete_collection(&DeleteParams::default(), &ours).await?;
    env.wait_for("that nothing is selected", async || {
        says("NoMachineConfigs", "no MachineConfig has these labels").await
    })
    .await?;
    assert_eq!(targets(&env.client()).await?, wanted);
    first.check()?;
    second.check()?;
    drop((first, second));
    env.end().await
}

/// A manager that is killed after each write that shows, and started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_at_each_write_ends_at_the_same_targets() -> TestResult {
    let Some(env) = start("killed").await? else { return Ok(()) };
    let wanted = rendered_offline(&sample())?;
    for object in &objects(&env).await? {
        env.apply(object).await?;
    }
    let configs = Api::<MachineConfig>::all(env.client());
    // All that a manager writes changes one of these.
    let state = async || {
        let versions = |objects: Vec<String>| objects.join(",");
        let all = ListParams::default();
        let pools =
            pools(&env).list(&all).await?.items.iter().map(|it| it.resource_version().unwrap_or_default()).collect();
        let configs =
            configs.list(&all).await?.items.iter().map(|it| it.resource_version().unwrap_or_default()).collect();
        TestResult::Ok(format!("{}/{}", versions(pools), versions(configs)))
    };
    let (mut known, mut kills) = (state().await?, 0);
    let mut manager = manager(&env, "manager", &[UNELECTED]).await?;
    env.wait_for("the targets that files render", async || {
        let now = state().await?;
        if now != known && kills < 12 {
            manager.kill_9();
            kills += 1;
            manager.start_again().await?;
        }
        known = now;
        // A rendering that lacks a generated MachineConfig may be made. It is no target: five seconds later it is not wanted.
        let found = targets(&env.client()).await?;
        ensure(found.keys().all(|name| wanted.contains_key(name)), || format!("{:?} are targets", found.keys()))?;
        Ok(found == wanted)
    })
    .await?;
    ensure(kills >= 2, || format!("it was killed {kills} times"))?;
    manager.check()?;
    drop(manager);
    env.end().await
}

/// What nothing names goes, but for the newest ten; what a Node or a pool names stays.
#[tokio::test(flavor = "multi_thread")]
async fn old_rendered_machine_configs_go_unless_something_names_them() -> TestResult {
    let Some(env) = start("garbage").await? else { return Ok(()) };
    let mut manager = manager(&env, "manager", &["--rendered-retention=1s"]).await?;
    let selector = json!({"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}});
    env.apply(&json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": "worker"}, "spec": {"machineConfigSelector": selector}}))
        .await?;
    let configs = Api::<MachineConfig>::all(env.client());
    let rendered = async || {
        let mut found = configs.list(&ListParams::default()).await?.items;
        found.retain(|config| config.name_any().starts_with("rendered-"));
        TestResult::Ok(found.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
    };
    let mut made = vec![];
    for round in 0..13 {
        env.apply(&json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": {"name": "a", "labels": {"machineconfiguration.openshift.io/role": "worker"}},
            "spec": {"kernelArguments": [format!("round={round}")]}}))
            .await?;
        let mut new = None;
        env.wait_for("another rendered MachineConfig", async || {
            new = rendered().await?.into_iter().find(|name| !made.contains(name));
            Ok(new.is_some())
        })
        .await?;
        made.extend(new);
        // Creation times have whole seconds: a target is at least five seconds older than what comes after it.
        if round == 0 || round == 6 {
            env.wait_for("it to be the target", async || Ok(target(&env).await? == made.last().cloned())).await?;
        }
        if round == 0 {
            // Before anything is old enough to go, a Node comes that runs the first.
            let annotations = json!({"machineconfiguration.openshift.io/currentConfig": made[0]});
            let node: Node =
                serde_json::from_value(json!({"metadata": {"name": "runs-the-first", "annotations": annotations}}))?;
            Api::<Node>::all(env.client()).create(&PostParams::default(), &node).await?;
        }
    }
    let last = made.last().cloned().ok_or_else(|| Failure::new("nothing was rendered"))?;
    env.wait_for("the last to be the target", async || Ok(target(&env).await?.as_ref() == Some(&last))).await?;
    env.wait_for("the old ones to go", async || Ok(rendered().await?.len() == 11)).await?;
    let left = rendered().await?;
    ensure(left.contains(&made[0]) && left.contains(&last), || format!("{left:?}"))?;
    // Once the Node runs another one, it goes.
    let moved = json!({"metadata": {"annotations": {"machineconfiguration.openshift.io/currentConfig": last}}});
    let nodes = Api::<Node>::all(env.client());
    nodes.patch("runs-the-first", &PatchParams::default(), &Patch::Merge(moved)).await?;
    env.wait_for("the first to go", async || Ok(!rendered().await?.contains(&made[0]))).await?;
    assert_eq!(rendered().await?.len(), 10);
    nodes.delete("runs-the-first", &DeleteParams::default()).await?;
    manager.check()?;
    drop(manager);
    env.end().await
}

/// Where the kinds are not served, the manager works, and says that their controllers stay out.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_kinds_of_node_configuration_their_controllers_stay_out() -> TestResult {
    let env = Environment::start("nokinds").await?;
    if env.cluster().control_plane().is_none() {
        return env.end().await;
    }
    let log = std::fs::read_to_string(env.log("manager"))?;
    let says = "does not serve ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool";
    ensure(log.contains(says), || format!("it does not say that they stay out:\n{log}"))?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_running(1).await?;
    env.end().await
}
