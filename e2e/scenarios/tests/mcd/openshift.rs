//! What the daemon needs of the API server: kinds, objects, and an account.

use std::path::Path;

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use nodewright_e2e_lab::control_plane::{
    ControlPlane, openshift_api, openshift_daemon_crds, openshift_machine_config_crds, parse_manifest,
};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult};
use serde_json::{Value, json};

/// The namespace of machine-config-operator.
pub(crate) const NAMESPACE: &str = "openshift-machine-config-operator";
const ACCOUNT: &str = "machine-config-daemon";
/// The version that a daemon says it has which was built from sources alone.
const VERSION: &str = "0.0.1-snapshot";
/// A file whose change disrupts nothing, by the policies of the cluster.
pub(crate) const QUIET_FILE: &str = "/etc/quiet";

/// Installs OpenShift's kinds, and makes the objects that other operators make there. `daemon` is the directory with the daemon
/// and its rights.
pub(crate) async fn install(env: &Environment, plane: &ControlPlane, daemon: &Path) -> TestResult {
    for crds in openshift_machine_config_crds().await?.into_iter().chain(openshift_daemon_crds().await?) {
        plane.apply_file(crds).await?;
    }
    env.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await?;
    plane.apply_file(daemon.join("manifests/clusterrole.yaml")).await?;
    env.apply_to(NAMESPACE, &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}))
        .await?;
    env.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }))
    .await?;
    feature_gates(env).await?;
    disruption_policies(env).await?;
    env.apply(&controller_config().await?).await
}

async fn feature_gates(env: &Environment) -> TestResult {
    let gates = |enabled: Value| json!({"featureGates": [{"version": VERSION, "enabled": enabled, "disabled": []}]});
    let config = "config.openshift.io/v1";
    env.apply(&json!({"apiVersion": config, "kind": "FeatureGate", "metadata": {"name": "cluster"}, "spec": {}}))
        .await?;
    set_status(env, config, "FeatureGate", "cluster", gates(json!([]))).await?;
    let id = "00000000-0000-4000-8000-000000000000";
    env.apply(&json!({
        "apiVersion": config, "kind": "ClusterVersion", "metadata": {"name": "version"},
        "spec": {"clusterID": id, "channel": ""},
    }))
    .await?;
    let desired = json!({"version": VERSION, "image": "", "url": ""});
    let history = json!([{"state": "Completed", "version": VERSION, "image": "", "verified": false,
        "startedTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z"}]);
    let status = json!({"desired": desired, "history": history, "observedGeneration": 1, "versionHash": "",
        "availableUpdates": []});
    set_status(env, config, "ClusterVersion", "version", status).await
}

/// Without a policy, a change of a file or unit reboots.
async fn disruption_policies(env: &Environment) -> TestResult {
    let operator = "operator.openshift.io/v1";
    env.apply(&json!({
        "apiVersion": operator, "kind": "MachineConfiguration", "metadata": {"name": "cluster"},
        "spec": {"managementState": "Managed"},
    }))
    .await?;
    let quiet = json!([{"path": QUIET_FILE, "actions": [{"type": "None"}]}]);
    let policies = json!({"files": quiet, "sshkey": {"actions": [{"type": "None"}]}});
    let status = json!({"observedGeneration": 1, "nodeDisruptionPolicyStatus": {"clusterPolicies": policies}});
    set_status(env, operator, "MachineConfiguration", "cluster", status).await
}

async fn set_status(env: &Environment, version: &str, kind: &str, name: &str, status: Value) -> TestResult {
    let (group, version) = version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(env.client(), &resource);
    let patch = Patch::Merge(json!({"status": status}));
    let stored = api.patch_status(name, &PatchParams::default(), &patch).await?;
    if stored.data["status"].is_null() {
        return Err(Failure::new(format!("{kind} {} keeps no status", stored.name_any())));
    }
    Ok(())
}

/// The least that OpenShift's CRD takes, without images of the operating system.
async fn controller_config() -> TestResult<Value> {
    let file = "machineconfiguration/v1/tests/controllerconfigs.machineconfiguration.openshift.io/AAA_ungated.yaml";
    let suite: Value = serde_saphyr::from_str(&std::fs::read_to_string(openshift_api().await?.join(file))?)
        .map_err(|error| Failure::new(error.to_string()))?;
    let text = suite["tests"]["onCreate"][0]["initial"].as_str().unwrap_or_default();
    let mut config = parse_manifest(text, file)?.remove(0);
    for image in ["baseOSContainerImage", "baseOSExtensionsContainerImage", "osImageURL"] {
        config.data["spec"][image] = json!("");
    }
    config.metadata.name = Some("machine-config-controller".to_owned());
    Ok(serde_json::to_value(config)?)
}

/// A token of the daemon's account.
pub(crate) async fn token(env: &Environment) -> TestResult<String> {
    let api: Api<ServiceAccount> = Api::namespaced(env.client(), NAMESPACE);
    let spec = TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let answer = api.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
    answer.status.map(|status| status.token).ok_or_else(|| Failure::new("the token request has no answer"))
}
