//! The traces of machines, as a backend has them: the API server and the manager export to Jaeger, and manager and driver are killed
//! while machines are created and deleted. `make test-traces` runs it; `cargo test` alone does not, because Jaeger is not part of the
//! workspace.

mod jaeger;

use std::{collections::BTreeSet, path::Path, process::Output};

use kube::ResourceExt;
use nodewright_e2e_lab::{
    cloud::DriverProgram,
    control_plane::{ControlPlaneOptions, testing::Cluster},
    devcluster::ManagerProcess,
    process::executable,
};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
use serde_json::json;

use jaeger::{Jaeger, Span};

const MACHINES: usize = 3;
/// The longest part of a machine's creation or deletion that may have no name, in seconds. Objects have whole seconds.
const LONGEST_GAP: f64 = 1.0;
/// Where the waterfall of a machine that is gone is written, as the plugin prints it.
const PICTURE: &str = "NODEWRIGHT_TRACE_PICTURE";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Jaeger: make test-traces"]
async fn each_machine_has_one_trace_from_the_request_to_its_node_and_one_to_its_end() -> TestResult {
    let directory = tempfile::tempdir()?;
    let jaeger = Jaeger::start(directory.path().join("jaeger.log")).await?;
    let plane = traced_plane(&jaeger, directory.path()).await?;
    let env = Environment::builder("traces")
        .on(&plane)
        .with_webhooks()
        .cloud_flags(["--create-latency-ms=4000", "--boot-seconds=2", "--delete-seconds=2", "--pod-end-seconds=6"])
        .without_manager()
        .start()
        .await?;
    let driver = DriverProgram::new(env.directory(), "driver", env.cloud().url(), &[])?;
    let flags = [
        format!("--driver={}", driver.path().display()),
        format!("--otlp-endpoint=http://{}", jaeger.address()),
        "--leader-elect-lease-duration=3s".to_owned(),
        "--leader-elect-renew-deadline=2s".to_owned(),
        "--leader-elect-retry-period=500ms".to_owned(),
    ];
    let mut manager = ManagerProcess::start(env.manager_options("manager", true, &flags)).await?;

    env.apply_class("small").await?;
    env.apply(&env.pool("a", u32::try_from(MACHINES)?)).await?;
    decided(&env, &jaeger, "creation decision").await?;
    kill_both(&driver, &mut manager).await?;
    let machines = env.wait_for_running(MACHINES).await?;
    let names: BTreeSet<_> = machines.values().map(|machine| machine.name_any()).collect();
    ensure(names.len() == MACHINES, || format!("there are {names:?}"))?;

    for machine in machines.values() {
        let node = machine.labels().get(nodewright_api::labels::NODE).cloned().unwrap_or_default();
        run_pod(&env, &node).await?;
    }
    env.scale("a", 0).await?;
    decided(&env, &jaeger, "deletion decision").await?;
    kill_both(&driver, &mut manager).await?;
    env.wait_for_nothing().await?;
    let all = all_spans(&env, &jaeger).await?;
    for name in &names {
        creation(&all, name)?;
        deletion(&all, name)?;
    }
    let roots: BTreeSet<_> =
        names.iter().flat_map(|name| about(&all, "machine deletion", name)).map(|it| &it.trace).collect();
    ensure(roots.len() == 1, || format!("one request asked for all deletions, and they have the traces {roots:?}"))?;
    picture(&env, &jaeger, names.first().map(String::as_str).unwrap_or_default()).await?;
    drop(manager);
    env.end().await
}

/// A control plane whose API server exports each request.
async fn traced_plane(jaeger: &Jaeger, directory: &Path) -> TestResult<std::sync::Arc<Cluster>> {
    let file = directory.join("tracing.yaml");
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "TracingConfiguration",
        "endpoint": jaeger.address(), "samplingRatePerMillion": 1_000_000});
    std::fs::write(&file, configuration.to_string())?;
    let flag = format!("--tracing-config-file={}", file.display());
    let options = ControlPlaneOptions { api_server_flags: vec![flag], scheduler: false, ..Cluster::options() };
    Cluster::start(options, true).await
}

/// Waits until Jaeger has the decision about each machine: what a process has yet to export ends with it.
async fn decided(env: &Environment, jaeger: &Jaeger, decision: &str) -> TestResult {
    let machines = async || {
        let spans = jaeger.traces(decision).await?;
        Ok::<_, Failure>(
            spans.iter().filter(|span| span.name == decision).filter_map(Span::machine).collect::<BTreeSet<_>>(),
        )
    };
    env.wait_for(&format!("each {decision} in Jaeger"), async || Ok(machines().await?.len() == MACHINES)).await
}

/// Kills manager and driver (SIGKILL), and starts the manager again, which starts a driver.
async fn kill_both(driver: &DriverProgram, manager: &mut ManagerProcess) -> TestResult {
    ensure(driver.kill_9(), || "there is no driver to kill".to_owned())?;
    manager.kill_9();
    Ok(manager.start_again().await?)
}

async fn run_pod(env: &Environment, node: &str) -> TestResult {
    env.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("web-{node}")}, "spec": {
        "nodeName": node, "terminationGracePeriodSeconds": 30, "containers": [{"name": "main", "image": "none"}]}}))
        .await
}

/// All traces of the machines, once they are complete.
async fn all_spans(env: &Environment, jaeger: &Jaeger) -> TestResult<Vec<Span>> {
    let all = async || {
        let mut all = vec![];
        for root in ["machine creation", "machine deletion"] {
            let found = jaeger.traces(root).await?;
            let traces: BTreeSet<_> = found.iter().map(|span| &span.trace).collect();
            for trace in traces {
                all.extend(jaeger.trace(trace).await?);
            }
        }
        Ok::<_, Failure>(all)
    };
    let ends = |spans: &[Span]| spans.iter().filter(|span| span.name == "machine deletion").count();
    env.wait_for("the end of each machine in Jaeger", async || Ok(ends(&all().await?) == MACHINES)).await?;
    all().await
}

/// From the request of the user, by way of webhook and decision, to a Node.
fn creation(all: &[Span], machine: &str) -> TestResult {
    let creation = one(all, "machine creation", machine)?;
    let above: Vec<_> = ancestors(all, creation).map(|span| (span.service.as_str(), span.name.as_str())).collect();
    let starts = [("nodewright", "creation decision"), ("nodewright", "admission")];
    ensure(above.starts_with(&starts), || format!("above the creation of {machine} there are {above:?}"))?;
    ensure(above.last().is_some_and(|(service, _)| *service == "apiserver"), || {
        format!("{machine} begins with {above:?}")
    })?;
    let stages = stages(all, creation)?;
    ensure(stages == ["VM creation", "boot and join"], || format!("the creation of {machine} has {stages:?}"))?;
    let requests = all.iter().filter(|span| span.service == "apiserver" && descends(all, span, creation)).count();
    ensure(requests > 0, || format!("no request to the API server is in the creation of {machine}"))
}

/// From the request of the user to the last write.
fn deletion(all: &[Span], machine: &str) -> TestResult {
    let deletion = one(all, "machine deletion", machine)?;
    let above: Vec<_> = ancestors(all, deletion).map(|span| span.name.as_str()).collect();
    ensure(above == ["deletion decision", "unreviewed change"], || {
        format!("above the deletion of {machine} there are {above:?}")
    })?;
    let creation = one(all, "machine creation", machine)?;
    let links = [(creation.trace.clone(), creation.id.clone())];
    ensure(deletion.links == links, || format!("the deletion of {machine} has the links {:?}", deletion.links))?;
    let stages = stages(all, deletion)?;
    let wanted = ["drain", "VM deletion", "node deletion"];
    ensure(wanted.iter().all(|stage| stages.contains(stage)), || format!("the deletion of {machine} has {stages:?}"))?;
    let drain = one(all, "drain", machine)?;
    let has_pod = all.iter().any(|span| span.parent == drain.id && span.name.contains("/web-"));
    ensure(has_pod, || format!("no pod is in the drain of {machine}"))?;
    let vm = one(all, "VM deletion", machine)?;
    // That of a creation may have ended with the process that made it.
    let calls: Vec<_> = all.iter().filter(|span| span.parent == vm.id && span.name == "delete call").collect();
    ensure(!calls.is_empty(), || format!("no call has deleted the VM of {machine}"))?;
    let is_driver = |span: &Span| span.name == "DeleteMachine" && span.service == "nodewright-driver-simulated";
    let has_driver = |call: &&Span| all.iter().any(|span| span.parent == call.id && is_driver(span));
    ensure(calls.iter().any(has_driver), || format!("no driver is in the deletion of {machine}"))
}

/// The names of the parts of a creation or deletion, which cover it.
fn stages<'a>(all: &'a [Span], whole: &Span) -> TestResult<Vec<&'a str>> {
    let parts: Vec<_> = all.iter().filter(|span| span.parent == whole.id && span.machine().is_some()).collect();
    let mut covered = whole.start;
    let ends = parts.iter().map(|part| (part.start, part.end)).chain([(whole.end, whole.end)]);
    for (start, end) in ends {
        ensure(start - covered <= LONGEST_GAP, || {
            format!("{} has no name from {covered} to {start}: {parts:?}", whole.name)
        })?;
        covered = covered.max(end);
    }
    Ok(parts.iter().map(|part| part.name.as_str()).collect())
}

fn about<'a>(all: &'a [Span], name: &str, machine: &str) -> Vec<&'a Span> {
    all.iter().filter(|span| span.name == name && span.machine().as_deref() == Some(machine)).collect()
}

fn one<'a>(all: &'a [Span], name: &str, machine: &str) -> TestResult<&'a Span> {
    let found = about(all, name, machine);
    match found[..] {
        [span] => Ok(span),
        _ => Err(Failure::new(format!("{machine} has {} spans {name:?}: {found:?}", found.len()))),
    }
}

fn ancestors<'a>(all: &'a [Span], of: &'a Span) -> impl Iterator<Item = &'a Span> {
    let parent = |span: &&'a Span| all.iter().find(|it| it.id == span.parent && it.trace == span.trace);
    std::iter::successors(parent(&of), parent)
}

fn descends(all: &[Span], span: &Span, from: &Span) -> bool {
    ancestors(all, span).any(|ancestor| ancestor.id == from.id)
}

/// What the plugin prints of a machine that is gone.
async fn printed(env: &Environment, jaeger: &Jaeger, machine: &str) -> TestResult<Output> {
    let mut command = tokio::process::Command::new(executable("kubectl-nodewright", "KUBECTL_NODEWRIGHT_BIN")?);
    command.arg("--kubeconfig").arg(env.cluster().kubeconfig()).args(["--namespace", env.namespace()]);
    Ok(command.args(["trace", machine, "--jaeger", &jaeger.url()]).output().await?)
}

/// The waterfall of a machine that is gone, and that none is found by another name.
async fn picture(env: &Environment, jaeger: &Jaeger, machine: &str) -> TestResult {
    let other = printed(env, jaeger, "other").await?;
    ensure(!other.status.success(), || format!("a machine that never was has traces: {other:?}"))?;
    let output = printed(env, jaeger, machine).await?;
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}{error}");
    for span in ["admission", "VM creation", "boot and join", "drain", "node deletion"] {
        ensure(text.contains(span), || format!("the plugin prints no {span:?}: {error}"))?;
    }
    if let Some(file) = std::env::var_os(PICTURE) {
        std::fs::write(file, text.as_bytes())?;
    }
    Ok(())
}

#[test]
fn a_part_without_a_name_is_found() {
    let span = |id: &str, parent: &str, (start, end): (f64, f64)| Span::sample(id, parent, (start, end));
    let whole = span("1", "", (0.0, 20.0));
    let parts =
        |middle: f64| vec![span("2", "1", (0.0, 10.0)), span("3", "1", (middle, 15.0)), span("4", "1", (10.5, 19.5))];
    assert!(stages(&parts(10.9), &whole).is_ok());
    assert!(stages(&parts(10.9)[..2], &whole).is_err(), "the end has no name");
    assert!(stages(&parts(10.9)[1..], &whole).is_err(), "the beginning has no name");
    let gap = [span("2", "1", (0.0, 10.0)), span("3", "1", (11.1, 20.0))];
    assert!(stages(&gap, &whole).is_err());
}
