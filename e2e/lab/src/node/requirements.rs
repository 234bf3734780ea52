//! What real nodes need on this computer.

use std::{env, path::Path};

use rustix::process::geteuid;

/// The directory of the CNI plugins, where Debian's package has it.
pub const CNI_PLUGINS: &str = "/usr/lib/cni";
/// The executables, each with the Debian package that has it.
const PROGRAMS: [(&str, &str); 10] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
];

/// What VMs with systemd need besides.
const WITH_SYSTEMD: [(&str, &str); 5] = [
    ("systemctl", "systemd"),
    ("systemd-run", "systemd"),
    ("dbus-daemon", "dbus"),
    ("logger", "bsdutils"),
    ("mknod", "coreutils"),
];

/// What is missing, and what to do about it, in one line; `None` if real nodes can run.
pub fn missing() -> Option<String> {
    missing_of(&PROGRAMS)
}

/// The same for nodes whose first process is systemd.
pub fn missing_with_systemd() -> Option<String> {
    missing_of(&[PROGRAMS.as_slice(), &WITH_SYSTEMD].concat())
}

fn missing_of(programs: &[(&str, &'static str)]) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("they need Linux".to_owned());
    }
    if !geteuid().is_root() {
        return Some("they need root: run this as root".to_owned());
    }
    let mut packages: Vec<&str> =
        programs.iter().filter(|(program, _)| !is_in_path(program)).map(|(_, package)| *package).collect();
    if !["ptp", "host-local", "loopback"].iter().all(|plugin| Path::new(CNI_PLUGINS).join(plugin).is_file()) {
        packages.push("containernetworking-plugins");
    }
    packages.dedup();
    if packages.is_empty() {
        return None;
    }
    let packages = packages.join(" ");
    Some(format!("they need packages: apt-get install --no-install-recommends {packages}"))
}

/// The path of a program.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH")?;
    // Users may lack the directories of the system's programs.
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    env::split_paths(&path).chain(system).map(|directory| directory.join(program)).find(|found| found.is_file())
}

fn is_in_path(program: &str) -> bool {
    find(program).is_some()
}
