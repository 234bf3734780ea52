//! Objects for tests, each in one line: `machine("a").owned_by(&set).phase("Running").build()`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use k8s_openapi::api::core::v1::Secret;
use nodewright_api::{Machine, MachineSet, RawJson, finalizers};
use nodewright_driver::{Class, Driver, Instance, ListedVm, MachineRequest, Result as DriverResult, SecretData};
use nodewright_runtime::{
    cache::{Store, Stores},
    object::{Kind, ObjectRef},
    scoped_watch::ScopedWatch,
};
use nodewright_testing::{ObjectBuilder, object};
use serde_json::json;
use tokio::time::Instant;

use crate::shared::{CONTROL, class_secrets::NAMEABLE};

/// The time at which tests plan, by the objects' clock.
pub(crate) const NOW: &str = "2026-06-01T12:00:00Z";

pub(crate) type MachineBuilder = ObjectBuilder<Machine>;

/// A Machine in namespace `default` that was created an hour before [`NOW`].
pub(crate) fn machine(name: &str) -> MachineBuilder {
    object(name)
        .finalizer(finalizers::MACHINE_CONTROLLER_MANAGER)
        .with("/spec/class", json!({"kind": "MachineClass", "name": "class"}))
        .with("/status/currentStatus", json!({}))
}

/// The store of a scoped watch of a class's Secret that has no answer yet.
pub(crate) fn secret_store(stores: &Stores, name: &str) -> Arc<Store<Secret>> {
    let store = Arc::new(Store::new(CONTROL, "default"));
    let watch = ScopedWatch::named::<Secret>(&ObjectRef::new(CONTROL, "default", name), NAMEABLE);
    stores.add_scoped(&watch, store.clone());
    store
}

/// Answers a scoped watch: with this object, or that it does not exist.
pub(crate) fn answer<K: Kind>(store: &Store<K>, object: Option<K>) {
    store.begin_list();
    if let Some(object) = object {
        store.apply(object);
    }
    store.end_list(0, Instant::now());
}

/// Builder methods for Machines only.
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

/// A MachineSet in namespace `default` with this number of replicas and a ledger.
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

/// A MachineDeployment `default/pool` with this number of replicas.
pub(crate) fn machine_deployment(replicas: i32, strategy: &serde_json::Value) -> serde_json::Value {
    json!({
        "metadata": {"name": "pool", "namespace": "default", "uid": "uid-pool", "resourceVersion": "1", "generation": 1,
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"],
            "annotations": {"team": "blue", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "nodewright.dev/traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"name": "pool"}}, "minReadySeconds": 500,
            "strategy": strategy,
            "template": {"metadata": {"labels": {"name": "pool"}},
                "spec": {"class": {"kind": "MachineClass", "name": "v1"}}}}
    })
}

/// The strategy `RollingUpdate` with these bounds.
pub(crate) fn rolling(surge: i32, unavailable: i32) -> serde_json::Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
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
        "simulated"
    }
    fn validate(&self, _: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(vec![])).boxed()
    }
    fn identity(&self) -> Vec<&str> {
        vec![]
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
    fn delete(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Option<String>>> {
        unreachable!()
    }
    fn status(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
        unreachable!()
    }
    fn list(&self, _: Class) -> BoxFuture<'static, DriverResult<BTreeMap<String, ListedVm>>> {
        unreachable!()
    }
}
