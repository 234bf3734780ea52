//! The file system of a VM with systemd: the host's with a writable layer on the VM's disk, so that programs in it can change
//! anything, and the host's files stay as they are.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::process::pivot_root;

use super::filesystem::{hide_kernel_parameters, mount, mount_cgroups};
use crate::node::{NodeError, command::run, network};

/// Where the VM has kubelet and kube-proxy.
pub(super) const BINARIES: &str = "/run/nodewright/bin";
/// Where it has the archive of images.
pub(super) const IMAGES: &str = "/run/nodewright/images.tar";
/// The devices that programs expect, with their major and minor numbers.
const DEVICES: [(&str, &str, &str); 7] = [
    ("null", "1", "3"),
    ("zero", "1", "5"),
    ("full", "1", "7"),
    ("random", "1", "8"),
    ("urandom", "1", "9"),
    ("kmsg", "1", "11"),
    ("tty", "5", "0"),
];
const LINKS: [(&str, &str); 5] = [
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
];

/// Makes it the root of this mount namespace. `directory` is the VM's, `image` becomes `/opt`.
pub(super) fn enter(nodes: &Path, directory: &Path, image: &Path) -> Result<(), NodeError> {
    let root = assemble(nodes, directory, image)?;
    let old = "run/nodewright/host";
    make_directory(&root.join(old))?;
    std::env::set_current_dir(&root).map_err(NodeError::file("enter", &root))?;
    pivot_root(".", old).map_err(|error| NodeError::file("make the root", &root)(error.into()))?;
    std::env::set_current_dir("/").map_err(NodeError::file("enter", "/"))?;
    mount(["-t", "proc", "proc", "/proc"])?;
    run("umount", ["--lazy".to_owned(), format!("/{old}")])?;
    mount(["-t", "sysfs", "-o", "ro", "sysfs", "/sys"])?;
    // systemd makes itself room in the root of cgroup v2.
    mount_cgroups()?;
    hide_kernel_parameters()?;
    make_devices().map_err(NodeError::file("make the devices of", "/dev"))?;
    new_boot_id()?;
    // The kubelet passes mounts on to its containers.
    mount(["--make-rshared", "/"])
}

/// Mounts what needs the host's files, and returns the mount point.
fn assemble(nodes: &Path, directory: &Path, image: &Path) -> Result<PathBuf, NodeError> {
    let disk = directory.join("disk");
    let on_disk = ["root", "root-work", "mount", "lib", "log"].map(|name| disk.join(name));
    on_disk.iter().try_for_each(|path| make_directory(path))?;
    let [upper, work, root, lib, log] = on_disk;
    let layers = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
    mount(["-t", "overlay", "-o", &layers, "overlay"].map(OsStr::new).into_iter().chain([root.as_os_str()]))?;
    for directory in ["run", "tmp", "dev"] {
        mount(
            ["-t", "tmpfs", "-o", "mode=755", "tmpfs"]
                .map(OsStr::new)
                .into_iter()
                .chain([root.join(directory).as_os_str()]),
        )?;
    }
    let bind = |from: &Path, to: &str| {
        let to = root.join(to);
        mount([OsStr::new("--bind"), from.as_os_str(), to.as_os_str()])
    };
    bind(&lib, "var/lib")?;
    bind(&log, "var/log")?;
    bind(image, "opt")?;
    make_directory(&root.join(BINARIES.trim_start_matches('/')))?;
    let binaries = network::binaries(nodes);
    let binaries = binaries.canonicalize().map_err(NodeError::file("find", &binaries))?;
    bind(&binaries, BINARIES.trim_start_matches('/'))?;
    let images = root.join(IMAGES.trim_start_matches('/'));
    fs::write(&images, "").map_err(NodeError::file("write", &images))?;
    bind(&network::images(nodes), IMAGES.trim_start_matches('/'))?;
    Ok(root)
}

/// The devices are of a file system of their own: systemd changes their owners and modes.
fn make_devices() -> io::Result<()> {
    let failed = |error: NodeError| io::Error::other(error.to_string());
    for (name, major, minor) in DEVICES {
        run("mknod", ["--mode=666", &format!("/dev/{name}"), "c", major, minor]).map_err(failed)?;
    }
    for (target, name) in LINKS {
        std::os::unix::fs::symlink(target, Path::new("/dev").join(name))?;
    }
    for directory in ["/dev/pts", "/dev/shm"] {
        fs::create_dir(directory)?;
    }
    mount(["-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=0620,gid=5", "devpts", "/dev/pts"]).map_err(failed)?;
    mount(["-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"]).map_err(failed)?;
    fs::set_permissions("/tmp", std::os::unix::fs::PermissionsExt::from_mode(0o1777))
}

/// The kernel's id of the boot is the host's. The VM has one of its own, another one each time: by it agents know that they have
/// rebooted.
fn new_boot_id() -> Result<(), NodeError> {
    let (ids, own) = ("/proc/sys/kernel/random", "/run/nodewright/boot-id");
    let id = fs::read(format!("{ids}/uuid")).map_err(NodeError::file("read", ids))?;
    fs::write(own, id).map_err(NodeError::file("write", own))?;
    mount(["--bind", own, &format!("{ids}/boot_id")])
}

fn make_directory(path: &Path) -> Result<(), NodeError> {
    fs::create_dir_all(path).map_err(NodeError::file("create", path))
}
