//! The objects that scenarios apply.

use serde_json::{Value, json};

/// The label that distinguishes the nodes of a scenario from other nodes; its value is the namespace.
pub const ENVIRONMENT_LABEL: &str = "e2e.nodewright.dev/world";
/// The label by which a MachineDeployment of a scenario selects its machines.
pub const POOL_LABEL: &str = "pool";

/// A MachineDeployment that a scenario can customize.
#[derive(Clone, Debug)]
pub struct Pool {
    object: Value,
}

impl Pool {
    pub(crate) fn new(namespace: &str, name: &str, replicas: u32) -> Self {
        let object = json!({
            "apiVersion": nodewright_api::API_VERSION,
            "kind": "MachineDeployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {POOL_LABEL: name}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {
                    "metadata": {"labels": {POOL_LABEL: name}},
                    "spec": {"class": {"kind": "MachineClass", "name": "small"}},
                },
            },
        });
        Self { object }
    }

    /// Sets another class than `small`.
    #[must_use]
    pub fn class(self, class: &str) -> Self {
        self.machine("class", json!({"kind": "MachineClass", "name": class}))
    }

    /// Sets a field of the machines' spec, such as `healthTimeout`.
    #[must_use]
    pub fn machine(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"]["template"]["spec"][field] = value.into();
        self
    }

    /// Sets a label of the machines.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.object["spec"]["template"]["metadata"]["labels"][name] = value.into();
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][name] = value.into();
        self
    }

    /// Sets another field of its own spec; `null` removes it.
    #[must_use]
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        match (value.into(), self.object["spec"].as_object_mut()) {
            (Value::Null, Some(spec)) => drop(spec.remove(field)),
            (value, _) => self.object["spec"][field] = value,
        }
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// A MachineClass that a scenario can customize.
#[derive(Clone, Debug)]
pub struct Class {
    object: Value,
}

impl Class {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        let object = json!({
            "apiVersion": nodewright_api::API_VERSION,
            "kind": "MachineClass",
            "metadata": {"name": name, "namespace": namespace},
            "provider": "simulated",
            "providerSpec": {"cluster": namespace, "labels": {ENVIRONMENT_LABEL: namespace}},
        });
        Self { object }
    }

    /// Sets a field of the providerSpec.
    #[must_use]
    pub fn provider(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["providerSpec"][field] = value.into();
        self
    }

    /// Sets another provider.
    #[must_use]
    pub fn of_provider(mut self, name: &str) -> Self {
        self.object["provider"] = name.into();
        self
    }

    /// Sets a secret.
    #[must_use]
    pub fn secret(mut self, name: &str) -> Self {
        self.object["secretRef"] = json!({"name": name, "namespace": self.object["metadata"]["namespace"]});
        self
    }
}

/// An object that can be applied.
pub trait Manifest {
    /// The manifest as JSON, which is valid YAML.
    fn manifest(&self) -> String;
}

impl Manifest for Pool {
    fn manifest(&self) -> String {
        self.object.to_string()
    }
}

impl Manifest for Class {
    fn manifest(&self) -> String {
        self.object.to_string()
    }
}

impl Manifest for Value {
    fn manifest(&self) -> String {
        self.to_string()
    }
}

impl Manifest for str {
    fn manifest(&self) -> String {
        self.to_owned()
    }
}
