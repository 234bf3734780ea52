//! The fake cloud over HTTP, and its kubelets on a real control plane.

use std::{error::Error, fmt::Debug, future::Future, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, NodeCondition, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use nodewright_e2e_cloud::{
    CloudClient, Code, CreateVm, Effect, EventKind, FaultOperation, FaultOrder, KubeletOrder, Options, Server,
    Settings, Taint, Vm, VmState, kubelet::TERMINATION_ANNOTATION,
};
use nodewright_e2e_lab::{
    cloud::{CloudProcess, CloudProcessOptions},
    control_plane::{Component, ControlPlane, ControlPlaneOptions},
};
use serde_json::{Value, json};

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(20);
/// The timeout for operations that a busy computer may delay.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A cloud in this process whose machines boot at once.
async fn quick_cloud() -> TestResult<(Server, CloudClient)> {
    let settings = Settings {
        boot_seconds: 0.0,
        delete_seconds: 0.0,
        create_latency_seconds: 0.0,
        boot_jitter: 0.0,
        ..Settings::default()
    };
    let options = Options { listen: ([127, 0, 0, 1], 0).into(), state: None, settings, kubelets: None };
    let server = Server::start(options).await?;
    let client = CloudClient::new(server.url());
    Ok((server, client))
}

fn order(name: &str) -> CreateVm {
    CreateVm { name: name.to_owned(), token: format!("token-{name}"), ..CreateVm::default() }
}

#[tokio::test]
async fn a_vm_is_made_listed_and_deleted_over_http() -> TestResult {
    let (_server, cloud) = quick_cloud().await?;
    let tagged = |name: &str, value: &str| {
        let mut order = order(name);
        order.tags.insert("odd key/&=".to_owned(), value.to_owned());
        order
    };
    let a = cloud.create(&tagged("a", "x y")).await?;
    assert_eq!(cloud.create(&tagged("a", "x y")).await?.id, a.id);
    assert_eq!(cloud.create(&order("a")).await.unwrap_err().code(), Some(Code::AlreadyExists));
    cloud.create(&tagged("b", "z")).await?;
    let found = cloud.vms_where(&[("odd key/&=".to_owned(), "x y".to_owned())].into()).await?;
    assert_eq!(found.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(cloud.vm_named("b").await?.map(|vm| vm.name).as_deref(), Some("b"));
    cloud.wait_for_vms("running", SOON, |vms| vms.iter().all(|vm| vm.state == VmState::Running)).await?;
    assert_eq!(cloud.delete(&a.id).await?.state, VmState::Deleting);
    cloud.wait_for_count(1, SOON).await?;
    assert_eq!(cloud.get(&a.id).await?, None);
    assert_eq!(cloud.create(&tagged("a", "x y")).await.unwrap_err().code(), Some(Code::FailedPrecondition));
    Ok(())
}

#[tokio::test]
async fn callers_that_name_themselves_are_distinguished() -> TestResult {
    let (_server, cloud) = quick_cloud().await?;
    let named = |name: &str| CloudClient::new(format!("{}/as/{name}", cloud.url())).as_customer();
    let (a, b) = (named("a"), named("b"));
    let vm = a.create(&order("m")).await?;
    assert_eq!(b.get(&vm.id).await?.map(|vm| vm.name).as_deref(), Some("m"), "the cloud is the same");
    assert_eq!(b.vm_named("m").await?.map(|vm| vm.id), Some(vm.id));
    cloud.vms().await?;
    assert_eq!(cloud.stats().await?.callers, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
    Ok(())
}

#[tokio::test]
async fn a_long_list_has_all_its_pages() -> TestResult {
    let (_server, cloud) = quick_cloud().await?;
    for number in 0..1_203 {
        cloud.create(&order(&format!("m{number}"))).await?;
    }
    assert_eq!(cloud.vms().await?.len(), 1_203);
    let created = cloud.events(0).await?.iter().filter(|it| it.kind == EventKind::CreateAccepted).count();
    assert_eq!(created, 1_203);
    Ok(())
}

#[tokio::test]
async fn a_cut_connection_and_garbage_are_what_they_say() -> TestResult {
    let (_server, cloud) = quick_cloud().await?;
    let customer = cloud.as_customer();
    cloud.fault(&FaultOrder::always(FaultOperation::Create, Effect::Cut { applied: true }).times(1)).await?;
    let error = customer.create(&order("a")).await.unwrap_err().to_string();
    assert!(error.contains("is the cloud running?"), "{error}");
    assert_eq!(cloud.vms().await?.len(), 1);
    cloud.fault(&FaultOrder::always(FaultOperation::Any, Effect::Garbage).times(1)).await?;
    let error = customer.create(&order("b")).await.unwrap_err().to_string();
    assert!(error.contains("status 502"), "{error}");
    cloud.fault(&FaultOrder::always(FaultOperation::Get, Effect::Hang { applied: true })).await?;
    let hung = tokio::time::timeout(Duration::from_millis(300), customer.get("vm-1")).await;
    assert!(hung.is_err(), "{hung:?}");
    let calls = cloud.stats().await?.calls;
    assert_eq!((calls["create"]["cut"], calls["create"]["garbage"], calls["get"]["hung"]), (1, 1, 1));
    assert_eq!(cloud.faults().await?.len(), 1);
    cloud.clear_faults().await?;
    assert_eq!(customer.get("vm-1").await?, None);
    Ok(())
}

#[tokio::test]
async fn what_is_asked_wrongly_is_answered_clearly() -> TestResult {
    let (server, cloud) = quick_cloud().await?;
    let huge = CreateVm { user_data: Some("x".repeat(300_000)), ..order("a") };
    assert_eq!(cloud.create(&huge).await.unwrap_err().code(), Some(Code::InvalidArgument));
    let answer = raw(&server, "GET /vms?colour=red HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"colour\\\""), "{answer}");
    let answer = raw(&server, "GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("\"code\":\"NotFound\""), "{answer}");
    let nested = "[".repeat(10_000);
    let head =
        format!("POST /vms HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", nested.len());
    let answer = raw(&server, &(head + &nested)).await?;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    Ok(())
}

async fn raw(server: &Server, request: &str) -> TestResult<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(server.address()).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn the_process_remembers_over_a_crash() -> TestResult {
    let flags = ["--boot-seconds=0", "--delete-seconds=0", "--create-latency-ms=0"].map(str::to_owned).to_vec();
    let mut process = CloudProcess::start(CloudProcessOptions { flags, ..CloudProcessOptions::default() })?;
    let cloud = process.client();
    let ids: Vec<String> = futures::future::try_join_all((0..50).map(|number| {
        let order = order(&format!("m{number}"));
        let cloud = cloud.clone();
        async move { cloud.create(&order).await.map(|vm| vm.id) }
    }))
    .await?;
    cloud.delete(&ids[0]).await?;
    cloud.wait_for_count(49, SOON).await?;
    cloud.set_quota(Some(49)).await?;
    process.crash_and_restart()?;
    let cloud = process.client();
    assert_eq!(cloud.vms().await?.len(), 49);
    let known = cloud.create(&order("m1")).await?;
    assert!(ids.contains(&known.id), "the token is known");
    assert_eq!(cloud.create(&order("m0")).await.unwrap_err().code(), Some(Code::FailedPrecondition));
    assert_eq!(cloud.create(&order("new")).await.unwrap_err().code(), Some(Code::ResourceExhausted));
    let stats = cloud.stats().await?;
    assert_eq!((stats.created, stats.deleted, stats.live, stats.most_live_at_once), (50, 1, 49, 50));
    Ok(())
}

#[tokio::test]
async fn the_process_says_why_it_does_not_start() -> TestResult {
    let (server, _cloud) = quick_cloud().await?;
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    let flags = vec!["--kubeconfig=/nowhere".to_owned()];
    let options = CloudProcessOptions { log: Some(log.clone()), flags, ..CloudProcessOptions::default() };
    assert!(CloudProcess::start(options).is_err());
    let said = std::fs::read_to_string(&log)?;
    assert!(said.contains("/nowhere") && said.contains("--kubeconfig"), "{said}");
    let taken = Options { listen: server.address(), state: None, settings: Settings::default(), kubelets: None };
    let error = Server::start(taken).await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("--listen"), "{error}");
    Ok(())
}

/// Kubelets on a real control plane: one plane, and one cloud whose machines meet many faults.
#[tokio::test]
async fn kubelets_do_what_kubelets_do() -> TestResult {
    let options = ControlPlaneOptions {
        node_monitor_grace_period: Some(Duration::from_secs(8)),
        ..ControlPlaneOptions::default()
    };
    let plane = ControlPlane::start(options).await?;
    let flags = ["--boot-seconds=0.2", "--create-latency-ms=0", "--lease-seconds=1", "--register-again-seconds=1"];
    let mut process = CloudProcess::start(CloudProcessOptions {
        kubeconfig: Some(plane.kubeconfig_path()),
        flags: flags.map(str::to_owned).to_vec(),
        ..CloudProcessOptions::default()
    })?;
    let setup = Setup::new(&process, plane.client());
    // The scenes are independent: each has its own machines.
    tokio::try_join!(
        setup.a_machine_joins(),
        setup.a_deleted_machine_falls_silent(),
        setup.a_silent_kubelet_is_missed_and_comes_back(),
        setup.a_kubelet_flaps(),
        setup.a_kubelet_takes_another_name_and_one_more(),
        setup.a_deleted_node_is_registered_again(),
        setup.pods_run_and_end(),
    )?;
    process.crash_and_restart()?;
    let setup = Setup::new(&process, plane.client());
    setup.a_cloud_that_crashed_goes_on("joins").await?;
    plane.restart(Component::ApiServer).await?;
    setup.the_lease_is_renewed("joins").await?;
    setup.joined("late").await?;
    Ok(())
}

struct Setup {
    cloud: CloudClient,
    nodes: Api<Node>,
    leases: Api<Lease>,
    pods: Api<Pod>,
}

impl Setup {
    fn new(process: &CloudProcess, client: kube::Client) -> Self {
        Self {
            cloud: process.client(),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), "kube-node-lease"),
            pods: Api::default_namespaced(client),
        }
    }

    async fn a_machine_joins(&self) -> TestResult {
        let mut order = order("joins");
        order.size = Some("large".to_owned());
        order.node.labels.insert("topology.kubernetes.io/zone".to_owned(), "zone-1".to_owned());
        let effect = "NoSchedule".to_owned();
        order.node.taints.push(Taint { key: "example.com/new".to_owned(), value: None, effect });
        let vm = self.cloud.create(&order).await?;
        let node = self.ready("joins", "True").await?;
        assert_eq!(provider_id(&node), vm.provider_id);
        let labels = node.metadata.labels.clone().unwrap_or_default();
        for (key, value) in [
            ("kubernetes.io/hostname", "joins"),
            ("node.kubernetes.io/instance-type", "large"),
            ("topology.kubernetes.io/zone", "zone-1"),
            ("nodewright.dev/simulated", "true"),
        ] {
            assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
        }
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        assert!(taints.iter().any(|taint| taint.key == "example.com/new"), "{taints:?}");
        let status = node.status.unwrap_or_default();
        assert_eq!(status.capacity.unwrap_or_default()["cpu"].0, "8");
        let conditions: Vec<String> = status.conditions.unwrap_or_default().into_iter().map(|it| it.type_).collect();
        assert_eq!(conditions, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        let first = self.renewed("joins").await?;
        eventually("the lease is renewed", || async { Ok((self.renewed("joins").await? > first).then_some(())) })
            .await?;
        let lease = self.leases.get("joins").await?;
        assert_eq!(lease.metadata.owner_references.unwrap_or_default()[0].uid, node.metadata.uid.unwrap_or_default());
        Ok(())
    }

    async fn a_deleted_machine_falls_silent(&self) -> TestResult {
        let vm = self.joined("deleted").await?;
        self.cloud.delete(&vm.id).await?;
        // Requests that were in flight at the time of the order may still arrive.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let last = self.renewed("deleted").await?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(self.renewed("deleted").await?, last);
        Ok(())
    }

    async fn a_silent_kubelet_is_missed_and_comes_back(&self) -> TestResult {
        let vm = self.joined("silent").await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Silence).await?;
        self.ready("silent", "Unknown").await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Revive).await?;
        let before = Timestamp::now();
        let node = self.ready("silent", "True").await?;
        let condition = ready_condition(&node).ok_or("no Ready condition")?;
        let moved = condition.last_transition_time.ok_or("no transition")?.0;
        assert!(moved.duration_until(before).abs().as_secs() < 60, "{moved}");
        Ok(())
    }

    async fn a_kubelet_flaps(&self) -> TestResult {
        let vm = self.joined("flaps").await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Flap { seconds: 1.5 }).await?;
        for status in ["False", "True", "False"] {
            self.ready("flaps", status).await?;
        }
        self.cloud.kubelet(&vm.id, &KubeletOrder::NotReady).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.ready("flaps", "False").await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Ready).await?;
        self.ready("flaps", "True").await?;
        Ok(())
    }

    async fn a_kubelet_takes_another_name_and_one_more(&self) -> TestResult {
        let vm = self.joined("first-name").await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Rename { node_name: "second-name".to_owned() }).await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::RegisterAlso { node_name: "third-name".to_owned() }).await?;
        for name in ["second-name", "third-name"] {
            assert_eq!(provider_id(&self.ready(name, "True").await?), vm.provider_id);
        }
        self.ready("first-name", "Unknown").await?;
        Ok(())
    }

    async fn a_deleted_node_is_registered_again(&self) -> TestResult {
        self.joined("again").await?;
        let before = self.ready("again", "True").await?.metadata.uid;
        self.nodes.delete("again", &DeleteParams::default()).await?;
        eventually("the node is new", || async {
            let node = self.nodes.get_opt("again").await?;
            Ok(node.filter(|node| node.metadata.uid != before && is_ready(node, "True")).map(drop))
        })
        .await
    }

    async fn pods_run_and_end(&self) -> TestResult {
        let vm = self.joined("pods").await?;
        let quick = self.pod("quick", json!({})).await?;
        let never = self.pod("never", json!({ TERMINATION_ANNOTATION: "never" })).await?;
        for pod in [&quick, &never] {
            eventually("the pod runs", || async {
                let status = self.pods.get(pod).await?.status.unwrap_or_default();
                let ready =
                    status.conditions.unwrap_or_default().iter().any(|it| it.type_ == "Ready" && it.status == "True");
                Ok((ready && status.pod_ip.is_some()).then_some(()))
            })
            .await?;
            self.pods.delete(pod, &DeleteParams::default()).await?;
        }
        self.pod_is_gone(&quick).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(self.pods.get_opt(&never).await?.is_some());

        let stuck = self.pod("stuck", json!({})).await?;
        self.cloud.kubelet(&vm.id, &KubeletOrder::Silence).await?;
        self.pods.delete(&stuck, &DeleteParams::default()).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(self.pods.get_opt(&stuck).await?.is_some(), "nobody is there to end it");
        self.cloud.kubelet(&vm.id, &KubeletOrder::Revive).await?;
        self.pod_is_gone(&stuck).await
    }

    async fn a_cloud_that_crashed_goes_on(&self, name: &str) -> TestResult {
        self.the_lease_is_renewed(name).await?;
        let node = self.ready(name, "True").await?;
        let condition = ready_condition(&node).ok_or("no Ready condition")?;
        assert!(condition.last_transition_time < condition.last_heartbeat_time, "{condition:?}");
        let running = self.cloud.vms().await?.iter().filter(|vm| vm.state == VmState::Running).count();
        let listed = self.nodes.list(&ListParams::default()).await?.items.len();
        // One VM is deleted and its Node stays; one has three names.
        assert_eq!((running, listed), (6, 9));
        Ok(())
    }

    async fn the_lease_is_renewed(&self, name: &str) -> TestResult {
        let before = self.renewed(name).await?;
        eventually("the lease is renewed", || async { Ok((self.renewed(name).await? > before).then_some(())) }).await
    }

    async fn joined(&self, name: &str) -> TestResult<Vm> {
        let vm = self.cloud.create(&order(name)).await?;
        self.ready(name, "True").await?;
        Ok(vm)
    }

    async fn ready(&self, name: &str, status: &str) -> TestResult<Node> {
        eventually(&format!("node {name} has Ready={status}"), || async {
            Ok(self.nodes.get_opt(name).await?.filter(|node| is_ready(node, status)))
        })
        .await
    }

    async fn renewed(&self, name: &str) -> TestResult<Timestamp> {
        eventually(&format!("node {name} has a lease"), || async {
            let lease = self.leases.get_opt(name).await?;
            Ok(lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0))
        })
        .await
    }

    async fn pod(&self, name: &str, annotations: Value) -> TestResult<String> {
        let pod = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "nodeName": "pods", "containers": [{ "name": "c", "image": "example.com/image" }] },
        });
        let pod: Pod = serde_json::from_value(pod)?;
        // Pods are refused until the controller manager has created the service account.
        eventually("a pod may be made", || async {
            match self.pods.create(&PostParams::default(), &pod).await {
                Ok(_) => Ok(Some(())),
                Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
        Ok(name.to_owned())
    }

    async fn pod_is_gone(&self, name: &str) -> TestResult {
        let gone = || async { Ok(self.pods.get_opt(name).await?.is_none().then_some(())) };
        eventually(&format!("pod {name} is gone"), gone).await
    }
}

fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

fn ready_condition(node: &Node) -> Option<NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready").cloned()
}

fn is_ready(node: &Node, status: &str) -> bool {
    ready_condition(node).is_some_and(|condition| condition.status == status)
}

/// Polls until the function returns a value, and returns it.
async fn eventually<T: Debug, F: Future<Output = TestResult<Option<T>>>>(
    what: &str,
    look: impl Fn() -> F,
) -> TestResult<T> {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        if started.elapsed() > TIMEOUT {
            return Err(format!("waited {TIMEOUT:?} in vain until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
