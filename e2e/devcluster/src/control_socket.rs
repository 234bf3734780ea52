//! What commands ask of the keeper, over a socket in the directory of the set: one line with an order as JSON, then
//! lines with answers.
//!
//! The path of a socket may have about a hundred bytes, and that of a checkout may be longer. So both sides go by a
//! path relative to the directory of the set, which is their working directory.

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

use crate::directory::RunDirectory;

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Tell what happens until everything was started.
    Follow,
    /// Start the manager, which has ended.
    StartManager {
        /// Its executable.
        program: PathBuf,
        /// More flags for it.
        flags: Vec<String>,
    },
    /// Which processes run?
    Status,
    /// End everything.
    Stop,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Something happened; more answers follow.
    Told {
        /// What it was.
        line: String,
    },
    /// It is done.
    Done {
        /// The processes that do not run and should.
        missing: Vec<String>,
    },
    /// It cannot be done.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// Listens in the directory. A socket that was left by a keeper that is gone is replaced.
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

    /// Connects to the keeper of a directory; `None` if there is none.
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

    /// The next message; `None` when the other side has closed the connection.
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
