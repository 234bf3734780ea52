//! The control socket of the daemon, in the directory of the devcluster. A client sends one line with a [`Request`] as JSON,
//! and receives lines with [`Response`]s.
//!
//! The path of a socket is limited to about a hundred bytes; the path of a checkout may be longer. Both sides therefore change
//! their working directory to the directory of the devcluster, and use a relative path.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::devcluster::directory::RunDirectory;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Report progress until everything was started.
    Follow,
    /// Start the manager, which has ended.
    StartManager {
        /// Its executable.
        program: PathBuf,
        /// Its additional flags.
        flags: Vec<String>,
    },
    /// Report which processes are missing.
    Status,
    /// End the devcluster.
    Stop,
}

/// The daemon's response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub(crate) enum Response {
    /// An event. More responses follow.
    Progress {
        /// The description of the event.
        line: String,
    },
    /// The request succeeded.
    Done {
        /// Processes that should run and do not.
        missing: Vec<String>,
    },
    /// The request failed.
    Failed {
        /// Why it failed.
        reason: String,
    },
}

impl Response {
    /// Success, with nothing missing.
    pub(crate) const fn done() -> Self {
        Self::Done { missing: Vec::new() }
    }
}

/// Listens in the directory. Replaces the socket of a daemon that was killed.
pub(crate) fn listen(directory: &RunDirectory) -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(directory.socket());
    UnixListener::bind(relative(directory)?)
}

fn relative(directory: &RunDirectory) -> io::Result<PathBuf> {
    std::env::set_current_dir(directory.root())?;
    directory.socket().file_name().map(|name| Path::new(name).to_owned()).ok_or_else(|| io::Error::other("no name"))
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (from, to) = stream.into_split();
        Self { from: BufReader::new(from), to }
    }

    /// Connects to the daemon of a directory. `None` if there is none.
    pub(crate) async fn open(directory: &RunDirectory) -> io::Result<Option<Self>> {
        match UnixStream::connect(relative(directory)?).await {
            Ok(stream) => Ok(Some(Self::new(stream))),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.to.write_all(&line).await
    }

    /// The next message. `None` when the other side has closed the connection.
    pub(crate) async fn receive<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        match self.from.read_line(&mut line).await {
            Ok(0) => Ok(None),
            // The other side was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}
