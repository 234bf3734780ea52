//! The first process of a VM, inside its namespaces: what firmware, cloud-init and systemd do elsewhere.

pub(crate) mod cloud_config;
mod filesystem;
mod services;
mod supervise;
mod systemd;
mod systemd_root;

use std::{fs, path::Path, time::Duration};

use cloud_config::CloudConfig;
use nodewright_e2e_cloud::address::{GATEWAY, NODE_PREFIX, node_address};
use supervise::Supervised;

use crate::node::{NodeError, VmSpec, command::run_with, network, vm::kubelet_flag, wait::wait_for};

/// How long the cable may take to be plugged in.
const CABLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Boots the VM, and runs its services until it is killed.
pub fn run(nodes: &Path, id: &str) -> Result<(), NodeError> {
    let directory = network::vms(nodes).join(id);
    let file = directory.join("spec.json");
    let text = fs::read_to_string(&file).map_err(NodeError::file("read", &file))?;
    let spec: VmSpec = serde_json::from_str(&text).map_err(|error| NodeError::UserData(error.to_string()))?;
    // Of this UTS namespace only.
    let host_name = "/proc/sys/kernel/hostname";
    fs::write(host_name, &spec.name).map_err(NodeError::file("write", host_name))?;
    if let Some(image) = &spec.image {
        return systemd::boot(nodes, &directory, image, &spec);
    }
    filesystem::set_up(&directory)?;
    set_up_network(&spec)?;
    first_boot(&spec)?;
    let mut containerd = Supervised::start(services::containerd()?)?;
    services::import_images(&network::images(nodes), &mut containerd)?;
    let (binaries, flag) = (network::binaries(nodes), kubelet_flag(&directory));
    let kubelet = services::kubelet(&binaries, "/etc/kubernetes/kubelet.yaml", Some(flag), &spec)?;
    let services = [kubelet, services::kube_proxy(&binaries, &spec)?];
    supervise::run(std::iter::once(containerd).chain(services.map(Supervised::new)).collect())
}

fn set_up_network(spec: &VmSpec) -> Result<(), NodeError> {
    wait_for(CABLE_TIMEOUT, || Path::new("/sys/class/net/eth0").exists().then_some(()))
        .ok_or_else(|| NodeError::Late("no cable was plugged in".to_owned()))?;
    let address = node_address(spec.number);
    let commands = format!(
        "link set lo up\naddress add {address}/{NODE_PREFIX} dev eth0\nlink set eth0 up\nroute add default via {GATEWAY}\n"
    );
    run_with("ip", ["-batch", "-"], &commands).map(drop)
}

/// Does what the user data says, once in the life of the disk.
fn first_boot(spec: &VmSpec) -> Result<(), NodeError> {
    let done = Path::new("/var/lib/cloud/done");
    if done.exists() {
        return Ok(());
    }
    CloudConfig::parse(&spec.user_data)?.apply()?;
    fs::create_dir_all("/var/lib/cloud").and_then(|()| fs::write(done, "")).map_err(NodeError::file("write", done))
}
