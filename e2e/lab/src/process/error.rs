//! Errors of child processes.

use std::{error::Error, io, path::PathBuf, time::Duration};

/// Why a process could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The executable was not found.
    #[error("failed to find {name} beside {beside}: build it with `cargo build --workspace`, or name it by {variable}")]
    Executable {
        /// The name of the executable.
        name: String,
        /// The present executable.
        beside: PathBuf,
        /// The environment variable that names the executable.
        variable: &'static str,
    },
    /// A file operation failed.
    #[error("failed to {action} {path}")]
    File {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why the operation failed.
        source: io::Error,
    },
    /// The process could not be started.
    #[error("failed to start {program}")]
    Spawn {
        /// The executable.
        program: PathBuf,
        /// Why the start failed.
        source: io::Error,
    },
    /// The process ended without being asked to.
    #[error("{name} ended with {status}; the last lines of {log}:\n{tail}")]
    Exited {
        /// The name of the process.
        name: String,
        /// Its exit status.
        status: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// The process runs, but does not become ready.
    #[error("{name} was not ready after {waited:?}: {last}; the last lines of {log}:\n{tail}")]
    NotReady {
        /// The name of the process.
        name: String,
        /// The length of the wait.
        waited: Duration,
        /// The last answer of its readiness check.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// No port is free.
    #[error("failed to find a free port on 127.0.0.1 in {first}-{last}")]
    NoPort {
        /// The lowest port that was tried.
        first: u16,
        /// The highest port that was tried.
        last: u16,
    },
}

impl ProcessError {
    /// For `map_err` on file operations.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// Whether the process ended because another process had taken its port. Start it again with another port.
    pub fn is_port_clash(&self) -> bool {
        matches!(self, Self::Exited { tail, .. } if tail.to_ascii_lowercase().contains("address already in use"))
    }
}

/// An error and its causes on one line, outermost first. A cause that the text contains already is left out.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in causes(error).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.extend([": ", &cause]);
        }
    }
    text
}

/// The causes of an error, outermost first.
pub(crate) fn causes<'a>(error: &'a dyn Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let next = |cause: &&'a (dyn Error + 'static)| -> Option<&'a (dyn Error + 'static)> { (*cause).source() };
    std::iter::successors(error.source(), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_error_and_are_not_repeated() {
        let refused = || io::Error::other("refused");
        let error = ProcessError::file("open the log", "/x")(io::Error::other(format!("no: {}", refused())));
        assert_eq!(with_causes(&error), "failed to open the log /x: no: refused");
        assert_eq!(with_causes(&refused()), "refused");
    }
}
