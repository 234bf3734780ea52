//! A provider of machine-controller-manager, behind the server of `controllers/driver/gardener`, keeps the contract over the wire, also
//! when its process is killed.
//!
//! `make test-gardener` builds the provider and names it in `NODEWRIGHT_DRIVER_FILES`. Its VMs are files in a folder.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::ready};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use nodewright_api::{Code, RawJson};
use nodewright_driver::{Class, Driver, Instance, MachineRequest, Result, SecretData};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use nodewright_driver_remote::{Program, Remote, RemoteDriver, Restarts, Source};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;
use tempfile::TempDir;
use tokio::{runtime::Handle, task::block_in_place, time::sleep};

const BINARY: &str = "NODEWRIGHT_DRIVER_FILES";
/// The token that the provider accepts.
const PASSWORD: &str = "correct-horse-battery";
const PREFIX: &str = "files:///";

/// Checks that no driver with the interface of machine-controller-manager's providers can pass: of a VM of another cluster it does
/// not tell whose it is.
const NOT_IN_THE_INTERFACE: [&str; 2] = ["other_clusters_vm", "orphan_of_others"];

/// A cloud whose VMs are files, and the scripts of its drivers.
struct Files {
    cloud: TempDir,
    scripts: TempDir,
    made: AtomicUsize,
}

impl Files {
    fn new() -> Self {
        let folder = || tempfile::tempdir().unwrap();
        Self { cloud: folder(), scripts: folder(), made: AtomicUsize::default() }
    }

    /// A driver in a process of its own, and the file with the id of that process.
    fn start(&self) -> (RemoteDriver, PathBuf) {
        let name = format!("driver-{}", self.made.fetch_add(1, Ordering::Relaxed));
        let (script, pid) = (self.scripts.path().join(&name), self.scripts.path().join(format!("{name}.pid")));
        let binary = std::env::var(BINARY).expect("NODEWRIGHT_DRIVER_FILES names the provider: make test-gardener");
        let cloud = self.cloud.path().display();
        let lines =
            format!("export NODEWRIGHT_FILES='{cloud}'\necho $$ > '{}'\nexec '{binary}' \"$@\"\n", pid.display());
        fs::write(&script, format!("#!/bin/sh\n{lines}")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let pause = Duration::from_millis(10);
        let source = Source::Program(Program {
            restarts: Restarts { first: pause, longest: pause, ..Restarts::default() },
            ..Program::at(script)
        });
        let remote = Remote::start(source, &Leadership::unlimited()).unwrap();
        (block_in_place(|| Handle::current().block_on(remote.driver())), pid)
    }

    fn outage(&self) -> PathBuf {
        self.cloud.path().join("outage")
    }
}

fn class(cluster: &str, password: &str) -> Class {
    let data = [("token".to_owned(), ByteString(password.as_bytes().to_vec()))];
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    let class = contract::class(&json!({ "cluster": cluster, "size": "small" }));
    Class { secret: SecretData::of(vec![Arc::new(secret)]), ..class }
}

impl Fixture for Files {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.start().0)
    }

    fn class(&self, cluster: &str) -> Class {
        class(cluster, PASSWORD)
    }

    fn provider_id_prefix(&self) -> &'static str {
        PREFIX
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let spec = json!({ "cluster": cluster, "size": contract::SECRET });
        vec![InvalidSpec { path: "size", spec: RawJson::from(&spec) }]
    }

    /// The provider quotes the token in its error.
    fn rejected_class(&self, cluster: &str) -> Option<Class> {
        Some(class(cluster, contract::SECRET))
    }

    fn volume(&self) -> Option<(RawJson, String)> {
        let spec = json!({ "csi": { "driver": "csi.files.example.com", "volumeHandle": "volume-1" } });
        Some((RawJson::from(&spec), "volume-1".to_owned()))
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn list_size(&self) -> usize {
        300
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        ready(vms(self.cloud.path()).map(Some).map_err(Into::into)).boxed()
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        let how = match outage {
            Outage::Silent => "silent",
            Outage::Failing => "failing",
            Outage::Full => "full",
        };
        ready(fs::write(self.outage(), how).map(Some).map_err(Into::into)).boxed()
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        ready(fs::remove_file(self.outage()).map(Some).map_err(Into::into)).boxed()
    }
}

/// The ids of all VMs: a folder is a cluster, a file in it a VM.
fn vms(cloud: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for cluster in fs::read_dir(cloud)? {
        let cluster = cluster?;
        if !cluster.file_type()?.is_dir() {
            continue;
        }
        for vm in fs::read_dir(cluster.path())? {
            let (cluster, vm) = (cluster.file_name(), vm?.file_name());
            found.insert(format!("{PREFIX}{}/{}", cluster.to_string_lossy(), vm.to_string_lossy()));
        }
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a provider in Go: make test-gardener"]
async fn a_provider_of_mcm_keeps_the_contract_over_the_wire() {
    let report = contract::run_only(&Files::new(), |check| !NOT_IN_THE_INTERFACE.contains(&check)).await;
    report.assert_kept();
    let (of_files, of_interface) = (
        ["status_of_stopped", "several_vms", "delete_hidden", "other_uids_vm", "untagged_vm", "hidden_vm"].as_slice(),
        ["described", "power", "unowned"].as_slice(),
    );
    assert_eq!(
        report.skipped(),
        [of_files, of_interface].concat(),
        "a VM is a file of its name: it has no switch, no tags and no token, and shows at once; the interface describes no VM"
    );
}

/// The manager makes a call again while its code passes.
async fn create(driver: &RemoteDriver, machine: &MachineRequest) -> Result<Instance> {
    loop {
        match driver.create(machine.clone()).await {
            Err(error) if error.is_passing() => {}
            answer => return answer,
        }
    }
}

/// Kills the driver, as soon as it is another process than the one that was killed last. Returns its id.
async fn kill_9(pid: &Path, killed: &str) -> String {
    loop {
        let id = fs::read_to_string(pid).unwrap();
        if id.ends_with('\n') && id != killed {
            assert!(Command::new("kill").args(["-9", id.trim()]).status().unwrap().success());
            return id;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a provider in Go: make test-gardener"]
async fn a_provider_that_is_killed_while_it_creates_has_one_vm_for_each_machine() {
    let files = Files::new();
    let (driver, pid) = files.start();
    let mut killed = String::new();
    for number in 0..10 {
        let machine = contract::machine(&format!("m-{number}"), files.class("killed"));
        let (made, ()) = tokio::join!(create(&driver, &machine), async {
            sleep(Duration::from_millis(number)).await;
            killed = kill_9(&pid, &killed).await;
        });
        assert_eq!(made.unwrap().provider_id, format!("{PREFIX}killed/m-{number}"));
    }
    assert_eq!(vms(files.cloud.path()).unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a provider in Go: make test-gardener"]
async fn a_call_that_the_provider_does_not_end_is_answered_and_its_outcome_is_not_lost() {
    let files = Files::new();
    let (driver, _) = files.start();
    let machine = contract::machine("m", files.class("late"));
    fs::write(files.outage(), "silent").unwrap();
    assert_eq!(driver.create(machine.clone()).await.unwrap_err().code, Code::DeadlineExceeded);
    let busy = driver.status(machine.clone()).await.unwrap_err();
    assert_eq!(busy.code, Code::Unavailable, "{busy}");
    fs::remove_file(files.outage()).unwrap();
    let other = contract::machine("other", files.class("late"));
    assert!(driver.create(other).await.is_ok(), "another machine is not blocked");
    let late = driver.create(machine.clone()).await.unwrap_err();
    assert!(late.message.contains("timed out"), "the provider's own words: {late}");
    assert!(driver.create(machine).await.is_ok());
}
