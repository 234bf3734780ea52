//! What nodes reserve for the system: a file that the node reads, and not the kubelet.

use serde_json::{Map, Value};

/// The resources of that file, with its keys and defaults.
const RESOURCES: [(&str, &str, &str); 3] = [
    ("memory", "SYSTEM_RESERVED_MEMORY", "1Gi"),
    ("cpu", "SYSTEM_RESERVED_CPU", "500m"),
    ("ephemeral-storage", "SYSTEM_RESERVED_ES", "1Gi"),
];

/// Moves these resources from the user's `systemReserved` into the file, whose text is returned. None if nothing is set.
pub(super) fn split(auto: Option<bool>, mut user: Map<String, Value>) -> (Map<String, Value>, Option<String>) {
    let mut lines = vec![];
    let mut has_own = false;
    let mut reserved = match user.remove("systemReserved") {
        Some(Value::Object(reserved)) => Some(reserved),
        other => {
            user.extend(other.map(|value| ("systemReserved".to_owned(), value)));
            None
        }
    };
    for (resource, key, default) in RESOURCES {
        let own = reserved.as_mut().and_then(|reserved| reserved.remove(resource));
        let own = own.as_ref().and_then(Value::as_str).filter(|own| !own.is_empty());
        has_own |= own.is_some();
        lines.push(format!("{key}={}\n", own.unwrap_or(default)));
    }
    if let Some(reserved) = reserved.filter(|reserved| !reserved.is_empty()) {
        user.insert("systemReserved".to_owned(), Value::Object(reserved));
    }
    let is_on = auto == Some(true) && !has_own;
    let text = (auto.is_some() || has_own).then(|| format!("NODE_SIZING_ENABLED={is_on}\n{}", lines.concat()));
    (user, text)
}
