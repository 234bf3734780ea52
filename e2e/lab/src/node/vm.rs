//! A VM from the outside: its power switch, its cable, its disk.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nodewright_e2e_cloud::address;
use rustix::process::{Pid, Signal, getpgid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    node::{
        BINARY, BINARY_VARIABLE, NodeError,
        cgroup::{self, Cgroup},
        command::run_with,
        network::{network_pid, vms},
        switch::BRIDGE,
        wait::wait_for,
    },
    process::{executable, write_private},
};

/// How long the first process of a VM may take to begin.
const BOOT_TIMEOUT: Duration = Duration::from_secs(20);

/// What a VM is made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmSpec {
    /// The host name, which is the name of its Node.
    pub name: String,
    /// `spec.providerID` of its Node, which a kubelet with an external cloud provider leaves to that.
    pub provider_id: String,
    /// Whether its kubelet leaves to an external cloud provider what it does not know of its VM.
    #[serde(default)]
    pub has_external_cloud_provider: bool,
    /// Determines its addresses: unique among the VMs of a network.
    pub number: u64,
    /// The user data, a cloud-config. Nothing else tells the VM how to join a cluster.
    pub user_data: String,
    /// Labels of its Node at its registration.
    pub labels: BTreeMap<String, String>,
    /// Taints of its Node at its registration, as in a Node.
    pub taints: Vec<Value>,
    /// Its first process is the host's systemd, and this directory is its `/opt`. `None`: the first process is ours.
    pub image: Option<PathBuf>,
}

/// How a VM should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Desired {
    /// Whether its power is on.
    pub running: bool,
    /// Whether all its processes are stopped.
    pub hung: bool,
    /// Whether its kubelet is stopped, or does not start.
    pub kubelet_stopped: bool,
    /// How often its kubelet was ended; it starts again each time.
    pub kubelet_restarts: u64,
    /// Whether its cable is unplugged.
    pub network_cut: bool,
    /// How many bytes it may read and write per second. `None`: no limit.
    pub disk_bytes_per_second: Option<u64>,
}

/// A VM in the directory of a network. Dropping this changes nothing.
#[derive(Debug)]
pub struct Vm {
    id: String,
    network: u32,
    nodes: PathBuf,
    directory: PathBuf,
    applied: Option<Desired>,
}

impl Vm {
    /// The VM with this id, whether it exists or not. `nodes` is the directory of its network.
    pub fn new(nodes: &Path, id: &str) -> Result<Self, NodeError> {
        let directory = vms(nodes).join(id);
        Ok(Self { id: id.to_owned(), network: network_pid(nodes)?, nodes: nodes.to_owned(), directory, applied: None })
    }

    /// The ids of the VMs that have a disk in the directory of a network.
    pub fn ids(nodes: &Path) -> Vec<String> {
        let entries = fs::read_dir(vms(nodes)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Makes the VM as it should be. Blocks for some milliseconds. Call it again after an error.
    pub fn apply(&mut self, spec: &VmSpec, desired: &Desired) -> Result<(), NodeError> {
        if !desired.running {
            self.applied = None;
            return self.power_off();
        }
        if self.first_process().is_none() {
            self.set_kubelet_flag(desired.kubelet_stopped)?;
            self.boot(spec)?;
            self.applied = Some(Desired { kubelet_stopped: desired.kubelet_stopped, ..Desired::default() });
        }
        // After a restart of the caller it is not known what was done before: everything is done again, except restarts.
        let unknown = self.applied.is_none();
        let before = self.applied.clone().unwrap_or_default();
        let group = Cgroup::of_vm(self.network, &self.id);
        if unknown || before.network_cut != desired.network_cut {
            self.ip(&format!("link set {} {}", cable(spec), if desired.network_cut { "down" } else { "up" }))?;
            self.route(spec)?;
        }
        if before.disk_bytes_per_second != desired.disk_bytes_per_second {
            group.limit_disk(&self.directory, desired.disk_bytes_per_second)?;
        }
        if before.kubelet_restarts < desired.kubelet_restarts && !unknown {
            group.signal(Some("kubelet"), Signal::TERM);
        }
        self.set_kubelet_flag(desired.kubelet_stopped)?;
        group.signal(None, if desired.hung { Signal::STOP } else { Signal::CONT });
        if desired.kubelet_stopped {
            group.signal(Some("kubelet"), Signal::STOP);
        }
        self.applied = Some(desired.clone());
        Ok(())
    }

    /// Ends all its processes at once. Its disk stays. Does nothing if it does not run.
    pub fn power_off(&self) -> Result<(), NodeError> {
        if let Some(first) = self.first_process() {
            cgroup::send(first, Signal::KILL);
        }
        Cgroup::of_vm(self.network, &self.id).end()?;
        let file = self.pid_file();
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(NodeError::file("remove", file)(error)),
            _ => Ok(()),
        }
    }

    /// Ends it, and removes its disk.
    pub fn delete(&self) -> Result<(), NodeError> {
        self.power_off()?;
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(NodeError::file("remove the disk", &self.directory)(error))
            }
            _ => Ok(()),
        }
    }

    fn boot(&self, spec: &VmSpec) -> Result<(), NodeError> {
        // A boot may have been cut short.
        self.power_off()?;
        let group = Cgroup::of_vm(self.network, &self.id);
        group.create()?;
        let text = serde_json::to_string(spec).map_err(|error| NodeError::UserData(error.to_string()))?;
        write_private(&self.directory.join("spec.json"), &text)?;
        let console = self.directory.join("console.log");
        let console =
            File::options().create(true).append(true).open(&console).map_err(NodeError::file("open", console))?;
        let mut launcher = Command::new(executable(BINARY, BINARY_VARIABLE)?);
        launcher.arg("launch").arg(&self.nodes).arg(&self.id).stdin(Stdio::null());
        let stderr = console.try_clone().map_err(NodeError::file("open", "the console"))?;
        // In the process group of the network, so that its supervisor ends it.
        let leader = i32::try_from(self.network).ok().and_then(Pid::from_raw);
        let processes = getpgid(leader).map_err(|error| NodeError::file("find", "the process group")(error.into()))?;
        launcher.stdout(console).stderr(stderr).process_group(processes.as_raw_nonzero().get());
        let mut launcher = launcher.spawn().map_err(NodeError::file("start", BINARY))?;
        let (parent, first) = (launcher.id(), first_child(launcher.id()));
        // It ends with the VM. Somebody has to wait for it.
        std::thread::spawn(move || drop(launcher.wait()));
        let Some(first) = first else {
            let console = fs::read_to_string(self.directory.join("console.log")).unwrap_or_default();
            return Err(NodeError::Late(format!(
                "the first process of VM {} did not begin: {}",
                self.id,
                console.trim()
            )));
        };
        group.make_room(parent)?;
        let identity = format!("{first} {}", started_at(first).unwrap_or_default());
        fs::write(self.pid_file(), identity).map_err(NodeError::file("write", self.pid_file()))?;
        self.plug_in(spec, first)
    }

    /// Connects the VM, whose first process this is, to the bridge.
    fn plug_in(&self, spec: &VmSpec, first: u32) -> Result<(), NodeError> {
        let cable = cable(spec);
        // The kernel removes the cable of an ended VM a moment later.
        let _ = self.ip(&format!("link delete {cable}"));
        self.ip(&format!(
            "link add {cable} type veth peer name eth0 netns {first}\nlink set {cable} master {BRIDGE}\nlink set {cable} up"
        ))?;
        self.route(spec)
    }

    fn route(&self, spec: &VmSpec) -> Result<(), NodeError> {
        let (pods, node) = (address::pod_subnet(spec.number), address::node_address(spec.number));
        self.ip(&format!("route replace {pods} via {node}"))
    }

    /// Runs commands of `ip` in the network of the nodes.
    fn ip(&self, commands: &str) -> Result<(), NodeError> {
        let network = self.network.to_string();
        run_with("nsenter", ["--target", &network, "--net", "ip", "-batch", "-"], &format!("{commands}\n")).map(drop)
    }

    /// Whether it has ended by itself although its power is on, as one does that reboots.
    pub fn has_ended(&self) -> bool {
        self.applied.is_some() && self.first_process().is_none()
    }

    /// The directory of its disk and its `console.log`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Tells the VM whether its kubelet may start.
    fn set_kubelet_flag(&self, stopped: bool) -> Result<(), NodeError> {
        fs::create_dir_all(&self.directory).map_err(NodeError::file("create", &self.directory))?;
        let file = kubelet_flag(&self.directory);
        let result = if stopped { fs::write(&file, "") } else { fs::remove_file(&file) };
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(NodeError::file("write", file)(error)),
            _ => Ok(()),
        }
    }

    /// The process id of its first process, while it runs.
    fn first_process(&self) -> Option<u32> {
        let text = fs::read_to_string(self.pid_file()).ok()?;
        let (process, started) = text.split_once(' ')?;
        let process = process.parse().ok()?;
        (started_at(process)? == started).then_some(process)
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }
}

/// Enters the cgroup of a VM, and becomes its launcher, which lives as long as its first process.
pub fn launch(nodes: &Path, id: &str) -> Result<(), NodeError> {
    let vm = Vm::new(nodes, id)?;
    // The root of a cgroup namespace is where its maker was.
    Cgroup::of_vm(vm.network, id).enter()?;
    let program = std::env::current_exe().map_err(NodeError::file("find", "the present executable"))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--"]);
    unshare.arg(program).arg("guest").arg(nodes).arg(id);
    Err(NodeError::file("start", "unshare")(unshare.exec()))
}

/// The file that keeps a kubelet from starting, in the directory of a VM.
pub(crate) fn kubelet_flag(directory: &Path) -> PathBuf {
    directory.join("kubelet-stopped")
}

/// The end of a VM's cable at the bridge.
fn cable(spec: &VmSpec) -> String {
    format!("vm{}", spec.number)
}

fn first_child(parent: u32) -> Option<u32> {
    let child = || match fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")) {
        Ok(children) => children.split_whitespace().next().map(|child| child.parse().ok()),
        // Without the parent there will be no child.
        Err(_) => Some(None),
    };
    wait_for(BOOT_TIMEOUT, child)?
}

/// When a process started, in ticks since boot: with its id, its identity. `None` if it has ended.
fn started_at(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_an_identity_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = started_at(child.id()).unwrap();
        assert!(identity.parse::<u64>().unwrap() > 0);
        assert_eq!(started_at(child.id()).unwrap(), identity);
        child.kill().unwrap();
        wait_for(BOOT_TIMEOUT, || started_at(child.id()).is_none().then_some(())).unwrap();
        child.wait().unwrap();
    }
}
