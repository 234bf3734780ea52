//! Schemas of fields whose Rust type says less, or more, than the wire does.

use crate::StrategyType;
use k8s_openapi::api::core::v1::{NodeSpec, SecretReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// An object of which every field is kept.
pub(crate) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A number of machines, or a percentage of all.
pub(crate) fn bound(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "minimum": 0, "pattern": "^0*(100|[0-9]{1,2})%$"})
}

/// Resource names to quantities.
pub(crate) fn resource_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-int-or-string": true,
        },
    })
}

/// What the API server accepts as a quantity of a Node.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A label selector, replaced as a whole by an apply.
pub(crate) fn label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = atomic(generator.subschema_for::<LabelSelector>());
    set(&mut schema, "/properties/matchExpressions", "x-kubernetes-list-type", json!("atomic"));
    set(&mut schema, "/properties/matchExpressions/items/properties/values", "x-kubernetes-list-type", json!("atomic"));
    schema
}

/// A reference to a secret, replaced as a whole by an apply.
pub(crate) fn secret_reference(generator: &mut SchemaGenerator) -> Schema {
    atomic(generator.subschema_for::<SecretReference>())
}

/// The spec of a Node. Lists as in Kubernetes' own schema.
pub(crate) fn node_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<NodeSpec>();
    set(&mut schema, "/properties/podCIDRs", "x-kubernetes-list-type", json!("set"));
    set(&mut schema, "/properties/taints", "x-kubernetes-list-type", json!("atomic"));
    schema
}

/// The strategies, and the empty text for one that is left to defaulting.
pub(crate) fn strategy_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": StrategyType::KNOWN})
}

fn atomic(mut schema: Schema) -> Schema {
    schema.insert("x-kubernetes-map-type".into(), json!("atomic"));
    schema
}

/// Sets a keyword of the schema at this pointer. The tests of the generated definitions would see it
/// missing when the pointer led nowhere.
fn set(schema: &mut Schema, pointer: &str, keyword: &str, value: Value) {
    if let Some(Value::Object(part)) = schema.pointer_mut(pointer) {
        part.insert(keyword.to_owned(), value);
    }
}
