//! The socket of a driver.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, fchmod};
use tokio::net::{UnixListener, UnixSocket};

/// How many connections may wait to be accepted, as in tokio.
const BACKLOG: u32 = 1_024;

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
    /// The socket has its mode before it has a path: Linux gives the file the mode of the socket, less the umask. To set the umask
    /// for that moment would give it to each file that the process creates meanwhile.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |reason: String| BindError { path: path.to_owned(), reason };
        remove_left(path).map_err(failed)?;
        let listen = || {
            let socket = UnixSocket::new_stream()?;
            fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(path)?;
            let inode = fs::symlink_metadata(path)?.ino();
            Ok::<_, io::Error>((socket.listen(BACKLOG)?, inode))
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
