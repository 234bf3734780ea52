//! What `kubectl nodewright` says of clusters whose objects the manager has written, and its rollouts.

use std::collections::BTreeSet;

use kube::ResourceExt;
use nodewright_api::Machine;
use nodewright_e2e_lab::process::executable;
use nodewright_e2e_scenarios::{Environment, Failure, Manifest, TestResult, ensure, history::State};
use serde_json::{Value, json};
use tokio::process::Command;

/// What the plugin has printed, and whether it has succeeded.
struct Run {
    succeeded: bool,
    stdout: String,
    stderr: String,
}

async fn run(env: &Environment, arguments: &str) -> TestResult<Run> {
    let program = executable("kubectl-nodewright", "KUBECTL_NODEWRIGHT_BIN")?;
    let mut command = Command::new(program);
    let kubeconfig = if writes(arguments) { env.cluster().kubeconfig() } else { env.plugin_kubeconfig().await? };
    command.arg("--kubeconfig").arg(kubeconfig).args(["--namespace", env.namespace()]);
    let output = command.args(arguments.split(' ')).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let run = Run { succeeded: output.status.success(), stdout: text(&output.stdout), stderr: text(&output.stderr) };
    println!("{arguments}:\n{}{}", run.stdout, run.stderr);
    Ok(run)
}

/// Whether a command changes something, if only in a dry run, as the plan of a file. The roles of `config/plugin` are for all others.
fn writes(arguments: &str) -> bool {
    let words: Vec<_> = arguments.split(' ').take(2).collect();
    match words.as_slice() {
        ["rollout", verb] => !["status", "history"].contains(verb),
        ["plan", object] => object.starts_with('/'),
        [verb, ..] => !["why", "tree", "trace", "report"].contains(verb),
        [] => false,
    }
}

pub(crate) async fn succeeds(env: &Environment, arguments: &str) -> TestResult<String> {
    let run = run(env, arguments).await?;
    if run.succeeded { Ok(run.stdout) } else { Err(Failure::new(format!("{arguments}: {}", run.stderr))) }
}

/// Waits until the first line about an object has these words.
async fn until_reported(env: &Environment, object: &str, words: &str) -> TestResult {
    let question = format!("why {object}");
    env.wait_for(&format!("{words:?} of {object}"), async || {
        let reported = succeeds(env, &question).await?;
        ensure(reported.lines().count() <= 10, || reported.clone())?;
        Ok(reported.lines().next().is_some_and(|line| line.contains(words)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_line_names_the_cause_and_rollouts_are_kubectls() -> TestResult {
    let env = Environment::start("why").await?;
    let name = env.pool("a", 2).name().to_owned();
    let pool = &format!("machinedeployment/{name}");
    env.apply(&env.pool("a", 2)).await?;
    until_reported(&env, pool, "MachineClass \"small\" does not exist").await?;
    env.cloud().set_quota(Some(1)).await?;
    env.apply_class("small").await?;
    until_reported(&env, pool, "the quota of 1 vms is exhausted").await?;
    env.wait_for("the tree to show one that runs and one that waits", async || {
        let tree = succeeds(&env, &format!("tree {name}")).await?;
        Ok(tree.contains("ResourceExhausted") && tree.contains("1/2"))
    })
    .await?;
    env.cloud().set_quota(None).await?;
    // A change of the class ends the pause after a failure.
    env.apply(&env.class("small").provider("bootSeconds", 0)).await?;
    env.wait_for_running(2).await?;
    until_reported(&env, pool, "2 machines of the present template run").await?;
    for machine in env.machines().current().into_keys() {
        let life = succeeds(&env, &format!("trace {machine}")).await?;
        let stages: Vec<_> = life.lines().filter_map(|line| line.split_whitespace().next()).collect();
        ensure(stages.ends_with(&["STAGE", "VM", "boot", "join"]), || life.clone())?;
        ensure(!life.contains("lasts"), || life.clone())?;
    }

    succeeds(&env, &format!("rollout pause {name}")).await?;
    ensure(!run(&env, &format!("rollout pause {name}")).await?.succeeded, || "it is paused already".to_owned())?;
    env.apply(&env.class("large").provider("size", "large")).await?;
    let patch = "{\"spec\":{\"template\":{\"spec\":{\"class\":{\"name\":\"large\"}}}}}";
    env.kubectl(&format!("patch machinedeployment {name} --type=merge -p {patch}")).await?;
    until_reported(&env, pool, "spec.paused is true").await?;
    succeeds(&env, &format!("rollout resume {name}")).await?;
    let reported = succeeds(&env, &format!("rollout status {name} --timeout=2m")).await?;
    ensure(reported.ends_with(&format!("machinedeployment \"{name}\" successfully rolled out\n")), || {
        reported.clone()
    })?;
    let history = succeeds(&env, &format!("rollout history {name} -o wide")).await?;
    ensure(history.contains("small") && history.contains("large"), || history.clone())?;
    succeeds(&env, &format!("rollout undo {name}")).await?;
    succeeds(&env, &format!("rollout status {name} --timeout=2m")).await?;
    let class = env.kubectl("get machines -o jsonpath={.items[*].spec.class.name}").await?;
    ensure(class == "small small", || class.clone())?;
    env.end().await
}

/// Compares what the plan of a file has said with the machines that there are once it is applied.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_plan_of_a_file_says_is_what_its_apply_does() -> TestResult {
    let env = Environment::start("plans").await?;
    env.apply_class("small").await?;
    let (small, large) = (env.pool("a", 2), env.pool("a", 2).class("large"));
    let first = planned(&env, &[&small.manifest()]).await?;
    ensure((first.created, first.deleted.len()) == (2, 0), || format!("{first:?}"))?;
    ensure(env.machines().current().is_empty(), || "a plan has created machines".to_owned())?;
    env.apply(&small).await?;
    env.wait_for_running(2).await?;

    let before: BTreeSet<String> = env.machines().current().into_keys().collect();
    dry_runs(&env).await?;
    let class = env.class("large").provider("size", "large");
    let rolled = planned(&env, &[&large.manifest(), &class.manifest()]).await?;
    ensure(rolled.created == 2 && rolled.deleted == before, || format!("{rolled:?}, {before:?}"))?;
    let alone = planned(&env, &[&large.manifest()]).await?;
    ensure(alone.lacks_class && !rolled.lacks_class, || format!("{alone:?}, {rolled:?}"))?;
    env.apply(&class).await?;
    env.apply(&large).await?;
    env.wait_for("the machines to be others", async || {
        let now = env.machines().current();
        Ok(now.len() == 2 && now.keys().all(|machine| !before.contains(machine)))
    })
    .await?;
    succeeds(&env, &format!("rollout status {} --timeout=2m", small.name())).await?;
    let rest = succeeds(&env, &format!("plan rollout {}", small.name())).await?;
    ensure(rest.contains("nothing is left to do"), || rest.clone())?;

    let smaller = env.pool("a", 1).class("large");
    let scaled = planned(&env, &[&smaller.manifest()]).await?;
    env.apply(&smaller).await?;
    let left = |machines: &State<Machine>| machines.len() == 1;
    env.wait_for_machines("one machine to be left", left).await?;
    let kept = env.only_machine()?.name_any();
    ensure(scaled.deleted.len() == 1 && !scaled.deleted.contains(&kept), || format!("{scaled:?}, {kept}"))?;
    env.end().await
}

/// With `--dry-run` the API server checks each change, and makes none.
async fn dry_runs(env: &Environment) -> TestResult {
    let machine = env.machines().current().into_keys().next().unwrap_or_default();
    let (of_machine, of_pool) = (
        format!("get machine {machine} -o json"),
        format!("get machinedeployment {} -o json", env.pool("a", 2).name()),
    );
    let metadata = async |command: &str| -> TestResult<Value> {
        let object: Value = serde_json::from_str(&env.kubectl(command).await?)?;
        let metadata = &object["metadata"];
        Ok(json!([
            metadata["annotations"],
            metadata["labels"],
            metadata["deletionTimestamp"],
            metadata["generation"],
            object["spec"]
        ]))
    };
    let before = (metadata(&of_machine).await?, metadata(&of_pool).await?);
    let pool = env.pool("a", 2).name().to_owned();
    for change in [
        format!("replace {machine} --dry-run"),
        format!("replace {machine} --force --dry-run=server"),
        format!("preserve {machine} --now --dry-run"),
        format!("rollout pause {pool} --dry-run"),
        format!("rollout restart {pool} --dry-run"),
    ] {
        let printed = succeeds(env, &change).await?;
        ensure(printed.contains("(server dry run)"), || printed.clone())?;
        let after = (metadata(&of_machine).await?, metadata(&of_pool).await?);
        ensure(after == before, || format!("{change}: {before:?}, then {after:?}"))?;
    }
    Ok(())
}

/// The flags of a plan of what the environment would apply.
const AS_APPLIED: &str = "--field-manager=end-to-end --force-conflicts";

/// What a plan says of the one deployment of a file.
#[derive(Debug)]
struct Planned {
    created: usize,
    deleted: BTreeSet<String>,
    lacks_class: bool,
}

/// The plan of the one deployment of a file.
pub(crate) async fn planned_apply(env: &Environment, documents: &[&str]) -> TestResult<Value> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), documents.join("\n---\n"))?;
    let printed = succeeds(env, &format!("plan {} {AS_APPLIED} -o json", file.path().display())).await?;
    let parts: Vec<Value> = serde_json::from_str(&printed)?;
    let plan = parts.into_iter().map(|mut part| part["plan"].take()).find(|plan| plan["deployment"].is_string());
    plan.ok_or_else(|| Failure::new(printed))
}

async fn planned(env: &Environment, documents: &[&str]) -> TestResult<Planned> {
    let plan = planned_apply(env, documents).await?;
    let (mut created, mut deleted) = (0, BTreeSet::new());
    for change in plan["changes"].as_array().into_iter().flatten() {
        match change["change"].as_str() {
            Some("create") => created += 1,
            Some("delete") => deleted.extend(change["machine"].as_str().map(str::to_owned)),
            _ => {}
        }
    }
    Ok(Planned { created, deleted, lacks_class: plan["lacksClass"] == true })
}
