//! Lists that are too long for one answer.

use std::fmt::Debug;

use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;

/// All entries of a list, one page at a time, as many for each as `parameters` say; of each, what `keep` makes of it. And
/// the version at which the list stands.
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
