//! The services of a VM and their settings: what the image of a real VM brings along.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use nodewright_e2e_cloud::address::{PODS, node_address, pod_subnet};
use serde_json::{Value, json};

use super::supervise::{Service, Supervised, reap};
use crate::node::{NodeError, VmSpec, command::run, image::PAUSE, requirements::CNI_PLUGINS, wait::wait_for};

pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// How long containerd may take until it accepts connections.
const CONTAINERD_TIMEOUT: Duration = Duration::from_mins(1);
/// The kubeconfig that the kubelet writes once it has its certificate.
pub(super) const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

/// containerd. Version 2 of its configuration is understood by all versions since 1.3.
pub(super) fn containerd() -> Result<Service, NodeError> {
    let config = format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
# Both want directories that are read-only here.
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without the capability SYS_RESOURCE the kernel refuses lower values.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"#
    );
    let path = write("/etc/containerd/config.toml", &config)?;
    let arguments = vec!["--config".to_owned(), path.display().to_string()];
    Ok(Service { name: "containerd", program: "containerd".into(), arguments, after: None, unless: None })
}

/// Imports the images that each VM begins with, once in the life of the disk.
pub(super) fn import_images(images: &Path, containerd: &mut Supervised) -> Result<(), NodeError> {
    let answers = || {
        reap(std::slice::from_mut(containerd));
        let answers = UnixStream::connect(CONTAINERD_SOCKET).is_ok();
        (answers || !containerd.is_running()).then_some(answers)
    };
    if wait_for(CONTAINERD_TIMEOUT, answers) != Some(true) {
        return Err(NodeError::Late("containerd does not answer; see containerd.log".to_owned()));
    }
    let done = Path::new("/var/lib/containerd/imported");
    if !done.exists() {
        run("ctr", ["--namespace", "k8s.io", "images", "import", &images.display().to_string()])?;
        fs::write(done, "").map_err(NodeError::file("write", done))?;
    }
    Ok(())
}

/// The kubelet. Its configuration is a file of the user data, with a drop-in for what belongs to this VM. `flag` keeps it from
/// starting.
pub(super) fn kubelet(
    binaries: &Path,
    config: &str,
    flag: Option<PathBuf>,
    spec: &VmSpec,
) -> Result<Service, NodeError> {
    write("/etc/cni/net.d/10-pods.conflist", &pod_network(spec).to_string())?;
    write("/etc/kubernetes/kubelet.conf.d/10-vm.conf", &kubelet_drop_in(spec).to_string())?;
    // With an IP of its own, the kubelet would set its addresses itself.
    let cloud_or_ip = if spec.has_external_cloud_provider {
        "--cloud-provider=external".to_owned()
    } else {
        format!("--node-ip={}", node_address(spec.number))
    };
    let labels: Vec<_> = spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let arguments = vec![
        format!("--config={config}"),
        "--config-dir=/etc/kubernetes/kubelet.conf.d".to_owned(),
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig".to_owned(),
        format!("--kubeconfig={KUBECONFIG}"),
        "--cert-dir=/var/lib/kubelet/pki".to_owned(),
        format!("--hostname-override={}", spec.name),
        cloud_or_ip,
        format!("--node-labels={}", labels.join(",")),
    ];
    let program = binaries.join("kubelet");
    Ok(Service { name: "kubelet", program, arguments, after: None, unless: flag })
}

fn kubelet_drop_in(spec: &VmSpec) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "providerID": if spec.has_external_cloud_provider { "" } else { &spec.provider_id },
        "registerWithTaints": spec.taints,
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        // The host may have cgroup v1 or swap.
        "failCgroupV1": false,
        "failSwapOn": false,
        // The disk is the host's, which may be nearly full.
        "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
    })
}

/// A network for pods in which all traffic is routed, so that it passes the rules of kube-proxy.
fn pod_network(spec: &VmSpec) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": pod_subnet(spec.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }]})
}

/// kube-proxy, with the kubelet's credentials.
pub(super) fn kube_proxy(binaries: &Path, spec: &VmSpec) -> Result<Service, NodeError> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": KUBECONFIG},
        "hostnameOverride": spec.name,
        "clusterCIDR": PODS,
        "detectLocalMode": "ClusterCIDR",
        // The limits of connection tracking belong to the whole kernel.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    });
    let path = write("/etc/kubernetes/kube-proxy.json", &config.to_string())?;
    let arguments = vec![format!("--config={}", path.display())];
    let (program, after) = (binaries.join("kube-proxy"), Some(PathBuf::from(KUBECONFIG)));
    Ok(Service { name: "kube-proxy", program, arguments, after, unless: None })
}

pub(super) fn write(path: &str, content: &str) -> Result<PathBuf, NodeError> {
    let path = PathBuf::from(path);
    let parent = path.parent().unwrap_or(&path);
    fs::create_dir_all(parent).and_then(|()| fs::write(&path, content)).map_err(NodeError::file("write", &path))?;
    Ok(path)
}
