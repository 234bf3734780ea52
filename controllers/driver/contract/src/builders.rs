//! Requests and classes in a line, for all tests of drivers.

use std::sync::Arc;

use nodewright_api::RawJson;
use nodewright_driver::{Class, MachineRequest, SecretData, SecretText};
use serde_json::Value;

/// A class with this `providerSpec`, without Secrets.
pub fn class(provider_spec: &Value) -> Class {
    Class {
        name: "class".to_owned(),
        revision: String::new(),
        provider_spec: RawJson::from(provider_spec),
        secret: SecretData::default(),
    }
}

/// A Machine that has no VM yet. Its UID follows from its name.
pub fn machine(name: &str, class: Class) -> MachineRequest {
    MachineRequest {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: format!("uid-of-{name}"),
        adopted_uid: None,
        provider_id: None,
        is_proven: false,
        last_known_state: String::new(),
        class,
        user_data: SecretText::default(),
        node_template: Arc::default(),
        traceparent: None,
    }
}
