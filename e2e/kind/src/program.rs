//! Programs that are run to their end.

use std::{
    ffi::{OsStr, OsString},
    process::Stdio,
};

use tokio::{io::AsyncWriteExt, process::Command};

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It did not start, or its output was lost.
    #[error("failed to run {0:?}")]
    Run(String, #[source] std::io::Error),
    /// It ended with an error.
    #[error("{0:?} failed: {1}")]
    Failed(String, String),
}

/// A program with its arguments. It is killed when its future is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
    text: String,
    input: Option<String>,
}

impl Program {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let text = program.as_ref().to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.kill_on_drop(true);
        Self { command, text, input: None }
    }

    /// Adds arguments that are separated by single spaces.
    pub(crate) fn with(self, arguments: &str) -> Self {
        self.arguments(arguments.split(' '))
    }

    pub(crate) fn arguments<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments: Vec<OsString> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        for argument in &arguments {
            self.text.extend([" ", &*argument.to_string_lossy()]);
        }
        self.command.args(arguments);
        self
    }

    pub(crate) fn environment(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn input(self, text: impl Into<String>) -> Self {
        Self { input: Some(text.into()), ..self }
    }

    /// Runs it and returns its standard output.
    pub(crate) async fn output(mut self) -> Result<String, ProgramError> {
        let failed = |error| ProgramError::Run(self.text.clone(), error);
        self.command.stdin(if self.input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let (Some(mut pipe), Some(text)) = (child.stdin.take(), &self.input) {
            pipe.write_all(text.as_bytes()).await.map_err(failed)?;
        }
        let output = child.wait_with_output().await.map_err(failed)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(ProgramError::Failed(self.text, format!("{} {}", text(&output.stderr), text(&output.stdout))))
    }

    /// Runs it with the terminal of this process.
    pub(crate) async fn attached(mut self) -> Result<(), ProgramError> {
        let status = self.command.status().await.map_err(|error| ProgramError::Run(self.text.clone(), error))?;
        if status.success() { Ok(()) } else { Err(ProgramError::Failed(self.text, status.to_string())) }
    }
}
