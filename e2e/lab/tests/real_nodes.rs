//! A devcluster with real nodes: it comes up, and leaves the computer as it was, however it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use nodewright_e2e_lab::node::requirements;
use support::{TestResult, eventually, signal};
use tempfile::TempDir;

mod support;

/// How many machines and pods the samples have.
const NODES: usize = 3;
const PODS: usize = 6;

/// The directory of a devcluster. Dropping it ends the devcluster.
struct Devcluster(TempDir);

impl Devcluster {
    fn up() -> TestResult<Self> {
        let devcluster = Self(tempfile::Builder::new().prefix("nodewright-real-").tempdir()?);
        let since = Instant::now();
        devcluster.call(&["up", "--nodes=real"])?;
        let pods = "kubectl get pods -o jsonpath='{.items[*].status.conditions[?(@.type==\"Ready\")].status}'";
        eventually("all pods are ready", || {
            Ok(devcluster.shell(pods)?.split(' ').filter(|it| *it == "True").count() == PODS)
        })?;
        println!("{NODES} nodes ran {PODS} pods after {:.1} s", since.elapsed().as_secs_f64());
        let versions =
            devcluster.shell("kubectl get nodes -o jsonpath='{.items[*].status.nodeInfo.containerRuntimeVersion}'")?;
        assert_eq!(versions.matches("containerd://").count(), NODES, "{versions}");
        Ok(devcluster)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn call(&self, arguments: &[&str]) -> TestResult<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodewright-devcluster"));
        let output = command.args(arguments).arg("--directory").arg(self.path()).output()?;
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(said.into_owned()) } else { Err(format!("{arguments:?}: {said}").into()) }
    }

    /// The output of a script in a user's shell that has sourced `env`.
    fn shell(&self, script: &str) -> TestResult<String> {
        let script = format!(". \"$1\" && {script}");
        let output = Command::new("sh").args(["-ec", &script, "sh"]).arg(self.path().join("env")).output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?);
        }
        Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    fn pid(&self, file: &str) -> TestResult<u32> {
        Ok(fs::read_to_string(self.path().join(file))?.trim().parse()?)
    }

    /// Kills everything but the VMs, and those first who would clean up after a kill.
    fn kill(&self) -> TestResult {
        let daemon = self.pid("pids/daemon")?;
        signal("STOP", daemon)?;
        for child in children(daemon)? {
            let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains("nodewright-supervisor") {
                signal("KILL", child)?;
            }
        }
        let mut victims = vec![daemon, self.pid("nodes/network.pid")?];
        for file in fs::read_dir(self.path().join("pids"))? {
            victims.push(fs::read_to_string(file?.path())?.trim().parse()?);
        }
        for victim in victims {
            // The daemon is among them twice.
            let _ = signal("KILL", victim);
        }
        Ok(())
    }
}

impl Drop for Devcluster {
    fn drop(&mut self) {
        let _ = self.call(&["down"]);
    }
}

#[test]
#[ignore = "part of make test-real-nodes"]
fn nothing_is_left_after_an_end_and_after_a_kill() -> TestResult {
    if let Some(missing) = requirements::missing() {
        // Not `eprintln!`, whose output the test runner hides.
        writeln!(std::io::stderr(), "skipped nothing_is_left_after_an_end_and_after_a_kill: {missing}")?;
        return Ok(());
    }
    let before = Host::look()?;

    let devcluster = Devcluster::up()?;
    let during = Host::look()?;
    assert!(
        during.of_ours.len() > before.of_ours.len() && during.cgroups.len() > before.cgroups.len(),
        "the comparison sees VMs"
    );
    assert_eq!(during.in_common(), before.in_common(), "while it runs");
    devcluster.call(&["down"])?;
    before.is_restored("an end")?;
    drop(devcluster);

    let devcluster = Devcluster::up()?;
    devcluster.kill()?;
    assert!(!Host::look()?.of_ours.is_empty(), "VMs are left, as they should be here");
    devcluster.call(&["down"])?;
    before.is_restored("a kill")?;
    assert!(!devcluster.path().join("nodes").exists());
    Ok(())
}

/// What a devcluster could change of its host.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    /// Processes that belong to nodes.
    of_ours: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<PathBuf>,
    links: BTreeSet<String>,
    routes: String,
    firewall: String,
    kernel_parameters: BTreeMap<&'static str, String>,
}

impl Host {
    fn look() -> TestResult<Self> {
        let mut cgroups = BTreeSet::new();
        directories(Path::new("/sys/fs/cgroup"), &mut cgroups);
        // Without the ids of the mount and of its parent.
        let without_ids = |line: &str| line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
        let links =
            fs::read_dir("/sys/class/net")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(Self {
            of_ours: processes_of_ours()?,
            namespaces: namespaces()?,
            mounts: fs::read_to_string("/proc/self/mountinfo")?.lines().map(without_ids).collect(),
            cgroups,
            links: links.collect(),
            routes: printed(Command::new("ip").args(["route", "show", "table", "all"]))?,
            firewall: printed(Command::new("iptables").args(["--table", "nat", "--list-rules"]))?,
            kernel_parameters: KERNEL_PARAMETERS.into_iter().map(|name| (name, parameter(name))).collect(),
        })
    }

    /// What stays the same while nodes run.
    fn in_common(&self) -> (&BTreeSet<String>, &BTreeSet<String>, &str, &str, &BTreeMap<&'static str, String>) {
        (&self.mounts, &self.links, &self.routes, &self.firewall, &self.kernel_parameters)
    }

    fn is_restored(&self, after: &str) -> TestResult {
        eventually(&format!("the host is as it was before {after}"), || {
            let now = Self::look()?;
            // Other processes of the computer may have begun and ended meanwhile.
            let new = |now: &BTreeSet<String>, before: &BTreeSet<String>| now.difference(before).count();
            Ok(now.in_common() == self.in_common()
                && new(&now.of_ours, &self.of_ours) == 0
                && new(&now.namespaces, &self.namespaces) == 0
                && now.cgroups.is_subset(&self.cgroups))
        })
        .map_err(|error| format!("{error}\nbefore: {self:#?}\nnow: {:#?}", Self::look()).into())
    }
}

/// What kubelets and kube-proxies like to set.
const KERNEL_PARAMETERS: [&str; 9] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

fn parameter(name: &str) -> String {
    fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default()
}

/// The names and ids of processes in cgroups of nodes, or under the name of a program of theirs.
fn processes_of_ours() -> TestResult<BTreeSet<String>> {
    let names = ["containerd", "containerd-shim", "kubelet", "kube-proxy", "nodewright-node", "pause"];
    let mut found = BTreeSet::new();
    for process in processes()? {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        let (name, cgroup) = (read("comm"), read("cgroup"));
        if names.contains(&name.trim_end()) || cgroup.contains("/nodewright/") {
            found.insert(format!("{process} {}", name.trim_end()));
        }
    }
    Ok(found)
}

fn processes() -> TestResult<Vec<u32>> {
    Ok(fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn namespaces() -> TestResult<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for process in processes()? {
        for kind in ["cgroup", "ipc", "mnt", "net", "pid", "uts"] {
            let link = fs::read_link(format!("/proc/{process}/ns/{kind}"));
            found.extend(link.map(|link| link.display().to_string()));
        }
    }
    Ok(found)
}

fn directories(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.insert(entry.path());
            directories(&entry.path(), found);
        }
    }
}

fn children(process: u32) -> TestResult<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let text = fs::read_to_string(task.path().join("children"))?;
        found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

fn printed(command: &mut Command) -> TestResult<String> {
    Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
}
