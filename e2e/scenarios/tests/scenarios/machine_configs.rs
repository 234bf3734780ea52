//! Node configuration: what pools select becomes what files render.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use nodewright_api::machine_config::{ControllerConfig, MachineConfig, MachineConfigPool};
use nodewright_e2e_lab::{
    control_plane::{openshift_api, parse_manifest},
    devcluster::{ManagerOptions, ManagerProcess},
    process::{executable, repository},
};
use nodewright_e2e_scenarios::{
    Environment, EnvironmentBuilder, Failure, TestResult, ensure, has_mcm_crds, skip_on_external_cluster,
};
use serde_json::{Value, json};

/// The managers do not wait for one another's Leases: any number of them acts at once, and none is missed when it is killed.
pub(crate) const UNELECTED: &str = "--leader-elect=false";

pub(crate) fn sample() -> PathBuf {
    repository().join("config/samples/machine-config")
}

/// An environment that has a control plane for itself, as the kinds are cluster-scoped; without a manager.
pub(crate) async fn start(name: &str) -> TestResult<Option<Environment>> {
    start_on(name, EnvironmentBuilder::for_node_configuration).await
}

async fn start_on(
    name: &str,
    plane: impl FnOnce(EnvironmentBuilder) -> EnvironmentBuilder,
) -> TestResult<Option<Environment>> {
    if skip_on_external_cluster(name, "the kinds are cluster-scoped") {
        return Ok(None);
    }
    Ok(Some(plane(Environment::builder(name)).without_manager().without_kubelets().start().await?))
}

pub(crate) async fn manager(env: &Environment, name: &str, flags: &[&str]) -> TestResult<ManagerProcess> {
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Ok(ManagerProcess::start(env.manager_options(name, false, &flags)).await?)
}

/// A process with the controllers of node configuration alone.
async fn alone(env: &Environment, name: &str, flags: &[&str]) -> TestResult<ManagerProcess> {
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let options = env.manager_options(name, false, &flags);
    Ok(ManagerProcess::start(ManagerOptions { command: "machine-config".to_owned(), ..options }).await?)
}

/// The objects of the sample, as kubectl reads them.
pub(crate) async fn objects(env: &Environment) -> TestResult<Vec<Value>> {
    let folder = sample();
    let command = format!("create --dry-run=client --validate=false -o json -f {}", folder.display());
    let text = env.kubectl(&command).await?;
    let mut objects = serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<Vec<Value>, _>>()?;
    if has_mcm_crds() {
        for object in objects.iter_mut().filter(|object| object["kind"] == "ControllerConfig") {
            complete(&mut object["spec"]).await?;
        }
    }
    ensure(objects.len() > 10, || format!("the sample has {} objects", objects.len()))?;
    Ok(objects)
}

/// Adds what OpenShift's CRD requires of a ControllerConfig: fields of the first object of its suite.
pub(crate) async fn complete(spec: &mut Value) -> TestResult {
    let file = "machineconfiguration/v1/tests/controllerconfigs.machineconfiguration.openshift.io/AAA_ungated.yaml";
    let suite: Value = serde_saphyr::from_str(&std::fs::read_to_string(openshift_api().await?.join(file))?)
        .map_err(|error| Failure::new(error.to_string()))?;
    let text = suite["tests"]["onCreate"][0]["initial"].as_str().unwrap_or_default();
    let minimal = parse_manifest(text, file)?.remove(0);
    let mut wanted = minimal.data["spec"].clone();
    // Another image would be another configuration than that of the files.
    for image in ["baseOSContainerImage", "baseOSExtensionsContainerImage"] {
        wanted[image] = json!("");
    }
    add_missing(spec, &wanted);
    Ok(())
}

/// Adds the fields that an object lacks, and those that objects in it lack.
fn add_missing(object: &mut Value, wanted: &Value) {
    for (field, value) in wanted.as_object().into_iter().flatten() {
        match object.get_mut(field) {
            Some(known) => add_missing(known, value),
            None => object[field] = value.clone(),
        }
    }
}

/// What `nodewright render` prints of a folder, and of a folder of templates: specs by the names of the rendered MachineConfigs.
fn rendered_offline(folder: &Path, templates: Option<&Path>) -> TestResult<BTreeMap<String, Value>> {
    let program = executable("nodewright", "NODEWRIGHT_BIN")?;
    let mut command = Command::new(program);
    command.arg("render").arg("-f").arg(folder);
    if let Some(templates) = templates {
        command.arg("--templates").arg(templates);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let objects = parse_manifest(&text, "nodewright render")?;
    let spec = |object: DynamicObject| (object.name_any(), object.data["spec"].clone());
    Ok(objects.into_iter().map(spec).collect())
}

/// What `nodewright render` prints of the sample's folder, and of a folder of templates. With OpenShift's CRDs, of the objects of the
/// sample: what they require besides is in the files that templates make.
pub(crate) fn rendered(objects: &[Value], templates: Option<&Path>) -> TestResult<BTreeMap<String, Value>> {
    if !has_mcm_crds() {
        return rendered_offline(&sample(), templates);
    }
    let folder = tempfile::tempdir()?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    fs::write(folder.path().join("objects.json"), list.to_string())?;
    rendered_offline(folder.path(), templates)
}

/// The targets of all pools, with the specs that the cluster has of them.
pub(crate) async fn targets(client: &Client) -> TestResult<BTreeMap<String, Value>> {
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
pub(crate) fn raw_configs(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kube::api::ApiResource::erase::<MachineConfig>(&()))
}

fn raw_controller_configs(env: &Environment) -> Api<DynamicObject> {
    Api::all_with(env.client(), &kube::api::ApiResource::erase::<ControllerConfig>(&()))
}

fn pools(env: &Environment) -> Api<MachineConfigPool> {
    Api::all(env.client())
}

async fn target(env: &Environment) -> TestResult<Option<String>> {
    Ok(pools(env).get("worker").await?.spec.configuration.name)
}

pub(crate) async fn condition(env: &Environment, pool: &str) -> TestResult<(String, String, String)> {
    let status = pools(env).get(pool).await?.status.unwrap_or_default();
    let found = status.conditions.into_iter().find(|it| it.condition_type == "RenderDegraded");
    Ok(found.map(|it| (it.status.as_str().to_owned(), it.reason, it.message)).unwrap_or_default())
}

pub(crate) async fn wait_for_targets(env: &Environment, wanted: &BTreeMap<String, Value>) -> TestResult {
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

/// Applies the objects three times, each time in another order and after the deletion of all, and waits for these targets.
async fn apply_in_three_orders(
    env: &Environment,
    objects: &mut [Value],
    wanted: &BTreeMap<String, Value>,
) -> TestResult {
    for round in 0..3 {
        for object in &*objects {
            env.apply(object).await?;
        }
        wait_for_targets(env, wanted).await?;
        if round < 2 {
            clear(env).await?;
            objects.reverse();
            objects.rotate_left(4);
        }
    }
    Ok(())
}

/// In any order of creation, with two processes that act at once, of which one has nothing to do with machines; and what is taken away moves no target.
#[tokio::test(flavor = "multi_thread")]
async fn pools_target_what_files_render_in_any_order_and_keep_it() -> TestResult {
    let Some(env) = start("configs").await? else { return Ok(()) };
    let mut objects = objects(&env).await?;
    let wanted = rendered(&objects, None)?;
    assert_eq!(wanted.len(), 2, "{:?}", wanted.keys());
    let mut first = manager(&env, "first", &[UNELECTED]).await?;
    let mut second = alone(&env, "second", &[UNELECTED]).await?;
    apply_in_three_orders(&env, &mut objects, &wanted).await?;
    let shown = env.table("mcp").await?;
    // A column of ours.
    if !has_mcm_crds() {
        let mut names: Vec<_> = shown.column("TARGET")?.iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, wanted.keys().cloned().collect::<Vec<_>>());
    }
    env.wait_for("the conditions", async || Ok(condition(&env, "worker").await?.0 == "False")).await?;
    // Where kubectl describe looks for the events of objects without a namespace.
    let described = async || Ok(env.kubectl("describe machineconfigpool worker").await?.contains("TargetChanged"));
    env.wait_for("an event of the target", described).await?;
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
    // Their file has no targets.
    env.kubectl(&format!("replace -f {}", sample().join("pools.yaml").display())).await?;
    wait_for_targets(&env, &wanted).await?;
    first.check()?;
    second.check()?;
    drop((first, second));
    env.end().await
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) -> TestResult {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (entry, to) = (entry?.path(), to.to_owned());
        let to = to.join(entry.file_name().unwrap_or_default());
        if entry.is_dir() {
            copy(&entry, &to)?;
        } else {
            fs::copy(&entry, &to)?;
        }
    }
    Ok(())
}

pub(crate) const GENERATED: &str = "01-worker-container-runtime";

/// Goes the way back that the documentation tells to who has deleted the ControllerConfig in error.
async fn delete_and_restore_the_controller_config(
    env: &Environment,
    holds: &impl AsyncFn(&str) -> TestResult<bool>,
) -> TestResult {
    let name = "machine-config-controller";
    let controller_configs = Api::<ControllerConfig>::all(env.client());
    controller_configs.delete(name, &DeleteParams::default()).await?;
    env.wait_for("the pool to say what to do", async || {
        holds("remove the finalizer nodewright.dev/generated-machine-configs, and create it again").await
    })
    .await?;
    let mut saved = raw_controller_configs(env).get(name).await?;
    saved.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let without = json!({"metadata": {"finalizers": null}});
    controller_configs.patch(name, &PatchParams::default(), &Patch::Merge(without)).await?;
    raw_controller_configs(env).create(&PostParams::default(), &saved).await?;
    Ok(())
}

async fn generations(env: &Environment) -> TestResult<Vec<Option<i64>>> {
    let pools = pools(env).list(&ListParams::default()).await?;
    Ok(pools.items.iter().map(|pool| pool.metadata.generation).collect())
}

/// What is generated of templates is what files render, whatever users do to it; and what is taken away moves no target.
#[tokio::test(flavor = "multi_thread")]
async fn pools_target_what_templates_render_and_keep_it_without_them() -> TestResult {
    let Some(env) = start_on("templates", EnvironmentBuilder::with_garbage_collector).await? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    copy(&sample().join("templates"), folder.path())?;
    let mut objects = objects(&env).await?;
    let wanted = rendered(&objects, Some(folder.path()))?;
    ensure(wanted != rendered(&objects, None)?, || "the templates make nothing".to_owned())?;
    let flag = format!("--machine-config-templates={}", folder.path().display());
    let mut first = manager(&env, "first", &[UNELECTED, &flag]).await?;
    let mut second = manager(&env, "second", &[UNELECTED, &flag]).await?;
    apply_in_three_orders(&env, &mut objects, &wanted).await?;

    // Users' edits are undone: what they change, what they add, what they delete.
    let configs = raw_configs(&env.client());
    let made = configs.get(GENERATED).await?.data["spec"].clone();
    let edit = json!({"metadata": {"labels": {"machineconfiguration.openshift.io/role": "none"}},
        "spec": {"fips": true, "config": {"passwd": {"users": [{"name": "core"}]}, "storage": {"files": []}}}});
    configs.patch(GENERATED, &PatchParams::default(), &Patch::Merge(edit)).await?;
    let is_made = async || {
        let found = configs.get_opt(GENERATED).await?.map(|object| {
            (object.labels().get("machineconfiguration.openshift.io/role").cloned(), object.data["spec"].clone())
        });
        TestResult::Ok(found == Some((Some("worker".to_owned()), made.clone())))
    };
    env.wait_for("the edit to be undone", is_made).await?;
    configs.delete(GENERATED, &DeleteParams::default()).await?;
    env.wait_for("it to be made again", is_made).await?;
    wait_for_targets(&env, &wanted).await?;

    // Each write of a target makes another generation of its pool.
    let before = generations(&env).await?;
    let holds = async |text: &str| {
        let (status, reason, message) = condition(&env, "worker").await?;
        TestResult::Ok(status == "True" && reason == "WaitingForInputs" && message.contains(text))
    };
    delete_and_restore_the_controller_config(&env, &holds).await?;
    env.wait_for("the end of the hold", async || Ok(condition(&env, "worker").await?.0 == "False")).await?;
    env.wait_for("it to be made again", is_made).await?;
    assert_eq!(generations(&env).await?, before, "no target moves");

    // An empty folder is a failure.
    fs::remove_dir_all(folder.path().join("worker"))?;
    env.wait_for("the pool to say why", async || {
        holds(&format!("machine-config-controller: {flag}: there is no template")).await
    })
    .await?;
    ensure(is_made().await?, || "what was generated has changed".to_owned())?;
    assert_eq!(targets(&env.client()).await?, wanted);

    // The ControllerConfig stays while a pool selects what was made of it.
    let controller_configs = Api::<ControllerConfig>::all(env.client());
    controller_configs.delete("machine-config-controller", &DeleteParams::default()).await?;
    env.wait_for("the pool to say why", async || {
        holds(&format!(
            "it is being deleted, and stays because MachineConfigPool infra selects MachineConfig {GENERATED}"
        ))
        .await
    })
    .await?;
    assert_eq!(targets(&env.client()).await?, wanted);
    pools(&env).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    env.wait_for("the ControllerConfig to go", async || {
        Ok(controller_configs.get_opt("machine-config-controller").await?.is_none())
    })
    .await?;
    first.check()?;
    second.check()?;
    drop((first, second));
    env.end().await
}

/// As if an earlier release had rendered the same inputs to other bytes, and so to another name: its target stays, though this
/// release would render another one, until an input changes.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_release_has_rendered_stays_the_target_until_an_input_changes() -> TestResult {
    const FORMER: &str = "rendered-worker-0123456789abcdef0123456789abcdef";
    let Some(env) = start("release").await? else { return Ok(()) };
    let objects = objects(&env).await?;
    let wanted = rendered(&objects, None)?;
    let first = manager(&env, "first", &[UNELECTED]).await?;
    for object in &objects {
        env.apply(object).await?;
    }
    wait_for_targets(&env, &wanted).await?;
    drop(first);

    let configs = raw_configs(&env.client());
    let ours = configs.get(&target(&env).await?.unwrap_or_default()).await?;
    let mut former = DynamicObject { metadata: ObjectMeta::default(), ..ours.clone() };
    former.metadata.name = Some(FORMER.to_owned());
    former.metadata.annotations = ours.metadata.annotations.clone();
    former.metadata.owner_references = ours.metadata.owner_references.clone();
    former.data["spec"]["kernelArguments"] = json!(["of=an-earlier-release"]);
    configs.create(&PostParams::default(), &former).await?;
    let names_it = json!({"spec": {"configuration": {"name": FORMER}}});
    pools(&env).patch("worker", &PatchParams::default(), &Patch::Merge(names_it)).await?;

    let mut second = manager(&env, "second", &[UNELECTED]).await?;
    env.wait_for("the pool to be looked at", async || {
        let pool = pools(&env).get("worker").await?;
        let observed = pool.status.map(|status| status.observed_generation);
        Ok(observed == pool.metadata.generation && condition(&env, "worker").await?.0 == "False")
    })
    .await?;
    assert_eq!(target(&env).await?.as_deref(), Some(FORMER));
    // What this release would have made of them is there, and was old enough.
    ensure(configs.get_opt(&ours.name_any()).await?.is_some(), || format!("{} is gone", ours.name_any()))?;

    let changed = json!({"spec": {"kernelArguments": ["changed=1"]}});
    configs.patch("00-worker", &PatchParams::default(), &Patch::Merge(changed)).await?;
    env.wait_for("another target", async || Ok(target(&env).await?.is_some_and(|name| name != FORMER))).await?;
    second.check()?;
    drop(second);
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
