//! Objects for tests, in one line each: `machine("a").owned_by(&set).phase("Running").build()`.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeSpec;
use nodewright_api::{Machine, MachineSet, RawJson, finalizers};
use nodewright_runtime::testing::{ObjectBuilder, object};
use serde_json::json;

use crate::driver::{Class, Driver, Instance, MachineRequest, Result as DriverResult, SecretData};

/// The moment at which tests plan, in the objects' clock.
pub(crate) const NOW: &str = "2026-06-01T12:00:00Z";

/// A Machine to be.
pub(crate) type MachineBuilder = ObjectBuilder<Machine>;

/// A Machine in namespace `default` that was created an hour before [`NOW`].
pub(crate) fn machine(name: &str) -> MachineBuilder {
    object(name)
        .finalizer(finalizers::MACHINE_CONTROLLER_MANAGER)
        .with("/spec/class", json!({"kind": "MachineClass", "name": "class"}))
        .with("/status/currentStatus", json!({}))
}

/// What only Machines have.
pub(crate) trait MachineExt {
    fn phase(self, phase: &str) -> Self;
    fn preserved_until(self, at: &str) -> Self;
}

impl MachineExt for MachineBuilder {
    fn phase(self, phase: &str) -> Self {
        self.with("/status/currentStatus/phase", phase)
    }

    fn preserved_until(self, at: &str) -> Self {
        self.with("/status/currentStatus/preserveExpiryTime", at)
    }
}

/// A MachineSet in namespace `default` of so many replicas, with a ledger.
pub(crate) fn machine_set(name: &str, replicas: i32, ledger: Option<&str>) -> MachineSet {
    let mut set = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "20",
            "generation": 1, "creationTimestamp": "2026-06-01T10:00:00Z", "annotations": {},
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"name": name}},
            "template": {"metadata": {"labels": {"name": name}},
                "spec": {"class": {"kind": "MachineClass", "name": "class"}}}}
    });
    if let Some(ledger) = ledger {
        set["metadata"]["annotations"]["nodewright.dev/ledger"] = ledger.into();
    }
    serde_json::from_value(set).unwrap()
}

/// The class of [`machine`]s.
pub(crate) fn class() -> Class {
    let provider_spec = RawJson::from_text("{}").unwrap();
    Class { name: "class".into(), revision: String::new(), provider_spec, secret: SecretData::default() }
}

/// A provider that is never called: plans only name calls.
pub(crate) struct Uncalled;

impl Driver for Uncalled {
    fn name(&self) -> &'static str {
        "uncalled"
    }
    fn validate(&self, _: &RawJson) -> Vec<(String, String)> {
        vec![]
    }
    fn identity(&self) -> &'static [&'static str] {
        &[]
    }
    fn deadline(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn consistency(&self) -> Duration {
        Duration::from_secs(10)
    }
    fn create(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn initialize(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn delete(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<()>> {
        unreachable!()
    }
    fn status(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn list(&self, _: Class) -> BoxFuture<'static, DriverResult<BTreeMap<String, String>>> {
        unreachable!()
    }
    fn volume_ids(&self, _: Vec<PersistentVolumeSpec>) -> BoxFuture<'static, DriverResult<Vec<String>>> {
        unreachable!()
    }
}
