//! Clients of an API server.

use std::path::Path;

use kube::{Client, Config, config::KubeConfigOptions};
use nodewright_runtime::leadership::Leadership;

use crate::control_plane::ControlPlaneError;

/// The `User-Agent` of the end-to-end tests. Nodewright's differ, so its requests can be counted.
pub const USER_AGENT: &str = concat!("end-to-end/", env!("CARGO_PKG_VERSION"));

/// A client with this kubeconfig and `User-Agent`, Nodewright's own: it does not retry, and does not use a connection again that the
/// API server is about to close.
pub async fn client(kubeconfig: &Path, user_agent: &str) -> Result<Client, ControlPlaneError> {
    let config = client_config(kubeconfig, user_agent).await?;
    nodewright_runtime::request::client(config, &Leadership::unlimited())
        .map_err(ControlPlaneError::request("make a client"))
}

pub(crate) async fn client_config(kubeconfig: &Path, user_agent: &str) -> Result<Config, ControlPlaneError> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let agent = http::HeaderValue::from_str(user_agent)
        .map_err(|error| ControlPlaneError::request("use a User-Agent")(kube::Error::HttpError(error.into())))?;
    config.headers.push((http::header::USER_AGENT, agent));
    Ok(config)
}
