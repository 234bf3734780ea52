//! The contract of drivers, kept by the driver `local` with a real docker daemon; and what only a real container shows.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use futures::FutureExt;
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver, DriverError, MachineRequest, SecretText};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outcome, Verdict};
use nodewright_driver_local::LocalDriver;
use nodewright_e2e_lab::control_plane::testing::{TestResult, ensure};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

use crate::cluster::{Cluster, docker, docker_socket};

const MACHINE: &str = "nodewright-contract";
/// A container that no machine has.
const BYSTANDER: &str = "nodewright-contract-bystander";
const PREFIX: &str = "local:///";

/// A docker daemon and the image of its nodes.
struct Computer {
    socket: PathBuf,
    image: String,
}

impl Fixture for Computer {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(LocalDriver::new(&self.socket, &Leadership::default()))
    }

    fn class(&self, cluster: &str) -> Class {
        contract::class(&json!({"cluster": cluster, "image": self.image}))
    }

    fn provider_id_prefix(&self) -> &'static str {
        PREFIX
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let spec = json!({"cluster": cluster, "image": self.image, "network": ""});
        vec![InvalidSpec { path: "network", spec: RawJson::from(&spec) }]
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        let list = async {
            let names = docker("ps --all --format={{.Names}}").await?;
            Ok(Some(names.lines().map(|name| format!("{PREFIX}{name}")).collect()))
        };
        list.boxed()
    }

    fn stop_vm(&self, provider_id: &str) -> Hook<'_, ()> {
        let kill = format!("kill {}", provider_id.trim_start_matches(PREFIX));
        async move { Ok(Some(docker(&kill).await.map(drop)?)) }.boxed()
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        let create = format!("create --name={BYSTANDER} {}", self.image);
        async move { Ok(Some(docker(&create).await.map(|_| format!("{PREFIX}{BYSTANDER}"))?)) }.boxed()
    }
}

fn machine(class: Class) -> MachineRequest {
    let user_data = SecretText("#!/bin/sh\necho ran >>/kind/contract\n".into());
    MachineRequest { user_data, ..contract::machine(MACHINE, class) }
}

pub(super) async fn contract(cluster: &Cluster) -> TestResult {
    let computer = Computer { socket: docker_socket()?, image: cluster.node_image().await? };
    let result = checked(cluster, &computer).await;
    docker(&format!("rm --force --volumes {MACHINE} {BYSTANDER}")).await?;
    result
}

async fn checked(cluster: &Cluster, computer: &Computer) -> TestResult {
    let report = contract::run(computer).await;
    let broken = |outcome: &&Outcome| matches!(outcome.verdict, Verdict::Broken(_));
    ensure(report.outcomes.iter().find(broken).is_none(), || report.to_string())?;
    user_data_run_once(cluster, computer).await?;
    lost_calls_leave_user_data(cluster, computer).await
}

/// However often the machine is started.
async fn user_data_run_once(cluster: &Cluster, computer: &Computer) -> TestResult {
    let (driver, machine) = (computer.driver(), machine(computer.class("contract")));
    driver.create(machine.clone()).await?;
    let ran = format!("exec {MACHINE} cat /kind/contract");
    let once = cluster.wait_for("user data that ran", async || Ok(docker(&ran).await.ok())).await?;
    docker(&format!("restart --time=0 {MACHINE}")).await?;
    let booted = format!("exec {MACHINE} systemctl is-active multi-user.target");
    cluster.wait_for("a second boot", async || Ok(docker(&booted).await.ok())).await?;
    let again = docker(&ran).await?;
    ensure((once.as_str(), again.as_str()) == ("ran", "ran"), || format!("user data ran as {once:?}, then {again:?}"))?;
    driver.delete(machine).await?;
    Ok(())
}

/// A creation that is dropped at any moment and made again ends with a container that has its user data.
async fn lost_calls_leave_user_data(cluster: &Cluster, computer: &Computer) -> TestResult {
    let (driver, machine) = (computer.driver(), machine(computer.class("contract")));
    for milliseconds in [0, 5, 20, 50, 100, 200, 400, 800] {
        let lost = driver.create(machine.clone());
        let _dropped = tokio::time::timeout(std::time::Duration::from_millis(milliseconds), lost).await;
        passing(cluster, async || driver.create(machine.clone()).await).await?;
        let script = docker(&format!("exec {MACHINE} cat /kind/user-data")).await?;
        ensure(script.contains("/kind/contract"), || format!("dropped after {milliseconds} ms, it has no user data"))?;
        passing(cluster, async || driver.delete(machine.clone()).await).await?;
    }
    Ok(())
}

/// Makes a call again after failures that pass, as the controllers do: a name is taken until its container is gone.
async fn passing<T>(cluster: &Cluster, mut call: impl AsyncFnMut() -> Result<T, DriverError>) -> TestResult<T> {
    cluster
        .wait_for("a call that succeeds", async || match call().await {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.is_passing() => Ok(None),
            Err(error) => Err(error.into()),
        })
        .await
}
