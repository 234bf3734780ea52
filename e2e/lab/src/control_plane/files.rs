//! The directory of a control plane.

use std::{
    fs::{DirBuilder, File, TryLockError},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::control_plane::ControlPlaneError;

/// How long a start waits for the lock of a directory: a control plane that was killed may still be cleaned up.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The paths of a control plane's files.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    /// Whether the directory is removed in the end. Otherwise kubeconfig, logs and audit log stay.
    temporary: bool,
}

impl Layout {
    /// A temporary directory with a new name. Does not create it.
    pub(crate) fn temporary() -> Self {
        let name = format!("nodewright-control-plane-{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { root: std::env::temp_dir().join(name), temporary: true }
    }

    /// A directory that the caller chose. Creates it.
    pub(crate) fn given(directory: &Path) -> Result<Self, ControlPlaneError> {
        create_directory(directory)?;
        let root = directory.canonicalize().map_err(ControlPlaneError::file("find", directory))?;
        Ok(Self { root, temporary: false })
    }

    /// Locks a directory that the caller chose; a temporary one has no lock. The lock is held while the file is open.
    pub(crate) async fn lock(&self) -> Result<Option<File>, ControlPlaneError> {
        if self.temporary {
            return Ok(None);
        }
        let path = self.root.join("lock");
        let file = File::create(&path).map_err(ControlPlaneError::file("create", &path))?;
        let since = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(source)) => return Err(ControlPlaneError::file("lock", path)(source)),
                Err(TryLockError::WouldBlock) if since.elapsed() > LOCK_TIMEOUT => {
                    return Err(ControlPlaneError::Locked { path });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_INTERVAL).await,
            }
        }
    }

    /// The paths to remove in the end.
    pub(crate) fn disposable(&self) -> Vec<PathBuf> {
        if self.temporary { vec![self.root.clone()] } else { vec![self.etcd_data(), self.certificates(), self.nodes()] }
    }

    /// Creates the directories, and removes the files of an earlier control plane.
    pub(crate) fn prepare(&self) -> Result<(), ControlPlaneError> {
        create_directory(&self.root)?;
        for stale in [self.etcd_data(), self.certificates(), self.logs(), self.kubeconfigs()] {
            remove(&stale, std::fs::remove_dir_all(&stale))?;
            create_directory(&stale)?;
        }
        let audit_log = self.audit_log();
        remove(&audit_log, std::fs::remove_file(&audit_log))
    }

    pub(crate) fn etcd_data(&self) -> PathBuf {
        self.root.join("etcd")
    }

    pub(crate) fn certificates(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    pub(crate) fn kubeconfigs(&self) -> PathBuf {
        self.root.join("kubeconfigs")
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.root.join("audit.log")
    }

    /// The directory of the network of real nodes.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// The API server's configuration of the ways to nodes and pods.
    pub(crate) fn egress(&self) -> PathBuf {
        self.root.join("egress.yaml")
    }

    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.root.join("audit-policy.yaml")
    }
}

fn create_directory(path: &Path) -> Result<(), ControlPlaneError> {
    let result = DirBuilder::new().recursive(true).mode(0o700).create(path);
    result.map_err(ControlPlaneError::file("create the directory", path))
}

/// The result of a removal. A missing file is no error.
fn remove(path: &Path, result: std::io::Result<()>) -> Result<(), ControlPlaneError> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(ControlPlaneError::file("remove", path)),
    }
}
