//! Lists that are read from an API server and not from a cache.

use nodewright_api::Machine;
use nodewright_runtime::{json, object::ResourceType};
use serde::{Deserialize, de::DeserializeOwned};

/// The path of the Machines of a name, in all namespaces.
pub(crate) fn machines_named(name: &str) -> String {
    format!("{}?fieldSelector=metadata.name%3D{name}", ResourceType::of::<Machine>().collection(""))
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

/// The items of a list, which may lack them.
pub(crate) fn items<T: DeserializeOwned>(list: &[u8]) -> serde_json::Result<Option<Vec<T>>> {
    Ok(json::from_slice::<List<T>>(list)?.items)
}
