//! Bootstrap tokens.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{Environment, Failure, TestResult};

/// The names of the bootstrap tokens of the environment's machines.
pub async fn tokens(env: &Environment) -> TestResult<Vec<String>> {
    Ok(secrets(env).await?.iter().map(ResourceExt::name_any).collect())
}

/// A bootstrap token.
pub struct Token {
    /// Its secret part.
    pub secret: String,
    /// When it ends.
    pub expires: Timestamp,
}

/// The bootstrap token of the environment's only machine.
pub async fn only_token(env: &Environment) -> TestResult<Token> {
    let token = secrets(env).await?.pop().ok_or_else(|| Failure::new("there is no bootstrap token"))?;
    let text = |key: &str| token.data.as_ref()?.get(key).map(|text| String::from_utf8_lossy(&text.0).into_owned());
    let expires = text("expiration").ok_or_else(|| Failure::new("the token does not end"))?.parse()?;
    Ok(Token { secret: text("token-secret").ok_or_else(|| Failure::new("the token has no secret"))?, expires })
}

/// Moves the end of the bootstrap tokens of the environment's machines.
pub async fn end_at(env: &Environment, expires: Timestamp) -> TestResult {
    let patch = json!({"stringData": {"expiration": expires.to_string()}});
    for name in tokens(env).await? {
        api(env).patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

fn api(env: &Environment) -> Api<Secret> {
    Api::namespaced(env.target_client(), "kube-system")
}

async fn secrets(env: &Environment) -> TestResult<Vec<Secret>> {
    let of_type = ListParams::default().fields("type=bootstrap.kubernetes.io/token");
    let is_ours = |secret: &Secret| {
        let description = secret.data.as_ref().and_then(|data| data.get("description"));
        description.is_some_and(|text| String::from_utf8_lossy(&text.0).contains(env.namespace()))
    };
    let mut listed = api(env).list(&of_type).await?.items;
    listed.retain(is_ours);
    Ok(listed)
}
