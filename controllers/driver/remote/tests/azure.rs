//! The driver for Azure, with machine-controller-manager's provider in it, keeps the contract over the wire.
//!
//! `make test-gardener` builds the driver with the provider's own fakes of Azure, as they are in `controllers/driver/gardener/azure`, and
//! names it in `NODEWRIGHT_DRIVER_AZURE_FAKES`. Its Azure is in its memory, so it stays while managers come and go.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use futures::{FutureExt, future::ready};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use nodewright_api::RawJson;
use nodewright_driver::{Class, Driver, SecretData};
use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use nodewright_driver_remote::{Remote, Source};
use nodewright_runtime::leadership::Leadership;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{runtime::Handle, task::block_in_place};

const BINARY: &str = "NODEWRIGHT_DRIVER_AZURE_FAKES";

/// Checks that the provider cannot pass, and why. Each is broken: one that is kept does not belong here.
const NOT_IN_THE_PROVIDER: [(&str, &str); 3] = [
    ("broken_class", "the provider checks the whole class in each call, also while it deletes"),
    ("other_clusters_vm", "what the provider does not list, its interface tells nothing of"),
    ("orphan_of_others", "what the provider does not list, its interface tells nothing of"),
];

/// Checks that the fakes cannot make the conditions of, and what they lack.
const NOT_IN_THE_FAKES: [(&str, &str); 9] = [
    ("status_of_stopped", "VMs of the fakes cannot be switched off"),
    ("several_vms", "the name of a VM is its key, also at Azure: no Machine has two"),
    ("delete_hidden", "VMs of the fakes show at once"),
    ("other_uids_vm", "VMs of the provider keep no UID of a Machine"),
    ("untagged_vm", "a VM that the provider does not list counts as none, as that of another cluster"),
    ("hidden_vm", "VMs of the fakes show at once"),
    ("described", "the interface of the provider describes no VM"),
    ("power", "the interface of the provider describes no VM"),
    ("unowned", "the interface of the provider describes no VM"),
];

/// A driver and the fakes of Azure in its process.
struct Azure {
    folder: TempDir,
    process: Child,
}

impl Drop for Azure {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Azure {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let binary = std::env::var(BINARY).expect("NODEWRIGHT_DRIVER_AZURE_FAKES names the driver: make test-gardener");
        let process = Command::new(binary)
            .arg(format!("--socket={}", folder.path().join("driver.sock").display()))
            .arg("--stop-with-stdin")
            .env("NODEWRIGHT_AZURE_FAKES", folder.path().join("orders.sock"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { folder, process }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asks the fakes for something.
    fn order(&self, order: &str) -> Value {
        let mut connection = loop {
            match UnixStream::connect(self.socket("orders.sock")) {
                Ok(connection) => break connection,
                // The process begins.
                Err(_) => sleep(Duration::from_millis(5)),
            }
        };
        writeln!(connection, "{order}").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"], "", "the answer to {order}");
        answer
    }

    /// A `providerSpec` of the provider's tests, and its Secret, with another password if there is one.
    fn class_with(&self, cluster: &str, password: Option<&str>) -> Class {
        let mut answer = self.order(&format!("class {cluster}"));
        let mut secret: BTreeMap<String, String> = serde_json::from_value(answer["secret"].take()).unwrap();
        // As with a class whose Secret has no user data: only a creation gets it.
        secret.remove("userData");
        if let Some(password) = password {
            secret.insert("clientSecret".to_owned(), password.to_owned());
        }
        let data = secret.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        Class { secret: SecretData::of(vec![Arc::new(secret)]), ..contract::class(&answer["providerSpec"]) }
    }
}

impl Fixture for Azure {
    fn driver(&self) -> Arc<dyn Driver> {
        let remote = Remote::start(Source::Socket(self.socket("driver.sock")), &Leadership::unlimited()).unwrap();
        Arc::new(block_in_place(|| Handle::current().block_on(remote.driver())))
    }

    fn class(&self, cluster: &str) -> Class {
        self.class_with(cluster, None)
    }

    fn provider_id_prefix(&self) -> &'static str {
        "azure:///"
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let spec: Value = self.class(cluster).provider_spec.parse().unwrap();
        let spoiled = |path: &'static str, value: Value| {
            let mut spec = spec.clone();
            let pointer = format!("/{}", path.replace('.', "/"));
            *spec.pointer_mut(&pointer).expect("the class of the fakes has the field") = value;
            InvalidSpec { path, spec: RawJson::from(&spec) }
        };
        vec![
            spoiled("properties.hardwareProfile.vmSize", json!("")),
            spoiled("properties.storageProfile.imageReference.urn", json!(contract::SECRET)),
            spoiled("subnetInfo.vnetName", json!("")),
            spoiled("location", json!("")),
        ]
    }

    fn rejected_class(&self, cluster: &str) -> Option<Class> {
        Some(self.class_with(cluster, Some(contract::SECRET)))
    }

    fn volume(&self) -> Option<(RawJson, String)> {
        let spec = json!({ "csi": { "driver": "disk.csi.azure.com", "volumeHandle": "disk-1" } });
        Some((RawJson::from(&spec), "disk-1".to_owned()))
    }

    fn secrets(&self) -> Vec<String> {
        let secret = &self.order("class any")["secret"];
        vec![secret["clientSecret"].as_str().unwrap().to_owned()]
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        ready(Ok(serde_json::from_value(self.order("vms")["vms"].take()).unwrap())).boxed()
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        let kind = match outage {
            Outage::Silent => "silent",
            Outage::Failing => "failing",
            Outage::Full => "full",
        };
        self.order(&format!("outage {kind}"));
        ready(Ok(Some(()))).boxed()
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        self.order("outage none");
        ready(Ok(Some(()))).boxed()
    }
}

fn names<const N: usize>(declared: [(&'static str, &str); N]) -> Vec<&'static str> {
    declared.map(|(check, _)| check).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a provider in Go: make test-gardener"]
async fn the_driver_for_azure_keeps_the_contract_over_the_wire() {
    let report = contract::run(&Azure::start()).await;
    println!("{report}");
    assert_eq!(report.broken(), names(NOT_IN_THE_PROVIDER), "{report}");
    assert_eq!(report.skipped(), names(NOT_IN_THE_FAKES), "{report}");
}
