//! Lists in pages.

use std::fmt::Debug;

use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

/// Lists all pages. Returns what `keep` makes of each object, and the resource version of the list.
pub async fn pages<K, T>(
    api: &Api<K>,
    mut parameters: ListParams,
    keep: impl Fn(K) -> T,
) -> kube::Result<(Vec<T>, String)>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut kept = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        kept.extend(page.items.into_iter().map(&keep));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok((kept, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}
