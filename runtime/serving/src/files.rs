//! The limit of open files.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, as Go programs do. Each connection uses a file, and container
/// runtimes start with 1,024. Returns the limit; `None` means unlimited.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}
