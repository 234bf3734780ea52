//! The writes of node configuration: none is lost or repeated when a manager is killed at it, and each is sent once.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use nodewright_api::machine_config::{ControllerConfig, KubeletConfig};
use nodewright_e2e_lab::control_plane::audit::{AuditLog, Entry};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, requests::AGENT};
use serde_json::json;

use super::machine_configs::{
    GENERATED, UNELECTED, condition, manager, objects, raw_configs, rendered, sample, start, targets, wait_for_targets,
};

const KUBELET: &str = "99-worker-generated-kubelet";
const KINDS: [&str; 4] = ["controllerconfigs", "kubeletconfigs", "machineconfigpools", "machineconfigs"];
/// Request by request, slowly enough that a write is seen before the next one is sent.
const SLOWLY: [&str; 2] = ["--kube-api-qps=10", "--kube-api-burst=1"];

/// The managers' writes to the kinds of node configuration, from the audit log.
struct Writes<'a> {
    env: &'a Environment,
    log: AuditLog,
}

impl<'a> Writes<'a> {
    fn from_now(env: &'a Environment) -> TestResult<Self> {
        let plane = env.cluster().control_plane().ok_or_else(|| Failure::new("there is no audit log"))?;
        Ok(Self { env, log: AuditLog::from_now(plane.audit_log())? })
    }

    /// Those that are in the log, and that no earlier call has returned.
    fn read(&mut self) -> TestResult<Vec<Entry>> {
        Ok(Self::of_managers(self.log.read()?))
    }

    /// The same, with all that the API server has answered until now.
    async fn read_all(&mut self) -> TestResult<Vec<Entry>> {
        Ok(Self::of_managers(self.env.read_audit(&mut self.log).await?))
    }

    fn of_managers(mut entries: Vec<Entry>) -> Vec<Entry> {
        entries.retain(|it| it.is_write() && it.user_agent.starts_with(AGENT) && KINDS.contains(&it.resource.as_str()));
        entries
    }
}

/// The resource of a write, with its subresource.
fn resource(entry: &Entry) -> String {
    let separator = if entry.subresource.is_empty() { "" } else { "/" };
    format!("{}{separator}{}", entry.resource, entry.subresource)
}

/// Whether all that was created has a status that says that it is done.
async fn is_done(env: &Environment) -> TestResult<bool> {
    let holds = |conditions: &[nodewright_api::MachineClassCondition], kind: &str| {
        conditions.iter().any(|it| it.condition_type == kind && it.status.as_str() == "True")
    };
    let object = Api::<ControllerConfig>::all(env.client()).get("machine-config-controller").await?;
    let templates = holds(&object.status.unwrap_or_default().conditions, "TemplateControllerCompleted");
    let kubelets = Api::<KubeletConfig>::all(env.client()).list(&kube::api::ListParams::default()).await?;
    let mut kubelets = kubelets.into_iter().map(|it| it.status.unwrap_or_default());
    let pools = condition(env, "worker").await?.0 == "False" && condition(env, "infra").await?.0 == "False";
    Ok(templates && pools && kubelets.all(|status| holds(&status.conditions, "Accepted")))
}

/// The manager is killed as soon as a write of it has been answered, and started again, until nothing is left to write.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_at_each_write_ends_at_the_same_targets() -> TestResult {
    let Some(env) = start("killed").await? else { return Ok(()) };
    let templates = sample().join("templates");
    let objects = objects(&env).await?;
    let wanted = rendered(&objects, Some(&templates))?;
    for object in &objects {
        env.apply(object).await?;
    }
    let mut writes = Writes::from_now(&env)?;
    let flag = format!("--machine-config-templates={}", templates.display());
    let mut manager = manager(&env, "manager", &[UNELECTED, &flag, SLOWLY[0], SLOWLY[1]]).await?;
    let (mut kills, mut killed_at, mut made) = (0, BTreeSet::new(), BTreeMap::<String, usize>::new());
    loop {
        let mut found = vec![];
        env.wait_for("a write, or the targets that files render", async || {
            found = writes.read()?;
            Ok(!found.is_empty() || (targets(&env.client()).await? == wanted && is_done(&env).await?))
        })
        .await?;
        if found.is_empty() {
            break;
        }
        manager.kill_9();
        kills += 1;
        killed_at.extend(found.iter().map(resource));
        for entry in found.iter().filter(|entry| entry.code == 201) {
            *made.entry(entry.name.clone()).or_default() += 1;
        }
        // A rendering that lacks a generated MachineConfig may be made. It is no target: five seconds later it is not wanted.
        let targets = targets(&env.client()).await?;
        ensure(targets.keys().all(|name| wanted.contains_key(name)), || format!("{:?} are targets", targets.keys()))?;
        manager.start_again().await?;
    }
    println!("{kills} kills, at writes of {killed_at:?}");
    // How many writes come before a kill depends on the computer. What is quiet for five seconds is apart from the rest.
    ensure(kills >= 2, || format!("it was killed {kills} times"))?;
    let all = [
        "controllerconfigs",
        "controllerconfigs/status",
        "kubeletconfigs/status",
        "machineconfigpools",
        "machineconfigpools/status",
        "machineconfigs",
    ];
    ensure(killed_at.iter().eq(all), || format!("it was killed at writes of {killed_at:?}, not of {all:?}"))?;
    ensure(made.values().all(|count| *count == 1), || format!("created: {made:?}"))?;
    manager.check()?;
    drop(manager);
    env.end().await
}

/// What is generated is created by one apply; what a user does to it is undone by one write. A second write, or one of another
/// form, is noticed here.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_generated_is_written_once_and_an_edit_is_undone_once() -> TestResult {
    let Some(env) = start("once").await? else { return Ok(()) };
    let templates = sample().join("templates");
    let objects = objects(&env).await?;
    let wanted = rendered(&objects, Some(&templates))?;
    let flag = format!("--machine-config-templates={}", templates.display());
    let mut manager = manager(&env, "manager", &[UNELECTED, &flag]).await?;
    let mut writes = Writes::from_now(&env)?;
    // The pools come last: nothing that they select changes afterwards.
    let (pools, others): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object["kind"] == "MachineConfigPool");
    for object in &others {
        env.apply(object).await?;
    }
    let configs = raw_configs(&env.client());
    env.wait_for("what the templates make", async || Ok(configs.get_opt(GENERATED).await?.is_some())).await?;
    for pool in &pools {
        env.apply(pool).await?;
    }
    wait_for_targets(&env, &wanted).await?;
    env.wait_for("the statuses", async || is_done(&env).await).await?;
    let mut requests = BTreeMap::<String, Vec<(String, u16)>>::new();
    for entry in writes.read_all().await?.into_iter().filter(|entry| entry.resource == "machineconfigs") {
        requests.entry(entry.name).or_default().push((entry.verb, entry.code));
    }
    // Only an apply creates by PATCH.
    let created = vec![("patch".to_owned(), 201)];
    for name in [GENERATED, KUBELET].into_iter().chain(wanted.keys().map(String::as_str)) {
        ensure(requests.get(name) == Some(&created), || format!("{name}: {:?}", requests.get(name)))?;
    }

    // In this order: what the kubelet's is generated of does not change while its writes are counted.
    for name in [KUBELET, GENERATED] {
        let made = configs.get(name).await?;
        for round in 0..3 {
            let edit = json!({"spec": {"fips": true, "kernelArguments": [format!("round={round}")]}});
            let edited = configs.patch(name, &PatchParams::default(), &Patch::Merge(edit)).await?;
            env.wait_for("the edit to be undone", async || {
                Ok(configs.get(name).await?.data["spec"] == made.data["spec"])
            })
            .await?;
            let generation = configs.get(name).await?.metadata.generation;
            assert_eq!(generation, edited.metadata.generation.map(|it| it + 1), "{name}, round {round}");
        }
        let undone: Vec<_> = writes.read_all().await?.into_iter().filter(|entry| entry.name == name).collect();
        let codes: Vec<_> = undone.iter().map(|entry| (entry.verb.as_str(), entry.code)).collect();
        assert_eq!(codes, [("patch", 200); 3], "{name}");
    }
    wait_for_targets(&env, &wanted).await?;
    manager.check()?;
    drop(manager);
    env.end().await
}
