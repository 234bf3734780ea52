//! A process whose clock is wrong. Linux only.

use std::{path::Path, process::Command};

const SOURCE: &str = include_str!("clock_shift.c");

/// The environment of a process whose time of day is so many seconds ahead of this computer's. Builds a small library in
/// `directory`, for which it needs a C compiler.
pub fn shifted_clock(directory: &Path, seconds: i64) -> Result<Vec<(String, String)>, std::io::Error> {
    let (source, library) = (directory.join("clock_shift.c"), directory.join("libclock_shift.so"));
    std::fs::write(&source, SOURCE)?;
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status()?;
    if !compiled.success() {
        return Err(std::io::Error::other("cc failed to build the library that shifts a clock"));
    }
    let variables = [("LD_PRELOAD", library.display().to_string()), ("CLOCK_SHIFT", seconds.to_string())];
    Ok(variables.map(|(name, value)| (name.to_owned(), value)).into())
}
