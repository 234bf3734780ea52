//! The cgroups of VMs: `nodewright/NETWORK/VM` in each hierarchy, where `NETWORK` is the process id of a network.
//!
//! They are the inventory of all processes of a VM, also of a VM that nobody remembers.
//!
//! # Guarantees
//! * [`sweep`] ends and removes what belongs to no living network, and nothing else.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::node::{BINARY, NodeError, wait::wait_for};

/// The cgroup of all networks, in each hierarchy.
const ROOT: &str = "nodewright";
/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// How long killed processes may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the host has the single hierarchy of cgroup v2.
pub(crate) fn is_v2() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// The directories of all hierarchies.
fn hierarchies() -> Vec<PathBuf> {
    if is_v2() {
        return vec![PathBuf::from(MOUNT)];
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of_type_cgroup = |line: &str| {
        let mut fields = line.split(' ');
        let (path, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup").then(|| PathBuf::from(path))
    };
    mounts.lines().filter_map(of_type_cgroup).collect()
}

/// A cgroup, in all hierarchies.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// The cgroup of all VMs of a network.
    pub(crate) fn of_network(network: u32) -> Self {
        Self { path: Path::new(ROOT).join(network.to_string()) }
    }

    /// The cgroup of a VM.
    pub(crate) fn of_vm(network: u32, vm: &str) -> Self {
        Self { path: Self::of_network(network).path.join(vm) }
    }

    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        hierarchies().into_iter().map(|hierarchy| hierarchy.join(&self.path))
    }

    /// Creates it and its ancestors.
    pub(crate) fn create(&self) -> Result<(), NodeError> {
        for hierarchy in hierarchies() {
            let mut directory = hierarchy;
            for part in &self.path {
                let parent = directory.clone();
                directory.push(part);
                create(&parent, &directory).map_err(NodeError::file("create the cgroup", &directory))?;
            }
        }
        Ok(())
    }

    /// Moves this process into it.
    pub(crate) fn enter(&self) -> Result<(), NodeError> {
        self.directories().try_for_each(|directory| add(&directory, std::process::id()))
    }

    /// Moves a process into a child. In cgroup v2, a cgroup with children that have controllers has no process of its own.
    pub(crate) fn make_room(&self, process: u32) -> Result<(), NodeError> {
        if !is_v2() {
            return Ok(());
        }
        for directory in self.directories().map(|directory| directory.join("init")) {
            fs::create_dir_all(&directory).map_err(NodeError::file("create the cgroup", &directory))?;
            add(&directory, process)?;
        }
        Ok(())
    }

    /// The processes in it and below.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut found = Vec::new();
        for directory in self.directories() {
            collect(&directory, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Sends a signal to the processes with this name, or to all.
    pub(crate) fn signal(&self, name: Option<&str>, signal: Signal) {
        for process in self.processes().into_iter().filter(|process| name.is_none_or(|name| is_named(*process, name))) {
            send(process, signal);
        }
    }

    /// Kills all processes in it, and removes it. Does nothing if there is none.
    pub(crate) fn end(&self) -> Result<(), NodeError> {
        let end = || {
            self.signal(None, Signal::KILL);
            self.directories().all(|directory| is_removed(&directory)).then_some(())
        };
        wait_for(END_TIMEOUT, end).ok_or_else(|| {
            let directories: Vec<_> = self.directories().filter(|directory| directory.exists()).collect();
            let processes = self.processes();
            NodeError::Late(format!("cgroups {directories:?} cannot be removed; their processes: {processes:?}"))
        })
    }

    /// Limits what its processes read and write per second, on the block device of `path`. `None`: no limit.
    pub(crate) fn limit_disk(&self, path: &Path, bytes_per_second: Option<u64>) -> Result<(), NodeError> {
        let device = block_device(path).map_err(NodeError::file("find the block device of", path))?;
        let files: Vec<(&str, String)> = if is_v2() {
            let limit = bytes_per_second.map_or("max".to_owned(), |limit| limit.to_string());
            vec![("io.max", format!("{device} rbps={limit} wbps={limit}"))]
        } else {
            let limit = format!("{device} {}", bytes_per_second.unwrap_or(0));
            vec![("blkio.throttle.read_bps_device", limit.clone()), ("blkio.throttle.write_bps_device", limit)]
        };
        for (file, limit) in files {
            let mut found = self.directories().map(|directory| directory.join(file)).filter(|file| file.exists());
            let file = found.next().ok_or_else(|| NodeError::Missing("a cgroup controller for disks".to_owned()))?;
            fs::write(&file, limit).map_err(NodeError::file("limit the disk by", file))?;
        }
        Ok(())
    }
}

/// Ends and removes all cgroups whose network does not live.
pub(crate) fn sweep() -> Result<(), NodeError> {
    let names = hierarchies().into_iter().filter_map(|hierarchy| fs::read_dir(hierarchy.join(ROOT)).ok()).flatten();
    let networks = names.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for network in networks.filter(|network| !lives(*network)) {
        Cgroup::of_network(network).end()?;
    }
    for hierarchy in hierarchies() {
        // It stays while it has children.
        let _ = fs::remove_dir(hierarchy.join(ROOT));
    }
    Ok(())
}

/// Whether the process of a network lives.
pub(crate) fn lives(network: u32) -> bool {
    // One that has ended, and whose parent has yet to learn it, has no command line.
    is_named(network, BINARY) && fs::read(format!("/proc/{network}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Whether a process runs under this name.
fn is_named(process: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

pub(crate) fn send(process: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Enables all controllers for the children of a cgroup of cgroup v2. Waits for the processes that are about to leave it: a
/// cgroup with processes cannot have such children.
pub(crate) fn enable_controllers(directory: &Path) -> io::Result<()> {
    let controllers = fs::read_to_string(directory.join("cgroup.controllers"))?;
    let file = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file)?;
    for controller in controllers.split_whitespace().filter(|it| !enabled.split_whitespace().any(|on| on == *it)) {
        let enable = || match fs::write(&file, format!("+{controller}")) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
            result => Some(result),
        };
        wait_for(END_TIMEOUT, enable).unwrap_or_else(|| Err(io::ErrorKind::ResourceBusy.into()))?;
    }
    Ok(())
}

fn create(parent: &Path, directory: &Path) -> io::Result<()> {
    if is_v2() {
        enable_controllers(parent)?;
    }
    fs::create_dir_all(directory)?;
    for file in ["cpuset.cpus", "cpuset.mems"].map(|name| directory.join(name)) {
        // A new cpuset of cgroup v1 is empty: no process can enter it.
        if !is_v2() && fs::read_to_string(&file).is_ok_and(|text| text.trim().is_empty()) {
            let name = file.file_name().unwrap_or_default();
            fs::write(&file, fs::read_to_string(parent.join(name))?)?;
        }
    }
    Ok(())
}

fn add(directory: &Path, process: u32) -> Result<(), NodeError> {
    let file = directory.join("cgroup.procs");
    fs::write(&file, process.to_string()).map_err(NodeError::file("write", file))
}

fn collect(directory: &Path, found: &mut Vec<u32>) {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|process| *process > 0));
    for child in children(directory) {
        collect(&child, found);
    }
}

/// Removes a cgroup and its children. Returns whether it is gone.
fn is_removed(directory: &Path) -> bool {
    for child in children(directory) {
        is_removed(&child);
    }
    fs::remove_dir(directory).is_ok() || !directory.exists()
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// The block device of a file as `MAJOR:MINOR`: of a partition, the whole disk.
fn block_device(path: &Path) -> io::Result<String> {
    let device = fs::metadata(path)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if entry.join("partition").exists() {
        return Ok(fs::read_to_string(entry.canonicalize()?.join("../dev"))?.trim().to_owned());
    }
    Ok(format!("{major}:{minor}"))
}
