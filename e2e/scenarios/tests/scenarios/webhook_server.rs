//! The webhook server without a manager, called by a real API server; with Nodewright's definitions, and with machine-controller-manager's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::{path::PathBuf, sync::Arc};

use http::HeaderValue;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{GroupVersionKind, Status},
};
use nodewright_api::{
    MachineClass,
    field::{FieldError, FieldPath},
};
use nodewright_e2e_lab::{
    control_plane::{
        ControlPlane, ControlPlaneOptions, client, machine_controller_manager_crds,
        testing::{TIMEOUT, eventually},
    },
    process::repository,
};
use nodewright_e2e_scenarios::{TestResult, environment::turn, skip_on_external_cluster};
use nodewright_observability::{metrics::Metrics, trace::Spans};
use nodewright_runtime::{
    leadership::{Leadership, boot_clock},
    request::Connection,
};
use nodewright_webhooks::{CertificateSource, Limits, Options, Registration, WebhookServer};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SimpleSpanProcessor, SpanData, SpanExporter},
};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

const TRACE: &str = "nodewright.dev/traceparent";

#[tokio::test]
async fn webhooks_on_nodewrights_definitions() -> TestResult {
    on_definitions(async || Ok(repository().join("config/crd/bases"))).await
}

#[tokio::test]
async fn webhooks_on_machine_controller_managers_definitions() -> TestResult {
    on_definitions(async || Ok(machine_controller_manager_crds().await?)).await
}

/// On a control plane of its own: the objects are in the namespace `default`, and name VMs as those of scenarios do.
async fn on_definitions(definitions: impl AsyncFnOnce() -> TestResult<PathBuf>) -> TestResult {
    if skip_on_external_cluster("webhook server", "the API server may not reach webhooks on this machine") {
        return Ok(());
    }
    let _turn = turn(false).await?;
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await?;
    plane.apply_file(definitions().await?).await?;
    the_whole_story(&plane).await
}

async fn the_whole_story(plane: &ControlPlane) -> TestResult {
    let webhook = Webhook::start(plane).await?;
    eventually("the first call of the webhooks", async || {
        let created = kind(plane, "MachineDeployment").create(&dry_run(), &pool("probe")).await?;
        Ok(created.data["spec"]["strategy"]["type"] == "RollingUpdate")
    })
    .await?;
    samples_are_accepted(plane).await?;
    what_is_absent_is_filled_in(plane).await?;
    errors_are_refused(plane).await?;
    other_namespaces_are_left_alone(plane).await?;
    webhook.stop().await?;
    only_specs_need_the_webhooks(plane).await
}

async fn samples_are_accepted(plane: &ControlPlane) -> TestResult {
    let samples = repository().join("config/samples");
    let arguments = ["apply", "--server-side", "--validate=strict", "-k", samples.to_str().unwrap()];
    plane.kubectl(arguments).await?;
    let pools = kind(plane, "MachineDeployment");
    let first = pools.get("demo-pool").await?;
    let trace = first.metadata.annotations.as_ref().and_then(|annotations| annotations.get(TRACE)).unwrap();
    assert!(trace.starts_with("00-") && trace.len() == 55, "{trace}");
    assert!(!first.data["spec"]["template"].to_string().contains("traceparent"));
    assert_eq!(kind(plane, "MachineClass").get("demo-small").await?.data["secretRef"]["namespace"], "default");
    // Applying it again changes nothing, and its dry run shows no difference.
    plane.kubectl(arguments).await?;
    assert_eq!(pools.get("demo-pool").await?.metadata.resource_version, first.metadata.resource_version);
    let difference = plane.kubectl(["diff", "--server-side", "-k", samples.to_str().unwrap()]).await?;
    assert_eq!(difference, "");
    Ok(())
}

async fn what_is_absent_is_filled_in(plane: &ControlPlane) -> TestResult {
    let pools = kind(plane, "MachineDeployment");
    let created = pools.create(&PostParams::default(), &pool("filled")).await?;
    assert_eq!(
        created.data["spec"]["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    );
    let trace = |pool: &DynamicObject| pool.metadata.annotations.clone().unwrap()[TRACE].clone();
    let labelled = merge(&pools, "filled", json!({"metadata": {"labels": {"a": "b"}}})).await?;
    assert_eq!(trace(&labelled), trace(&created), "the metadata begins no trace");
    let scaled = merge(&pools, "filled", json!({"spec": {"replicas": 2}})).await?;
    assert_ne!(trace(&scaled), trace(&created), "the spec does");
    let broken = json!({"metadata": {"annotations": {TRACE: "x\n"}}, "spec": {"replicas": 3}});
    let traced = trace(&merge(&pools, "filled", broken).await?);
    assert!(traced.starts_with("00-") && traced.len() == 55, "what is no trace context is replaced: {traced:?}");
    Ok(())
}

async fn errors_are_refused(plane: &ControlPlane) -> TestResult {
    let pools = kind(plane, "MachineDeployment");
    let mut other = pool("other");
    other.data["spec"]["selector"]["matchLabels"]["name"] = json!("nobody");
    let status = refusal(pools.create(&PostParams::default(), &other).await);
    let message = r#"admission webhook "validate.machinedeployments.nodewright.dev" denied the request: MachineDeployment.machine.sapcloud.io "other" is invalid: spec.template.metadata.labels: Invalid value: {"name":"other"}: must match spec.selector"#;
    assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (422, "Invalid", message));
    let cause = status.details.unwrap().causes.remove(0);
    assert_eq!((cause.field.as_str(), cause.reason.as_str()), ("spec.template.metadata.labels", "FieldValueInvalid"));

    let mut unreadable = pool("unreadable");
    unreadable.data["spec"]["replicas"] = json!("three");
    let status = refusal(pools.create(&PostParams::default(), &unreadable).await);
    assert!(status.message.contains("spec.replicas: Invalid value: invalid type: string"), "{}", status.message);

    let mut class = class("bad");
    class.data["providerSpec"] = json!({"size": "small"});
    let status = refusal(kind(plane, "MachineClass").create(&PostParams::default(), &class).await);
    assert_eq!(status.details.unwrap().causes[0].field, "providerSpec.cluster");

    let machines = kind(plane, "Machine");
    let status = refusal(machines.create(&PostParams::default(), &machine("lonely", "", None)).await);
    assert!(status.message.contains("spec.class.name: Required value"), "{}", status.message);
    let pool = pool("set");
    let set = object("MachineSet", "set", &json!({"spec": pool.data["spec"]}));
    let set = kind(plane, "MachineSet").create(&PostParams::default(), &set).await?;
    // A controller owner, existing or not, does not make a machine valid.
    let mut made_up = set.clone();
    made_up.metadata.uid = Some("4d9e0a29-3e9c-4b4e-8a5e-000000000000".to_owned());
    for owner in [&set, &made_up] {
        let status = refusal(machines.create(&PostParams::default(), &machine("owned", "", Some(owner))).await);
        assert!(status.message.contains("spec.class.name: Required value"), "{}", status.message);
    }
    machines.create(&PostParams::default(), &machine("kept", "demo-small", Some(&set))).await?;
    // Machines that a controller creates come from a template that was already validated.
    let controller = plane.kubeconfig_for("system:serviceaccount:default:controller", &["system:masters"])?;
    let controller =
        Api::namespaced_with(client(&controller, "webhooks-test/1").await?, "default", &resource("Machine"));
    controller.create(&PostParams::default(), &machine("of-its-set", "", Some(&set))).await?;
    the_schema_has_bounds_of_its_own(plane, &set).await
}

/// The schema applies to every writer, also while no webhook runs, except with machine-controller-manager's definitions.
async fn the_schema_has_bounds_of_its_own(plane: &ControlPlane, set: &DynamicObject) -> TestResult {
    let machines = kind(plane, "Machine");
    for (field, value) in [
        ("drainTimeout", json!("-5m")),
        ("maxEvictRetries", json!(-1)),
        ("class", json!({"kind": "MachineClass", "name": "x".repeat(254)})),
    ] {
        let mut wrong = machine("wrong", "demo-small", Some(set));
        wrong.data["spec"][field] = value;
        let status = refusal(machines.create(&PostParams::default(), &wrong).await);
        assert!(status.message.contains(&format!("spec.{field}")), "{}", status.message);
    }
    for (bound, value) in [("maxSurge", json!("101%")), ("maxUnavailable", json!("200%")), ("maxSurge", json!(-1))] {
        let mut wrong = pool("wrong");
        wrong.data["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {bound: value}});
        let status = refusal(kind(plane, "MachineDeployment").create(&PostParams::default(), &wrong).await);
        assert!(status.message.contains(&format!("spec.strategy.rollingUpdate.{bound}")), "{}", status.message);
    }
    Ok(())
}

/// Another installation may serve them, with its own webhooks.
async fn other_namespaces_are_left_alone(plane: &ControlPlane) -> TestResult {
    let elsewhere = Api::namespaced_with(plane.client(), "kube-public", &resource("MachineDeployment"));
    let created = elsewhere.create(&PostParams::default(), &pool("elsewhere")).await?;
    assert!(created.metadata.annotations.is_none() && created.data["spec"]["strategy"].is_null(), "{created:?}");
    Ok(())
}

/// No webhook runs.
async fn only_specs_need_the_webhooks(plane: &ControlPlane) -> TestResult {
    let (pools, classes, machines) =
        (kind(plane, "MachineDeployment"), kind(plane, "MachineClass"), kind(plane, "Machine"));
    let is_missed = |result: kube::Result<DynamicObject>| {
        let message = refusal(result).message;
        assert!(message.contains("failed calling webhook"), "{message}");
    };
    is_missed(pools.create(&PostParams::default(), &pool("late")).await);
    is_missed(merge(&pools, "filled", json!({"spec": {"replicas": 7}})).await);
    is_missed(merge(&classes, "demo-small", json!({"providerSpec": {"cluster": "other"}})).await);
    is_missed(merge(&classes, "demo-small", json!({"provider": null})).await);
    let annotated = |key: &str| json!({"metadata": {"annotations": {key: "a"}}});
    is_missed(merge(&pools, "filled", annotated("nodewright.dev/deletion-ordr")).await);
    is_missed(merge(&pools, "filled", annotated("node.machine.sapcloud.io/trigger-deletion-by-mcm")).await);
    for key in ["nodewright.dev/sized-for", TRACE, "example.com/a"] {
        merge(&pools, "filled", annotated(key)).await?;
    }

    let metadata = json!({"metadata": {"finalizers": ["machine.sapcloud.io/machine-controller-manager"]}});
    for (api, name) in [(&pools, "filled"), (&classes, "demo-small"), (&machines, "kept")] {
        merge(api, name, metadata.clone()).await?;
    }
    let status = json!({"status": {"replicas": 1}});
    pools.patch_status("filled", &PatchParams::default(), &Patch::Merge(&status)).await?;
    plane.kubectl(["scale", "machinedeployment", "filled", "--replicas=9"]).await?;
    let set = kind(plane, "MachineSet").get("set").await?;
    machines.create(&PostParams::default(), &machine("made-by-a-set", "small", Some(&set))).await?;
    machines.create(&PostParams::default(), &machine("restored", "small", None)).await?;
    merge(&machines, "made-by-a-set", json!({"spec": {"providerID": "simulated:///1"}})).await?;

    for (api, name) in [(&pools, "filled"), (&classes, "demo-small"), (&machines, "kept")] {
        api.delete(name, &DeleteParams::default()).await?;
        assert!(api.get(name).await?.metadata.deletion_timestamp.is_some());
    }
    // During deletion even the spec may change.
    merge(&pools, "filled", json!({"spec": {"replicas": 0}})).await?;
    for (api, name) in [(&pools, "filled"), (&classes, "demo-small"), (&machines, "kept")] {
        merge(api, name, json!({"metadata": {"finalizers": null}})).await?;
        assert!(api.get_opt(name).await?.is_none(), "{name}");
    }
    Ok(())
}

/// A running webhook server, registered by its address.
/// Takes the spans, as the webhooks begin traces only where they are exported.
#[derive(Debug)]
struct Discarding;

impl SpanExporter for Discarding {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

struct Webhook {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Webhook {
    async fn start(plane: &ControlPlane) -> TestResult<Self> {
        let server = WebhookServer::bind(options(plane.client())).await?;
        let readiness = server.readiness();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async { stopped.await.unwrap_or_default() }));
        eventually("the registration", async || Ok(readiness().is_ok())).await?;
        Ok(Self { stop, task })
    }

    async fn stop(self) -> TestResult {
        self.stop.send(()).unwrap();
        Ok(tokio::time::timeout(TIMEOUT, self.task).await??)
    }
}

fn options(client: Client) -> Options {
    let metrics = Arc::new(Metrics::new());
    let agent = HeaderValue::from_static("webhooks-test/1");
    Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        certificates: CertificateSource::Secret {
            namespace: "default".to_owned(),
            name: "nodewright-webhook-certificate".to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
        },
        registration: Registration::Whole { host: "127.0.0.1".to_owned() },
        namespace: "default".to_owned(),
        connection: Connection::new(client, agent, Leadership::unlimited(), 10, metrics),
        provider_specs: Arc::new(cluster_is_given),
        identity: Arc::new(|_| vec!["cluster".to_owned()]),
        extensions: None,
        spans: Spans::new(Arc::new(SimpleSpanProcessor::new(Discarding)), "webhooks-test", 1.0),
        clock: boot_clock(),
        limits: Limits::default(),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "a evaluate may fail")]
fn cluster_is_given(class: &MachineClass) -> Result<Vec<FieldError>, String> {
    let spec: Value = class.provider_spec.parse().unwrap_or_default();
    let path = FieldPath::new("providerSpec").child("cluster");
    let required = || vec![FieldError::required(path, "must be the cluster's name")];
    Ok(if spec["cluster"].is_string() { vec![] } else { required() })
}

fn kind(plane: &ControlPlane, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(plane.client(), "default", &resource(kind))
}

fn resource(kind: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("machine.sapcloud.io", "v1alpha1", kind);
    let plural =
        if kind.kind.ends_with('s') { "machineclasses".to_owned() } else { format!("{}s", kind.kind).to_lowercase() };
    ApiResource::from_gvk_with_plural(&kind, &plural)
}

fn object(kind: &str, name: &str, fields: &Value) -> DynamicObject {
    let mut object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn pool(name: &str) -> DynamicObject {
    let class = json!({"kind": "MachineClass", "name": "demo-small"});
    let template = json!({"metadata": {"labels": {"name": name}}, "spec": {"class": class}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"name": name}}, "template": template});
    object("MachineDeployment", name, &json!({"spec": spec}))
}

fn class(name: &str) -> DynamicObject {
    object("MachineClass", name, &json!({"provider": "simulated", "providerSpec": {"cluster": "demo"}}))
}

fn machine(name: &str, class: &str, set: Option<&DynamicObject>) -> DynamicObject {
    let class = json!({"kind": "MachineClass", "name": class});
    let mut machine = object("Machine", name, &json!({"spec": {"class": class, "providerID": ""}}));
    if let Some(set) = set {
        let owner = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "set",
                            "uid": set.metadata.uid, "controller": true}]);
        machine.metadata.owner_references = serde_json::from_value(owner).unwrap();
    }
    machine
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> kube::Result<DynamicObject> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
}

fn refusal(result: kube::Result<DynamicObject>) -> Status {
    match result {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("it should be refused: {other:?}"),
    }
}
