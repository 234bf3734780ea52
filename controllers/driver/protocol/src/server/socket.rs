//! The socket of a driver.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener as StdListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, process::umask};
use tokio::net::UnixListener;

/// A Unix socket that its user alone may use.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// The path of a socket is removed when its server ends, unless another one has taken it since.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// The socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("failed to serve the socket {}: {reason}", path.display())]
pub struct BindError {
    path: PathBuf,
    reason: String,
}

impl Socket {
    /// Binds a path, in place of a socket that nobody serves any more.
    ///
    /// Other files that this process creates at the same moment are the user's alone, too: the mode of a socket follows from the
    /// process's umask.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |reason: String| BindError { path: path.to_owned(), reason };
        remove_left(path).map_err(failed)?;
        let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = StdListener::bind(path);
        umask(before);
        let listen = || {
            let listener = bound?;
            listener.set_nonblocking(true)?;
            let inode = fs::symlink_metadata(path)?.ino();
            Ok::<_, io::Error>((UnixListener::from_std(listener)?, inode))
        };
        let (listener, inode) = listen().map_err(|error| failed(error.to_string()))?;
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), inode } })
    }

    pub(crate) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// Removes the socket that a process has left which was killed.
fn remove_left(path: &Path) -> Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err("it is a file of another kind; give another path, or remove it".to_owned());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("another process serves it; end that first".to_owned()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // It matters to nobody: the next one to bind the path removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}
