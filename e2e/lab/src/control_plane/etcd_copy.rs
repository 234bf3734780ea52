//! Copies of etcd's data, and setting etcd back to one.

use std::path::{Path, PathBuf};

use crate::control_plane::{Component, ControlPlane, ControlPlaneError};

/// etcd's data at one moment, in the directory of the control plane.
#[derive(Debug)]
pub struct EtcdCopy(PathBuf);

impl ControlPlane {
    /// Copies etcd's data under a name, while etcd is paused.
    pub async fn copy_etcd(&self, name: &str) -> Result<EtcdCopy, ControlPlaneError> {
        let copy = self.layout.root.join(format!("etcd-{name}"));
        self.pause(Component::Etcd)?;
        let copied = copy_directory(&self.layout.etcd_data(), &copy).await;
        self.unpause(Component::Etcd)?;
        copied?;
        self.wait_until_ready(Component::Etcd).await?;
        Ok(EtcdCopy(copy))
    }

    /// Sets etcd back: everything that was written since the copy is undone, and its versions will be assigned again. All
    /// components start again, as Kubernetes recommends.
    pub async fn set_etcd_back(&self, copy: &EtcdCopy) -> Result<(), ControlPlaneError> {
        let running: Vec<_> = self.pids().into_keys().collect();
        for component in running.iter().rev() {
            self.stop(*component)?;
        }
        let data = self.layout.etcd_data();
        tokio::fs::remove_dir_all(&data).await.map_err(ControlPlaneError::file("remove", &data))?;
        copy_directory(&copy.0, &data).await?;
        // The API server waits for etcd, and etcd counts as ready when the API server is.
        self.launch(Component::Etcd)?;
        for component in running.into_iter().filter(|component| *component != Component::Etcd) {
            self.start_again(component).await?;
        }
        Ok(())
    }
}

/// Copies a directory, which must not exist at the new place. Not `*.tmp`: 64 MB of room for what etcd's log will write, which
/// etcd makes again by itself.
async fn copy_directory(from: &Path, to: &Path) -> Result<(), ControlPlaneError> {
    let mut open = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = open.pop() {
        tokio::fs::create_dir(&to).await.map_err(ControlPlaneError::file("create the directory", &to))?;
        let mut entries = tokio::fs::read_dir(&from).await.map_err(ControlPlaneError::file("read", &from))?;
        while let Some(entry) = entries.next_entry().await.map_err(ControlPlaneError::file("read", &from))? {
            let (path, copy) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() {
                open.push((path, copy));
            } else if path.extension().is_none_or(|extension| extension != "tmp") {
                tokio::fs::copy(&path, &copy).await.map_err(ControlPlaneError::file("copy", &path))?;
            }
        }
    }
    // etcd refuses data that others may read.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    tokio::fs::set_permissions(to, mode).await.map_err(ControlPlaneError::file("protect", to))
}
