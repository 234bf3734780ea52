//! `config/`: it renders, a real API server accepts all of it, and it grants exactly the permissions that are needed.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{collections::BTreeSet, path::PathBuf, process::Command, sync::Arc};

use http::HeaderValue;
use k8s_openapi::{
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use nodewright_e2e_lab::{
    control_plane::{ControlPlane, ControlPlaneOptions, binaries, client, testing::eventually},
    process::repository,
};
use nodewright_e2e_scenarios::{TestResult, environment::turn, skip_on_external_cluster};
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    leadership::{Leadership, boot_clock},
    request::Connection,
};
use nodewright_webhooks::{CertificateSource, DEFAULT_NAMESPACE, Limits, Options, Registration, WebhookServer};

const NAMESPACE: &str = "nodewright-system";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:nodewright-system:nodewright";
const WHY: &str = "`config/` is not applied";

fn config(folder: &str) -> PathBuf {
    repository().join("config").join(folder)
}

/// Components only work in an overlay like the one in their comments.
#[tokio::test]
async fn the_components_render() -> TestResult {
    if skip_on_external_cluster("components", WHY) {
        return Ok(());
    }
    let kubectl = binaries().await?.join("kubectl");
    // kustomize takes relative paths alone, and the folder of builds may be anywhere.
    let target = config("../target");
    std::fs::create_dir_all(&target)?;
    let scratch = tempfile::tempdir_in(target)?;
    let up = "../".repeat(2);
    for (component, expected, times) in [
        ("components/certmanager", "--webhook-cert-dir=/certificates", 1),
        ("components/certmanager", "cert-manager.io/inject-ca-from: nodewright-system/nodewright-webhook", 2),
        ("components/certmanager", "mutatingwebhookconfigurations", 0),
        ("components/machine-controller-manager-name", "  name: machine-controller-manager\n", 1),
        ("components/monitoring", "kind: ServiceMonitor\n", 1),
        ("components/monitoring", "kind: PrometheusRule\n", 1),
        ("components/monitoring", "grafana_dashboard: \"1\"\n", 6),
        ("components/network-policy", "kind: NetworkPolicy", 2),
        ("components/without-webhooks", "WebhookConfiguration", 0),
        ("components/without-webhooks", "nodewright-webhook\n", 0),
        ("components/without-webhooks", "--webhooks", 0),
        ("components/cloud-node", "- --cloud-node=on\n", 1),
        ("components/cloud-node", "  name: nodewright-node-lifecycle\n", 5),
        ("components/target-cluster", "- --target-kubeconfig=/target/kubeconfig\n", 1),
        ("components/target-cluster", "  name: nodewright-nodes\n", 1),
        ("components/driver", "image: nodewright-driver\n", 1),
        // The driver's container has not got it.
        ("components/driver", "mountPath: /var/run/secrets/kubernetes.io/serviceaccount\n", 1),
        ("components/driver", "automountServiceAccountToken: true\n", 0),
        ("components/driver-aws", "- --driver-socket=/run/driver/driver.sock\n", 1),
        ("components/driver-aws", "image: nodewright-driver-aws\n", 1),
        ("components/driver-aws", "mountPath: /run/driver\n", 2),
        ("components/driver-aws", "emptyDir:\n", 1),
    ] {
        let overlay = format!("resources: [{up}config/default]\ncomponents: [{up}config/{component}]\n");
        std::fs::write(scratch.path().join("kustomization.yaml"), overlay)?;
        let output = Command::new(&kubectl).arg("kustomize").arg(scratch.path()).output()?;
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && error.is_empty(), "{component}: {error}");
        assert_eq!(text.matches(expected).count(), times, "{component}: {expected}");
    }
    Ok(())
}

/// With all components and the webhooks of node configuration, nothing of an overlay as in docs/tasks/install.md has the namespace of
/// `config/default`, and nothing has the name of an object of the first installation.
#[tokio::test]
async fn an_overlay_with_another_namespace_shares_nothing() -> TestResult {
    if skip_on_external_cluster("overlay", WHY) {
        return Ok(());
    }
    let kubectl = binaries().await?.join("kubectl");
    let target = config("../target");
    std::fs::create_dir_all(&target)?;
    let scratch = tempfile::tempdir_in(target)?;
    let up = "../".repeat(2);
    let render = |text: String| -> TestResult<String> {
        std::fs::write(scratch.path().join("kustomization.yaml"), text)?;
        let output = Command::new(&kubectl).arg("kustomize").arg(scratch.path()).output()?;
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && error.is_empty(), "{error}");
        Ok(text.into_owned())
    };
    let components =
        ["certmanager", "without-node-configuration", "driver-aws", "network-policy", "cloud-node", "monitoring"];
    let components = components.map(|name| format!("{up}config/components/{name}")).join(", ");
    let base =
        format!("resources: [{up}config/default, {up}config/webhook/machine-config]\ncomponents: [{components}]\n");
    for base in [base.clone(), base.replace(&format!("{up}config/components/certmanager, "), "")] {
        let first = render(base.clone())?;
        let second = render(format!("namespace: team-a\n{base}transformers: [{up}config/another-namespace]\n"))?;
        assert!(!second.contains("nodewright-system"), "{second}");
        let (first, second) = (identities(&first), identities(&second));
        assert!(first.len() > 30 && first.len() == second.len(), "{first:?}");
        let both: Vec<_> = first.intersection(&second).collect();
        assert!(both.is_empty(), "{both:?}");
        // Policies have no namespace.
        let misplaced: Vec<_> =
            second.iter().filter(|object| object.contains("AdmissionPolicy") && !object.contains(" /")).collect();
        assert!(misplaced.is_empty(), "{misplaced:?}");
        // What is not of the namespace is where it was.
        for object in [
            "Role kube-system/nodewright-bootstrap-tokens-team-a",
            "Role default/nodewright-machine-config-events-team-a",
        ] {
            assert!(second.contains(object), "{object} of {second:?}");
        }
    }
    Ok(())
}

/// The kind, namespace and name of each object.
fn identities(yaml: &str) -> BTreeSet<String> {
    let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let identity = |object: &serde_json::Value| {
        let metadata = &object["metadata"];
        format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    };
    objects.iter().map(identity).collect()
}

/// `config/certmanager` is installed in the place of `config/default`, in a cluster that serves cert-manager's kinds.
#[tokio::test]
async fn the_overlay_with_cert_manager_is_accepted_and_grants_less() -> TestResult {
    if skip_on_external_cluster("cert-manager", WHY) {
        return Ok(());
    }
    let _turn = turn(false).await?;
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await?;
    for (kind, plural) in [("Issuer", "issuers"), ("Certificate", "certificates")] {
        let schema = serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = serde_json::json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.cert-manager.io")},
            "spec": {"group": "cert-manager.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        });
        plane.apply_yaml(&definition.to_string()).await?;
    }
    apply(&plane, "cluster", &[]).await?;
    apply(&plane, "certmanager", &[]).await?;
    assert!(may(&plane, "create machines", NAMESPACE).await);
    for right in ["create secrets", "patch mutatingwebhookconfigurations/nodewright-nodewright-system"] {
        assert!(!may(&plane, right, NAMESPACE).await, "{right}");
    }
    Ok(())
}

/// `make e2e-kind` applies it to a cluster that has what it needs.
#[tokio::test]
async fn the_overlay_for_kind_renders() -> TestResult {
    if skip_on_external_cluster("kind", WHY) {
        return Ok(());
    }
    let kubectl = binaries().await?.join("kubectl");
    let output = Command::new(&kubectl).arg("kustomize").arg(config("kind")).output()?;
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && error.is_empty(), "{error}");
    for expected in [
        "image: ghcr.io/nodewright/nodewright-driver-local:0.1.0\n",
        "pod-security.kubernetes.io/enforce: privileged\n",
        "type: Socket\n",
    ] {
        assert_eq!(text.matches(expected).count(), 1, "{expected}");
    }
    Ok(())
}

#[tokio::test]
async fn the_default_is_accepted_and_grants_what_is_needed() -> TestResult {
    if skip_on_external_cluster("config", WHY) {
        return Ok(());
    }
    let _turn = turn(false).await?;
    let options = ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await?;
    apply(&plane, "cluster", &[]).await?;
    apply(&plane, "default", &[]).await?;
    let again = apply(&plane, "default", &[]).await?;
    assert!(again.lines().count() >= 20 && again.lines().all(|line| line.ends_with("serverside-applied")), "{again}");
    // Other namespaces have other installations, or none.
    let sample = config("samples").join("machine_deployment.yaml");
    plane.kubectl(["apply", "--dry-run=server", "-f", sample.to_str().unwrap(), "-n", "default"]).await?;
    let error = apply(&plane, "samples", &["-n", NAMESPACE]).await.expect_err("no webhook answers").to_string();
    assert!(error.contains("failed calling webhook"), "it must not be passed by: {error}");
    the_pods_meet_the_restricted_policy(&plane).await?;
    // kubectl asks for the rights on a kind that it does not know as if it had no group.
    plane.apply_file(config("crd/machine-config/bases")).await?;
    the_rights_are_the_least(&plane).await?;
    of_kube_system_only_bootstrap_tokens_are_written(&plane).await?;
    the_service_account_can_register_the_webhooks(&plane).await
}

async fn apply(plane: &ControlPlane, folder: &str, arguments: &[&str]) -> TestResult<String> {
    let folder = config(folder);
    let apply = ["apply", "--server-side", "--validate=strict", "-k", folder.to_str().unwrap()];
    Ok(plane.kubectl(apply.iter().chain(arguments)).await?)
}

/// The namespace rejects pods that violate the policy, and the controller would then not run.
async fn the_pods_meet_the_restricted_policy(plane: &ControlPlane) -> TestResult {
    let pods = ["get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=nodewright", "-o", "name"];
    eventually("two pods", async || Ok(plane.kubectl(pods).await?.lines().count() == 2)).await
}

async fn the_rights_are_the_least(plane: &ControlPlane) -> TestResult {
    let allowed = [
        ("create machines", NAMESPACE),
        ("patch machines/status", NAMESPACE),
        ("delete machinesets", NAMESPACE),
        ("patch machinedeployments", NAMESPACE),
        ("patch machineclasses/status", NAMESPACE),
        ("watch secrets", NAMESPACE),
        ("update secrets/nodewright-webhook-certificate", NAMESPACE),
        ("update leases/machine-controller", NAMESPACE),
        ("update leases/machine-controller-manager", NAMESPACE),
        ("update leases/nodewright-machine-config", NAMESPACE),
        ("create events", NAMESPACE),
        ("create events", "default"),
        ("patch events", "default"),
        ("list machines", ""),
        ("delete nodes", ""),
        ("patch nodes/n1", ""),
        ("patch nodes --subresource=status", ""),
        ("create pods --subresource=eviction", "default"),
        ("create secrets", "kube-system"),
        ("patch mutatingwebhookconfigurations/nodewright-nodewright-system", ""),
        ("delete machineconfigs.machineconfiguration.openshift.io", ""),
        ("patch machineconfigpools.machineconfiguration.openshift.io --subresource=status", ""),
        ("patch controllerconfigs.machineconfiguration.openshift.io", ""),
        ("patch controllerconfigs.machineconfiguration.openshift.io --subresource=status", ""),
        ("watch leases/machine-config-controller", ""),
        ("patch namespaces/nodewright-system", NAMESPACE),
        ("patch customresourcedefinitions/machines.machine.sapcloud.io", ""),
        ("patch customresourcedefinitions/machineconfigs.machineconfiguration.openshift.io", ""),
        ("create tokenreviews", ""),
        ("create subjectaccessreviews", ""),
    ];
    for (right, namespace) in allowed {
        assert!(may(plane, right, namespace).await, "{right} in {namespace:?}");
    }
    let denied = [
        ("create machinedeployments", NAMESPACE),
        ("delete machinedeployments", NAMESPACE),
        ("delete machineclasses", NAMESPACE),
        ("create machines", "default"),
        ("create events", "kube-system"),
        ("get machines", "default"),
        ("watch machines", ""),
        ("get secrets", "default"),
        ("update secrets/another", NAMESPACE),
        ("delete secrets", NAMESPACE),
        ("list secrets", "kube-system"),
        ("watch secrets", "kube-system"),
        ("update leases/another", NAMESPACE),
        ("watch leases", ""),
        ("create machineconfigpools.machineconfiguration.openshift.io", ""),
        ("delete kubeletconfigs.machineconfiguration.openshift.io", ""),
        ("delete controllerconfigs.machineconfiguration.openshift.io", ""),
        ("create nodes", ""),
        ("create pods", NAMESPACE),
        ("create pods --subresource=exec", NAMESPACE),
        ("patch mutatingwebhookconfigurations/another", ""),
        ("create mutatingwebhookconfigurations", ""),
        ("patch namespaces/default", "default"),
        ("patch namespaces", ""),
        ("delete namespaces/nodewright-system", NAMESPACE),
        ("patch customresourcedefinitions/another", ""),
        ("delete customresourcedefinitions/machines.machine.sapcloud.io", ""),
        ("patch validatingadmissionpolicies/nodewright-deletion", ""),
        ("escalate clusterroles", ""),
        ("impersonate users", ""),
        ("* *", NAMESPACE),
    ];
    for (right, namespace) in denied {
        assert!(!may(plane, right, namespace).await, "{right} in {namespace:?}");
    }
    Ok(())
}

/// `kubectl auth can-i` as the service account; it fails if the answer is no.
async fn may(plane: &ControlPlane, right: &str, namespace: &str) -> bool {
    let scope = if namespace.is_empty() { "--all-namespaces".to_owned() } else { format!("--namespace={namespace}") };
    let asked = ["auth", "can-i", "--as", SERVICE_ACCOUNT, &scope].into_iter().chain(right.split(' '));
    plane.kubectl(asked).await.is_ok_and(|answer| answer.trim() == "yes")
}

async fn of_kube_system_only_bootstrap_tokens_are_written(plane: &ControlPlane) -> TestResult {
    let as_nodewright = client(&plane.kubeconfig_for(SERVICE_ACCOUNT, &[])?, "config-test/1").await?;
    let (own, all): (Api<Secret>, Api<Secret>) =
        (Api::namespaced(as_nodewright, "kube-system"), Api::namespaced(plane.client(), "kube-system"));
    let secret = |name: &str, kind: &str| Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some(kind.to_owned()),
        ..Secret::default()
    };
    let is_forbidden = |error: kube::Error| {
        let text = error.to_string();
        assert!(text.contains("Nodewright may write no Secret of kube-system but"), "{text}");
    };
    let (token, create) = ("bootstrap.kubernetes.io/token", PostParams::default());
    // A policy takes effect a moment after it is stored.
    let probe = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the policy", async || Ok(own.create(&probe, &secret("another", "Opaque")).await.is_err())).await?;
    is_forbidden(own.create(&create, &secret("another", "Opaque")).await.unwrap_err());
    is_forbidden(own.create(&create, &secret("bootstrap-token-abcdef", "Opaque")).await.unwrap_err());
    is_forbidden(own.create(&create, &secret("another", token)).await.unwrap_err());
    own.create(&create, &secret("bootstrap-token-abcdef", token)).await?;
    own.delete("bootstrap-token-abcdef", &DeleteParams::default()).await?;
    all.create(&create, &secret("another", "Opaque")).await?;
    is_forbidden(own.delete("another", &DeleteParams::default()).await.unwrap_err());
    all.delete("another", &DeleteParams::default()).await?;
    Ok(())
}

async fn the_service_account_can_register_the_webhooks(plane: &ControlPlane) -> TestResult {
    let client = client(&plane.kubeconfig_for(SERVICE_ACCOUNT, &[])?, "config-test/1").await?;
    let metrics = Arc::new(Metrics::new());
    let agent = HeaderValue::from_static("config-test/1");
    let server = WebhookServer::bind(Options {
        listen: "127.0.0.1:0".parse()?,
        certificates: CertificateSource::Secret {
            namespace: NAMESPACE.to_owned(),
            name: "nodewright-webhook-certificate".to_owned(),
            hosts: vec![format!("nodewright-webhook.{NAMESPACE}.svc")],
        },
        registration: Registration::Bundle,
        namespace: DEFAULT_NAMESPACE.to_owned(),
        connection: Connection::new(client, agent, Leadership::unlimited(), 10, metrics),
        provider_specs: Arc::new(|_| Ok(vec![])),
        identity: Arc::new(|_| vec!["cluster".to_owned()]),
        extensions: None,
        spans: Spans::disabled(),
        clock: boot_clock(),
        limits: Limits::default(),
    })
    .await?;
    let readiness = server.readiness();
    let running = tokio::spawn(server.run(std::future::pending()));
    eventually("the registration", async || Ok(readiness().is_ok())).await?;
    running.abort();
    let bundles = bundles(plane).await?;
    assert!(bundles.len() == 4 && bundles[0].is_some() && bundles.iter().all(|bundle| *bundle == bundles[0]));
    // The two managers own different fields: applying the manifests again removes nothing.
    apply(plane, "default", &[]).await?;
    assert_eq!(self::bundles(plane).await?, bundles);
    Ok(())
}

async fn bundles(plane: &ControlPlane) -> TestResult<Vec<Option<Vec<u8>>>> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(plane.client());
    let webhooks = api.get("nodewright-nodewright-system").await?.webhooks.unwrap_or_default();
    Ok(webhooks.into_iter().map(|webhook| webhook.client_config.ca_bundle.map(|bundle| bundle.0)).collect())
}
