//! What users apply. machine-controller-manager asks for more than Nodewright: a node template and user data in each class, and
//! the label `name` on machines.

use nodewright_e2e_scenarios::{Environment, TestResult, objects::ENVIRONMENT_LABEL};
use serde_json::{Value, json};

/// The name of the MachineDeployment.
pub(crate) const POOL: &str = "a";
/// The class of the pool.
pub(crate) const SMALL: &str = "small";
/// The class to which the pool is rolled.
pub(crate) const LARGE: &str = "large";
/// A class whose VMs the cloud refuses.
pub(crate) const BROKEN: &str = "broken";
/// The label of the template that tells its versions apart, where machines are updated in place.
pub(crate) const VERSION: &str = "version";
/// The number of Pods.
pub(crate) const PODS: usize = 4;

/// The full name of the pool.
pub(crate) fn pool_name(env: &Environment) -> String {
    format!("{}-{POOL}", env.namespace())
}

/// Applies classes and their Secret.
pub(crate) async fn apply_classes(env: &Environment) -> TestResult {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data"},
        "stringData": {"userData": "#cloud-config\nhostname: <<MACHINE_NAME>>\n"},
    });
    env.apply(&secret).await?;
    for (name, size) in [(SMALL, "small"), (LARGE, "large"), (BROKEN, "impossible")] {
        env.apply(&class(env, name, size)).await?;
    }
    Ok(())
}

fn class(env: &Environment, name: &str, size: &str) -> Value {
    json!({
        "apiVersion": nodewright_api::API_VERSION,
        "kind": "MachineClass",
        "metadata": {"name": name},
        "provider": "simulated",
        "providerSpec": {
            "cluster": env.namespace(), "size": size, "labels": {ENVIRONMENT_LABEL: env.namespace()},
        },
        "secretRef": {"name": "user-data", "namespace": env.namespace()},
        "nodeTemplate": {
            "capacity": {"cpu": "2", "memory": "4Gi", "gpu": "0"},
            "instanceType": "small", "region": "local", "zone": "local-a",
        },
    })
}

/// The pool: surge 1, unavailable 0, short health timeout.
pub(crate) fn pool(env: &Environment, replicas: u32) -> Value {
    let name = pool_name(env);
    json!({
        "apiVersion": nodewright_api::API_VERSION,
        "kind": "MachineDeployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"name": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"name": name}},
                "spec": {
                    "class": {"kind": "MachineClass", "name": SMALL},
                    "healthTimeout": "10s",
                    "nodeTemplate": {"metadata": {"labels": {"example.com/pool": POOL}}},
                },
            },
        },
    })
}

/// The pool, of version 1, with machines that are updated in place: unavailable 1, no surge.
pub(crate) fn in_place_pool(env: &Environment, replicas: u32, orchestration: &str) -> Value {
    let mut object = pool(env, replicas);
    let bounds = json!({"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": orchestration});
    object["spec"]["strategy"] = json!({"type": "InPlaceUpdate", "inPlaceUpdate": bounds});
    object["spec"]["template"]["metadata"]["labels"][VERSION] = "1".into();
    object
}

/// Pods on the nodes of this environment.
pub(crate) fn workload(env: &Environment) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "app"},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": {"app": "app"}},
            "template": {
                "metadata": {"labels": {"app": "app"}},
                "spec": {
                    "nodeSelector": {ENVIRONMENT_LABEL: env.namespace()},
                    "terminationGracePeriodSeconds": 5,
                    // On all nodes, so that each removed one has pods.
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"app": "app"}},
                    }],
                    "containers": [{"name": "main", "image": "none"}],
                },
            },
        },
    })
}

/// Changes the spec of the pool.
pub(crate) async fn patch_pool(env: &Environment, spec: &Value) -> TestResult {
    let patch = json!({"spec": spec});
    env.kubectl(&format!("patch machinedeployment {} --type=merge --patch={patch}", pool_name(env))).await.map(drop)
}

/// Changes the template of the pool to this version.
pub(crate) async fn set_version(env: &Environment, version: &str) -> TestResult {
    patch_pool(env, &json!({"template": {"metadata": {"labels": {VERSION: version}}}})).await
}

/// Has the pool use another class.
pub(crate) async fn roll(env: &Environment, class: &str) -> TestResult {
    patch_pool(env, &json!({"template": {"spec": {"class": {"name": class}}}})).await
}

/// Deletes the pool, without waiting for its end.
pub(crate) async fn delete_pool(env: &Environment) -> TestResult {
    env.kubectl(&format!("delete machinedeployment {} --wait=false", pool_name(env))).await.map(drop)
}
