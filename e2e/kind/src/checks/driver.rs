//! The contract of drivers, kept by the driver `local` with a real docker daemon. (The driver `simulated` has the same checks,
//! and more for faults of its cloud, in `e2e/cloud/tests/driver.rs`.)

use std::collections::BTreeMap;

use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, DriverError, MachineRequest, Mismatch, SecretData, SecretText};
use nodewright_driver_local::LocalDriver;
use nodewright_e2e_control_plane::testing::{TestResult, ensure};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

use crate::cluster::{Cluster, docker, docker_socket};

const MACHINE: &str = "nodewright-contract";

struct Contract {
    driver: LocalDriver,
    image: String,
}

impl Contract {
    fn class(&self, cluster: &str) -> Class {
        let provider_spec = RawJson::from(&json!({"cluster": cluster, "image": self.image}));
        Class { name: "contract".to_owned(), revision: String::new(), provider_spec, secret: SecretData::default() }
    }

    fn machine(&self, name: &str) -> MachineRequest {
        MachineRequest {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: format!("uid-of-{name}"),
            provider_id: None,
            is_proven: false,
            last_known_state: String::new(),
            class: self.class("contract"),
            user_data: SecretText("#!/bin/sh\necho ran >>/kind/contract\n".into()),
        }
    }
}

fn code<T>(result: Result<T, DriverError>) -> Option<Code> {
    result.err().map(|error| error.code)
}

pub(super) async fn contract(cluster: &Cluster) -> TestResult {
    let driver = LocalDriver::new(&docker_socket()?, &Leadership::default());
    let contract = Contract { driver, image: cluster.node_image().await? };
    let result = checked(cluster, &contract).await;
    docker(&format!("rm --force --volumes {MACHINE}")).await?;
    result
}

async fn checked(cluster: &Cluster, contract: &Contract) -> TestResult {
    lives_and_dies(cluster, contract).await?;
    foreign_is_left_alone(contract).await?;
    lost_calls_do_no_harm(cluster, contract).await
}

async fn lives_and_dies(cluster: &Cluster, contract: &Contract) -> TestResult {
    let driver = &contract.driver;
    let machine = || contract.machine(MACHINE);
    ensure(code(driver.status(machine()).await) == Some(Code::NotFound), || "there is one already".to_owned())?;
    let made = driver.create(machine()).await?;
    ensure(driver.create(machine()).await? == made, || "a second creation made another".to_owned())?;
    ensure(driver.status(machine()).await? == made, || "it is not found".to_owned())?;
    let listed = driver.list(contract.class("contract")).await?;
    ensure(listed == BTreeMap::from([(made.provider_id.clone(), MACHINE.to_owned())]), || format!("{listed:?}"))?;
    let others = driver.list(contract.class("theirs")).await?;
    ensure(others.is_empty(), || format!("{others:?} are of another cluster"))?;
    // User data run once, however often the machine is started.
    let ran = format!("exec {MACHINE} cat /kind/contract");
    let once = cluster.wait_for("user data that ran", async || Ok(docker(&ran).await.ok())).await?;
    docker(&format!("restart --time=0 {MACHINE}")).await?;
    let booted = format!("exec {MACHINE} systemctl is-active multi-user.target");
    cluster.wait_for("a second boot", async || Ok(docker(&booted).await.ok())).await?;
    let again = docker(&ran).await?;
    ensure((once.as_str(), again.as_str()) == ("ran", "ran"), || format!("user data ran as {once:?}, then {again:?}"))?;
    // Off is not gone.
    docker(&format!("kill {MACHINE}")).await?;
    ensure(driver.status(machine()).await? == made, || "a machine that is off is not found".to_owned())?;
    let known = || MachineRequest { provider_id: Some(made.provider_id.clone()), is_proven: true, ..machine() };
    driver.delete(known()).await?;
    driver.delete(known()).await?;
    ensure(code(driver.status(known()).await) == Some(Code::NotFound), || "it is found after its deletion".to_owned())
}

async fn foreign_is_left_alone(contract: &Contract) -> TestResult {
    let driver = &contract.driver;
    let theirs = MachineRequest { class: contract.class("theirs"), ..contract.machine(MACHINE) };
    let made = driver.create(theirs.clone()).await?;
    let ours = || contract.machine(MACHINE);
    let claims = || MachineRequest { provider_id: Some(made.provider_id.clone()), is_proven: true, ..ours() };
    ensure(code(driver.status(ours()).await) == Some(Code::NotFound), || "another cluster's is found".to_owned())?;
    ensure(code(driver.create(ours()).await) == Some(Code::AlreadyExists), || "its name is not refused".to_owned())?;
    driver.delete(ours()).await?;
    for result in [driver.status(claims()).await.map(drop), driver.delete(claims()).await.map(drop)] {
        let mismatch = result.err().and_then(|error| error.mismatch);
        ensure(mismatch == Some(Mismatch::Cluster), || format!("the mismatch is {mismatch:?}"))?;
    }
    driver.status(theirs.clone()).await?;
    driver.delete(theirs).await?;
    Ok(())
}

/// Calls that are dropped at any moment are made again; then there is one container, with its user data.
async fn lost_calls_do_no_harm(cluster: &Cluster, contract: &Contract) -> TestResult {
    let driver = &contract.driver;
    for milliseconds in [0, 5, 20, 50, 100, 200, 400, 800] {
        let lost = driver.create(contract.machine(MACHINE));
        let _dropped = tokio::time::timeout(std::time::Duration::from_millis(milliseconds), lost).await;
        passing(cluster, async || driver.create(contract.machine(MACHINE)).await).await?;
        let script = docker(&format!("exec {MACHINE} cat /kind/user-data")).await?;
        ensure(script.contains("/kind/contract"), || format!("dropped after {milliseconds} ms, it has no user data"))?;
        let lost = driver.delete(contract.machine(MACHINE));
        let _dropped = tokio::time::timeout(std::time::Duration::from_millis(milliseconds), lost).await;
        passing(cluster, async || driver.delete(contract.machine(MACHINE)).await).await?;
        let none = async || Ok(driver.list(contract.class("contract")).await?.is_empty().then_some(()));
        cluster.wait_for("the end of the container", none).await?;
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
