//! Helpers of the tests of the definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use nodewright_api::crd;
use serde_json::{Number, Value};

/// The definitions of machines as JSON, with integers instead of whole floats.
pub(crate) fn definitions() -> Vec<Value> {
    as_json(&crd::all())
}

/// Definitions as JSON, with integers instead of whole floats.
pub(crate) fn as_json(definitions: &[CustomResourceDefinition]) -> Vec<Value> {
    definitions
        .iter()
        .map(|definition| {
            let mut value = serde_json::to_value(definition).expect("writable");
            make_numbers_whole(&mut value);
            value
        })
        .collect()
}

/// Replaces whole floats, such as the bound `0.0`, by integers.
fn make_numbers_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| float.fract() == 0.0 && !number.is_i64()) {
                #[expect(clippy::cast_possible_truncation, reason = "bounds are small whole numbers")]
                let whole = float as i64;
                *number = Number::from(whole);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_numbers_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_numbers_whole),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
