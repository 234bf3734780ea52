//! The clients of the two clusters.

use std::{path::Path, time::Duration};

use kube::{Client, Config};
use nodewright_runtime::{error::one_line, leadership::Leadership, request};

use crate::flags::ProcessFlags;

#[derive(Clone)]
pub(crate) struct Clusters {
    /// The cluster of the custom resources.
    pub(crate) control: Client,
    /// The cluster of the Nodes, if any.
    pub(crate) target: Option<Client>,
    /// For another client of the cluster of the custom resources.
    control_config: Config,
}

/// Why there is no client. Each message names the flag.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("failed to read the kubeconfig {file:?} (see {flag}): {message}")]
    Kubeconfig { flag: &'static str, file: String, message: String },
    #[error("failed to find the cluster that this process runs in: {message}; outside of a cluster, set {flag}")]
    NotInCluster { flag: &'static str, message: String },
    #[error("--control-kubeconfig is required when --target-kubeconfig is `none`")]
    NoControl,
    #[error("failed to create a client of the cluster of {flag}: {message}")]
    Client { flag: &'static str, message: String },
}

const CONTROL: &str = "--control-kubeconfig";
const TARGET: &str = "--target-kubeconfig";

impl Clusters {
    /// Reads the kubeconfigs as machine-controller-manager does. The clients send nothing after this leadership expires.
    pub(crate) async fn connect(flags: &ProcessFlags, leadership: &Leadership) -> Result<Self, ClusterError> {
        let target = match flags.target_kubeconfig.as_str() {
            "none" => None,
            "" => Some(incluster(TARGET)),
            file => Some(from_file(TARGET, file).await),
        };
        let control = match (flags.control_kubeconfig.as_str(), flags.target_kubeconfig.as_str()) {
            ("", "none") => return Err(ClusterError::NoControl),
            ("", "") | ("inClusterConfig", _) => incluster(CONTROL),
            ("", file) | (file, _) => from_file(CONTROL, file).await,
        };
        let control_config = control?;
        let control = client(CONTROL, control_config.clone(), leadership)?;
        let target = match target.transpose()? {
            // One cluster has one pool of connections.
            Some(_) if is_one(flags) => Some(control.clone()),
            Some(config) => Some(client(TARGET, config, leadership)?),
            None => None,
        };
        Ok(Self { control, target, control_config })
    }

    /// Another client of the cluster of the custom resources, with connections of its own. Its tasks belong to the runtime of the
    /// caller.
    pub(crate) fn another_control(&self, leadership: &Leadership) -> Result<Client, ClusterError> {
        client(CONTROL, self.control_config.clone(), leadership)
    }
}

/// Whether both clusters are the same.
fn is_one(flags: &ProcessFlags) -> bool {
    let target = flags.target_kubeconfig.as_str();
    match flags.control_kubeconfig.as_str() {
        "" => true,
        "inClusterConfig" => target.is_empty(),
        control => control == target,
    }
}

fn incluster(flag: &'static str) -> Result<Config, ClusterError> {
    Config::incluster().map_err(|error| ClusterError::NotInCluster { flag, message: one_line(&error) })
}

async fn from_file(flag: &'static str, file: &str) -> Result<Config, ClusterError> {
    let config = request::read_kubeconfig(Some(Path::new(file)), None).await;
    config.map_err(|message| ClusterError::Kubeconfig { flag, file: file.to_owned(), message })
}

fn client(flag: &'static str, mut config: Config, leadership: &Leadership) -> Result<Client, ClusterError> {
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = None;
    request::client(config, leadership).map_err(|error| ClusterError::Client { flag, message: one_line(&error) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_kubeconfig_is_not_quoted() {
        for text in ["users:\n- name: a\n  user: {token: [hunter2}\n", "users: hunter2\n", "hunter2", "\u{0}hunter2: {"]
        {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let path = file.path().to_str().unwrap();
            let error = from_file(TARGET, path).await.err().unwrap().to_string();
            assert!(error.contains(path) && error.contains("not a kubeconfig"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
