//! Where the executables are that the workspace builds.

use std::path::PathBuf;

/// There is no executable.
#[derive(Debug, thiserror::Error)]
#[error("failed to find {name} beside {beside}: build it with `cargo build --workspace`, or name it by {variable}")]
pub struct BinaryError {
    /// What was looked for.
    pub name: String,
    /// The present executable.
    pub beside: PathBuf,
    /// The environment variable that names it.
    pub variable: &'static str,
}

/// An executable: as the environment says, or beside the present one (cargo puts tests one directory deeper).
pub(super) fn binary(name: &str, variable: &'static str) -> Result<PathBuf, BinaryError> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    // Where the present one is not known, nothing is found beside it either.
    let present = std::env::current_exe().unwrap_or_default();
    let directories = present.ancestors().skip(1).take(2);
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| BinaryError { name: name.to_owned(), beside: present.clone(), variable })
}
