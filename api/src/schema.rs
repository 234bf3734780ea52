//! Schemas of fields for which the schema of the Rust type is too narrow or too wide.

use crate::StrategyType;
use k8s_openapi::api::core::v1::{NodeSpec, SecretReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// An object of any fields, all of which are kept.
pub(crate) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A number or a text, whatever they mean.
pub(crate) fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}

/// A number of machines, or a percentage of all.
pub(crate) fn bound(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "minimum": 0, "pattern": "^0*(100|[0-9]{1,2})%$"})
}

pub(crate) fn resource_list(_: &mut SchemaGenerator) -> Schema {
    let quantity = json!({"pattern": QUANTITY_PATTERN, "x-kubernetes-int-or-string": true});
    json_schema!({"type": "object", "additionalProperties": quantity})
}

/// The API server's pattern of a quantity.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A label selector. An apply replaces it as a whole.
pub(crate) fn label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = atomic(generator.subschema_for::<LabelSelector>());
    set_list_type(&mut schema, "/properties/matchExpressions", "atomic");
    set_list_type(&mut schema, "/properties/matchExpressions/items/properties/values", "atomic");
    schema
}

/// A reference to a Secret. An apply replaces it as a whole.
pub(crate) fn secret_reference(generator: &mut SchemaGenerator) -> Schema {
    atomic(generator.subschema_for::<SecretReference>())
}

/// The spec of a Node, with the list types of Kubernetes' own schema.
pub(crate) fn node_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<NodeSpec>();
    set_list_type(&mut schema, "/properties/podCIDRs", "set");
    set_list_type(&mut schema, "/properties/taints", "atomic");
    schema
}

/// The strategies, and the empty string, which defaulting replaces.
pub(crate) fn strategy_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": StrategyType::KNOWN})
}

fn atomic(mut schema: Schema) -> Schema {
    schema.insert("x-kubernetes-map-type".into(), json!("atomic"));
    schema
}

/// Sets the list type of the schema at a pointer. The tests of the definitions fail when the pointer is wrong.
fn set_list_type(schema: &mut Schema, pointer: &str, list_type: &str) {
    if let Some(Value::Object(part)) = schema.pointer_mut(pointer) {
        part.insert("x-kubernetes-list-type".to_owned(), json!(list_type));
    }
}
