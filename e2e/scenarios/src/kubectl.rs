//! kubectl, called as users call it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::io::AsyncWriteExt;

use crate::{Failure, TestResult};

/// kubectl with its own kubeconfig and cache.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    /// Discovery results of a stopped server must not stay in the user's home directory.
    pub(crate) cache: PathBuf,
}

/// The result of kubectl.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Kubectl {
    /// Runs kubectl, with `input` as its standard input.
    pub(crate) async fn run(&self, arguments: &[String], input: Option<&str>) -> TestResult<Ended> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("KUBECACHEDIR", &self.cache).kill_on_drop(true);
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: std::io::Error| failed(&self.program, &error);
        let mut child = command.spawn().map_err(failed)?;
        if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
            // kubectl reads all input before it does anything, so this cannot block on its output.
            stdin.write_all(text.as_bytes()).await.map_err(failed)?;
        }
        let output = child.wait_with_output().await.map_err(failed)?;
        Ok(Ended {
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }
}

fn failed(program: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("failed to run {}: {error}", program.display()))
}

/// The table that `kubectl get` prints, with a header. Column positions delimit the cells, so cells may be empty.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Parses one table.
    pub fn parse(text: &str) -> TestResult<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().ok_or_else(|| Failure::new("kubectl printed no table"))?;
        let starts = starts(first);
        let cells = |line: &str| -> Vec<String> {
            let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
            let columns = starts.iter().zip(ends);
            columns.map(|(start, end)| slice(line, *start, end).trim().to_owned()).collect()
        };
        Ok(Self { head: cells(first), rows: lines.map(cells).collect() })
    }

    /// The names of the columns, as printed.
    pub fn head(&self) -> &[String] {
        &self.head
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All cells of a column, from top to bottom.
    pub fn column(&self, name: &str) -> TestResult<Vec<&str>> {
        let unknown = || Failure::new(format!("there is no column {name}, but {}", self.head.join(", ")));
        let index = self.head.iter().position(|head| head == name).ok_or_else(unknown)?;
        Ok(self.rows.iter().map(|row| row[index].as_str()).collect())
    }
}

/// The positions of the columns: each word of the header that follows more than one space. Headers contain only single spaces.
fn starts(head: &str) -> Vec<usize> {
    let bytes = head.as_bytes();
    let begins = |at: usize| bytes[at] != b' ' && (at == 0 || (at >= 2 && bytes[at - 2..at] == *b"  "));
    (0..bytes.len()).filter(|at| begins(*at)).collect()
}

fn slice(line: &str, start: usize, end: usize) -> &str {
    line.get(start..end.min(line.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_with_empty_cells() {
        let text = "NAME   STATUS    NODE   UP-TO-DATE\na      Running   n-a    3\nb                       0\n";
        let table = Table::parse(text).unwrap();
        assert_eq!(table.head(), ["NAME", "STATUS", "NODE", "UP-TO-DATE"]);
        assert_eq!(table.column("STATUS").unwrap(), ["Running", ""]);
        assert_eq!(table.column("NODE").unwrap(), ["n-a", ""]);
        assert_eq!(table.column("UP-TO-DATE").unwrap(), ["3", "0"]);
        assert!(table.column("AGE").unwrap_err().to_string().contains("there is no column AGE"));
    }
}
