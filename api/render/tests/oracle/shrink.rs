//! Making a sequence of configs smaller while it keeps a property.

use serde_json::Value;

/// Removes configs, fields and elements one after the other as long as `keeps` holds.
pub(crate) fn shrink(configs: Vec<Value>, mut keeps: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
    let mut smallest = Value::Array(configs);
    loop {
        let smaller = smaller(&smallest).into_iter().find(|candidate| {
            let configs = candidate.as_array().expect("a list of configs");
            !configs.is_empty() && keeps(configs)
        });
        match smaller {
            Some(candidate) => smallest = candidate,
            None => return smallest.as_array().cloned().unwrap_or_default(),
        }
    }
}

/// All values with one part less.
fn smaller(value: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match value {
        Value::Array(list) => {
            for index in 0..list.len() {
                let mut without = list.clone();
                without.remove(index);
                found.push(Value::Array(without));
            }
            for (index, element) in list.iter().enumerate() {
                found.extend(smaller(element).into_iter().map(|part| {
                    let mut list = list.clone();
                    list[index] = part;
                    Value::Array(list)
                }));
            }
        }
        Value::Object(object) => {
            for (key, inner) in object {
                let mut without = object.clone();
                without.remove(key);
                found.push(Value::Object(without));
                found.extend(smaller(inner).into_iter().map(|part| {
                    let mut object = object.clone();
                    object.insert(key.clone(), part);
                    Value::Object(object)
                }));
            }
        }
        _ => {}
    }
    found
}
