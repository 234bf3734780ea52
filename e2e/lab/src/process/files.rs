//! Files that hold keys.

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use crate::process::ProcessError;

/// Writes a file that only its owner may read.
pub fn write_private(path: &Path, content: &str) -> Result<(), ProcessError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let result = options.open(path).and_then(|mut file| file.write_all(content.as_bytes()));
    result.map_err(ProcessError::file("write", path))
}
