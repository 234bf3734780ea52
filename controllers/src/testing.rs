//! Objects for tests, in one line each: `machine("a").owned_by(&set).phase("Running").build()`.

use nodewright_api::{Machine, MachineSet, finalizers};
use nodewright_runtime::testing::{ObjectBuilder, object};
use serde_json::json;

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
