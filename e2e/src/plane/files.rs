//! The directory of a control plane: what lies where, and who may read it.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::PlaneError;

/// How long a start waits for the clean-up of a control plane that used the same directory and was killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Where a control plane keeps its files.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    /// Is the directory our own, to be removed as a whole? Else only what is of no use later is removed.
    temporary: bool,
}

impl Layout {
    /// A new name for a temporary directory, which is not created yet.
    pub(crate) fn temporary() -> Self {
        let name = format!("nodewright-plane-{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { root: std::env::temp_dir().join(name), temporary: true }
    }

    /// A directory of the caller's choice.
    pub(crate) fn given(directory: &Path) -> Result<Self, PlaneError> {
        create_directory(directory)?;
        let root = directory.canonicalize().map_err(PlaneError::file("find", directory))?;
        Ok(Self { root, temporary: false })
    }

    /// Takes the lock of a given directory; a temporary one needs none. It is held as long as the file is open.
    pub(crate) fn lock(&self) -> Result<Option<File>, PlaneError> {
        if self.temporary {
            return Ok(None);
        }
        let path = self.root.join("lock");
        let file = File::create(&path).map_err(PlaneError::file("create", &path))?;
        let since = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(source)) => return Err(PlaneError::file("lock", path)(source)),
                Err(TryLockError::WouldBlock) if since.elapsed() > LOCK_PATIENCE => {
                    return Err(PlaneError::Locked { path });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// What is to be removed in the end.
    pub(crate) fn disposable(&self) -> Vec<PathBuf> {
        if self.temporary { vec![self.root.clone()] } else { vec![self.etcd_data(), self.certificates()] }
    }

    /// Creates the directories, and empties those that would carry something over from an earlier control plane.
    pub(crate) fn prepare(&self) -> Result<(), PlaneError> {
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

    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.root.join("audit-policy.yaml")
    }
}

/// Writes a file that nobody else may read: most of what a control plane writes holds keys.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), PlaneError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let result = options.open(path).and_then(|mut file| file.write_all(content.as_bytes()));
    result.map_err(PlaneError::file("write", path))
}

fn create_directory(path: &Path) -> Result<(), PlaneError> {
    let result = DirBuilder::new().recursive(true).mode(0o700).create(path);
    result.map_err(PlaneError::file("create the directory", path))
}

/// The outcome of a removal; what was not there is removed, too.
fn remove(path: &Path, result: std::io::Result<()>) -> Result<(), PlaneError> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(PlaneError::file("remove", path)),
    }
}
