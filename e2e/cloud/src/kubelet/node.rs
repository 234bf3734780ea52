//! The objects that a kubelet writes: its Node, the status of the Node, its Lease.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
    },
};

use super::{
    KubeletSpec, SIMULATED_LABEL, Settings,
    schedule::{ObservedNode, Ready},
};

/// The Node that the kubelet registers: not ready yet.
pub(super) fn registration(name: &str, spec: &KubeletSpec, settings: &Settings, now: Timestamp) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels(name, spec)),
            annotations: Some(annotations()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: (!spec.has_external_cloud_provider).then(|| spec.provider_id.clone()),
            taints: taints(spec),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(addresses(name, spec)),
            ..status(name, spec, settings, Ready::False, now, now)
        }),
    }
}

/// The labels that every kubelet sets, and those of the machine.
pub(super) fn labels(name: &str, spec: &KubeletSpec) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", ARCHITECTURE),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", ARCHITECTURE),
        (SIMULATED_LABEL, "true"),
    ];
    let instance_type = ("node.kubernetes.io/instance-type", spec.instance_type.as_str());
    let own = own.into_iter().chain(Some(instance_type).filter(|_| !spec.has_external_cloud_provider));
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    spec.labels.clone().into_iter().chain(own).collect()
}

/// As by default, Kubernetes' attach-detach controller attaches the volumes of the Node's Pods.
fn annotations() -> BTreeMap<String, String> {
    BTreeMap::from([("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned())])
}

const ARCHITECTURE: &str = "amd64";

fn taints(spec: &KubeletSpec) -> Option<Vec<Taint>> {
    let uninitialized = spec.has_external_cloud_provider.then(|| Taint {
        key: "node.cloudprovider.kubernetes.io/uninitialized".to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    });
    let all: Vec<_> = uninitialized.into_iter().chain(spec.taints.iter().cloned()).collect();
    (!all.is_empty()).then_some(all)
}

/// The addresses that the kubelet registers. With an external cloud provider it knows its name only.
fn addresses(name: &str, spec: &KubeletSpec) -> Vec<NodeAddress> {
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    let own = Some(address("InternalIP", &spec.address)).filter(|_| !spec.has_external_cloud_provider);
    own.into_iter().chain([address("Hostname", name)]).collect()
}

/// The status that the kubelet posts. `since` is the transition time of the Ready condition. With an external cloud provider the
/// addresses stay as they are.
pub(super) fn status(
    name: &str,
    spec: &KubeletSpec,
    settings: &Settings,
    ready: Ready,
    since: Timestamp,
    now: Timestamp,
) -> NodeStatus {
    let total = resources(spec.cores * 1_000, spec.memory_gib * 1_024);
    // Allocatable resources: without the usual reserve for the system.
    let free = resources(spec.cores * 1_000 - 80, spec.memory_gib * 1_024 - 512);
    NodeStatus {
        addresses: (!spec.has_external_cloud_provider).then(|| addresses(name, spec)),
        capacity: Some(total),
        allocatable: Some(free),
        conditions: Some(conditions(spec, ready, since, now)),
        node_info: Some(system_info(spec, settings)),
        ..NodeStatus::default()
    }
}

fn resources(millicores: u32, memory_mib: u32) -> BTreeMap<String, Quantity> {
    [
        ("cpu", format!("{millicores}m")),
        ("memory", format!("{memory_mib}Mi")),
        ("ephemeral-storage", "50Gi".to_owned()),
        ("pods", "110".to_owned()),
    ]
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .into()
}

fn conditions(spec: &KubeletSpec, ready: Ready, since: Timestamp, now: Timestamp) -> Vec<NodeCondition> {
    let condition = |type_: &str, status: &str, reason: &str, message: &str, since| NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(since)),
    };
    let booted = spec.running_since;
    let (reason, message) = match ready {
        Ready::True => ("KubeletReady", "kubelet is posting ready status"),
        Ready::False | Ready::Unknown => ("KubeletNotReady", "container runtime is down"),
    };
    vec![
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            booted,
        ),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure", booted),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available", booted),
        condition("Ready", ready.as_str(), reason, message, since),
    ]
}

fn system_info(spec: &KubeletSpec, settings: &Settings) -> NodeSystemInfo {
    let machine = spec.provider_id.rsplit('/').next().unwrap_or_default().to_owned();
    NodeSystemInfo {
        architecture: ARCHITECTURE.to_owned(),
        // Each boot has another ID.
        boot_id: format!("{machine}-{}", spec.running_since.as_millisecond()),
        container_runtime_version: "simulated://1.0.0".to_owned(),
        kernel_version: "6.12.0-simulated".to_owned(),
        kube_proxy_version: String::new(),
        kubelet_version: settings.kubelet_version.to_owned(),
        machine_id: machine.clone(),
        operating_system: "linux".to_owned(),
        os_image: "Simulated Linux".to_owned(),
        system_uuid: machine,
        ..NodeSystemInfo::default()
    }
}

/// The Lease of the Node, in `kube-node-lease`, owned by the Node.
pub(super) fn lease(name: &str, uid: &str, settings: &Settings, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(settings.lease_duration_seconds),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

/// The parts of a Node that a kubelet uses.
pub(super) fn seen(metadata: &ObjectMeta, conditions: &[NodeCondition]) -> ObservedNode {
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    ObservedNode {
        uid: metadata.uid.clone().unwrap_or_default(),
        version: metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0),
        ready: ready.map(|condition| {
            let status = match condition.status.as_str() {
                "True" => Ready::True,
                "False" => Ready::False,
                _ => Ready::Unknown,
            };
            let since = condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
            (status, since)
        }),
    }
}
