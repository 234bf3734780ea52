//! What `kubectl nodewright` says of clusters whose objects the manager has written, and its rollouts.

use nodewright_e2e_lab::process::executable;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
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
    command.arg("--kubeconfig").arg(env.cluster().kubeconfig()).args(["--namespace", env.namespace()]);
    let output = command.args(arguments.split(' ')).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let run = Run { succeeded: output.status.success(), stdout: text(&output.stdout), stderr: text(&output.stderr) };
    println!("{arguments}:\n{}{}", run.stdout, run.stderr);
    Ok(run)
}

pub(crate) async fn succeeds(env: &Environment, arguments: &str) -> TestResult<String> {
    let run = run(env, arguments).await?;
    if run.succeeded { Ok(run.stdout) } else { Err(Failure::new(format!("{arguments}: {}", run.stderr))) }
}

/// Waits until the first line about an object has these words.
async fn until_told(env: &Environment, object: &str, words: &str) -> TestResult {
    let question = format!("why {object}");
    env.wait_for(&format!("{words:?} of {object}"), async || {
        let told = succeeds(env, &question).await?;
        ensure(told.lines().count() <= 10, || told.clone())?;
        Ok(told.lines().next().is_some_and(|line| line.contains(words)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_line_names_the_cause_and_rollouts_are_kubectls() -> TestResult {
    let env = Environment::start("why").await?;
    let name = env.pool("a", 2).name().to_owned();
    let pool = &format!("machinedeployment/{name}");
    env.apply(&env.pool("a", 2)).await?;
    until_told(&env, pool, "MachineClass \"small\" does not exist").await?;
    env.cloud().set_quota(Some(1)).await?;
    env.apply_class("small").await?;
    until_told(&env, pool, "the quota of 1 vms is exhausted").await?;
    env.wait_for("the tree to show one that runs and one that waits", async || {
        let tree = succeeds(&env, &format!("tree {name}")).await?;
        Ok(tree.contains("ResourceExhausted") && tree.contains("1/2"))
    })
    .await?;
    env.cloud().set_quota(None).await?;
    // A change of the class ends the pause after a failure.
    env.apply(&env.class("small").provider("bootSeconds", 0)).await?;
    env.wait_for_running(2).await?;
    until_told(&env, pool, "2 machines of the present template run").await?;
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
    until_told(&env, pool, "spec.paused is true").await?;
    succeeds(&env, &format!("rollout resume {name}")).await?;
    let told = succeeds(&env, &format!("rollout status {name} --timeout=2m")).await?;
    ensure(told.ends_with(&format!("machinedeployment \"{name}\" successfully rolled out\n")), || told.clone())?;
    let history = succeeds(&env, &format!("rollout history {name} -o wide")).await?;
    ensure(history.contains("small") && history.contains("large"), || history.clone())?;
    succeeds(&env, &format!("rollout undo {name}")).await?;
    succeeds(&env, &format!("rollout status {name} --timeout=2m")).await?;
    let class = env.kubectl("get machines -o jsonpath={.items[*].spec.class.name}").await?;
    ensure(class == "small small", || class.clone())?;
    env.end().await
}
