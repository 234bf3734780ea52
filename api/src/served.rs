//! Which of our additions to the schema an API server serves.
//!
//! With MCM's definitions a MachineClass has no status, and the statuses with replicas have no selector. An apply that
//! names an undeclared field fails as a whole, so a controller checks here before it writes one.

use crate::{GROUP, MachineClass};
use k8s_openapi::Resource;
use serde_json::Value;

/// The path of the API server's description of our group. Every authenticated client may read it, unlike the definitions. It
/// follows a change of the definitions after a few seconds.
pub const OPENAPI_PATH: &str = "/openapi/v3/apis/machine.sapcloud.io/v1alpha1";
/// The four kinds.
pub const KINDS: [&str; 4] = ["Machine", "MachineClass", "MachineDeployment", "MachineSet"];

/// What an API server serves of our group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The kinds whose definitions are not installed.
    pub missing_kinds: Vec<&'static str>,
    /// Whether a [`MachineClass`] has a status.
    pub machine_class_status: bool,
    /// Whether the status of a `MachineSet` has a selector.
    pub machine_set_selector: bool,
    /// Whether the status of a `MachineDeployment` has a selector.
    pub machine_deployment_selector: bool,
}

impl Served {
    /// Reads the document at [`OPENAPI_PATH`].
    pub fn from_openapi(document: &Value) -> Self {
        let has_selector = |kind| properties(document, kind).pointer("/status/properties/selector").is_some();
        let status_path = format!("/{}/{{name}}/status", MachineClass::URL_PATH_SEGMENT);
        let paths = document["paths"].as_object();
        Self {
            missing_kinds: KINDS.into_iter().filter(|kind| properties(document, kind).is_null()).collect(),
            machine_class_status: paths.is_some_and(|paths| paths.keys().any(|path| path.ends_with(&status_path))),
            machine_set_selector: has_selector("MachineSet"),
            machine_deployment_selector: has_selector("MachineDeployment"),
        }
    }

    /// Whether all additions are served, as with our own definitions.
    pub fn is_complete(&self) -> bool {
        let Self { missing_kinds, machine_class_status, machine_set_selector, machine_deployment_selector } = self;
        missing_kinds.is_empty() && *machine_class_status && *machine_set_selector && *machine_deployment_selector
    }
}

/// The properties of a kind of our group, or null.
fn properties<'a>(document: &'a Value, kind: &str) -> &'a Value {
    let is_kind = |schema: &&Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.into_iter().flatten().any(|entry| entry["group"] == GROUP && entry["kind"] == kind)
    };
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    schemas.into_iter().flat_map(serde_json::Map::values).find(is_kind).map_or(&Value::Null, |it| &it["properties"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(kind: &str, properties: &Value) -> Value {
        json!({
            "properties": properties,
            "x-kubernetes-group-version-kind": [{"group": GROUP, "version": "v1alpha1", "kind": kind}],
        })
    }

    fn document(with_additions: bool) -> Value {
        let base = "/apis/machine.sapcloud.io/v1alpha1/namespaces/{namespace}/machineclasses/{name}";
        let status = if with_additions { json!({"selector": {}, "replicas": {}}) } else { json!({"replicas": {}}) };
        let counted = json!({"spec": {}, "status": {"properties": status}});
        json!({
            "paths": if with_additions { json!({base: {}, format!("{base}/status"): {}}) } else { json!({base: {}}) },
            "components": {"schemas": {
                "com.sapcloud.machine.v1alpha1.Machine": schema("Machine", &json!({})),
                "com.sapcloud.machine.v1alpha1.MachineClass": schema("MachineClass", &json!({})),
                "com.sapcloud.machine.v1alpha1.MachineDeployment": schema("MachineDeployment", &counted),
                "com.sapcloud.machine.v1alpha1.MachineSet": schema("MachineSet", &counted),
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"properties": {}},
            }},
        })
    }

    #[test]
    fn our_definitions_serve_every_addition() {
        assert!(Served::from_openapi(&document(true)).is_complete());
    }

    #[test]
    fn those_of_mcm_serve_none_of_them() {
        assert_eq!(Served::from_openapi(&document(false)), Served::default());
    }

    #[test]
    fn a_missing_definition_is_named() {
        let mut document = document(true);
        document["components"]["schemas"]["com.sapcloud.machine.v1alpha1.MachineSet"] = json!({});
        assert_eq!(Served::from_openapi(&document).missing_kinds, ["MachineSet"]);
        assert_eq!(Served::from_openapi(&json!({})).missing_kinds, KINDS);
    }
}
