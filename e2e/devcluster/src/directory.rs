//! The directory of a running set, `.run/`: what lies where, and who may read it.
//!
//! It is the directory of the control plane as well, whose `logs/`, `audit.log` and `kubeconfig` are used as they are.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::DevclusterError;
use nodewright_e2e_process::{repository, write_private};

/// Which directory a command works on.
#[derive(Clone, Debug, clap::Args)]
pub struct DirectoryArgument {
    /// The directory of the running set [default: .run of the checkout]
    #[arg(long, env = "NODEWRIGHT_RUN_DIRECTORY")]
    directory: Option<PathBuf>,
}

impl DirectoryArgument {
    pub(crate) fn open(&self) -> Result<RunDirectory, DevclusterError> {
        let given = self.directory.clone().unwrap_or_else(|| repository().join(".run"));
        RunDirectory::open(&given)
    }
}

/// How to reach a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) namespace: String,
    pub(crate) cloud_url: String,
    pub(crate) audit_log: PathBuf,
    pub(crate) binaries: PathBuf,
}

/// The files of a set.
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

    /// The directory as people would write it where they are: relative, if it is below.
    pub(crate) fn shown(&self) -> String {
        // Not the working directory itself, which follows the socket.
        let here = std::env::var_os("PWD").map(PathBuf::from);
        let relative = here.and_then(|here| self.root.strip_prefix(here).ok());
        relative.unwrap_or(&self.root).display().to_string()
    }

    /// The administrator's kubeconfig, where the control plane puts it.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// The file to source.
    pub(crate) fn env(&self) -> PathBuf {
        self.root.join("env")
    }

    /// The log of the process that keeps the set. Not under `logs/`, which the control plane empties when it starts.
    pub(crate) fn keeper_log(&self) -> PathBuf {
        self.root.join("keeper.log")
    }

    /// The socket where the keeper takes orders.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("socket")
    }

    fn pids(&self) -> PathBuf {
        self.root.join("pids")
    }

    /// The process id of the keeper, if it has written one.
    pub(crate) fn keeper_pid(&self) -> Option<u32> {
        fs::read_to_string(self.pids().join(KEEPER)).ok()?.trim().parse().ok()
    }

    /// Does nobody work on the control plane's files any more? Whoever cleans up after one that was killed does.
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

    /// Makes this process the keeper of the directory, for as long as the file is open; `None` if there is one.
    pub(crate) fn claim(&self) -> Result<Option<File>, DevclusterError> {
        let path = self.root.join("keeper.lock");
        let file = File::create(&path).map_err(DevclusterError::file("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(DevclusterError::file("lock", path)(source)),
        }
    }

    /// What would tell of a set that is gone. Logs and audit log are not among it: they say why it is gone.
    pub(crate) fn disposable(&self) -> Vec<PathBuf> {
        let names = ["env", "socket", "kubeconfig", CLOUD_STATE, "pids", "kubeconfigs", "kubectl-cache"];
        names.map(|name| self.root.join(name)).to_vec()
    }

    /// Removes what is [disposable](Self::disposable).
    pub fn clear(&self) -> Result<(), DevclusterError> {
        for path in self.disposable() {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            remove(&path, removed)?;
        }
        Ok(())
    }

    /// Writes down who runs: `pids/<process>` for each, and no other.
    pub(crate) fn write_pids(&self, pids: &BTreeMap<String, u32>) -> Result<(), DevclusterError> {
        let directory = self.pids();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(DevclusterError::file("create the directory", &directory))?;
        for (name, pid) in pids {
            let path = directory.join(name);
            if fs::read_to_string(&path).is_ok_and(|text| text.trim() == pid.to_string()) {
                continue;
            }
            // Whoever reads sees the old one or the new one, never half of it.
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

    /// Writes the file to source.
    pub(crate) fn write_env(&self, reach: &Reach) -> Result<(), DevclusterError> {
        let lines = [
            "# Source this (`. .run/env`) to reach the running set.".to_owned(),
            format!("export KUBECONFIG={}", quote(&reach.kubeconfig.to_string_lossy())),
            format!("export NODEWRIGHT_NAMESPACE={}", quote(&reach.namespace)),
            format!("export NODEWRIGHT_CLOUD_URL={}", quote(&reach.cloud_url)),
            format!("export NODEWRIGHT_AUDIT_LOG={}", quote(&reach.audit_log.to_string_lossy())),
            format!("export PATH={}:\"$PATH\"", quote(&reach.binaries.to_string_lossy())),
        ];
        Ok(write_private(&self.env(), &(lines.join("\n") + "\n"))?)
    }
}

/// The file, in the directory of the control plane, in which the cloud remembers what it has.
pub(crate) const CLOUD_STATE: &str = "cloud";
/// The name of the process that keeps all others.
pub(crate) const KEEPER: &str = "keeper";

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// The outcome of a removal; what was not there is removed, too.
fn remove(path: &Path, result: io::Result<()>) -> Result<(), DevclusterError> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(DevclusterError::file("remove", path)),
    }
}

/// One word for a shell, whatever it holds.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_sourced() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(&directory.path().join("it's a $HOME")).unwrap();
        let reach = Reach {
            kubeconfig: run.root().join("kubeconfig"),
            namespace: "default".to_owned(),
            cloud_url: "http://127.0.0.1:1".to_owned(),
            audit_log: run.root().join("audit.log"),
            binaries: PathBuf::from("/some where"),
        };
        run.write_env(&reach).unwrap();
        let script = ". \"$1\" && printf '%s|%s' \"$KUBECONFIG\" \"${PATH%%:*}\"";
        let output = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(run.env()).output().unwrap();
        let expected = format!("{}|/some where", run.root().join("kubeconfig").display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn process_ids_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(directory.path()).unwrap();
        let pids = |list: &[(&str, u32)]| list.iter().map(|(name, pid)| ((*name).to_owned(), *pid)).collect();
        run.write_pids(&pids(&[(KEEPER, 1), ("manager", 2)])).unwrap();
        assert_eq!(run.keeper_pid(), Some(1));
        run.write_pids(&pids(&[(KEEPER, 1)])).unwrap();
        assert_eq!(files(&run.pids()).unwrap().len(), 1);
        run.clear().unwrap();
        run.clear().unwrap();
        assert_eq!(run.keeper_pid(), None);
    }

    #[test]
    fn a_directory_has_one_keeper() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDirectory::open(directory.path()).unwrap();
        let first = run.claim().unwrap();
        assert!(first.is_some() && run.claim().unwrap().is_none());
        drop(first);
        assert!(run.claim().unwrap().is_some());
    }
}
