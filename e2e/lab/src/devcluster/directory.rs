//! The directory of a devcluster, `.run/` by default.
//!
//! It is the directory of the control plane as well, with its `logs/`, `audit.log` and `kubeconfig`.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::{
    devcluster::DevclusterError,
    process::{repository, write_private},
};

/// The directory that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct DirectoryArgument {
    /// Directory of the devcluster [default: .run in the checkout]
    #[arg(long, env = "NODEWRIGHT_RUN_DIRECTORY")]
    directory: Option<PathBuf>,
}

impl DirectoryArgument {
    pub(crate) fn open(&self) -> Result<RunDirectory, DevclusterError> {
        let given = self.directory.clone().unwrap_or_else(|| repository().join(".run"));
        RunDirectory::open(&given)
    }
}

/// How to use a devcluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) namespace: String,
    pub(crate) cloud_url: String,
    pub(crate) audit_log: PathBuf,
    pub(crate) binaries: PathBuf,
    /// Where the plugin of kubectl is.
    pub(crate) products: PathBuf,
}

/// The files of a devcluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory {
    root: PathBuf,
}

impl RunDirectory {
    /// Creates the directory, unless it exists.
    pub fn open(path: &Path) -> Result<Self, DevclusterError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(DevclusterError::file("create the directory", path))?;
        let root = path.canonicalize().map_err(DevclusterError::file("find", path))?;
        Ok(Self { root })
    }

    /// The absolute path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path as a user would write it: relative if it is below the shell's working directory.
    pub(crate) fn displayed(&self) -> String {
        // Not the working directory of this process, which the control socket changes.
        let here = std::env::var_os("PWD").map(PathBuf::from);
        let relative = here.and_then(|here| self.root.strip_prefix(here).ok());
        relative.unwrap_or(&self.root).display().to_string()
    }

    /// The administrator's kubeconfig, which the control plane writes.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// The file to source.
    pub(crate) fn env(&self) -> PathBuf {
        self.root.join("env")
    }

    /// The log of the daemon. Not in `logs/`, which the control plane empties when it starts.
    pub(crate) fn daemon_log(&self) -> PathBuf {
        self.root.join("daemon.log")
    }

    /// The control socket of the daemon.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("socket")
    }

    fn pids(&self) -> PathBuf {
        self.root.join("pids")
    }

    /// The process id of the daemon, if there is one.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        fs::read_to_string(self.pids().join(DAEMON)).ok()?.trim().parse().ok()
    }

    /// Whether the control plane has released its files. The clean-up after a killed one holds them, too.
    pub(crate) fn is_released(&self) -> Result<bool, DevclusterError> {
        let path = self.root.join("lock");
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            result => result.map_err(DevclusterError::file("open", &path))?,
        };
        match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(source)) => Err(DevclusterError::file("lock", path)(source)),
        }
    }

    /// Locks the directory for a daemon while the file is open. `None` if another process holds the lock.
    pub(crate) fn lock(&self) -> Result<Option<File>, DevclusterError> {
        let path = self.root.join("daemon.lock");
        let file = File::create(&path).map_err(DevclusterError::file("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(DevclusterError::file("lock", path)(source)),
        }
    }

    /// The files that are removed in the end. Logs and audit log stay.
    pub(crate) fn temporary_files(&self) -> Vec<PathBuf> {
        let names = [
            "env",
            "socket",
            "kubeconfig",
            CLOUD_STATE,
            "driver-aws",
            "driver-aws.pid",
            "pids",
            "kubeconfigs",
            "kubectl-cache",
            "egress.yaml",
            "samples.json",
            "etcd",
            "pki",
        ];
        names.map(|name| self.root.join(name)).to_vec()
    }

    /// Removes the files of a devcluster that ended, except logs and audit log, and what VMs of a killed one have left.
    pub fn clean(&self) -> Result<(), DevclusterError> {
        crate::node::clean(&self.root.join("nodes"))?;
        for path in self.temporary_files() {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            remove(&path, removed)?;
        }
        Ok(())
    }

    /// Writes `pids/<process>` for each running process, and removes the others.
    pub(crate) fn write_pids(&self, pids: &BTreeMap<String, u32>) -> Result<(), DevclusterError> {
        let directory = self.pids();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(DevclusterError::file("create the directory", &directory))?;
        for (name, pid) in pids {
            let path = directory.join(name);
            if fs::read_to_string(&path).is_ok_and(|text| text.trim() == pid.to_string()) {
                continue;
            }
            // Renaming is atomic: readers see the old content or the new one.
            let unfinished = directory.join(format!(".{name}"));
            let written = fs::write(&unfinished, format!("{pid}\n")).and_then(|()| fs::rename(&unfinished, &path));
            written.map_err(DevclusterError::file("write", &path))?;
        }
        for path in files(&directory).map_err(DevclusterError::file("read", &directory))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !pids.contains_key(name.as_ref()) {
                remove(&path, fs::remove_file(&path))?;
            }
        }
        Ok(())
    }

    /// Writes the file that a shell can source.
    pub(crate) fn write_env(&self, endpoints: &Endpoints) -> Result<(), DevclusterError> {
        let lines = [
            "# Source this (`. .run/env`) to use the devcluster.".to_owned(),
            format!("export KUBECONFIG={}", quote(&endpoints.kubeconfig.to_string_lossy())),
            format!("export NODEWRIGHT_NAMESPACE={}", quote(&endpoints.namespace)),
            format!("export NODEWRIGHT_CLOUD_URL={}", quote(&endpoints.cloud_url)),
            format!("export NODEWRIGHT_AUDIT_LOG={}", quote(&endpoints.audit_log.to_string_lossy())),
            format!(
                "export PATH={}:{}:\"$PATH\"",
                quote(&endpoints.binaries.to_string_lossy()),
                quote(&endpoints.products.to_string_lossy())
            ),
        ];
        Ok(write_private(&self.env(), &(lines.join("\n") + "\n"))?)
    }
}

/// The state file of the cloud.
pub(crate) const CLOUD_STATE: &str = "cloud";
/// The name of the daemon among the processes.
pub(crate) const DAEMON: &str = "daemon";

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// The result of a removal. A missing file is no error.
fn remove(path: &Path, result: io::Result<()>) -> Result<(), DevclusterError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(DevclusterError::file("remove", path)),
    }
}

/// Quotes a word for a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_env_file_can_be_sourced() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(&directory.path().join("it's a $HOME")).unwrap();
        let endpoints = Endpoints {
            kubeconfig: run.root().join("kubeconfig"),
            namespace: "default".to_owned(),
            cloud_url: "http://127.0.0.1:1".to_owned(),
            audit_log: run.root().join("audit.log"),
            binaries: PathBuf::from("/some where"),
            products: PathBuf::from("/and here"),
        };
        run.write_env(&endpoints).unwrap();
        let script = "before=$PATH && . \"$1\" && printf '%s|%s' \"$KUBECONFIG\" \"${PATH%\":$before\"}\"";
        let output = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(run.env()).output().unwrap();
        let expected = format!("{}|/some where:/and here", run.root().join("kubeconfig").display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn process_ids_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(directory.path()).unwrap();
        let pids = |list: &[(&str, u32)]| list.iter().map(|(name, pid)| ((*name).to_owned(), *pid)).collect();
        run.write_pids(&pids(&[(DAEMON, 1), ("manager", 2)])).unwrap();
        assert_eq!(run.daemon_pid(), Some(1));
        run.write_pids(&pids(&[(DAEMON, 1)])).unwrap();
        assert_eq!(files(&run.pids()).unwrap().len(), 1);
        run.clean().unwrap();
        run.clean().unwrap();
        assert_eq!(run.daemon_pid(), None);
    }

    #[test]
    fn a_directory_has_one_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(directory.path()).unwrap();
        let first = run.lock().unwrap();
        assert!(first.is_some() && run.lock().unwrap().is_none());
        drop(first);
        assert!(run.lock().unwrap().is_some());
    }
}
