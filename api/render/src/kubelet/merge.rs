//! Merging the fields of a user over a configuration.

use serde_json::{Map, Value, json};

const CGROUP: &str = "systemReservedCgroup";
const ENFORCE: &str = "enforceNodeAllocatable";
/// What the kubelet enforces with the cgroup of the system.
const SYSTEM: [&str; 2] = ["system-reserved", "system-reserved-compressible"];

/// Merges the TLS profile and the fields of the user over the base. Objects merge by key, lists are replaced, `null` removes.
pub(super) fn merge(
    mut base: Map<String, Value>,
    tls: Map<String, Value>,
    user: Map<String, Value>,
) -> Map<String, Value> {
    let chooses_cgroup = user.contains_key(CGROUP);
    let enforces_no_system = user.get(ENFORCE).is_some_and(|list| !names_system(list));
    over(&mut base, tls);
    over(&mut base, user);
    base.entry("kind").or_insert("KubeletConfiguration".into());
    base.entry("apiVersion").or_insert("kubelet.config.k8s.io/v1beta1".into());
    if enforces_no_system && !chooses_cgroup {
        // The kubelet would refuse a cgroup that it is not to enforce anything with.
        base.remove(CGROUP);
    }
    let reserves_cpus = base.get("reservedSystemCPUs").and_then(Value::as_str).is_some_and(|cpus| !cpus.is_empty());
    if reserves_cpus {
        // The kubelet refuses reserved CPUs together with the cgroup of the system.
        base.remove(CGROUP);
        if let Some(Value::Array(list)) = base.get_mut(ENFORCE) {
            list.retain(|name| !SYSTEM.iter().any(|system| name == system));
            if !list.iter().any(|name| name == "pods") {
                list.insert(0, json!("pods"));
            }
        }
    }
    base
}

fn names_system(list: &Value) -> bool {
    list.as_array().into_iter().flatten().any(|name| SYSTEM.iter().any(|system| name == system))
}

fn over(base: &mut Map<String, Value>, fields: Map<String, Value>) {
    for (field, value) in fields {
        match (base.get_mut(&field), value) {
            (_, Value::Null) => drop(base.remove(&field)),
            (Some(Value::Object(base)), Value::Object(fields)) => over(base, fields),
            (_, Value::Object(fields)) => {
                // Without its nulls.
                let mut object = Map::new();
                over(&mut object, fields);
                base.insert(field, Value::Object(object));
            }
            (_, value) => drop(base.insert(field, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_merge_by_key_lists_are_replaced_and_null_removes() {
        let fields = |value: Value| value.as_object().unwrap().clone();
        let base = fields(json!({"a": {"x": 1, "y": 2}, "list": [1, 2], "gone": 1, "kept": 0}));
        let user = fields(json!({"a": {"y": 3, "z": null}, "list": [], "gone": null, "new": {"b": null, "c": false}}));
        let mut merged = merge(base, Map::new(), user);
        merged.retain(|field, _| field != "kind" && field != "apiVersion");
        let expected = json!({"a": {"x": 1, "y": 3}, "list": [], "kept": 0, "new": {"c": false}});
        assert_eq!(Value::Object(merged), expected);
    }
}
