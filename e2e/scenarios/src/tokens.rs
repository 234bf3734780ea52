//! Bootstrap tokens.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt, api::ListParams};

use crate::{Environment, TestResult};

/// The names of the bootstrap tokens of the environment's machines.
pub async fn tokens(env: &Environment) -> TestResult<Vec<String>> {
    let secrets: Api<Secret> = Api::namespaced(env.target_client(), "kube-system");
    let of_type = ListParams::default().fields("type=bootstrap.kubernetes.io/token");
    let is_ours = |secret: &Secret| {
        let description = secret.data.as_ref().and_then(|data| data.get("description"));
        description.is_some_and(|text| String::from_utf8_lossy(&text.0).contains(env.namespace()))
    };
    let listed = secrets.list(&of_type).await?.items;
    Ok(listed.iter().filter(|secret| is_ours(secret)).map(ResourceExt::name_any).collect())
}
