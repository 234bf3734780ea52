//! Commands of the system.

use std::{
    ffi::OsStr,
    io::Write,
    process::{Command, Output, Stdio},
};

use crate::node::NodeError;

/// Runs a command to its end, and returns what it prints.
pub(crate) fn run(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String, NodeError> {
    run_with(program, arguments, "")
}

/// The same, with a text as its standard input.
pub(crate) fn run_with(
    program: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    input: &str,
) -> Result<String, NodeError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output(&mut command, input).map_err(|error| failed(&command, error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(failed(&command, format!("it ended with {}: {}", output.status, stderr.trim())))
}

fn output(command: &mut Command, input: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}

fn failed(command: &Command, reason: String) -> NodeError {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    NodeError::Command { command: words.join(" "), reason }
}
