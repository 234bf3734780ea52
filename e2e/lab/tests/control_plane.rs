//! The local control plane works, can be broken and restarted, and leaves nothing behind.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use kube_runtime::wait::{
    await_condition,
    conditions::{is_deleted, is_pod_running},
};
use nodewright_e2e_lab::control_plane::{
    Component, ControlPlane, ControlPlaneError, ControlPlaneOptions,
    audit::{AuditLog, Counts},
    client,
    kwok::Kwok,
    machine_controller_manager_crds,
    testing::{Failure, TIMEOUT, TestResult, eventually},
};
use serde_json::Value;
use tokio::time::timeout;

#[tokio::test]
async fn a_control_plane_works_and_survives_restarts() -> TestResult {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
    manifests_are_applied(&plane).await?;
    users_have_their_own_rights(&plane).await?;
    the_controller_manager_works(&plane).await?;
    the_schemas_of_machine_controller_manager_are_accepted(&plane).await?;
    requests_are_counted(&plane).await?;
    a_restart_keeps_the_data(&plane).await?;
    a_paused_server_does_not_answer(&plane).await?;
    drop_leaves_nothing(plane)
}

async fn manifests_are_applied(plane: &ControlPlane) -> TestResult {
    let yaml = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: fleet\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: fleet\ndata:\n  key: value\n";
    assert_eq!(plane.apply_yaml(yaml).await?.len(), 2);
    let printed = plane.kubectl(["get", "configmap", "a", "-n", "fleet", "-o", "jsonpath={.data.key}"]).await?;
    assert_eq!(printed, "value");
    let error = plane.kubectl(["get", "configmap", "b", "-n", "fleet"]).await.expect_err("it is not there").to_string();
    assert!(error.contains("NotFound"), "{error}");
    Ok(())
}

async fn users_have_their_own_rights(plane: &ControlPlane) -> TestResult {
    let kubeconfig = plane.kubeconfig_for("visitor", &[])?;
    let visitor = client(&kubeconfig, "visitor/1").await?;
    let refused =
        Api::<ConfigMap>::namespaced(visitor, "fleet").list(&ListParams::default()).await.expect_err("no rights");
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    let administrator = client(&plane.kubeconfig_for("second", &["system:masters"])?, "second/1").await?;
    Api::<ConfigMap>::namespaced(administrator, "fleet").list(&ListParams::default()).await?;
    assert!(matches!(plane.kubeconfig_for("third", &["a", "b"]), Err(ControlPlaneError::Groups { .. })));
    Ok(())
}

/// Service accounts come from the controller manager, and their tokens from the key that both it and the API server use.
async fn the_controller_manager_works(plane: &ControlPlane) -> TestResult {
    eventually("the service account", async || {
        Ok(plane.kubectl(["get", "serviceaccount", "default", "-n", "fleet"]).await.is_ok())
    })
    .await?;
    let token = plane.kubectl(["create", "token", "default", "-n", "fleet"]).await?;
    let token = format!("--token={}", token.trim());
    // A client certificate takes precedence over the token, so the kubeconfig is left out.
    let server = format!("--server={}", plane.server());
    let who = plane
        .kubectl(["auth", "whoami", "--kubeconfig=/dev/null", "--insecure-skip-tls-verify", &server, &token])
        .await?;
    assert!(who.contains("system:serviceaccount:fleet:default"), "{who}");
    Ok(())
}

async fn the_schemas_of_machine_controller_manager_are_accepted(plane: &ControlPlane) -> TestResult {
    let applied = plane.apply_file(machine_controller_manager_crds().await?).await?;
    assert_eq!(applied.len(), 4);
    assert_eq!(plane.kubectl(["get", "machinedeployments", "-A", "-o", "name"]).await?, "");
    Ok(())
}

async fn requests_are_counted(plane: &ControlPlane) -> TestResult {
    let mut log = AuditLog::from_now(plane.audit_log())?;
    let client = plane.client_named("counted/1 (test)").await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "fleet");
    for name in ["x", "y"] {
        let map: ConfigMap = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        }))?;
        let parameters = kube::api::PatchParams::apply("test");
        maps.patch(name, &parameters, &kube::api::Patch::Apply(&map)).await?;
    }
    maps.delete("x", &kube::api::DeleteParams::default()).await?;
    maps.get_opt("x").await?;
    let entries = log
        .read_until(TIMEOUT, |entries| Counts::by_agent(entries, "counted/").exactly("get", "configmaps", 404) == 1)
        .await?;
    let counts = Counts::by_agent(&entries, "counted/");
    assert_eq!(counts.exactly("patch", "configmaps", 201), 2, "{counts}");
    assert_eq!(counts.exactly("delete", "configmaps", 200), 1, "{counts}");
    assert_eq!(counts.total(), 4, "{counts}");
    Ok(())
}

async fn a_restart_keeps_the_data(plane: &ControlPlane) -> TestResult {
    for component in [Component::ApiServer, Component::Etcd, Component::ControllerManager, Component::Scheduler] {
        let before = plane.pids()[&component];
        plane.restart(component).await?;
        assert_ne!(plane.pids()[&component], before);
        plane.check()?;
    }
    eventually("an answer after the restart", async || {
        Ok(plane.kubectl(["get", "configmap", "a", "-n", "fleet"]).await.is_ok())
    })
    .await
}

async fn a_paused_server_does_not_answer(plane: &ControlPlane) -> TestResult {
    plane.pause(Component::ApiServer)?;
    let answer = timeout(Duration::from_millis(500), plane.client().apiserver_version()).await;
    assert!(answer.is_err());
    plane.unpause(Component::ApiServer)?;
    plane.wait_until_ready(Component::ApiServer).await?;
    Ok(())
}

fn drop_leaves_nothing(plane: ControlPlane) -> TestResult {
    // A stopped process must not survive either.
    plane.pause(Component::Scheduler)?;
    let pids: Vec<_> = plane.pids().into_values().collect();
    assert_eq!(pids.len(), 4);
    let directory = plane.directory().to_owned();
    drop(plane);
    assert_eq!(living(&pids), [0; 0]);
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn kwok_plays_a_node() -> TestResult {
    let plane = ControlPlane::start(ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() }).await?;
    let mut kwok = Kwok::start(&plane, "played-by=kwok")?;
    plane
        .apply_yaml(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  labels:\n    played-by: kwok\n---\n\
             apiVersion: v1\nkind: Node\nmetadata:\n  name: n2\n",
        )
        .await?;
    let nodes: Api<Node> = Api::all(plane.client());
    let is_ready = |node: Option<&Node>| node.is_some_and(is_ready);
    timeout(TIMEOUT, await_condition(nodes.clone(), "n1", is_ready)).await??;
    assert!(!is_ready(Some(&nodes.get("n2").await?)));
    a_pod_runs_and_ends(&plane).await?;
    kwok.check()?;
    Ok(())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn a_pod_runs_and_ends(plane: &ControlPlane) -> TestResult {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  nodeName: n1\n  containers:\n  \
               - name: c\n    image: none\n";
    // Pods are refused until the controller manager has created the service account.
    eventually("the pod to be accepted", async || Ok(plane.apply_yaml(pod).await.is_ok())).await?;
    let pods: Api<Pod> = Api::namespaced(plane.client(), "default");
    timeout(TIMEOUT, await_condition(pods.clone(), "p", is_pod_running())).await??;
    let uid = pods.get("p").await?.uid().unwrap_or_default();
    pods.delete("p", &kube::api::DeleteParams::default()).await?;
    timeout(TIMEOUT, await_condition(pods, "p", is_deleted(&uid))).await??;
    Ok(())
}

#[tokio::test]
async fn a_start_that_fails_says_why() -> TestResult {
    let wrong_flag =
        ControlPlaneOptions { api_server_flags: vec!["--no-such-flag".to_owned()], ..ControlPlaneOptions::default() };
    let error = ControlPlane::start(wrong_flag).await.expect_err("it is not there").to_string();
    assert!(error.contains("kube-apiserver ended") && error.contains("no-such-flag"), "{error}");

    let taken = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", taken.local_addr()?);
    let clash = ControlPlaneOptions {
        etcd_flags: vec![format!("--listen-client-urls={url}")],
        ..ControlPlaneOptions::default()
    };
    let error = ControlPlane::start(clash).await.expect_err("it is not there").to_string();
    assert!(error.contains("etcd ended") && error.contains("address already in use"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_killed_command_leaves_nothing() -> TestResult {
    let scratch = tempfile::tempdir()?;
    let ready_file = scratch.path().join("ready.json");
    let mut command = start_command(&["--ready-file", path_text(&ready_file)])?;
    let ready = wait_for_file(&ready_file, &mut command).await?;
    let pids = pids_of(&ready);
    let directory = PathBuf::from(ready["directory"].as_str().unwrap_or_default());
    assert_eq!(living(&pids), pids);
    assert!(directory.join("kubeconfig").exists());
    signal("STOP", pids[0])?;
    // This is SIGKILL, so the command cannot clean up.
    command.0.kill()?;
    command.0.wait()?;
    eventually("the end of all processes and files", async || Ok(living(&pids).is_empty() && !directory.exists())).await
}

#[tokio::test]
async fn an_interrupted_command_keeps_logs_and_ends_well() -> TestResult {
    let scratch = tempfile::tempdir()?;
    let directory = scratch.path().join("plane");
    let ready_file = scratch.path().join("ready.json");
    let arguments = ["--dir", path_text(&directory), "--ready-file", path_text(&ready_file), "--without-scheduler"];
    let mut command = start_command(&arguments)?;
    let ready = wait_for_file(&ready_file, &mut command).await?;
    let pids = pids_of(&ready);
    assert_eq!(pids.len(), 3);

    // A second one in the same directory would destroy the first.
    let second = ControlPlaneOptions { directory: Some(directory.clone()), ..ControlPlaneOptions::default() };
    let error = ControlPlane::start(second).await.unwrap_err();
    assert!(matches!(error, ControlPlaneError::Locked { .. }), "{error}");

    signal("INT", command.0.id())?;
    assert!(wait_for_end(&mut command).await?.success());
    assert_eq!(living(&pids), [0; 0]);
    assert!(directory.join("logs/kube-apiserver.log").exists() && directory.join("audit.log").exists());
    assert!(!directory.join("etcd").exists() && !directory.join("pki").exists() && !ready_file.exists());
    Ok(())
}

/// `nodewright-control-plane`, killed when the test ends early.
struct ControlPlaneCommand(Child);

impl Drop for ControlPlaneCommand {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start_command(arguments: &[&str]) -> std::io::Result<ControlPlaneCommand> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-control-plane"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map(ControlPlaneCommand)
}

async fn wait_for_file(path: &Path, command: &mut ControlPlaneCommand) -> TestResult<Value> {
    let since = Instant::now();
    while !path.exists() {
        if let Some(status) = command.0.try_wait()? {
            return Err(Failure::new(format!("the command ended with {status}")));
        }
        // The binaries may have to be built first.
        assert!(since.elapsed() < 10 * TIMEOUT, "the control plane does not become ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

async fn wait_for_end(command: &mut ControlPlaneCommand) -> TestResult<ExitStatus> {
    let since = Instant::now();
    loop {
        if let Some(status) = command.0.try_wait()? {
            return Ok(status);
        }
        assert!(since.elapsed() < TIMEOUT, "the command does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn pids_of(ready: &Value) -> Vec<u32> {
    let pids = ready["pids"].as_object().into_iter().flat_map(|pids| pids.values());
    pids.filter_map(|pid| pid.as_u64()?.try_into().ok()).collect()
}

/// The processes that exist and are not zombies.
fn living(pids: &[u32]) -> Vec<u32> {
    let lives = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && !line.contains("zombie"))
    };
    pids.iter().copied().filter(lives).collect()
}

fn signal(name: &str, pid: u32) -> std::io::Result<()> {
    let status = Command::new("sh").args(["-c", &format!("kill -s {name} {pid}")]).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("kill ended with {status}"))) }
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}
