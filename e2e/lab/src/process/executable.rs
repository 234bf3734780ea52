//! Finding the executables that the workspace builds, and the repository.

use std::path::{Path, PathBuf};

use crate::process::ProcessError;

/// The path of the executable `name`: the value of the environment variable `variable`, or the file of that name beside
/// the present executable. Cargo puts the executables of tests one directory deeper, so the parent directory counts too.
pub fn executable(name: &str, variable: &'static str) -> Result<PathBuf, ProcessError> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    // An unknown path of the present executable has no ancestors: nothing is found then.
    let present = std::env::current_exe().unwrap_or_default();
    let directories = present.ancestors().skip(1).take(2);
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| ProcessError::Executable { name: name.to_owned(), beside: present.clone(), variable })
}

/// The directory of the workspace's executables: that of the present one, or the one above that of tests.
pub fn executables() -> PathBuf {
    let present = std::env::current_exe().unwrap_or_default();
    let directory = present.parent().unwrap_or(Path::new(""));
    let above = directory.parent().filter(|_| directory.ends_with("deps"));
    above.unwrap_or(directory).to_owned()
}

/// The root of the repository that this was built from.
pub fn repository() -> &'static Path {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_root.ancestors().nth(2).unwrap_or(crate_root)
}
