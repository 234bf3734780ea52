//! Kubeconfigs that need no other file, so that they can be copied and mounted.

use k8s_openapi::ByteString;
use serde_json::json;

use super::certificates::Identity;

/// A kubeconfig for one user of one cluster. JSON, which every reader of YAML reads.
pub(crate) fn kubeconfig(server: &str, authority_certificate: &str, user: &str, identity: &Identity) -> String {
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
