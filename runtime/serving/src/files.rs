//! Room for connections.

use std::io;

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to what the system allows, as Go's programs do: each connection is one, and container
/// runtimes begin with 1,024. Returns the limit; none is none.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}
