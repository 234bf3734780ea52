//! Kubeconfigs with embedded certificates: they can be copied and mounted.

use std::path::Path;

use k8s_openapi::ByteString;
use serde_json::json;

use crate::{
    control_plane::{
        ControlPlaneError,
        certificates::{Certificates, Identity},
    },
    process::write_private,
};

/// Creates a client certificate for a user, and writes a kubeconfig with it.
pub(crate) fn write_kubeconfig(
    certificates: &Certificates,
    server: &str,
    user: &str,
    group: Option<&str>,
    path: &Path,
) -> Result<(), ControlPlaneError> {
    let identity = certificates.client(user, group)?;
    Ok(write_private(path, &kubeconfig(server, &certificates.authority_certificate(), user, &identity))?)
}

/// A kubeconfig for one user of one cluster, as JSON, which is YAML as well.
fn kubeconfig(server: &str, authority_certificate: &str, user: &str, identity: &Identity) -> String {
    let base64 = |pem: &str| json!(ByteString(pem.as_bytes().to_vec()));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {
            "server": server,
            "certificate-authority-data": base64(authority_certificate),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": base64(&identity.certificate),
            "client-key-data": base64(&identity.key),
        }}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
        "current-context": "local",
    });
    format!("{config:#}\n")
}
