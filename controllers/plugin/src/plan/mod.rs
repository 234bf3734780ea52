//! What would be done, by the decisions of the manager.

mod client_side;
mod drain;
mod durations;
mod file;
mod holds;
mod manager;
mod obstacles;
mod pool;
mod rollout;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use self::{
    drain::drain,
    durations::Takes,
    file::{Apply, file},
    pool::pool,
    rollout::rollout,
};
use crate::{
    client::Cluster,
    fault::{Fault, Outcome},
    resources::Resource,
};

/// All objects of a kind. A plan needs each of them.
async fn all<K: DeserializeOwned>(cluster: &Cluster, of: Resource, namespace: Option<&str>) -> Outcome<Vec<K>> {
    cluster.list(of, namespace, "").await?.into_iter().map(|object| decode(of.kind, &object)).collect()
}

pub(crate) fn decode<K: DeserializeOwned>(kind: &str, object: &Value) -> Outcome<K> {
    let text = object.to_string();
    serde_json::from_str(&text).map_err(|error| {
        let named = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let field = nodewright_api::failed_field(&text, &error);
        Fault::Message(format!("{kind} {named} cannot be decoded: field {field}"))
    })
}
