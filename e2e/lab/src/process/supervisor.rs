//! Ends child processes and removes files when their owner ends, however the owner ends.
//!
//! # Guarantees
//!
//! * Dropping the [`Supervisor`] kills all processes that it started and removes its paths. Both are done when `drop`
//!   returns.
//! * The same happens when this process ends in any other way: by a panic that aborts, by `kill -9`. The watcher, a small
//!   shell, holds the read end of a pipe whose only write end belongs to this process. The kernel closes the pipe when
//!   this process ends; then the watcher kills and removes.
//! * A signal to the foreground group of the terminal (Ctrl-C) reaches neither the watcher nor the processes: they have
//!   process groups of their own. The owner decides what Ctrl-C does.
//!
//! # Assumptions
//!
//! * `sh`, `sleep` and `rm` are in the PATH.
//! * A process that the supervisor started stays in its process group.
//!
//! # Caveats
//!
//! * `kill -9` of both this process and its watcher leaves everything behind.

use std::{
    fs::File,
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::process::ProcessError;

/// Leads the process group of all processes. It does nothing, and ends when this process ends. A group needs a leader that
/// lives as long as processes may join it.
const ANCHOR: &str = "trap '' HUP INT TERM; while read -r _; do :; done";

/// Waits for the end of this process, then kills the group `$1` and removes the paths that follow.
///
/// It repeats the kill until the group is empty, for two seconds at most (zombies may remain): a process whose start was
/// under way when its parent was killed may join the group late.
const WATCHER: &str = r#"
trap '' HUP INT TERM
group=$1
shift
while read -r _; do :; done
tries=0
while kill -s KILL -- "-$group" 2>/dev/null && [ "$tries" -lt 100 ]; do
    tries=$((tries + 1))
    sleep 0.02
done
rm -rf -- "$@"
"#;

/// Owns a process group and some paths, and ends both with this process. See the [module](self).
#[derive(Debug)]
pub struct Supervisor {
    group: i32,
    // Fields are dropped in this order. The anchor is reaped first, so the watcher finds an empty group.
    _anchor: Shell,
    _watcher: Shell,
}

impl Supervisor {
    /// Starts watching. `paths` must be absolute. Call this before they exist: a kill between their creation and this
    /// call would leave them behind.
    ///
    /// The watcher keeps `lock` open, and thereby locked, until everything is cleaned up.
    pub fn start(paths: &[PathBuf], lock: Option<&File>) -> Result<Self, ProcessError> {
        debug_assert!(paths.iter().all(|path| path.is_absolute()), "the watcher runs in /");
        let result = Self::start_shells(paths, lock);
        result.map_err(|source| ProcessError::Spawn { program: PathBuf::from("sh"), source })
    }

    fn start_shells(paths: &[PathBuf], lock: Option<&File>) -> io::Result<Self> {
        let anchor = Shell::start(&mut shell(ANCHOR))?;
        let mut watcher = shell(WATCHER);
        watcher.arg(anchor.0.id().to_string()).args(paths);
        if let Some(lock) = lock {
            // The lock lives as long as the file is open somewhere. The watcher has it as its standard output.
            watcher.stdout(lock.try_clone()?);
        }
        let watcher = Shell::start(&mut watcher)?;
        let group = i32::try_from(anchor.0.id()).map_err(io::Error::other)?;
        Ok(Self { group, _anchor: anchor, _watcher: watcher })
    }

    /// Starts a process that ends with this one. Overwrites the command's process group.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(self.group).spawn()
    }
}

/// A shell that ends when its standard input is closed. Dropping this closes it and waits for the shell's end.
#[derive(Debug)]
struct Shell(Child);

impl Shell {
    fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            tracing::warn!(%error, pid = self.0.id(), "failed to wait for a supervising shell");
        }
    }
}

/// A shell in a process group of its own, with a pipe as standard input.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "nodewright-supervisor"]);
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
