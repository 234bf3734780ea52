//! Objects for tests, in one line each: `machine("a").owned_by(&set).phase("Running").build()`.

use nodewright_api::{Machine, MachineSet};
use serde_json::{Value, json};

/// The moment at which tests plan, in the objects' clock.
pub(crate) const NOW: &str = "2026-06-01T12:00:00Z";

/// A Machine to be.
pub(crate) struct MachineBuilder(Value);

/// A Machine in namespace `default` that was created an hour before [`NOW`].
pub(crate) fn machine(name: &str) -> MachineBuilder {
    MachineBuilder(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "10",
            "generation": 1, "creationTimestamp": "2026-06-01T11:00:00Z", "labels": {}, "annotations": {},
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"]},
        "spec": {"class": {"kind": "MachineClass", "name": "class"}},
        "status": {"currentStatus": {}}
    }))
}

impl MachineBuilder {
    pub(crate) fn owned_by(mut self, set: &MachineSet) -> Self {
        let meta = &set.metadata;
        self.0["metadata"]["ownerReferences"] = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1",
            "kind": "MachineSet", "name": meta.name, "uid": meta.uid, "controller": true, "blockOwnerDeletion": true}]);
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["currentStatus"]["phase"] = phase.into();
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    pub(crate) fn created(mut self, at: &str) -> Self {
        self.0["metadata"]["creationTimestamp"] = at.into();
        self
    }

    pub(crate) fn preserved_until(mut self, at: &str) -> Self {
        self.0["status"]["currentStatus"]["preserveExpiryTime"] = at.into();
        self
    }

    pub(crate) fn deleting(mut self) -> Self {
        self.0["metadata"]["deletionTimestamp"] = "2026-06-01T11:59:00Z".into();
        self
    }

    /// Sets any field by its JSON pointer; the path is made where it is missing.
    pub(crate) fn with(mut self, pointer: &str, value: Value) -> Self {
        let mut place = &mut self.0;
        for token in pointer.split('/').skip(1) {
            place = &mut place[token.replace("~1", "/").as_str()];
        }
        *place = value;
        self
    }

    pub(crate) fn build(self) -> Machine {
        serde_json::from_value(self.0).unwrap()
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
