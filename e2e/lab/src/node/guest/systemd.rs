//! A VM whose first process is systemd, as on real nodes: agents in it can write units, and reboot it.

use std::{fs, io, os::unix::process::CommandExt, path::Path, process::Command};

use super::{
    first_boot, services, set_up_network,
    supervise::Service,
    systemd_root::{self, BINARIES, IMAGES},
};
use crate::node::{NodeError, VmSpec};

const SYSTEMD: &str = "/lib/systemd/systemd";
/// The units of the VM's image. What is below `/etc` belongs to the configuration of the node.
const UNITS: &str = "/usr/lib/systemd/system";
/// The kubelet's configuration, where OpenShift has it.
const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet.conf";
/// What the host's units may do in a VM. The others would change its kernel, or wait for what it has not.
const WANTED: [(&str, &[&str]); 5] = [
    ("sysinit", &["systemd-journald.service", "systemd-tmpfiles-setup.service"]),
    ("multi-user", &["dbus.service"]),
    (
        "sockets",
        &["dbus.socket", "systemd-initctl.socket", "systemd-journald-dev-log.socket", "systemd-journald.socket"],
    ),
    ("timers", &[]),
    ("local-fs", &[]),
];

/// Sets the VM up, and becomes systemd. Returns only with an error.
pub(super) fn boot(nodes: &Path, directory: &Path, image: &Path, spec: &VmSpec) -> Result<(), NodeError> {
    systemd_root::enter(nodes, directory, image)?;
    set_up_network(spec)?;
    let new = Path::new("/var/lib/cloud/done");
    if !new.exists() {
        forget_host(spec).map_err(NodeError::file("remove the host's units from", UNITS))?;
    }
    first_boot(spec)?;
    let binaries = Path::new(BINARIES);
    let containerd = services::containerd()?;
    let kubelet = services::kubelet(binaries, KUBELET_CONFIG, None, spec)?;
    let kube_proxy = services::kube_proxy(binaries, spec)?;
    for (service, more) in [(containerd, containerd_lines()), (kubelet, String::new()), (kube_proxy, String::new())] {
        install(&service, &more).map_err(NodeError::file("write the unit of", service.name))?;
    }
    let mut systemd = Command::new(SYSTEMD);
    systemd.args(["--system", "--log-target=journal", "--show-status=no"]).env("container", "nodewright");
    Err(NodeError::file("start", SYSTEMD)(systemd.exec()))
}

/// Removes what the host has configured, once in the life of the disk.
fn forget_host(spec: &VmSpec) -> io::Result<()> {
    let units = Path::new("/etc/systemd/system");
    fs::remove_dir_all(units)?;
    fs::create_dir_all(units)?;
    for (target, wanted) in WANTED {
        let directory = format!("{UNITS}/{target}.target.wants");
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if !wanted.iter().any(|name| entry.file_name() == *name) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    fs::write("/etc/fstab", "")?;
    fs::write("/etc/hostname", &spec.name)?;
    fs::write("/etc/machine-id", fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace('-', ""))?;
    fs::create_dir_all("/etc/systemd/journald.conf.d")?;
    // The kernel's messages are the host's.
    fs::write("/etc/systemd/journald.conf.d/10-vm.conf", "[Journal]\nReadKMsg=no\nStorage=persistent\n")
}

/// containerd also answers where agents look for CRI-O.
fn containerd_lines() -> String {
    let (socket, done) = (services::CONTAINERD_SOCKET, "/var/lib/containerd/imported");
    format!(
        "Type=notify\nDelegate=yes\nKillMode=process\nOOMScoreAdjust=0\n\
         ExecStartPost=/bin/sh -c 'test -e {done} || {{ ctr --namespace k8s.io images import {IMAGES} && touch {done}; }}'\n\
         ExecStartPost=/bin/sh -c 'mkdir -p /run/crio && ln -sf {socket} /run/crio/crio.sock'\n"
    )
}

/// Writes the unit of a service, and has it started at boot.
fn install(service: &Service, more: &str) -> io::Result<()> {
    let (file, wanted) = (format!("{}.service", service.name), Path::new(UNITS).join("multi-user.target.wants"));
    fs::write(Path::new(UNITS).join(&file), unit(service, &program_path(&service.program)?, more))?;
    match std::os::unix::fs::symlink(format!("../{file}"), wanted.join(&file)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The unit of a service. Its log is a file on the VM's disk.
fn unit(service: &Service, program: &str, more: &str) -> String {
    let Service { name, arguments, after, .. } = service;
    let wait = after.as_ref().map(|file| {
        format!(
            "ExecStartPre=/bin/sh -c 'until test -e {}; do sleep 1; done'\nTimeoutStartSec=infinity\n",
            file.display()
        )
    });
    let order = if *name == "containerd" { "" } else { "Wants=containerd.service\nAfter=containerd.service\n" };
    format!(
        "[Unit]\nDescription={name}\n{order}StartLimitIntervalSec=0\n[Service]\n{more}{}ExecStart={program} {}\n\
         Restart=always\nRestartSec=1\nStandardOutput=append:/var/log/{name}.log\nStandardError=inherit\n\
         Environment=TMPDIR=/run\n[Install]\nWantedBy=multi-user.target\n",
        wait.unwrap_or_default(),
        arguments.join(" "),
    )
}

/// systemd wants absolute paths.
fn program_path(program: &Path) -> io::Result<String> {
    if program.is_absolute() {
        return Ok(program.display().to_string());
    }
    let name = program.to_string_lossy();
    let found = crate::node::requirements::find(&name);
    found.map(|path| path.display().to_string()).ok_or_else(|| io::Error::other(format!("{name} is missing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_waits_for_what_its_service_needs_and_starts_it_again() {
        let arguments = vec!["--a=b".to_owned(), "--c".to_owned()];
        let after = Some("/var/lib/kubelet/kubeconfig".into());
        let service = Service { name: "kube-proxy", program: "kube-proxy".into(), arguments, after, unless: None };
        let unit = unit(&service, "/bin/kube-proxy", "");
        for line in [
            "After=containerd.service",
            "ExecStartPre=/bin/sh -c 'until test -e /var/lib/kubelet/kubeconfig; do sleep 1; done'",
            "ExecStart=/bin/kube-proxy --a=b --c",
            "Restart=always",
        ] {
            assert!(unit.lines().any(|found| found == line), "{line} in {unit}");
        }
    }

    #[test]
    fn containerd_waits_for_nothing() {
        let service =
            Service { name: "containerd", program: "containerd".into(), arguments: vec![], after: None, unless: None };
        let unit = unit(&service, "/bin/containerd", &containerd_lines());
        assert!(!unit.contains("After=") && !unit.contains("ExecStartPre="), "{unit}");
        assert!(unit.contains("[Service]\nType=notify\n"), "{unit}");
    }

    #[test]
    fn a_program_is_found_by_its_name() {
        assert!(program_path(Path::new("sh")).unwrap().starts_with('/'));
        assert_eq!(program_path(Path::new("/opt/x")).unwrap(), "/opt/x");
        assert!(program_path(Path::new("no-such-program")).is_err());
    }
}
