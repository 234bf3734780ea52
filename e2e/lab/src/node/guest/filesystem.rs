//! The file system of a VM: the host's, read-only, with directories of its own.

use std::{ffi::OsStr, fs, path::Path};

use crate::node::{NodeError, cgroup, command::run};

/// What the kubelet wants to set, and insists on. It belongs to the whole kernel, so the VM gets files of its own.
const KERNEL_PARAMETERS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Mounts everything. `directory` is the VM's.
pub(super) fn set_up(directory: &Path) -> Result<(), NodeError> {
    let disk = directory.join("disk");
    let on_disk = ["lib", "log", "etc", "etc-work"].map(|name| disk.join(name));
    for path in &on_disk {
        fs::create_dir_all(path).map_err(NodeError::file("create", path))?;
    }
    let [lib, log, etc, etc_work] = on_disk;
    let layers = format!("lowerdir=/etc,upperdir={},workdir={}", etc.display(), etc_work.display());
    mount(["-t", "overlay", "-o", &layers, "overlay", "/etc"])?;
    mount([OsStr::new("--bind"), lib.as_os_str(), OsStr::new("/var/lib")])?;
    mount([OsStr::new("--bind"), log.as_os_str(), OsStr::new("/var/log")])?;
    mount(["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
    mount(["-t", "proc", "proc", "/proc"])?;
    mount(["-t", "sysfs", "sysfs", "/sys"])?;
    if mount_cgroups()? == Cgroups::Single {
        leave_root(Path::new(CGROUPS))?;
    }
    hide_kernel_parameters()?;
    mount(["-o", "remount,bind,ro", "/"])?;
    // The kubelet passes mounts on to its containers.
    mount(["--make-rshared", "/"])
}

pub(super) fn mount(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), NodeError> {
    run("mount", arguments).map(drop)
}

/// What the kernel has of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroups {
    /// The single hierarchy of version 2.
    Single,
    /// Hierarchies of version 1.
    Several,
}

/// Mounts the hierarchies of the VM's cgroup namespace.
pub(super) fn mount_cgroups() -> Result<Cgroups, NodeError> {
    let root = Path::new(CGROUPS);
    // The new sysfs has an empty directory there.
    if is_single_hierarchy()? {
        mount(["-t", "cgroup2", "cgroup2", CGROUPS])?;
        return Ok(Cgroups::Single);
    }
    mount(["-t", "tmpfs", "-o", "mode=755", "tmpfs", CGROUPS])?;
    for controllers in v1_hierarchies()? {
        let options =
            if controllers.starts_with("name=") { format!("none,{controllers}") } else { controllers.clone() };
        let name = controllers.trim_start_matches("name=");
        let directory = root.join(name);
        fs::create_dir(&directory).map_err(NodeError::file("create", &directory))?;
        mount([
            OsStr::new("-t"),
            "cgroup".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            "cgroup".as_ref(),
            directory.as_ref(),
        ])?;
        for one in name.split(',').filter(|one| *one != name) {
            let link = root.join(one);
            std::os::unix::fs::symlink(name, &link).map_err(NodeError::file("link", link))?;
        }
    }
    Ok(Cgroups::Several)
}

/// The hierarchies of cgroup v1 by their controllers, from lines such as `4:cpu,cpuacct:/`.
fn v1_hierarchies() -> Result<Vec<String>, NodeError> {
    let file = "/proc/self/cgroup";
    let text = fs::read_to_string(file).map_err(NodeError::file("read", file))?;
    let controllers =
        text.lines().filter_map(|line| line.split(':').nth(1)).filter(|controllers| !controllers.is_empty());
    Ok(controllers.map(str::to_owned).collect())
}

fn is_single_hierarchy() -> Result<bool, NodeError> {
    Ok(v1_hierarchies()?.is_empty())
}

/// Moves this process out of the VM's root, and enables all controllers for its children.
fn leave_root(root: &Path) -> Result<(), NodeError> {
    let init = root.join("init");
    fs::create_dir_all(&init).map_err(NodeError::file("create", &init))?;
    let processes = init.join("cgroup.procs");
    fs::write(&processes, std::process::id().to_string()).map_err(NodeError::file("write", processes))?;
    cgroup::enable_controllers(root).map_err(NodeError::file("enable the controllers of", root))
}

pub(super) fn hide_kernel_parameters() -> Result<(), NodeError> {
    let directory = Path::new("/run/kernel-parameters");
    fs::create_dir_all(directory).map_err(NodeError::file("create", directory))?;
    for (name, value) in KERNEL_PARAMETERS {
        let (own, kernels) = (directory.join(name.replace('/', ".")), Path::new("/proc/sys").join(name));
        if kernels.exists() {
            fs::write(&own, value).map_err(NodeError::file("write", &own))?;
            mount([OsStr::new("--bind"), own.as_os_str(), kernels.as_os_str()])?;
        }
    }
    Ok(())
}
